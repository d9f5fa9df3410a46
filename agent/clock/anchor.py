"""A burst of PHC reads to one anchor: where the PHC stood against the local clock, and how sure that is."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from agent.ffi import _native

if TYPE_CHECKING:
    from agent.ffi.clocks import ClockPairs
    from agent.ffi.phc import PhcBurst

_ffi, _lib = _native.ffi, _native.lib

# Stamps are integers, and a read may round both ways.
_INTERVAL_SLACK_NS = 2.0


class Anchor(NamedTuple):
    """offset = local - PHC at `local_ns`; the true one is within [`low_ns`, `high_ns`] for certain.

    `local_clock` names the local clock of the burst. `consistent` is False when no offset satisfies all reads:
    the PHC or the local clock was stepped in between, and `offset_ns` is that of the fastest read only.
    """

    local_clock: str
    local_ns: int
    offset_ns: int
    var: float
    low_ns: int
    high_ns: int
    read_delay_ns: int
    consistent: bool


def anchor_of(burst: PhcBurst, drift_ppb: float) -> Anchor | None:
    """Return the anchor of one burst, or None if it has no usable read.

    `drift_ppb`, d(local - PHC)/dt, is taken out within the burst. The formula stands in `agent/ffi/clockanchor.c`.
    """
    found = _ffi.new("struct agent_anchor *")
    reads = [_ffi.from_buffer("int64_t[]", a) for a in (burst.t1_ns, burst.t2_ns, burst.phc_ns)]
    if not _lib.agent_anchor_of(*reads, len(burst.t1_ns), drift_ppb, found):
        return None
    return Anchor(
        burst.local_clock,
        found.local_ns,
        found.offset_ns,
        found.var,
        found.low_ns,
        found.high_ns,
        found.read_delay_ns,
        bool(found.consistent),
    )


def against_raw(anchor: Anchor, pairs: ClockPairs) -> Anchor | None:
    """Return an anchor against realtime as one against raw; None if realtime was set while it was read.

    `pairs` has rows from before and from after the burst. realtime - raw runs straight between the best of each, so
    steering needs no knowledge; how far each of them may be off, half of its bracket, is common to all reads of the
    burst: it widens the hard bound and the read delay by as much as it can be, and adds the variance of a uniform
    error. realtime - mono changes only when somebody sets the clock: that tells a step of any size above the brackets.
    """
    realtime = pairs.realtime_ns
    before = np.flatnonzero(realtime <= anchor.local_ns)
    after = np.flatnonzero(realtime >= anchor.local_ns)
    if before.size == 0 or after.size == 0:
        return None
    i = int(before[np.argmin(pairs.realtime_width_ns[before])])
    j = int(after[np.argmin(pairs.realtime_width_ns[after])])
    set_by = int((realtime[j] - pairs.mono_ns[j]) - (realtime[i] - pairs.mono_ns[i]))
    widths = pairs.realtime_width_ns + pairs.width_ns
    if abs(set_by) > (int(widths[i]) + int(widths[j])) / 2 + _INTERVAL_SLACK_NS:
        return None
    ahead_i, ahead_j = int(realtime[i] - pairs.raw_ns[i]), int(realtime[j] - pairs.raw_ns[j])
    part = (anchor.local_ns - int(realtime[i])) / max(int(realtime[j] - realtime[i]), 1)
    ahead = ahead_i + round(part * (ahead_j - ahead_i))
    half = ceil(max(int(pairs.realtime_width_ns[i]), int(pairs.realtime_width_ns[j])) / 2)
    return anchor._replace(
        local_clock="raw",
        local_ns=anchor.local_ns - ahead,
        offset_ns=anchor.offset_ns - ahead,
        var=anchor.var + half * half / 3.0,
        low_ns=anchor.low_ns - ahead - half,
        high_ns=anchor.high_ns - ahead + half,
        read_delay_ns=anchor.read_delay_ns + 2 * half,
    )
