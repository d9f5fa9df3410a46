"""What the controller tells: plans, changes, effects, conflicts. Telemetry and `agent plan` are made from these."""

from __future__ import annotations

from dataclasses import dataclass

from agent.control.plan import Change
from agent.control.quantiles import Figures


@dataclass(frozen=True, slots=True)
class PlanEvent:
    """What is wanted for an interface, or why nothing is; told when it changes."""

    mono_ns: int
    ifname: str
    plan: int
    """Numbers the plans of this run."""
    decided_by: str
    reason: str
    applied: bool
    now_p99_ns: float
    """NaN where unknown."""
    predicted_p99_ns: float
    changes: tuple[Change, ...]
    cause: str = ""
    """What the CPUs that serve these queues are busy with; empty where that is not traced."""


@dataclass(frozen=True, slots=True)
class ChangeEvent:
    """One setting was written, or refused."""

    mono_ns: int
    ifname: str
    plan: int
    actuator: str
    target: str
    queues: tuple[int, ...]
    before: str
    """As the kernel shows it."""
    after: str
    """What was wanted."""
    outcome: str
    """`applied`, `refused`, `rolled_back` or `restored`."""
    read_back: str
    reason: str


@dataclass(frozen=True, slots=True)
class EffectEvent:
    """What a plan came to, measured."""

    mono_ns: int
    ifname: str
    plan: int
    outcome: str
    """`kept`, `rolled_back` or `undecided`; the last two were undone."""
    reason: str
    before: Figures
    after: Figures
    predicted_p99_ns: float
    lost_before: int
    lost_after: int

    @property
    def ratio(self) -> float:
        """p99 after over p99 before; NaN where either is unknown."""
        return self.after.p99_ns / self.before.p99_ns if self.before.p99_ns else float("nan")


@dataclass(frozen=True, slots=True)
class ConflictEvent:
    """Somebody else changed a setting of ours: it is left to them for a while."""

    mono_ns: int
    ifname: str
    target: str
    expected: str
    found: str
    owner: str
    """Who it probably is; empty where nobody is known."""


Event = PlanEvent | ChangeEvent | EffectEvent | ConflictEvent
