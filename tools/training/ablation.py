"""What the LSTM earns: the mixture with it and without, and what the jump flag and the down-weighting add to that."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from agent.clock.forecast import EXPERTS, HORIZONS_S, STANDARD_EXPERTS
from agent.clock.lstm import Lstm, unpack
from agent.errors import AgentError, UnsupportedError, UsageError
from tools.bench import machine, report
from tools.bench.clock import catalog, product, recordings
from tools.bench.clock.evaluation import expert_rmse
from tools.bench.clock.oscillator import Floats
from tools.bench.clock.predictions import VERDICT_SAMPLES, WARM_UP_S, Measurements, of_trace, rmse
from tools.bench.clock.ratios import mean_figure, worst_figure
from tools.bench.clock.session import Session
from tools.bench.clock.traces import Trace
from tools.bench.figure import Effort, Figure
from tools.training.traces import VALIDATION_SEEDS, trace
from tools.training.ways import WAYS, file_of

_AFTER_JUMP_SAMPLES = 100
_MOST_BY_IT = 1.01
_SETS = {
    "validation": "drawn clocks that weren't trained on",
    "catalogue": "the first 10,000 samples of the benchmark's synthetic traces",
    "recordings": "recordings of locked servos",
}
_MOST_SAMPLES = 10_000
"""Of a trace of the catalogue, from its begin: two passes over all of it would take half an hour."""
_JUMPY = tuple(name for name in catalog.RECIPES if "steps" in name)


@dataclass(frozen=True, slots=True)
class Task:
    """A series, and which way of training speaks: a number of WAYS, None for the mixture without the LSTM."""

    group: str
    name: str
    way: int | None


@dataclass(frozen=True, slots=True)
class Scores:
    """RMSE in ns, float64[H]: the mixture, each expert alone, and both after jumps (NaN where there are none)."""

    mixture: Floats
    alone: dict[str, Floats]
    after_jumps: dict[str, Floats]


def main() -> int:
    """Evaluate, print, save if wanted."""
    args = _parser().parse_args()
    if args.processes < 1:
        raise UsageError(f"{args.processes} processes", "--processes takes a number from 1 on")
    missing = [file_of(number) for number in range(len(WAYS)) if not file_of(number).exists()]
    if missing:
        raise UnsupportedError(f"{missing[0]} isn't there", "train all ways: make train ARGS=--all-ways")
    facts = machine.facts()
    session = Session(Effort(quick=args.quick), args.processes)
    tasks = list(_tasks(args.quick))
    scores = dict(zip(tasks, session.map("replays", evaluate, tasks), strict=True))
    figures = [*_earned(scores), *_added(scores)]
    print(report.table(figures))
    if args.save:
        print(f"written: {report.save(facts, figures, suffix='-lstm')}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.training.ablation", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a slice: shows that all works")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="at a time (default: 1)")
    parser.add_argument("--save", action="store_true", help="write a page and its JSON to docs/results/")
    return parser


def _tasks(quick: bool) -> Iterator[Task]:
    """With and without on all series, all ways of training where something jumps."""
    seeds = VALIDATION_SEEDS[:2] if quick else VALIDATION_SEEDS
    series = [("validation", str(seed)) for seed in seeds]
    series += [("recordings", name) for name in recordings.FILES]
    series += [("catalogue", name) for name in (catalog.QUICK[-1:] if quick else catalog.RECIPES)]
    for group, name in series:
        yield Task(group, name, None)
        yield Task(group, name, 0)
        if _jumps(group, name):
            for number in range(1, len(WAYS)):
                yield Task(group, name, number)


def _jumps(group: str, name: str) -> bool:
    return bool(int(name) % 2) if group == "validation" else name in _JUMPY


def evaluate(task: Task) -> Scores:
    """Replay a series one way."""
    experts, recurrent = STANDARD_EXPERTS, None
    if task.way is not None:
        experts, path = EXPERTS, file_of(task.way)
        recurrent = Lstm(unpack(path.read_bytes(), path.name))
    if task.group == "recordings":
        recording = recordings.load(task.name)
        series, trace_ = recording.series, None
        ran = product.run(recording.samples, recording.base_ns, experts=experts, recurrent=recurrent)
    else:
        trace_ = trace(int(task.name)) if task.group == "validation" else catalog.trace(task.name)
        samples, steering = trace_.samples()[:_MOST_SAMPLES], trace_.steering_per_sample()
        ran = product.run(samples, trace_.base_ns, steering, experts=experts, recurrent=recurrent)
        series = of_trace(trace_).first(len(samples))
    after = {} if trace_ is None else expert_rmse(ran, _after_jumps(series, trace_))
    return Scores(rmse(ran.predicted_ns, series.target_ns), expert_rmse(ran, series), after)


def _after_jumps(series: Measurements, trace_: Trace) -> Measurements:
    """The series with targets only for the samples that follow a jump, once its verdict is final."""
    soon = np.zeros(len(series.time_s), dtype=bool)
    for first in np.searchsorted(series.time_s, trace_.jump_times_s):
        soon[first + VERDICT_SAMPLES : first + _AFTER_JUMP_SAMPLES] = True
    target = np.where(soon[:, None], series.target_ns, np.nan)
    return Measurements(
        series.name, series.time_s, series.offset_ns, series.delay_ns, target, series.interval_s
    )


def _earned(scores: dict[Task, Scores]) -> Iterator[Figure]:
    """The mixture with the LSTM over the one without."""
    for group, what in _SETS.items():
        pairs = {
            task.name: (with_it, scores[Task(group, task.name, None)])
            for task, with_it in scores.items()
            if task.group == group and task.way == 0
        }
        each: dict[str, float] = {}
        for column, horizon in enumerate(HORIZONS_S):
            ratios = _finite({n: float((w.mixture / o.mixture)[column]) for n, (w, o) in pairs.items()})
            if not ratios:
                continue
            alone = _finite({n: _over_best_other(w.alone, column) for n, (w, _) in pairs.items()})
            each |= {f"{name} at {horizon:g} s": ratio for name, ratio in ratios.items()}
            yield mean_figure(
                f"{group}-{horizon:g}s",
                f"{what}: RMSE of the mixture with the LSTM over that without, geometric mean",
                ratios,
                1.0,
                lstm_alone_over_best_other_expert=float(np.exp(np.mean(np.log(list(alone.values()))))),
                lstm_alone_is_best_on=f"{sum(r < 1.0 for r in alone.values())} of {len(alone)}",
                rmse_without_ns={n: float(o.mixture[column]) for n, (_, o) in pairs.items() if n in ratios},
            )
        yield worst_figure(f"{group}-worst", f"{what}: the same, the worst at any horizon", each, _MOST_BY_IT)


def _over_best_other(alone: dict[str, Floats], column: int) -> float:
    others = [float(values[column]) for name, values in alone.items() if name not in ("mixture", "lstm")]
    return float(alone["lstm"][column]) / min(others)


def _added(scores: dict[Task, Scores]) -> Iterator[Figure]:
    """The LSTM alone, trained as it is, over one trained another way: all that is scored, and after jumps."""
    for number, way in enumerate(WAYS[1:], 1):
        for group in ("validation", "catalogue"):
            pairs = {
                task.name: (scores[Task(group, task.name, 0)], other)
                for task, other in scores.items()
                if task.group == group and task.way == number
            }
            for column, horizon in enumerate(HORIZONS_S):
                all_of_it = {n: _ratio(o.alone, p.alone, column) for n, (o, p) in pairs.items()}
                after = {n: _ratio(o.after_jumps, p.after_jumps, column) for n, (o, p) in pairs.items()}
                yield mean_figure(
                    f"{group}-way-{number}-{horizon:g}s",
                    f"{_SETS[group]} with jumps: RMSE after jumps of the LSTM alone, trained with flag and "
                    f"down-weighting, over one trained with {way.name}; geometric mean",
                    _finite(after),
                    1.0,
                    all_that_is_scored=float(np.exp(np.mean(np.log(list(_finite(all_of_it).values()))))),
                    per_trace_all_that_is_scored=_finite(all_of_it),
                    scored=f"predictions {VERDICT_SAMPLES} to {_AFTER_JUMP_SAMPLES} samples after a jump, from "
                    f"{WARM_UP_S:g} s on",
                )


def _ratio(one: dict[str, Floats], other: dict[str, Floats], column: int) -> float:
    return float(one["lstm"][column] / other["lstm"][column])


def _finite(ratios: dict[str, float]) -> dict[str, float]:
    """Those that something was scored of."""
    return {name: ratio for name, ratio in ratios.items() if np.isfinite(ratio)}


if __name__ == "__main__":
    try:
        sys.exit(main())
    except AgentError as error:
        print(f"ablation: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("ablation: interrupted", file=sys.stderr)
        sys.exit(130)
