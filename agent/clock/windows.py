"""Closed windows of one clock: what they tell at a glance, and the least queued pairs among them.

Queueing only ever adds to local - hardware, so per sub-interval and path the smallest pair counts. The arithmetic is
`agent/ffi/clockwindows.c`.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import numpy as np

from agent.ffi import _native
from agent.ffi.records import WindowArray

_ffi, _lib = _native.ffi, _native.lib

SUB_INTERVAL_NS: int = _lib.AGENT_SUB_INTERVAL_NS


@dataclass(frozen=True, slots=True)
class PathMinimum:
    """The least queued pair of one path (`path_key`) in the sub-interval from `start_mono_ns`: mono - hw, exact."""

    start_mono_ns: int
    path: int
    mono_ns: int
    offset_ns: int


def path_key(cpu: int, queue: int) -> int:
    """Return the key of a path."""
    return cpu << 16 | queue


class Windows:
    """The windows of one clock; `native` is the core's `agent_windows`."""

    __slots__ = ("native",)

    def __init__(self) -> None:
        self.native = _ffi.gc(_ffi.new("struct agent_windows *"), _lib.agent_windows_free)

    def add(self, windows: WindowArray) -> None:
        """Take closed windows (`WINDOW_DTYPE[n]`); their pairs are pending until `forget`."""
        rows = _ffi.from_buffer("struct window_record[]", np.ascontiguousarray(windows))
        _checked(_lib.agent_windows_add(self.native, rows, len(windows)))

    @property
    def first_packet_ns(self) -> int | None:
        """When the first packet came, by mono; None before that."""
        return self.native.first_open_ns if self.native.n_seen else None

    def ladder_drift(self) -> tuple[float | None, int]:
        """Return (the ladder's drift in ppb by the windows since the last call, its baseline in ns).

        It is the median of those with the longest baselines; (None, 0) if there were none.
        """
        found = _lib.agent_windows_ladder_drift(self.native)
        return (found.drift_ppb, found.baseline_ns) if found.baseline_ns else (None, 0)

    def collapse(self, since_ns: int, until_ns: int, drift_mono_ppb: float) -> None:
        """Find the minima of pending pairs from `since_ns` until before `until_ns`, once the drift is taken out."""
        _checked(_lib.agent_windows_collapse(self.native, since_ns, until_ns, drift_mono_ppb))

    def minima(self) -> list[PathMinimum]:
        """Return the minima of the last `collapse`, by sub-interval and path."""
        return [
            PathMinimum(m.start_mono_ns, m.path, m.mono_ns, m.offset_ns)
            for m in self.native.minima[0 : self.native.n_minima]
        ]


def rough_drift_ppb(minima: list[PathMinimum]) -> float:
    """Return d(mono - hw)/dmono by Theil and Sen: the median slope between the sub-intervals' lowest pairs."""
    by_sub: dict[int, PathMinimum] = {}
    for m in minima:
        known = by_sub.setdefault(m.start_mono_ns, m)
        if m.offset_ns < known.offset_ns:
            by_sub[m.start_mono_ns] = m
    lowest = list(by_sub.values())
    slopes = [
        (b.offset_ns - a.offset_ns) / (b.mono_ns - a.mono_ns) * 1e9
        for i, a in enumerate(lowest)
        for b in lowest[i + 1 : i + 32]
        if b.mono_ns > a.mono_ns
    ]
    return median(slopes) if slopes else 0.0


def _checked(err: int) -> int:
    if err < 0:
        raise MemoryError("no memory for the windows of a clock")
    return err
