"""How far off a sample may be before it is suspected, and whom to believe then, by what was seen so far."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, exp, log

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
_LONG_TAILS = 1.5
# By each event, those before it lose this part.
_EVENT_FADE = 0.03
# So many more of one kind than of the other are nearly all.
_NEARLY = 4.0
# Samples beyond the gate that came to nothing, faded over so many samples, beyond which they are usual.
_TRUST_SAMPLES = 1000.0
_TRUSTED, _USUAL = 0.75, 2.0
# A return from beyond so many gates was no noise.
_NO_NOISE = 3.0
# Bad stamps that agree by chance: once in so many of them, by how far off the last so many of them stood; beyond so
# many no more are waited for.
_CHANCE = 1e6
_BAD_SPAN = 30.0
_MOST_ALIKE = 16


@dataclass(slots=True)
class _Odds:
    """Two counts that fade."""

    yes: float
    no: float

    def add(self, yes: bool) -> None:
        self.yes += yes - _EVENT_FADE * self.yes
        self.no += (not yes) - _EVENT_FADE * self.no

    @property
    def favours(self) -> bool:
        return self.yes > self.no


class Gate:
    """The limit of normalised residuals, for clocks with Gaussian noise and with long tails."""

    __slots__ = ("_bad_ns", "_exceeded", "_grew", "_moved", "_stood", "wide")

    def __init__(self) -> None:
        self.wide = 1.0
        """How much wider than for Gaussian noise the tails are, 1 to 4."""
        # A clock that nobody told anything about is taken to have stepped when it looks so, until one came back.
        self._stood = _Odds(1.0, 0.0)
        self._moved = _Odds(0.0, 1.0)
        # A drift that changed is taken to stay changed until one did not.
        self._grew = _Odds(1.0, 0.0)
        self._exceeded = 1.0
        self._bad_ns = 0.0

    def sigmas(self, triples: float) -> float:
        """Return the gate in sqrt(S) when the noise is known from `triples` samples and their neighbours."""
        young: float = _YOUNG_FACTOR / max(triples, 0.5) ** _YOUNG_POWER
        return GATE_SIGMAS * self.wide * (1.0 + young)

    def saw(self, normalised: float) -> None:
        """Learn from |residual| / sqrt(S) of a sample that was no jump."""
        self._exceeded -= self._exceeded / _TRUST_SAMPLES
        gate = GATE_SIGMAS * self.wide
        if normalised > gate:
            self._exceeded += 1.0
        if normalised > _NO_NOISE * gate:
            return
        near = normalised > _NEAR_GATE * gate
        factor: float = exp(_WIDENING if near else -_WIDENING / _SAMPLES_PER_NEAR)
        self.wide = min(max(self.wide * factor, 1.0), _MAX_WIDE)

    def saw_bad(self, size_ns: float) -> None:
        """Learn of a sample that far beyond the gate that came to nothing, one of several: no tail of the noise."""
        self._exceeded += 1.0
        self._bad_ns += (size_ns - self._bad_ns) / min(self._exceeded, _BAD_SPAN)

    def needed_alike(self, within_ns: float, free: int) -> int:
        """Return how many samples have to agree to +- `within_ns` that bad stamps don't by chance.

        They agree on what has `free` parameters: one for a step, two for a line.
        """
        odds = log(max(self._bad_ns / (2.0 * within_ns), 1.0))
        if not self.bad_stamps_usual:
            return free + 2
        return min(free + max(ceil(log(_CHANCE) / max(odds, 0.1)), 2), _MOST_ALIKE)

    def judged(self, *, stayed: bool) -> None:
        """Remember whether what stood beyond the gate stayed there, or was back after some samples."""
        self._stood.add(stayed)

    def looked_back(self, *, stayed: bool) -> None:
        """Remember whether the sample after one that stood off, within the gate, stood there too."""
        self._moved.add(stayed)

    def outlasted(self, *, lasted: bool) -> None:
        """Remember whether a change of the drift lasted."""
        self._grew.add(lasted)

    @property
    def believes_growth(self) -> bool:
        """Whether what grows is more likely a drift that will last than a wander that returns."""
        return self._grew.favours

    @property
    def believes_steps(self) -> bool:
        """Whether a sample beyond the gate is more likely a step than a bad stamp, by what came of such ones."""
        return self._stood.favours

    @property
    def expects_returns(self) -> bool:
        """Whether nearly all samples beyond the gate came to nothing."""
        return self._stood.no > _NEARLY * self._stood.yes

    @property
    def believes_moves(self) -> bool:
        """Whether a sample off but within the gate is more likely the oscillator's noise than the stamp's.

        Only where tails are long: a filter of Gaussian noise knows by itself.
        """
        return self.wide > _LONG_TAILS and self._moved.favours

    @property
    def bad_stamps_usual(self) -> bool:
        """Whether samples beyond the gate that come to nothing are nothing special here."""
        return self._exceeded > _USUAL

    @property
    def tells_bounces(self) -> bool:
        """Whether a single bad stamp is an event worth a tag: where they are usual, they are noise."""
        return self._exceeded < _TRUSTED
