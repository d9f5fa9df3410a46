"""The degrade ladder: what the agent gives up, step by step, before it would make a loaded host worse."""

from __future__ import annotations

from dataclasses import dataclass

LEVELS = ("full", "sampled", "frozen", "safe")
_BAD_TO_STEP = 2
_GOOD_NS = 10_000_000_000
_MAX_GOOD_NS = 320_000_000_000
_FELL_AGAIN_NS = 30_000_000_000
_MAX_SHIFT = 6


@dataclass(frozen=True, slots=True)
class Health:
    """One span of the agent's and the host's health, all as growth within the span."""

    seconds: float
    ring_lost: int = 0
    tick_overruns: int = 0
    ticks: int = 1
    softnet_dropped: int = 0
    """On the CPUs that serve the watched interfaces."""
    cpu_percent: float = 0.0
    """Of one core: the process and what its programs added."""


@dataclass(frozen=True, slots=True)
class Level:
    """Where the agent stands. `sample_shift`: the kernel looks at one packet in 2^shift."""

    name: str
    sample_shift: int
    reason: str

    @property
    def plans(self) -> bool:
        """Whether settings may be changed at all."""
        return self.name in ("full", "sampled")


@dataclass(frozen=True, slots=True)
class Budget:
    """What a span may cost before it counts as bad."""

    cpu_percent: float = 25.0
    overruns: float = 0.2
    """Share of the ticks."""


class DegradeLadder:
    """Decides; it touches nothing. Two bad spans step down, a quiet time steps up, longer after each relapse."""

    def __init__(self, budget: Budget | None = None) -> None:
        self._budget = budget or Budget()
        self._index = 0
        self._shift = 0
        self._reason = ""
        self._bad = 0
        self._good_since_ns: int | None = None
        self._good_ns = _GOOD_NS
        self._climbed_ns: int | None = None

    def update(self, health: Health, now_ns: int) -> Level:
        """Take in one span; returns the level from now on."""
        reason = self._bad_reason(health)
        if reason:
            self._good_since_ns = None
            self._bad += 1
            if self._bad >= _BAD_TO_STEP:
                self._bad = 0
                self._step_down(reason, now_ns)
        else:
            self._bad = 0
            if self._good_since_ns is None:
                self._good_since_ns = now_ns
            elif now_ns - self._good_since_ns >= self._good_ns and (self._index or self._shift):
                self._step_up(now_ns)
        return self.level

    @property
    def level(self) -> Level:
        """Where the agent stands now."""
        return Level(LEVELS[self._index], self._shift, self._reason)

    def _bad_reason(self, health: Health) -> str:
        if health.ring_lost:
            return f"{health.ring_lost} window records were lost: the rings were full"
        if health.tick_overruns > self._budget.overruns * max(health.ticks, 1):
            return f"{health.tick_overruns} of {health.ticks} ticks took longer than their period"
        if health.softnet_dropped:
            return f"{health.softnet_dropped} packets were dropped before the stack (softnet)"
        if health.cpu_percent > self._budget.cpu_percent:
            return f"{health.cpu_percent:.0f} % of a core used, {self._budget.cpu_percent:.0f} % budgeted"
        return ""

    def _step_down(self, reason: str, now_ns: int) -> None:
        if self._climbed_ns is not None and now_ns - self._climbed_ns < _FELL_AGAIN_NS:
            self._good_ns = min(2 * self._good_ns, _MAX_GOOD_NS)
        self._reason = reason
        if self._index == 0:
            self._index, self._shift = 1, 2
        elif self._index == 1 and self._shift < _MAX_SHIFT:
            self._shift += 2
        else:
            self._index = min(self._index + 1, len(LEVELS) - 1)

    def _step_up(self, now_ns: int) -> None:
        self._good_since_ns = now_ns
        self._climbed_ns = now_ns
        if self._index > 1:
            self._index -= 1
        elif self._shift > 2:
            self._shift -= 2
        else:
            self._index, self._shift, self._reason = 0, 0, ""
