"""How steady a clock is: ADEV, TDEV and MTIE of its phase.

The phase (time error) comes as evenly spaced floats of any unit: ns gives ADEV in ppb, TDEV and MTIE in ns. It has to
be small against 2^53 units, so take an epoch out of it first. Formulas: NIST SP 1065 (W. J. Riley, Handbook of
Frequency Stability Analysis, 2008) and ITU-T G.810.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def adev(phase: npt.ArrayLike, tau0_s: float, m: int, *, overlapping: bool = True) -> float:
    """Return the Allan deviation at `m` times the spacing `tau0_s` of `phase` (float64[n]), in its unit per second.

    SP 1065, overlapping Allan variance: sqrt(1/(2 (N-2m) (m tau0)^2) sum (x[i+2m] - 2 x[i+m] + x[i])^2). Without
    `overlapping` it is the original Allan variance, of every m-th phase. NaN for fewer than 2m + 1 phases.
    """
    x = _series(phase, m)
    second = x[2 * m :] - 2.0 * x[m:-m] + x[: -2 * m] if overlapping else np.diff(x[::m], n=2)
    return _rms(second) / (sqrt(2.0) * m * tau0_s)


def tdev(phase: npt.ArrayLike, m: int) -> float:
    """Return the time deviation at `m` times the spacing of `phase` (float64[n]), in its unit.

    SP 1065, time variance: sqrt(1/(6 (N-3m+1)) sum (a[i+2m] - 2 a[i+m] + a[i])^2), a[i] the mean of m
    phases from i. NaN for fewer than 3m phases.
    """
    x = _series(phase, m)
    # Means of m neighbours as differences of a running sum; its size is kept down by taking the mean out first.
    total = np.concatenate(([0.0], np.cumsum(x - x.mean() if len(x) else x)))
    means = (total[m:] - total[:-m]) / m
    return _rms(means[2 * m :] - 2.0 * means[m:-m] + means[: -2 * m]) / sqrt(6.0)


def mtie(phase: npt.ArrayLike, n: int) -> float:
    """Return the maximum time interval error over `n` times the spacing of `phase` (float64[N]), in its unit.

    G.810 II.5: the largest peak-to-peak of any n + 1 neighbours. NaN for fewer than n + 1 phases.
    """
    x = _series(phase, n)
    if len(x) < n + 1:
        return float("nan")
    return float(np.max(_window(np.maximum, x, n + 1) - _window(np.minimum, x, n + 1)))


def _series(phase: npt.ArrayLike, factor: int) -> FloatArray:
    if factor < 1:
        raise ValueError(f"the averaging factor is {factor}, it begins at 1")
    return np.asarray(phase, dtype=np.float64)


def _rms(values: FloatArray) -> float:
    return sqrt(float(np.dot(values, values)) / len(values)) if len(values) else float("nan")


def _window(extreme: np.ufunc, x: FloatArray, width: int) -> FloatArray:
    """Return the extreme of every `width` neighbours, by doubling: two windows of 2^k cover one of up to 2^(k+1)."""
    reach = 1
    while 2 * reach <= width:
        x = extreme(x[:-reach], x[reach:])
        reach *= 2
    rest = width - reach
    out: FloatArray = extreme(x[:-rest], x[rest:]) if rest else x
    return out
