"""Stamped packets of a capture through the clocks that run live: windows of 1 ms, a tick every 200 ms.

Queueing makes packets one-sided, so they go the way of the envelope. The local clock is the capture's own, usually
CLOCK_REALTIME: it stands in for mono, raw and realtime alike, and whoever steers it is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO

import numpy as np

from agent.clock.interface import InterfaceClocks, TickInputs
from agent.errors import PartialError, UsageError
from agent.ffi.clocks import ClockPairs, Steering
from agent.ffi.records import WINDOW_DTYPE, IntArray, WindowArray
from agent.replay.capture import Packet, read_packets
from agent.replay.reports import Horizons, row_of
from agent.replay.rows import Row
from agent.replay.stamps import FORMATS, StampFormat, find_format

WINDOW_NS = 1_000_000
TICK_NS = 200_000_000
_LOOKED_AT = 256
# Packets of several queues are captured in a slightly other order than they came.
_DISORDER_NS = 1_000_000_000
# The envelope takes a sub-interval when it is this old: after the last packet all are.
_SETTLING_NS = 40_000_000


class PacketReplay:
    """The clocks of one capture."""

    names_clocks = True

    def __init__(self, file: BinaryIO, name: str, horizons: Horizons, base_delay_ns: int | None) -> None:
        self._file = file
        self._name = name
        self._horizons = horizons
        self._clocks = InterfaceClocks(base_delay_ns)
        self._form: StampFormat | None = None
        self._timescales: dict[str, str] = {}
        self._stamped: list[tuple[int, int, int, int]] = []
        self._packets = self._unstamped = self._cut = self._rows = 0

    def rows(self) -> Iterator[Row]:
        """Replay the capture. Raises `UsageError` for one that can't be used, `PartialError` where it breaks off."""
        packets = self._with_format(read_packets(self._file, self._name))
        tick_end_ns = newest_ns = 0
        broken: PartialError | None = None
        while True:
            try:
                packet = next(packets, None)
            except PartialError as error:
                broken, packet = error, None
            if packet is None:
                break
            if packet.local_ns < newest_ns - _DISORDER_NS:
                raise self._goes_back(packet, newest_ns)
            newest_ns = max(newest_ns, packet.local_ns)
            if not tick_end_ns:
                tick_end_ns = _tick_end(packet.local_ns)
            while packet.local_ns >= tick_end_ns:
                yield from self._tick(tick_end_ns)
                # In a silence, one tick after it began and one before it ends.
                tick_end_ns = max(tick_end_ns + TICK_NS, _tick_end(packet.local_ns) - TICK_NS)
            self._take(packet)
        if tick_end_ns:
            yield from self._tick(max(tick_end_ns, newest_ns + _SETTLING_NS))
        if broken is not None:
            raise broken

    def horizons_s(self, clock: str) -> tuple[float, ...]:
        """The horizons of the reports."""
        return self._horizons.horizons_s

    def experts(self, clock: str) -> tuple[str, ...]:
        """None: a live report has the mixture only."""
        return ()

    def timescale(self, clock: str) -> str:
        """The time scale of a clock's last report."""
        return self._timescales[clock]

    def facts(self) -> dict[str, object]:
        """Which stamps there were, and on how many packets."""
        return {
            "kind": "pcap",
            "stamps": None if self._form is None else self._form.name,
            "packets": self._packets,
            "unstamped": self._unstamped,
            "cut": self._cut,
        }

    def _with_format(self, packets: Iterator[Packet]) -> Iterator[Packet]:
        """All packets, when the first of them have told how they are stamped."""
        first: list[Packet] = []
        broken: PartialError | None = None
        try:
            first.extend(islice(packets, _LOOKED_AT))
        except PartialError as error:
            broken = error
        self._form = find_format(first) if first else None
        if self._form is None:
            if broken is not None and not first:
                raise broken
            raise self._no_stamps(first)
        yield from first
        if broken is not None:
            raise broken
        yield from packets

    def _no_stamps(self, first: list[Packet]) -> UsageError:
        if not first:
            return UsageError(f"{self._name} holds no packet", "capture some traffic of the switch's output")
        cut = " (the capture cut them off: use `-s 0`)" if any(packet.cut for packet in first) else ""
        looked_for = ", ".join(dict.fromkeys(form.title for form in FORMATS))
        return UsageError(
            f"{self._name}, packets 1 to {len(first)}: no known time stamp{cut}. Looked for: {looked_for}; each within "
            "a week of the capture's own time",
            "capture behind a switch that stamps, on a NIC that leaves trailers alone, and see that its clock is set",
        )

    def _goes_back(self, packet: Packet, newest_ns: int) -> UsageError:
        return UsageError(
            f"{self._name}, packet {packet.number}: the capture's clock goes back by "
            f"{(newest_ns - packet.local_ns) / 1e9:.3f} s",
            "put packets of several captures in order (`reordercap IN OUT`); where the clock was set, split there",
        )

    def _take(self, packet: Packet) -> None:
        assert self._form is not None
        self._packets += 1
        self._cut += packet.cut
        stamp = self._form.read(packet)
        if stamp is None:
            self._unstamped += 1
        else:
            self._stamped.append((packet.local_ns, stamp.hw_ns, stamp.key, packet.interface))

    def _tick(self, now_ns: int) -> Iterator[Row]:
        assert self._form is not None
        windows = windows_of(np.array(self._stamped, dtype=np.int64).reshape(-1, 4).T)
        self._stamped.clear()
        for clock, report in self._clocks.tick(windows, _inputs(now_ns)):
            name = self._form.clock(clock.key)
            self._timescales[name] = report.timescale
            yield row_of(self._rows, name, report, self._horizons)
            self._rows += 1


def windows_of(table: IntArray) -> WindowArray:
    """Return the windows, `WINDOW_DTYPE[n]`, of packets int64[4, n]: local ns, hardware ns, clock key, interface.

    As the kernel's: one for each clock, interface (as its queue) and millisecond in which packets came.
    """
    if table.shape[1] == 0:
        return np.zeros(0, dtype=WINDOW_DTYPE)
    order = np.lexsort((table[0], table[0] // WINDOW_NS, table[3], table[2]))
    local, hw, key, interface = table[:, order]
    group = np.stack((key, interface, local // WINDOW_NS))
    starts = np.concatenate(([0], np.flatnonzero((np.diff(group) != 0).any(axis=0)) + 1))
    counts = np.diff(starts, append=len(local))
    ends = starts + counts - 1
    lowest = np.lexsort((local - hw, np.repeat(np.arange(len(starts)), counts)))[starts]
    windows = np.zeros(len(starts), dtype=WINDOW_DTYPE)
    windows["clock_key"], windows["queue"] = key[starts], interface[starts]
    windows["open_mono_ns"], windows["last_mono_ns"] = local[starts], local[ends]
    for name, rows in (("first", starts), ("last", ends), ("envelope", lowest)):
        windows[name]["mono_ns"], windows[name]["hw_ns"] = local[rows], hw[rows]
    windows["n"] = windows["n_stamped"] = counts
    return windows


def _tick_end(local_ns: int) -> int:
    return (local_ns // TICK_NS + 1) * TICK_NS


def _inputs(now_ns: int) -> TickInputs:
    now, none = np.array([now_ns], dtype=np.int64), np.zeros(1, dtype=np.int64)
    pairs = ClockPairs(now, now, now, now, none, none, none)
    return TickInputs(now_ns, pairs, _UNSTEERED, None)


_UNSTEERED = Steering(
    freq_ppb=0.0,
    tick_us=10_000,
    offset_ns=0,
    time_constant=0,
    status=0,
    max_error_us=0,
    est_error_us=0,
    tai_offset_s=0,
)
