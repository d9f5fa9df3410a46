"""The figures: sides that alternate in one run, and the medians of the ratios of pairs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tools.bench.figure import Effort, Figure, median_with_bootstrap
from tools.bench.ingest.bench import IngestBench, Outcome, Side
from tools.bench.ingest.scenario import Scenario
from tools.bench.ingest.sweep import Sweep, Window, first_of, sweep, with_drops_ms

_DROP_RATIO = 9.0


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures, and the last pair for a picture."""

    figures: list[Figure]
    last: dict[str, Outcome]


def measure(scenario: Scenario, effort: Effort) -> Measured:
    """All of it: the sweep, the pairs, the sustained rates. Raises what the runs raise."""
    with IngestBench(scenario) as bench:
        found = sweep(bench, scenario, _windows(scenario, effort), effort.say)
        sides = _sides(scenario, found)
        pairs = [
            {side.name: _told(bench, side, scenario, effort, n) for side in _turned(sides, n)}
            for n in range(effort.repeat(scenario.pairs, 2))
        ]
        sustained = _sustained(bench, scenario, [sides[1], sides[-1]], effort)
    return Measured(_figures(pairs, sustained, found, sides, scenario), pairs[-1])


def _windows(scenario: Scenario, effort: Effort) -> list[Window]:
    step = 3 if effort.quick else 1
    return list(itertools.product(scenario.waits_us[::step], scenario.sizes[::step]))


def _sides(scenario: Scenario, found: Sweep) -> list[Side]:
    return [
        Side("usual", scenario.usual, 0),
        Side("tuned", found.first, scenario.rcvbuf_kib),
        Side("best", found.single, scenario.rcvbuf_kib),
        # Its default is the tuned side's: until the agent has seen enough, both do the same.
        Side("agent", found.first, scenario.rcvbuf_kib, agent=True),
    ]


def _turned(sides: Sequence[Side], n: int) -> list[Side]:
    """The sides in another order for each pair: none is always the first."""
    return [*sides[n % len(sides) :], *sides[: n % len(sides)]]


def _told(bench: IngestBench, side: Side, scenario: Scenario, effort: Effort, n: int) -> Outcome:
    outcome = bench.run(side, scenario.phases)
    effort.say(
        f"pair {n + 1}, {side.name} {side.window}: mean {outcome.mean_ms:.2f} ms, p99 {outcome.p99_ms:.1f} ms, "
        f"{100 * outcome.drops:.2f} % dropped, CPU {outcome.cpu_percent:.1f} %, camera late by "
        f"{outcome.late_p99_ns / 1e6:.1f} ms (p99)"
    )
    return outcome


def _sustained(
    bench: IngestBench, scenario: Scenario, sides: Sequence[Side], effort: Effort
) -> dict[str, list[float]]:
    """The highest rate of each side, repeat by repeat, up to which it drops no more than is allowed."""
    step = 3 if effort.quick else 1
    highest: dict[str, list[float]] = {side.name: [] for side in sides}
    for _ in range(effort.repeat(scenario.sustained_repeats, 1)):
        for side in sides:
            reached = 0.0
            for rate in scenario.sustained_rates[::step]:
                outcome = bench.run(side, first_of(scenario.phases, rate, scenario.sustained_s))
                if outcome.drops > scenario.sustained_drops:
                    break
                reached = rate
            highest[side.name].append(reached)
            effort.say(f"{side.name} {side.window}: {reached:.0f} frames/s sustained")
    return highest


def _figures(
    pairs: Sequence[dict[str, Outcome]],
    sustained: dict[str, list[float]],
    found: Sweep,
    sides: Sequence[Side],
    scenario: Scenario,
) -> list[Figure]:
    def figure(
        name: str,
        what: str,
        of_pair: Callable[[dict[str, Outcome]], float],
        target: float,
        direction: Literal["at most", "at least"] = "at least",
        unit: str = "",
    ) -> Figure:
        values = [of_pair(pair) for pair in pairs]
        value, spread = median_with_bootstrap(values)
        return Figure(name, what, value, unit, target, direction, spread, len(values), _both(pairs))

    # A side that sustained none of the rates sustains less than the lowest.
    lowest = scenario.sustained_rates[0]
    rates = [
        agent / max(tuned, lowest)
        for tuned, agent in zip(sustained["tuned"], sustained["agent"], strict=True)
    ]
    rate, rate_spread = median_with_bootstrap(rates)
    windows = {side.name: f"{side.window[0]} us, {side.window[1]} items" for side in sides}
    return [
        figure(
            "ingest-mean", "mean latency from capture to inference, static tuned on the first phase / agent",
            lambda pair: pair["tuned"].mean_ms / pair["agent"].mean_ms, 2.1,
        ),
        figure(
            "ingest-p99", "p99 of the latency, static tuned on the first phase / agent",
            lambda pair: pair["tuned"].p99_ms / pair["agent"].p99_ms, 3.2,
        ),
        figure(
            "ingest-drops", "dropped frames, static tuned on the first phase / agent (9 if the agent's drops none)",
            lambda pair: _drop_ratio(pair["tuned"].drops, pair["agent"].drops), _DROP_RATIO,
        ),
        Figure(
            "ingest-rate", "highest rate with at most 0.5 % drops, agent / static tuned on the first phase",
            rate, "", 1.45, "at least", rate_spread, len(rates), {"frames_per_s": sustained, "windows": windows},
        ),
        figure(
            "ingest-cpu", "CPU of the service and the agent, of all CPUs: agent - static tuned on the first phase",
            lambda pair: pair["agent"].cpu_percent - pair["tuned"].cpu_percent, 3.0, "at most", "points",
        ),
        figure(
            "ingest-best", "p99 of the latency, the best single static window over all phases / agent",
            lambda pair: pair["best"].p99_ms / pair["agent"].p99_ms, 1.2,
        ),
        figure(
            "ingest-usual", "mean latency, kernel defaults and a usual window / agent",
            lambda pair: pair["usual"].mean_ms / pair["agent"].mean_ms, 1.0,
        ),
        figure(
            "ingest-oracle", "of the gap between the tuned static window and the best one of each phase, closed",
            lambda pair: _closed_percent(pair, found), 80.0, "at least", "%",
        ),
    ]  # fmt: skip


def _drop_ratio(static: float, agent: float) -> float:
    return static / agent if agent > 0 else _DROP_RATIO


def _closed_percent(pair: dict[str, Outcome], found: Sweep) -> float:
    """How much of the way from the tuned side's mean latency to the oracle's the agent went, dropped frames counted."""
    phases = range(len(found.oracle))
    oracle = float(np.mean([found.mean_ms[found.oracle[n]][n] for n in phases]))
    tuned, agent = (
        float(np.mean([with_drops_ms(phase).mean() for phase in pair[name].phases]))
        for name in ("tuned", "agent")
    )
    # Where the tuned window is the oracle's in every phase, there is no gap: what is no worse has closed it.
    gap = tuned - oracle
    return (
        100.0 * (tuned - agent) / gap if gap > 0.02 * oracle else (100.0 if agent <= 1.02 * oracle else 0.0)
    )


def _both(pairs: Sequence[dict[str, Outcome]]) -> dict[str, Any]:
    """The absolute figures of all sides, medians over the pairs."""
    detail: dict[str, Any] = {}
    for name in pairs[0]:
        outcomes = [pair[name] for pair in pairs]
        detail[name] = {
            "mean_ms": float(np.median([outcome.mean_ms for outcome in outcomes])),
            "p99_ms": float(np.median([outcome.p99_ms for outcome in outcomes])),
            "drops_percent": float(np.median([100 * outcome.drops for outcome in outcomes])),
            "cpu_percent": float(np.median([outcome.cpu_percent for outcome in outcomes])),
            "camera_late_p99_ms": float(np.median([outcome.late_p99_ns / 1e6 for outcome in outcomes])),
        }
    return detail
