"""What a measurement gives: a figure with its spread, its target, and whether that is reached."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

_RESAMPLES = 4000
_LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Spread:
    """Where a figure lies: `low` to `high`, by `method` (as "95 % bootstrap of the median")."""

    low: float
    high: float
    method: str


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the report."""

    name: str
    what: str
    value: float
    unit: str
    """Empty for a ratio."""
    target: float
    direction: Literal["at most", "at least", "exactly"]
    spread: Spread | None
    samples: int
    """Repetitions (runs, pairs, blocks) that `value` and `spread` come from."""
    detail: dict[str, Any] = field(default_factory=dict)
    """The absolute figures of both sides, and how they were taken."""

    @property
    def reached(self) -> bool:
        """Whether the value is on the target's right side."""
        if self.direction == "at most":
            return self.value <= self.target
        if self.direction == "at least":
            return self.value >= self.target
        return self.value == self.target


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure, and where progress is told."""

    quick: bool = False
    """Few repetitions: shows that everything works, the spread is wide."""
    say: Callable[[str], None] = lambda text: print(f"bench: {text}", file=sys.stderr, flush=True)

    def repeat(self, usual: int, quick: int) -> int:
        """How often to repeat something."""
        return quick if self.quick else usual


def median_with_bootstrap(values: Sequence[float]) -> tuple[float, Spread]:
    """The median, and its 95 % percentile-bootstrap interval (Efron 1979); fixed seed."""
    data = np.asarray(values, dtype=np.float64)
    random = np.random.default_rng(1)
    medians = np.median(random.choice(data, size=(_RESAMPLES, len(data))), axis=1)
    low, high = np.quantile(medians, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2]).tolist()
    return float(np.median(data)), Spread(low, high, "95 % bootstrap of the median")


def min_to_max(values: Sequence[float]) -> Spread:
    """The whole range."""
    return Spread(float(min(values)), float(max(values)), "min to max")
