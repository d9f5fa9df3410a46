"""TDEV and MTIE of a series of any length, in bounded memory: one short history for each octave of tau.

Level k sees the series as means (and extremes) of 2^k neighbours. Up to 8 samples the figures are those of
`agent.clock.stability`, term by term. Beyond, m = 8 * 2^k samples are 8 values of level k: the same averages and
windows, but beginning at every m/8-th sample only. TDEV so has fewer terms, each the same; MTIE can miss what of a peak
is between two beginnings.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

_TOP = 8
_FACTORS = (1, 2, 4, _TOP)
# Second differences of means of m values reach over 3m.
_HISTORY = 3 * _TOP - 1
_LEVELS = 48


class OctaveStability:
    """TDEV and MTIE of C columns, fed in portions of evenly spaced rows.

    NaN is a missing value: terms with one are left out.
    """

    def __init__(self, columns: int) -> None:
        self._levels: list[_Level] = []
        self._columns = columns

    def feed(self, rows: FloatArray) -> None:
        """Take the next rows, float64[n, C], spaced as those before."""
        means, low, high = rows, rows, rows
        for k in range(_LEVELS):
            if len(means) == 0:
                return
            if k == len(self._levels):
                self._levels.append(_Level(self._columns, _FACTORS if k == 0 else (_TOP,)))
            means, low, high = self._levels[k].feed(means, low, high)

    def interrupt(self) -> None:
        """Say that the next row isn't the neighbour of the last one."""
        for level in self._levels:
            level.interrupt()

    def tdev(self) -> list[tuple[int, FloatArray]]:
        """Return (m, TDEV at m spacings: float64[C]) for every octave with a term; NaN where a column has none."""
        return [
            (m << k, np.sqrt(_ratio(level.squares[i], level.terms[i]) / 6.0))
            for k, level in enumerate(self._levels)
            for i, m in enumerate(level.factors)
            if level.terms[i].any()
        ]

    def mtie(self) -> list[tuple[int, FloatArray]]:
        """Return (n, MTIE over n spacings: float64[C]) for n = 1, 3, 7, 15, …; NaN where a column has none."""
        return [
            ((m << k) - 1, np.where(level.peaks[i] >= 0.0, level.peaks[i], np.nan))
            for k, level in enumerate(self._levels)
            for i, m in enumerate(level.factors)
            if m > 1 and (level.peaks[i] >= 0.0).any()
        ]


class _Level:
    """Means, minima and maxima of 2^k neighbours, and what their windows came to so far."""

    def __init__(self, columns: int, factors: tuple[int, ...]) -> None:
        self.factors = factors
        self.squares = np.zeros((len(factors), columns))
        self.terms = np.zeros((len(factors), columns), dtype=np.int64)
        self.peaks = np.full((len(factors), columns), -1.0)
        self._none = np.empty((0, columns))
        self.interrupt()

    def interrupt(self) -> None:
        """Forget the neighbours."""
        self._history = (self._none, self._none, self._none)
        self._odd = (self._none, self._none, self._none)

    def feed(self, means: FloatArray, low: FloatArray, high: FloatArray) -> tuple[FloatArray, ...]:
        """Take new values; return those of the next level that they complete."""
        fresh = len(means)
        new = (means, low, high)
        joined = [np.concatenate(pair) for pair in zip(self._history, new, strict=True)]
        for i, m in enumerate(self.factors):
            self._add_tdev(i, m, joined[0][-(fresh + 3 * m - 1) :])
            self._add_mtie(i, m, joined[1][-(fresh + m - 1) :], joined[2][-(fresh + m - 1) :])
        self._history = (joined[0][-_HISTORY:], joined[1][-_HISTORY:], joined[2][-_HISTORY:])
        pairs = [np.concatenate(pair) for pair in zip(self._odd, new, strict=True)]
        even = len(pairs[0]) // 2 * 2
        self._odd = (pairs[0][even:], pairs[1][even:], pairs[2][even:])
        return (
            (pairs[0][:even:2] + pairs[0][1:even:2]) / 2.0,
            np.minimum(pairs[1][:even:2], pairs[1][1:even:2]),
            np.maximum(pairs[2][:even:2], pairs[2][1:even:2]),
        )

    def _add_tdev(self, i: int, m: int, values: FloatArray) -> None:
        if len(values) < 3 * m:
            return
        means = np.lib.stride_tricks.sliding_window_view(values, m, axis=0).mean(axis=-1)
        second = means[2 * m :] - 2.0 * means[m:-m] + means[: -2 * m]
        known = ~np.isnan(second)
        self.squares[i] += np.where(known, second * second, 0.0).sum(axis=0)
        self.terms[i] += known.sum(axis=0)

    def _add_mtie(self, i: int, m: int, low: FloatArray, high: FloatArray) -> None:
        if len(low) < m:
            return
        view = np.lib.stride_tricks.sliding_window_view
        span = view(high, m, axis=0).max(axis=-1) - view(low, m, axis=0).min(axis=-1)
        self.peaks[i] = np.fmax(self.peaks[i], np.fmax.reduce(span, axis=0))


def _ratio(total: FloatArray, count: npt.NDArray[np.int64]) -> FloatArray:
    ratio: FloatArray = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
    return ratio
