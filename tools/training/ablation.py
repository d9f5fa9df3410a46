"""What the LSTM earns: the mixture with it and without, and what the jump flag and the down-weighting add to that."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator

import numpy as np

from agent.clock.forecast import EXPERTS, STANDARD_EXPERTS
from agent.clock.lstm import Lstm, unpack
from agent.errors import AgentError, UnsupportedError, UsageError
from tools.bench import machine, report
from tools.bench.clock import catalog, product, recordings
from tools.bench.clock.evaluation import expert_rmse
from tools.bench.clock.predictions import VERDICT_SAMPLES, Measurements, of_trace, rmse
from tools.bench.clock.session import Session
from tools.bench.clock.traces import Trace
from tools.bench.figure import Effort
from tools.training.earnings import AFTER_JUMP_SAMPLES, Scores, Task, as_json, page
from tools.training.traces import VALIDATION_SEEDS, trace
from tools.training.ways import WAYS, file_of

_MOST_SAMPLES = 10_000
"""Of a trace of the catalogue, from its begin: two passes over all of it would take half an hour."""
_JUMPY = tuple(name for name in catalog.RECIPES if "steps" in name)


def main() -> int:
    """Evaluate, print the page, save if wanted."""
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
    name = f"{facts['date'][:10]}-{facts['commit'].partition(' ')[0] or 'unknown'}-lstm"
    text = page(facts, scores, f"{name}.json")
    print(text)
    if args.save:
        (report.RESULTS / f"{name}.json").write_text(json.dumps(as_json(facts, scores), indent=1) + "\n")
        (report.RESULTS / f"{name}.md").write_text(text)
        print(f"written: {report.RESULTS / name}.md")
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
        soon[first + VERDICT_SAMPLES : first + AFTER_JUMP_SAMPLES] = True
    target = np.where(soon[:, None], series.target_ns, np.nan)
    return Measurements(
        series.name, series.time_s, series.offset_ns, series.delay_ns, target, series.interval_s
    )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except AgentError as error:
        print(f"ablation: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("ablation: interrupted", file=sys.stderr)
        sys.exit(130)
