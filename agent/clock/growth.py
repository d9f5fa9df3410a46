"""Frequency steps that no single sample shows: residuals that grow from nothing, and whether such growth has lasted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from agent.clock.track import Suspect

# A growth is looked for over the last so many samples.
_SPANS = (4, 6, 9, 14, 20)
# No sample counts for more sigmas than this.
_CLIP = 4.0


def growth_in(samples: Sequence[Suspect], limit_sigmas: float) -> tuple[float, int] | None:
    """Return (rate in ppb, onset in local ns) if the newest residuals grow from nothing by so many sigmas, else None.

    A step of the frequency makes a line of them. A matched filter for each of a few onsets, weighted by how well
    each sample is known: the generalised likelihood ratio of a drift that changed then (Willsky and Jones 1976), for a
    filter that averages for much longer.
    """
    for span in _SPANS:
        if span >= len(samples):
            return None
        onset_ns = samples[-span - 1].local_ns
        matched = power = 0.0
        for s in samples[-span:]:
            gain = (s.local_ns - onset_ns) * 1e-9 / s.spread_ns
            matched += gain * max(-_CLIP, min(_CLIP, s.residual_ns / s.spread_ns))
            power += gain * gain
        if abs(matched) >= limit_sigmas * sqrt(power):
            return matched / power, onset_ns
    return None


@dataclass(frozen=True, slots=True)
class _Change:
    since_ns: int
    due_ns: int
    offset_ns: int
    drift_ppb: float
    rate_ppb: float


class Lasting:
    """Whether drift that changed stayed changed: a disciplined clock's does not, a free oscillator's does."""

    __slots__ = ("_change",)

    def __init__(self) -> None:
        self._change: _Change | None = None

    def watch(self, local_ns: int, wait_ns: int, offset_ns: int, drift_ppb: float, rate_ppb: float) -> None:
        """Remember that the drift changed from `drift_ppb` by `rate_ppb`, to look again after `wait_ns` at least.

        One change is watched at a time.
        """
        if self._change is None:
            self._change = _Change(local_ns, local_ns + wait_ns, offset_ns, drift_ppb, rate_ppb)

    def is_due(self, local_ns: int) -> bool:
        """Return whether it is time to look at the change that is watched."""
        return self._change is not None and local_ns >= self._change.due_ns

    def outcome(self, local_ns: int, offset_ns: int) -> bool:
        """Return whether the change that was watched, and is due, has lasted."""
        change, self._change = self._change, None
        assert change is not None
        span_s = (local_ns - change.since_ns) * 1e-9
        gained = offset_ns - change.offset_ns - change.drift_ppb * span_s
        return gained / (change.rate_ppb * span_s) > 0.5

    def stepped(self) -> bool:
        """Return whether the offset stepped while a change was watched: then it was part of that, and no change."""
        watched, self._change = self._change is not None, None
        return watched
