"""What came of the replays with and without the LSTM: a page for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from agent.clock.forecast import HORIZONS_S
from tools.bench.clock.oscillator import Floats
from tools.bench.clock.predictions import VERDICT_SAMPLES
from tools.bench.clock.ratios import geometric_mean
from tools.training.ways import WAYS

AFTER_JUMP_SAMPLES = 100
_GROUPS = {
    "validation": "drawn clocks that it wasn't trained on; those of odd seeds jump",
    "catalogue": "the benchmark's synthetic traces, the first 10,000 samples of each",
    "recordings": "recordings of locked servos",
}


@dataclass(frozen=True, slots=True)
class Task:
    """A series, and which way of training speaks: a number of WAYS, None for the mixture without the LSTM."""

    group: str
    name: str
    way: int | None


@dataclass(frozen=True, slots=True)
class Scores:
    """RMSE in ns, float64[H]: the mixture, each expert alone, and both after jumps (NaN where nothing was scored)."""

    mixture: Floats
    alone: dict[str, Floats]
    after_jumps: dict[str, Floats]


def as_json(facts: dict[str, Any], scores: Mapping[Task, Scores]) -> dict[str, Any]:
    """Everything, as JSON types; what wasn't scored is null."""
    return {
        "machine": facts,
        "horizons_s": list(HORIZONS_S),
        "ways": [way.name for way in WAYS],
        "replays": [
            {
                "group": task.group,
                "name": task.name,
                "way": task.way,
                "mixture_rmse_ns": _numbers(score.mixture),
                "alone_rmse_ns": {name: _numbers(rmse) for name, rmse in score.alone.items()},
                "alone_rmse_after_jumps_ns": {n: _numbers(rmse) for n, rmse in score.after_jumps.items()},
            }
            for task, score in scores.items()
        ],
    }


def _numbers(values: Floats) -> list[float | None]:
    return [float(f"{v:.6g}") if np.isfinite(v) else None for v in values.tolist()]


def page(facts: dict[str, Any], scores: Mapping[Task, Scores], json_name: str) -> str:
    """The figures in tables, and the machine."""
    lines = [
        f"# What the LSTM earns: figures of {facts['date']}",
        "",
        f"Commit {facts['commit']}; every replay is in [{json_name}]({json_name}).",
        "What is measured, and what follows from it: [docs/lstm.md](../lstm.md).",
        "",
        "## The mixture with the LSTM over the one without",
        "",
        "RMSE ratios: below 1 it earns. `alone` is the LSTM's RMSE over that of the best other expert in hindsight,",
        "on traces where all experts could tell.",
        "",
        "| | horizon | geometric mean | 95 % bootstrap | worst | above 1.01 | alone | alone best on |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for group in _GROUPS:
        lines += [_earned(scores, group, column) for column in _scored(scores, group)]
    lines += ["", *[f"- {group}: {what}" for group, what in _GROUPS.items()], ""]
    lines += [
        "## The jump flag, and jumps down-weighted in the loss",
        "",
        "RMSE of the LSTM alone as it is trained, with both, over one trained otherwise, geometric mean over the",
        f"traces with jumps: below 1 they earn. `after jumps`: predictions {VERDICT_SAMPLES} to {AFTER_JUMP_SAMPLES}",
        "samples after one.",
        "",
        "| | horizon | scored | " + " | ".join(way.name for way in WAYS[1:]) + " |",
        "| --- | --- | --- |" + " --- |" * (len(WAYS) - 1),
    ]
    for group in ("validation", "catalogue"):
        for column in _scored(scores, group):
            for scored, pick in (("all", _alone), ("after jumps", _after)):
                cells = [_added(scores, group, number, column, pick) for number in range(1, len(WAYS))]
                lines.append(f"| {group} | {HORIZONS_S[column]:g} s | {scored} | {' | '.join(cells)} |")
    lines += ["", "## The machine", "", "| | |", "| --- | --- |"]
    lines += [f"| {key} | {value} |" for key, value in facts.items()]
    return "\n".join(lines) + "\n"


def _scored(scores: Mapping[Task, Scores], group: str) -> list[int]:
    """The places of the horizons at which anything was scored."""
    found = [np.isfinite(score.mixture) for task, score in scores.items() if task.group == group]
    return np.flatnonzero(np.any(found, axis=0)).tolist()


def _earned(scores: Mapping[Task, Scores], group: str, column: int) -> str:
    with_it = {t.name: s for t, s in scores.items() if t.group == group and t.way == 0}
    ratios = _finite(
        {
            n: float(s.mixture[column] / scores[Task(group, n, None)].mixture[column])
            for n, s in with_it.items()
        }
    )
    alone = _finite({n: _over_best_other(s.alone, column) for n, s in with_it.items()})
    mean, spread = geometric_mean(ratios)
    worst = max(ratios, key=lambda name: ratios[name])
    beyond = sum(ratio > 1.01 for ratio in ratios.values())
    by_itself = f"{geometric_mean(alone)[0]:.3f}" if alone else "–"
    best_on = f"{sum(ratio < 1.0 for ratio in alone.values())} of {len(alone)}"
    return (
        f"| {group} | {HORIZONS_S[column]:g} s | {mean:.4f} | {spread.low:.4f} – {spread.high:.4f} | "
        f"{ratios[worst]:.4f} ({worst}) | {beyond} of {len(ratios)} | {by_itself} | {best_on} |"
    )


def _over_best_other(alone: dict[str, Floats], column: int) -> float:
    others = [float(rmse[column]) for name, rmse in alone.items() if name not in ("mixture", "lstm")]
    return float(alone["lstm"][column]) / min(others)


def _alone(score: Scores) -> Floats:
    return score.alone["lstm"]


def _after(score: Scores) -> Floats:
    return score.after_jumps["lstm"]


def _added(
    scores: Mapping[Task, Scores], group: str, number: int, column: int, pick: Callable[[Scores], Floats]
) -> str:
    ratios = _finite(
        {
            task.name: float(pick(scores[Task(group, task.name, 0)])[column] / pick(other)[column])
            for task, other in scores.items()
            if task.group == group and task.way == number
        }
    )
    return f"{geometric_mean(ratios)[0]:.4f}" if ratios else "–"


def _finite(ratios: dict[str, float]) -> dict[str, float]:
    return {name: ratio for name, ratio in ratios.items() if np.isfinite(ratio)}
