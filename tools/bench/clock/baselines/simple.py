"""What people start with: the last offset, and its average over a second."""

from __future__ import annotations

from collections import deque

_AVERAGE_S = 1.0


class Hold:
    """The last offset, for ever."""

    name = "hold"

    def __init__(self) -> None:
        self._offset_ns = 0.0

    def observe(self, time_s: float, offset_ns: float, delay_ns: float) -> None:
        """Take one measurement."""
        self._offset_ns = offset_ns

    def predict(self, horizon_s: float) -> float:
        """Offset in ns, `horizon_s` after the last measurement."""
        return self._offset_ns


class MovingAverage:
    """The mean offset of the last second, for ever."""

    name = "average"

    def __init__(self) -> None:
        self._offsets: deque[tuple[float, float]] = deque()
        self._sum_ns = 0.0

    def observe(self, time_s: float, offset_ns: float, delay_ns: float) -> None:
        """Take one measurement."""
        self._offsets.append((time_s, offset_ns))
        while self._offsets[0][0] <= time_s - _AVERAGE_S:
            self._offsets.popleft()
        self._sum_ns = sum(offset for _, offset in self._offsets)

    def predict(self, horizon_s: float) -> float:
        """Offset in ns, `horizon_s` after the last measurement."""
        return self._sum_ns / len(self._offsets) if self._offsets else 0.0
