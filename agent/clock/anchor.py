"""A burst of PHC reads to one anchor: where the PHC stood against the local clock, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from agent.ffi.phc import PhcBurst

# Noise of a read that took no longer than the fastest: some percent of its delay, never below 10 ns.
_NOISE_FLOOR_NS = 10.0
_NOISE_PER_DELAY = 0.02
# Asymmetry is common to all reads of a burst: averaging does not reduce it below this part of the delay.
_ASYMMETRY_PER_DELAY = 0.02
# Stamps are integers, and a read may round both ways.
_INTERVAL_SLACK_NS = 2.0


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
    relative = (middle - phc - base) + (delay & 1) * 0.5 - (middle - local_ns) * (drift_ppb * 1e-9)
    half = delay * 0.5
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
