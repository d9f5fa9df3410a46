"""The arrivals that a batch window has to serve: those of the latest seconds, at the rate that is expected next."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from agent.batch.consumers import Reported

IntArray = npt.NDArray[np.int64]

_SPAN_NS = 2_000_000_000
# Of each consumer; and of consumers that share a page, this many of the busiest are replayed.
_MOST_ITEMS = 4096
_MOST_CONSUMERS = 4
# Holt's gains (level, trend) for one step ahead: steps of load are followed within two ticks.
_LEVEL_GAIN = 0.5
_TREND_GAIN = 0.2
# What happened is not stretched further than this: beyond it, it is no longer the same traffic.
_SCALE_LIMIT = 2.0


class PacketForecast:
    """How many packets the next tick brings, by Holt's linear smoothing; and how that compares with the latest ones."""

    def __init__(self, tick_ns: int) -> None:
        """`tick_ns` is how long a tick is."""
        self._tick_ns = tick_ns
        self._history: deque[int] = deque(maxlen=max(1, _SPAN_NS // tick_ns))
        self._level = self._trend = 0.0

    def observe(self, packets: int) -> None:
        """Take a tick."""
        if not self._history:
            self._level = float(packets)
        else:
            before = self._level
            expected = self._level + self._trend
            self._level = expected + _LEVEL_GAIN * (packets - expected)
            self._trend += _TREND_GAIN * (self._level - before - self._trend)
        self._history.append(packets)

    def scale(self, span_ns: int) -> float:
        """Packets expected in the next tick over the mean of the latest `span_ns`; 1 where there were none."""
        recorded = list(self._history)[-max(1, round(span_ns / self._tick_ns)) :]
        mean = sum(recorded) / max(1, len(recorded))
        if mean <= 0.0:
            return 1.0
        return min(max((self._level + self._trend) / mean, 1.0 / _SCALE_LIMIT), _SCALE_LIMIT)


class RecordedArrivals:
    """When the items of a page's consumers arrived, as they reported it, over the latest 2 s."""

    def __init__(self) -> None:
        self._streams: dict[int, IntArray] = {}

    def observe(self, reported: Iterable[Reported], now_ns: int) -> None:
        """Take what consumers reported, and forget what is too long ago."""
        for told in reported:
            known = self._streams.get(told.consumer)
            arrivals = told.arrivals_ns if known is None else np.concatenate((known, told.arrivals_ns))
            # A batch that took long is reported after others' items arrived.
            self._streams[told.consumer] = np.sort(arrivals)[-_MOST_ITEMS:]
        for consumer, arrivals in list(self._streams.items()):
            recent = arrivals[np.searchsorted(arrivals, now_ns - _SPAN_NS) :]
            if len(recent):
                self._streams[consumer] = recent
            else:
                del self._streams[consumer]

    @property
    def items(self) -> int:
        """How many are recorded."""
        return sum(len(stream) for stream in self._streams.values())

    @property
    def per_s(self) -> float:
        """Items a second, of all consumers of the page."""
        return sum(rate_per_s(stream) for stream in self._streams.values())

    @property
    def span_ns(self) -> int:
        """How long ago the first of them was before the last."""
        if not self._streams:
            return 0
        first = min(int(stream[0]) for stream in self._streams.values())
        return max(int(stream[-1]) for stream in self._streams.values()) - first

    def streams(self, scale: float) -> list[IntArray]:
        """The arrivals of the busiest consumers, int64[n] each, `scale` times as dense as they were."""
        busiest = sorted(self._streams.values(), key=len, reverse=True)[:_MOST_CONSUMERS]
        return [stream[0] + ((stream - stream[0]) / scale).astype(np.int64) for stream in busiest]


def rate_per_s(stream: IntArray) -> float:
    """Items a second of arrivals in ascending order, int64[n] ns; 0 where that cannot be told."""
    span_ns = int(stream[-1] - stream[0])
    return (len(stream) - 1) * 1e9 / span_ns if span_ns > 0 else 0.0
