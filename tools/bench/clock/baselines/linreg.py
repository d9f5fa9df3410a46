"""linuxptp's linreg servo (linreg.c) as a predictor: the line that it would steer by."""

from __future__ import annotations

from collections import deque

import numpy as np

# linreg.c: MIN_SIZE and MAX_SIZE are 2 and 6, powers of two.
_SIZES = np.array([4, 8, 16, 32, 64])
_ERR_SMOOTH = 0.02
_ERR_INITIAL_UPDATES = 10
_ERR_EQUALS = 1.05


class Linreg:
    """Lines through the last 4 to 64 points; the largest whose one-step error is within 5 % of the best is used.

    The servo works with the time that it has corrected and predicts the offset of the next update; here nothing is
    corrected, so the lines are those of the offset itself.
    """

    name = "linreg"

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque(maxlen=int(_SIZES[-1]))
        self._fitted = 0
        self._slope = np.zeros(len(_SIZES))
        self._intercept = np.zeros(len(_SIZES))
        self._error = np.zeros(len(_SIZES))
        self._updates = np.zeros(len(_SIZES))
        self._time_s = 0.0
        self._used: int | None = None

    def observe(self, time_s: float, offset_ns: float, delay_ns: float) -> None:
        """Take one measurement; the read delay plays no part in it."""
        self._judge(time_s, offset_ns)
        self._points.append((time_s, offset_ns))
        self._time_s = time_s
        fitted = int(np.searchsorted(_SIZES, len(self._points), side="right"))
        if fitted:
            points = np.array(self._points)[::-1]
            x, y = points[:, 0] - time_s, points[:, 1] - offset_ns
            sums = np.cumsum([x, y, x * y, x * x], axis=1)[:, _SIZES[:fitted] - 1]
            n = _SIZES[:fitted]
            slope = (sums[2] - sums[0] * sums[1] / n) / (sums[3] - sums[0] ** 2 / n)
            self._slope[:fitted] = slope
            self._intercept[:fitted] = offset_ns + (sums[1] - slope * sums[0]) / n
        self._fitted = fitted
        self._used = self._best_size()

    def predict(self, horizon_s: float) -> float:
        """Offset in ns, `horizon_s` after the last measurement."""
        if self._used is None:
            return self._points[-1][1] if self._points else 0.0
        return float(self._intercept[self._used] + self._slope[self._used] * horizon_s)

    def _judge(self, time_s: float, offset_ns: float) -> None:
        """Take the error of what each size has predicted for now into its average."""
        known = slice(0, self._fitted)
        error = np.abs(self._intercept[known] + self._slope[known] * (time_s - self._time_s) - offset_ns)
        updates = self._updates[known]
        starting = (self._error[known] * updates + error) / (updates + 1)
        going = self._error[known] + _ERR_SMOOTH * (error - self._error[known])
        self._error[known] = np.where(updates < _ERR_INITIAL_UPDATES, starting, going)
        self._updates[known] = np.minimum(updates + 1, _ERR_INITIAL_UPDATES)

    def _best_size(self) -> int | None:
        best = 0 if self._fitted else None
        for size in range(1, self._fitted):
            better = self._error[best or 0] * _ERR_EQUALS > self._error[size]
            if better and self._updates[size] >= _ERR_INITIAL_UPDATES:
                best = size
        return best
