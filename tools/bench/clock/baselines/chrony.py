"""chrony's regression (sourcestats.c, regress.c) as a predictor: weights by delay, asymmetry, runs test."""

from __future__ import annotations

from collections import deque

import numpy as np

from tools.bench.clock.oscillator import Floats

_MAX_SAMPLES = 64
_REGRESS_RUNS_RATIO = 2
_MIN_SAMPLES_FOR_REGRESS = 3
_DEFAULT_MIN_SAMPLES = 6
_SD_TO_DIST_RATIO = 0.7
_MAX_ASYMMETRY = 0.5
_MIN_ASYMMETRY = 0.45
_MIN_ASYMMETRY_RUN = 10
_MAX_ASYMMETRY_RUN = 1000
_PRECISION_NS = 25.0
"""What chrony measures of the local clock's reads on a host of today; it bounds the weights."""
# regress.c, 5 % of residuals of one line have no more runs of one sign than this, by their number.
_CRITICAL_RUNS = (
    0, 0, 0, 0, 0, 0, 0, 0, 2, 3, 3, 3, 4, 4, 5, 5, 5, 6, 6, 7, 7, 7, 8, 8, 9, 9, 9, 10, 10, 11,
    11, 11, 12, 12, 13, 13, 14, 14, 14, 15, 15, 16, 16, 17, 17, 18, 18, 18, 19, 19, 20, 20, 21, 21, 21, 22, 22, 23,
    23, 24, 24, 25, 25, 26, 26, 26, 27, 27, 28, 28, 29, 29, 30, 30, 30, 31, 31, 32, 32, 33, 33, 34, 34, 35, 35, 35,
    36, 36, 37, 37, 38, 38, 39, 39, 40, 40, 40, 41, 41, 42, 42, 43, 43, 44, 44, 45, 45, 46, 46, 46, 47, 47, 48, 48,
    49, 49, 50, 50, 51, 51, 52, 52, 52, 53, 53, 54, 54, 55, 55, 56,
)  # fmt: skip


class Chrony:
    """A weighted line through as many of the last 64 samples as are one line by the runs test."""

    name = "chrony"

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float, float]] = deque(maxlen=_MAX_SAMPLES * _REGRESS_RUNS_RATIO)
        self._count = 0
        self._offset_ns = 0.0
        self._slope = 0.0
        self._asymmetry = 0.0
        self._asymmetry_run = 0

    def observe(self, time_s: float, offset_ns: float, delay_ns: float) -> None:
        """Take one measurement and fit anew."""
        self._samples.append((time_s, offset_ns, delay_ns))
        self._count = min(self._count + 1, _MAX_SAMPLES)
        if self._count < _MIN_SAMPLES_FOR_REGRESS:
            self._offset_ns = offset_ns
            return
        # Older samples only extend the runs test, as many again at most.
        data = np.array(self._samples)[-self._count * _REGRESS_RUNS_RATIO :]
        back, delays = data[:, 0] - time_s, data[:, 2]
        offsets = self._symmetric(back, data[:, 1] - offset_ns, delays - delays.min())
        weights = 1 / _spreads(delays[-self._count :] / 2) ** 2
        start, intercept, self._slope = best_line(back, offsets, weights, _DEFAULT_MIN_SAMPLES)
        self._offset_ns = offset_ns + intercept
        self._count -= start

    def predict(self, horizon_s: float) -> float:
        """Offset in ns, `horizon_s` after the last measurement."""
        return self._offset_ns + self._slope * horizon_s

    def _symmetric(self, back: Floats, offsets: Floats, excess: Floats) -> Floats:
        """The offsets without what one-sided delay has added to them, once that has been seen ten times running."""
        slope = slope_against_delay(back, excess, offsets)
        if slope is None or slope * self._asymmetry_run < 0:
            self._asymmetry, self._asymmetry_run = 0.0, 0
            return offsets
        if abs(slope) >= _MIN_ASYMMETRY:
            run = self._asymmetry_run + (1 if slope > 0 else -1)
            self._asymmetry_run = max(-_MAX_ASYMMETRY_RUN, min(_MAX_ASYMMETRY_RUN, run))
        if abs(self._asymmetry_run) < _MIN_ASYMMETRY_RUN:
            return offsets
        self._asymmetry = max(-_MAX_ASYMMETRY, min(_MAX_ASYMMETRY, slope))
        return offsets - self._asymmetry * excess


def slope_against_delay(back: Floats, delays: Floats, offsets: Floats) -> float | None:
    """Coefficient of the delay in a regression of the offset on time and delay; None where there is none."""
    if len(back) < 4:
        return None
    t, d, o = back - back.mean(), delays - delays.mean(), offsets - offsets.mean()
    tt, dd, td = float(t @ t), float(d @ d), float(t @ d)
    determinant = tt * dd - td * td
    if determinant <= 1e-12 * tt * dd:
        return None
    return (tt * float(d @ o) - td * float(t @ o)) / determinant


def best_line(back: Floats, offsets: Floats, weights: Floats, keep: int) -> tuple[int, float, float]:
    """Drop the oldest of the `len(weights)` newest until the residuals pass the runs test, or `keep` are left.

    Returns (how many were dropped, intercept at time 0, slope). Older ones than have weights extend the test.
    """
    count, older = len(weights), len(back) - len(weights)
    x, y = back[older:], offsets[older:]
    # Sums over the newest n, for every n: dropping one costs no new sum.
    sums = np.cumsum([weights, weights * x, weights * y, weights * x * x, weights * x * y], axis=1)
    for start in range(count):
        w, wx, wy, wxx, wxy = sums[:, -1] - (sums[:, start - 1] if start else 0.0)
        slope = (wxy - wx * wy / w) / (wxx - wx * wx / w)
        intercept = (wy - slope * wx) / w
        tested = min((count - start) * _REGRESS_RUNS_RATIO, len(back))
        residuals = offsets[-tested:] - intercept - slope * back[-tested:]
        signs = np.sign(residuals)
        runs = 1 + int(np.count_nonzero((signs[1:] != signs[:-1]) | (signs[1:] == 0)))
        left = count - start
        if runs > _CRITICAL_RUNS[tested] or left <= max(_MIN_SAMPLES_FOR_REGRESS, keep):
            return start, float(intercept), float(slope)
    raise AssertionError("a line is left at the latest with the fewest points")


def _spreads(distances: Floats) -> Floats:
    """Relative standard deviation of each sample by how much its distance is above the shortest."""
    shortest = float(distances.min())
    # RGR_FindMedian of the distances stands for the usual one.
    sd = (float(np.median(distances)) - shortest) / _SD_TO_DIST_RATIO
    sd = max(_PRECISION_NS, min(sd, shortest)) if shortest > _PRECISION_NS else _PRECISION_NS
    return 1 + np.maximum(distances - shortest - _PRECISION_NS, 0.0) / sd
