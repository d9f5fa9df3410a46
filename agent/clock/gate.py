"""How far off a sample may be before it is suspected, and whom to believe then, by what was seen so far."""

from __future__ import annotations

from math import exp

from agent.clock.jumps import GATE_SIGMAS

# A clock whose noise is known from few samples yet: the tail of Student's t, in units of the normal's.
_YOUNG_FACTOR = 40.0
_YOUNG_POWER = 1.5
# Beyond this part of the gate no more than one sample in so many should come; if more do, their noise has long tails
# and the gate widens, by this much for each, up to this factor.
_NEAR_GATE = 0.75
_SAMPLES_PER_NEAR = 2000.0
_WIDENING = 0.15
_MAX_WIDE = 4.0
# Stays and returns are remembered over this part of an event's inverse.
_EVENT_FADE = 0.03
# A return from beyond so many gates was no noise.
_NO_NOISE = 3.0


class Gate:
    """The limit of normalised residuals, for clocks with Gaussian noise and with long tails."""

    __slots__ = ("_returns", "_stays", "wide")

    def __init__(self) -> None:
        self.wide = 1.0
        """How much wider than for Gaussian noise the tails are, 1 to 4."""
        self._stays, self._returns = 0.0, 1.0

    def sigmas(self, triples: float) -> float:
        """Return the gate in sqrt(S) when the noise is known from `triples` samples and their neighbours."""
        young: float = _YOUNG_FACTOR / max(triples, 0.5) ** _YOUNG_POWER
        return GATE_SIGMAS * self.wide * (1.0 + young)

    def saw(self, normalised: float) -> None:
        """Learn from |residual| / sqrt(S) of a sample that was no jump."""
        gate = GATE_SIGMAS * self.wide
        if normalised > _NO_NOISE * gate:
            return
        near = normalised > _NEAR_GATE * gate
        factor = exp(_WIDENING if near else -_WIDENING / _SAMPLES_PER_NEAR)
        self.wide = min(max(self.wide * factor, 1.0), _MAX_WIDE)

    def judged(self, *, stayed: bool) -> None:
        """Remember whether the sample after one that stood off stood there too, or was back."""
        self._stays += _EVENT_FADE * -self._stays + stayed
        self._returns += _EVENT_FADE * -self._returns + (not stayed)

    @property
    def follows(self) -> bool:
        """Whether a sample that stands off is more likely where the clock went than a bad one.

        By what this clock did so far: where the oscillator is noisier than the stamps, it did go there.
        """
        return self._stays > self._returns
