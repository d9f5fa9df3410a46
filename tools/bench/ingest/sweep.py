"""The static windows: what an operator finds who tries them all, for the first phase, for all of them, for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tools.bench.ingest.bench import IngestBench, PhaseOutcome, Side
from tools.bench.ingest.scenario import Phase, Scenario

Window = tuple[int, int]
"""(max_wait_us, max_items)."""
# What a dropped frame counts as, so that nothing is gained by dropping: nobody waits longer for a frame.
_DROPPED_MS = 1_000.0


@dataclass(frozen=True, slots=True)
class Sweep:
    """What each window came to in each phase: the cost, ms, and the mean latency, ms."""

    cost_ms: dict[Window, tuple[float, ...]]
    mean_ms: dict[Window, tuple[float, ...]]

    @property
    def first(self) -> Window:
        """The best for the first phase."""
        return min(self.cost_ms, key=lambda window: self.cost_ms[window][0])

    @property
    def single(self) -> Window:
        """The best over all phases."""
        return min(self.cost_ms, key=lambda window: sum(self.cost_ms[window]))

    @property
    def oracle(self) -> tuple[Window, ...]:
        """The best for each phase, by its mean latency."""
        phases = range(len(next(iter(self.mean_ms.values()))))
        return tuple(min(self.mean_ms, key=lambda window: self.mean_ms[window][n]) for n in phases)


def sweep(
    bench: IngestBench, scenario: Scenario, windows: Sequence[Window], say: Callable[[str], None]
) -> Sweep:
    """Try windows with the tuned consumer on short phases."""
    phases = [replace(phase, seconds=scenario.sweep_s) for phase in scenario.phases]
    costs, means = {}, {}
    for window in windows:
        outcome = bench.run(Side("sweep", window, scenario.rcvbuf_kib), phases)
        costs[window] = tuple(_cost_ms(phase) for phase in outcome.phases)
        means[window] = tuple(_mean_ms(phase) for phase in outcome.phases)
        say(f"window {window}: mean {outcome.mean_ms:.1f} ms, {100 * outcome.drops:.1f} % dropped")
    return Sweep(costs, means)


def with_drops_ms(phase: PhaseOutcome) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Latencies of all frames that were sent, ms, dropped ones by what they count as."""
    dropped = phase.sent - len(phase.latency_ns)
    return np.concatenate([phase.latency_ns / 1e6, np.full(dropped, _DROPPED_MS)])


def _mean_ms(phase: PhaseOutcome) -> float:
    return float(with_drops_ms(phase).mean())


def _cost_ms(phase: PhaseOutcome) -> float:
    every = with_drops_ms(phase)
    return float(every.mean() + np.percentile(every, 99))


def first_of(phases: Sequence[Phase], rate: float, seconds: float) -> list[Phase]:
    """The first phase at another rate, for another time."""
    return [replace(phases[0], rate=rate, seconds=seconds)]
