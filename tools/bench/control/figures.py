"""The sweep, the interleaved runs, and the figures that come of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from agent.errors import UnsupportedError
from tools.bench.control import judge
from tools.bench.control.scenario import (
    DEFAULTS,
    MOVING,
    PHASE_S,
    STATICS,
    STATIONARY,
    STATIONARY_S,
    SWEEP_S,
    Phase,
    Setting,
    setting_text,
)
from tools.bench.control.scene import Run, Scene
from tools.bench.figure import Effort, Figure, median_with_bootstrap

_REPEATED = 3
_QUIET_AFTER_S = 30.0
_ASIDE_S = 20.0
_GAIN_WORTH = 0.6
_HOW = (
    "the consumer's own clock, p99 of each 100 ms, {mean} mean over a phase, geometric mean over the phases of "
    "tools/bench/control/scenario.py; the sides in turn, their order reversed each round, ratios within a round"
)


@dataclass(slots=True)
class Rounds:
    """One run a round of each side."""

    defaults: list[Run] = field(default_factory=list)
    static: list[Run] = field(default_factory=list)
    oracle: list[Run] = field(default_factory=list)
    agent: list[Run] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Stationary:
    """Rounds on a load that stays."""

    agent: list[float]
    static: list[float]
    changes_per_minute: list[float]
    cpu_share: list[float]


def measure(effort: Effort, pairs: int) -> list[Figure]:
    """Everything of `make bench-control`: so many rounds over the moving loads, and of the rest in proportion."""
    with Scene() as scene:
        table = sweep(scene, effort, _few(pairs))
        rounds = moving(scene, table, effort, pairs)
        stationary_rounds = stationary(scene, table, effort, max(1, pairs // 4))
        ipis = aside(scene, effort, _few(pairs))
    return [
        *_moving_figures(rounds, table, "geometric"),
        *_moving_figures(rounds, table, "arithmetic"),
        *_stationary_figures(stationary_rounds),
        *_reaction_figures(rounds, table),
        *_honesty_figures(rounds, table),
        *_aside_figures(ipis),
    ]


# ---- measuring -----------------------------------------------------------------------------------------------


def _few(pairs: int) -> int:
    return min(_REPEATED, 1 + pairs // 8)


def sweep(scene: Scene, effort: Effort, times: int) -> judge.SweepTable:
    """Every static setting in every phase, several times in turn; medians."""
    phases = list(dict.fromkeys((*MOVING, STATIONARY)))
    seen: dict[tuple[Phase, Setting], list[float]] = {}
    for number in range(times):
        effort.say(f"control: sweep {number + 1}, {len(phases)} phases × {len(STATICS)} settings")
        for setting in STATICS if number % 2 == 0 else reversed(STATICS):
            run = scene.run_static(phases, [setting] * len(phases), SWEEP_S if not effort.quick else 1.5)
            for span in run.spans:
                seen.setdefault((span.phase, setting), []).append(judge.span_p99_us(run, span))
    return {key: float(np.median(values)) for key, values in seen.items()}


def moving(scene: Scene, table: judge.SweepTable, effort: Effort, count: int) -> Rounds:
    """Rounds of all sides over the moving loads."""
    rounds = Rounds()
    static = judge.best_static(table, MOVING)
    best = [judge.oracle(table, phase) for phase in MOVING]

    def fixed(into: list[Run], settings: Sequence[Setting]) -> None:
        into.append(scene.run_static(MOVING, settings, PHASE_S))

    sides: list[Callable[[], None]] = [
        lambda: fixed(rounds.defaults, [DEFAULTS] * len(MOVING)),
        lambda: fixed(rounds.static, [static] * len(MOVING)),
        lambda: rounds.agent.append(scene.run_agent(MOVING, PHASE_S)),
        lambda: fixed(rounds.oracle, best),
    ]
    for number in range(count):
        effort.say(f"control: moving load, round {number + 1} of {count}")
        for side in sides if number % 2 == 0 else reversed(sides):
            side()
    return rounds


def stationary(scene: Scene, table: judge.SweepTable, effort: Effort, count: int) -> Stationary:
    """Agent and best static setting on the load that stays; judged from 30 s on."""
    best = judge.oracle(table, STATIONARY)
    result = Stationary([], [], [], [])
    seconds = STATIONARY_S if not effort.quick else 40.0

    def late_p99_us(run: Run) -> float:
        (span,) = run.spans
        return judge.mean_p99_us(run.consumer, span.start_ns + round(_QUIET_AFTER_S * 1e9), span.end_ns)

    def agent() -> None:
        run = scene.run_agent([STATIONARY], seconds)
        result.agent.append(late_p99_us(run))
        result.changes_per_minute.append(judge.changes_per_minute(run.spans[0], run.frames, _QUIET_AFTER_S))
        result.cpu_share.append(run.cpu_share)

    def static() -> None:
        result.static.append(late_p99_us(scene.run_static([STATIONARY], [best], seconds)))

    for number in range(count):
        effort.say(f"control: stationary load, round {number + 1} of {count}")
        for side in (agent, static) if number % 2 == 0 else (static, agent):
            side()
    return result


def aside(scene: Scene, effort: Effort, times: int) -> list[float]:
    """Interrupts a minute that the agent sends to a CPU that serves no queue; empty where they cannot be told."""
    seconds = _ASIDE_S if not effort.quick else 5.0
    effort.say("control: interrupts to a CPU that serves no queue")
    try:
        return [scene.run_aside(seconds) * 60 / seconds for _ in range(times)]
    except UnsupportedError as refusal:
        effort.say(f"control: {refusal.what}")
        return []


# ---- figures -------------------------------------------------------------------------------------------------


def _moving_figures(rounds: Rounds, table: judge.SweepTable, mean: judge.Mean) -> list[Figure]:
    defaults, static, oracle, agent = (
        [judge.run_p99_us(run, mean) for run in runs]
        for runs in (rounds.defaults, rounds.static, rounds.oracle, rounds.agent)
    )
    detail = {
        "how": _HOW.format(mean=mean),
        "defaults, us": float(np.median(defaults)),
        "best single static, us": float(np.median(static)),
        "oracle, us": float(np.median(oracle)),
        "agent, us": float(np.median(agent)),
        "best single static setting": setting_text(judge.best_static(table, MOVING)),
        "oracle's settings": {str(p): setting_text(judge.oracle(table, p)) for p in dict.fromkeys(MOVING)},
    }
    by_static = [a / s for a, s in zip(agent, static, strict=True)]
    by_default = [a / d for a, d in zip(agent, defaults, strict=True)]
    gains_static = np.median(oracle) <= _GAIN_WORTH * np.median(static)
    gains_default = np.median(oracle) <= 0.4 * np.median(defaults)
    closed = [judge.gap_closed(s, o, a) for s, o, a in zip(static, oracle, agent, strict=True) if s > o]
    names, over = ("", "") if mean == "geometric" else (", arithmetic", "; arithmetic mean over time")
    figures = [
        _figure(
            f"moving / static{names}",
            f"moving load: p99, agent / best single static setting{over}",
            by_static,
            0.6 if gains_static else 1.05,
            "at most",
            detail,
        ),
        _figure(
            f"moving / defaults{names}",
            f"moving load: p99, agent / kernel defaults{over}",
            by_default,
            0.4 if gains_default else 1.05,
            "at most",
            detail,
        ),
    ]
    if closed:
        figures.append(
            _figure(
                f"gap closed{names}",
                f"moving load: share of the gap from the best single static setting to the oracle, in log p99{over}",
                closed,
                0.8,
                "at least",
                detail,
            )
        )
    return figures


def _stationary_figures(rounds: Stationary) -> list[Figure]:
    detail = {
        "how": "one load that stays; from 30 s after the agent's start",
        "agent, us": float(np.median(rounds.agent)),
        "best static, us": float(np.median(rounds.static)),
    }
    ratios = [a / s for a, s in zip(rounds.agent, rounds.static, strict=True)]
    return [
        _figure(
            "stationary", "stationary load: p99, agent / best static setting", ratios, 1.05, "at most", detail
        ),
        _figure(
            "changes",
            "plans applied per minute on a stationary load, after the first 30 s",
            rounds.changes_per_minute,
            1.0,
            "at most",
            {"how": "counted in the agent's telemetry"},
        ),
        _figure(
            "CPU",
            "CPU time of the agent's process, tracepoints on, of one CPU",
            [100 * share for share in rounds.cpu_share],
            2.0,
            "at most",
            {"how": "its process's CPU clock; the time of its BPF programs is `make bench`'s figure cpu"},
            "points",
        ),
    ]


def _reaction_figures(rounds: Rounds, table: judge.SweepTable) -> list[Figure]:
    decisions, recoveries = [], []
    for run, best in zip(rounds.agent, rounds.oracle, strict=True):
        for span, oracle_span in zip(run.spans[1:], best.spans[1:], strict=True):
            if not judge.asks_for_an_answer(span, table):
                continue
            decided = judge.decision_ms(span, run.frames)
            decisions.append((span.end_ns - span.start_ns) / 1e6 if decided is None else decided)
            recoveries.append(judge.recovery_ms(run.consumer, span, judge.typical_p99_us(best, oracle_span)))
    if not recoveries:
        return []
    which = (
        "phases whose setting at the move was not within 1.2 of their oracle by the sweep, but the first; a phase "
        "without it counts with its whole length"
    )
    return [
        _figure(
            "decision",
            "from a load's move to the first change that answers it",
            decisions,
            100.0,
            "at most",
            {"how": f"first change in the agent's telemetry after the move; {which}"},
            "ms",
        ),
        _figure(
            "recovery",
            "from a load's move until p99 over 100 ms is within 1.2 of the new phase's oracle",
            recoveries,
            300.0,
            "at most",
            {"how": f"against the median p99 of the oracle's run of the same round; {which}"},
            "ms",
        ),
    ]


def _honesty_figures(rounds: Rounds, table: judge.SweepTable) -> list[Figure]:
    worse = [judge.worse_and_stayed(run, table) for run in rounds.agent]
    figures = [
        Figure(
            name="worse and stayed",
            what="phases that the agent left in a setting worse than the one that they began with",
            value=float(sum(worse)),
            unit="",
            target=0.0,
            direction="exactly",
            spread=None,
            samples=sum(len(run.spans) for run in rounds.agent),
            detail={"how": "by the sweep: its steady p99 above 1.25 of that of the setting before"},
        )
    ]
    ratios = [pair for run in rounds.agent for pair in judge.log_ratios(run.frames)]
    if ratios:
        ablation, _ = median_with_bootstrap([unpredicted for _, unpredicted in ratios])
        figures.append(
            _figure(
                "prediction",
                "predicted against measured p99 after a change, |ln ratio|",
                [predicted for predicted, _ in ratios],
                0.3,
                "at most",
                {
                    "how": "each change that was judged, by the agent's telemetry",
                    "without prediction": ablation,
                },
            )
        )
    return figures


def _aside_figures(per_minute: list[float]) -> list[Figure]:
    if not per_minute:
        return []
    return [
        Figure(
            name="IPIs",
            what="interrupts a minute that the agent sends to an idle CPU, which serves no queue",
            value=max(per_minute),
            unit="",
            target=0.0,
            direction="exactly",
            spread=None,
            samples=len(per_minute),
            detail={
                "how": "counted where the kernel sends them (ipi_send_cpu, ipi_send_cpumask), by the sending process; "
                "packets and the agent's threads on one CPU, the other one idle; the worst run"
            },
        )
    ]


def _figure(
    name: str,
    what: str,
    values: Sequence[float],
    target: float,
    direction: Literal["at most", "at least"],
    detail: dict[str, object],
    unit: str = "",
) -> Figure:
    known = [value for value in values if not math.isnan(value)]
    value, spread = median_with_bootstrap(known)
    return Figure(name, what, value, unit, target, direction, spread, len(known), dict(detail))
