"""Frames that span several packets: put together, with the arrivals of their first and last packet."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from time import monotonic_ns
from typing import NamedTuple


class Frame(NamedTuple):
    """A whole frame. Arrivals are ns of CLOCK_MONOTONIC; it could be handled from the last one on."""

    number: Hashable
    data: bytes
    first_arrival_ns: int
    last_arrival_ns: int


class _Partial:
    """A frame of which packets are missing."""

    __slots__ = ("arrivals_ns", "left", "parts")

    def __init__(self, count: int) -> None:
        self.parts: list[bytes | None] = [None] * count
        self.left = count
        self.arrivals_ns: list[int] = []


class FrameAssembler:
    """Collects packets into frames, in whatever order they come; memory is bounded by `max_frames`.

    `incomplete` counts frames that were given up, `duplicates` packets that had come already, `refused` packets that
    cannot belong to their frame.
    """

    def __init__(self, *, max_frames: int = 16, max_packets: int = 4096) -> None:
        """At most `max_frames` are put together at a time, of at most `max_packets` packets each.

        When one more begins, the one that began first is given up. Raises `ValueError` for a limit below 1.
        """
        if max_frames < 1 or max_packets < 1:
            raise ValueError("a frame assembler needs room for at least one frame of one packet")
        self._max_frames = max_frames
        self._max_packets = max_packets
        self._partial: OrderedDict[Hashable, _Partial] = OrderedDict()
        # Frames that are done or given up: a packet that comes after that must not begin them again.
        self._ended: OrderedDict[Hashable, bool] = OrderedDict()
        self.incomplete = self.duplicates = self.refused = 0

    def add(
        self, number: Hashable, index: int, count: int, payload: bytes, arrival_ns: int | None = None
    ) -> Frame | None:
        """Take packet `index` of the `count` packets of a frame; returns the frame if it was the last one missing.

        `number` tells frames apart. `arrival_ns` is when the packet arrived, by default now.
        """
        if number in self._ended:
            # Of a whole frame it came twice; of one that was given up it is late.
            self.duplicates += self._ended[number]
            return None
        if not 0 <= index < count <= self._max_packets:
            self.refused += 1
            return None
        partial = self._partial.get(number)
        if partial is None:
            partial = self._begin(number, count)
        if len(partial.parts) != count:
            self.refused += 1
            return None
        if partial.parts[index] is not None:
            self.duplicates += 1
            return None
        partial.parts[index] = payload
        partial.arrivals_ns.append(monotonic_ns() if arrival_ns is None else arrival_ns)
        partial.left -= 1
        if partial.left:
            return None
        del self._partial[number]
        self._end(number, True)
        data = b"".join(part for part in partial.parts if part is not None)
        return Frame(number, data, min(partial.arrivals_ns), max(partial.arrivals_ns))

    def _begin(self, number: Hashable, count: int) -> _Partial:
        if len(self._partial) == self._max_frames:
            oldest, _ = self._partial.popitem(last=False)
            self._end(oldest, False)
            self.incomplete += 1
        partial = self._partial[number] = _Partial(count)
        return partial

    def _end(self, number: Hashable, whole: bool) -> None:
        self._ended[number] = whole
        if len(self._ended) > 4 * self._max_frames:
            self._ended.popitem(last=False)
