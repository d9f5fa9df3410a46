"""A burst of PHC reads to one anchor: where the PHC stood against the local clock, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from agent.ffi.clocks import ClockPairs
    from agent.ffi.phc import PhcBurst

# Noise of a read that took no longer than the fastest: some percent of its delay, never below 10 ns.
_NOISE_FLOOR_NS = 10.0
_NOISE_PER_DELAY = 0.02
# Asymmetry is common to all reads of a burst: averaging does not reduce it below this part of the delay.
_ASYMMETRY_PER_DELAY = 0.02
# Stamps are integers, and a read may round both ways.
_INTERVAL_SLACK_NS = 2.0
# How far off the drift may be that is taken out: all of it at first, and a step of the frequency later. Over a burst
# that is more than cross-timestamps leave open, whose delay is 0.
_DRIFT_SLACK_PPB = 500_000.0


@dataclass(frozen=True, slots=True)
class Anchor:
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

    Read j gives o_j = (t1+t2)/2 - phc and delay_j = t2 - t1; weights are 1/(s0^2 + ((delay_j - min)/2)^2)
    (excess delay may all be on one side), the variance 1/sum(w) plus a floor for asymmetry. `drift_ppb`, d(local -
    PHC)/dt, is taken out within the burst.
    """
    t1, t2, phc = (np.asarray(a, dtype=np.int64) for a in (burst.t1_ns, burst.t2_ns, burst.phc_ns))
    usable = (t2 >= t1) & (phc > 0)
    if not usable.all():
        t1, t2, phc = t1[usable], t2[usable], phc[usable]
    if t1.size == 0:
        return None
    delay = t2 - t1
    fastest = int(np.argmin(delay))
    delay_min = int(delay[fastest])
    middle = t1 + (delay >> 1)
    local_ns = int(middle[fastest])
    base = local_ns - int(phc[fastest])
    # Twice the half-nanosecond that the shift drops is the delay's parity.
    since = middle - local_ns
    relative = (middle - phc - base) + (delay & 1) * 0.5 - since * (drift_ppb * 1e-9)
    half = delay * 0.5 + np.abs(since) * (_DRIFT_SLACK_PPB * 1e-9)
    low = float((relative - half).max()) - _INTERVAL_SLACK_NS
    high = float((relative + half).min()) + _INTERVAL_SLACK_NS
    noise = max(_NOISE_FLOOR_NS, _NOISE_PER_DELAY * delay_min)
    floor = (_ASYMMETRY_PER_DELAY * delay_min) ** 2
    consistent = low <= high
    if consistent:
        weights = 1.0 / (noise * noise + ((delay - delay_min) * 0.5) ** 2)
        total = float(weights.sum())
        offset = float((weights * relative).sum()) / total
        offset = min(max(offset, low), high)
        var = 1.0 / total + floor
    else:
        offset, var = 0.0, noise * noise + floor
        low, high = float(-half[fastest]), float(half[fastest])
    return Anchor(
        burst.local_clock,
        local_ns,
        base + round(offset),
        var,
        base + round(low),
        base + round(high),
        delay_min,
        consistent,
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
    return replace(
        anchor,
        local_clock="raw",
        local_ns=anchor.local_ns - ahead,
        offset_ns=anchor.offset_ns - ahead,
        var=anchor.var + half * half / 3.0,
        low_ns=anchor.low_ns - ahead - half,
        high_ns=anchor.high_ns - ahead + half,
        read_delay_ns=anchor.read_delay_ns + 2 * half,
    )
