"""The kernel's clocks: simultaneous reads, and the steering that somebody dials into CLOCK_MONOTONIC."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple

import numpy as np

from agent.ffi import _native
from agent.ffi.failures import call_error
from agent.ffi.records import IntArray

_ffi, _lib = _native.ffi, _native.lib

_FREQ_UNITS_PER_PPM = 65536  # timex.freq is ppm with 16 fractional bits (adjtimex(2))
_NOMINAL_TICK_US = 10_000  # USER_HZ = 100
_PPB_PER_TICK_US = 100_000  # 1 us in 10 ms
_PAIR_FIELDS = tuple(name for name, _ in _ffi.typeof("struct agent_clock_pair").fields)


class Moment(NamedTuple):
    """One row of `ClockPairs` in Python's integers."""

    mono_ns: int
    raw_ns: int
    realtime_ns: int
    tai_ns: int
    width_ns: int


@dataclass(frozen=True)
class ClockPairs:
    """Several instants, each read on four clocks; int64[n] arrays, ns.

    Row i is one instant: raw_ns[i] is the middle of the two raw reads around the mono read, realtime and tai are
    shifted to it from their own brackets. Each of those reads is off by at most half its width.
    """

    mono_ns: IntArray
    raw_ns: IntArray
    realtime_ns: IntArray
    tai_ns: IntArray  # equals realtime while nobody has told the kernel the TAI offset
    width_ns: IntArray
    """raw after - raw before the mono read."""
    realtime_width_ns: IntArray
    tai_width_ns: IntArray

    def __len__(self) -> int:
        return len(self.raw_ns)

    def best(self) -> int:
        """The row whose mono read was bracketed most narrowly (ties: whose other brackets are narrowest)."""
        others = (self.realtime_width_ns + self.tai_width_ns).tolist()
        widths = self.width_ns.tolist()
        return min(range(len(widths)), key=lambda row: (widths[row], others[row]))

    @cached_property
    def best_moment(self) -> Moment:
        """The row of `best`, for all clocks that are brought up to it."""
        row = self.best()
        columns = (self.mono_ns, self.raw_ns, self.realtime_ns, self.tai_ns, self.width_ns)
        return Moment(*(int(column[row]) for column in columns))

    def followed_by(self, later: ClockPairs) -> ClockPairs:
        """These rows and then those of `later`: what was read between the two is bracketed by them."""
        columns = ((getattr(self, field.name), getattr(later, field.name)) for field in fields(self))
        return ClockPairs(*(np.concatenate(pair) for pair in columns))


def clock_pairs(n: int) -> ClockPairs:
    """Reads the clocks `n` times, each between two reads of raw; some 0.2 µs per row where the vDSO serves them."""
    rows = _ffi.new("struct agent_clock_pair[]", n)
    err = _lib.agent_clock_pairs(rows, n)
    if err:
        raise call_error("read the kernel's clocks", err)
    table = np.frombuffer(_ffi.buffer(rows), dtype=np.int64).reshape(n, -1).T.copy()
    columns = dict(zip(_PAIR_FIELDS, table, strict=True))
    return ClockPairs(
        mono_ns=columns["mono_ns"],
        raw_ns=columns["raw_ns"],
        realtime_ns=columns["realtime_ns"],
        tai_ns=columns["tai_ns"],
        width_ns=columns["mono_width_ns"],
        realtime_width_ns=columns["realtime_width_ns"],
        tai_width_ns=columns["tai_width_ns"],
    )


@dataclass(frozen=True, slots=True)
class Steering:
    """What adjtimex(2) shows of how CLOCK_MONOTONIC and CLOCK_REALTIME are steered, read without side effects."""

    freq_ppb: float
    """All that is dialled in, the frequency and the tick: d(mono - raw)/draw unless an offset is being slewed too."""
    tick_us: int  # nominal 10000
    offset_ns: int
    """Phase that the kernel's PLL still has to slew away; how fast depends on `time_constant`."""
    time_constant: int
    status: int  # STA_* bits
    max_error_us: int
    est_error_us: int
    tai_offset_s: int  # TAI - UTC as somebody told the kernel; 0: nobody did

    @property
    def synchronised(self) -> bool:
        """Whether a daemon says that it keeps the clock right (STA_UNSYNC is off)."""
        return not self.status & _lib.STA_UNSYNC


def adjtimex_state() -> Steering:
    """Reads the steering by adjtimex with modes = 0, which anybody may."""
    timex = _ffi.new("struct timex *")
    if _lib.adjtimex(timex) < 0:
        raise call_error("read the kernel clock's steering (adjtimex)", _ffi.errno)
    nano = timex.status & _lib.STA_NANO
    return Steering(
        freq_ppb=timex.freq * 1000 / _FREQ_UNITS_PER_PPM
        + (timex.tick - _NOMINAL_TICK_US) * float(_PPB_PER_TICK_US),
        tick_us=timex.tick,
        offset_ns=timex.offset if nano else timex.offset * 1000,
        time_constant=timex.constant,
        status=timex.status,
        max_error_us=timex.maxerror,
        est_error_us=timex.esterror,
        tai_offset_s=timex.tai,
    )
