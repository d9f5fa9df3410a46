"""What the LSTM is trained on, and what is told of it."""

from __future__ import annotations

import numpy as np

from agent.clock.forecast import HORIZONS_S
from agent.clock.lstm import INPUTS
from tools.bench.clock import catalog
from tools.bench.clock.oscillator import TCXO
from tools.bench.clock.recipe import Recipe, draw
from tools.bench.clock.traces import Event
from tools.training.earnings import Scores, Task, page
from tools.training.lessons import TARGET_CLIP, lesson
from tools.training.traces import TRAINING_SEEDS, VALIDATION_SEEDS, trace
from tools.training.ways import WAYS


def test_seeds_of_training_validation_and_benchmark_are_apart() -> None:
    """No trace is drawn from the same seed as another."""
    groups = [set(TRAINING_SEEDS), set(VALIDATION_SEEDS), {catalog.seed_of(name) for name in catalog.RECIPES}]
    assert sum(map(len, groups)) == len(set.union(*groups))


def test_odd_seeds_jump_and_even_ones_do_not() -> None:
    """As the ablation has it."""
    assert trace(VALIDATION_SEEDS[0]).stationary
    assert not trace(VALIDATION_SEEDS[1]).stationary


def test_a_lesson_flags_the_jump_and_says_what_it_disturbs() -> None:
    """One phase step: one flag, where it was; targets are errors in sigmas, clipped over the step."""
    stepped = draw(Recipe("stepped", TCXO, 10, 120.0, events=(Event(60.05, "phase_step", 1e5),)), 1)
    told = lesson(stepped)
    # The clock starts with the first sample: rows begin with the second, and the start looks like a jump.
    assert len(told.inputs) == len(stepped) - 1
    assert np.flatnonzero(told.inputs[:, INPUTS.index("jump")]).tolist() == [0, 600]
    second = HORIZONS_S.index(1.0)
    assert set(range(590, 600)) < set(np.flatnonzero(told.disturbed[:, second])) <= set(range(590, 604))
    assert np.abs(told.targets[590:600, second]).min() == TARGET_CLIP
    undisturbed = told.targets[~told.disturbed[:, second], second]
    assert 0.3 < np.nanmean(undisturbed**2) < 3.0
    assert np.isnan(told.targets[-1, second:]).all()


def test_the_page_tells_ratio_worst_and_count() -> None:
    """Two traces, 2 % better and 4 % worse with it: 1.0095 as a mean, one above 1.01, and named."""
    ones, none = np.ones(len(HORIZONS_S)), np.full(len(HORIZONS_S), np.nan)
    scores = {}
    for name, ratio in (("good", 0.98), ("bad", 1.04)):
        alone = {"hold": 2 * ones, "lstm": ratio * ones, "mixture": ones}
        scores[Task("validation", name, None)] = Scores(100 * ones, {}, {})
        scores[Task("validation", name, 0)] = Scores(100 * ratio * ones, alone, {"lstm": none})
    told = page({"date": "2026-01-01", "commit": "c"}, scores, "it.json")
    row = next(line for line in told.splitlines() if line.startswith("| validation | 1 s |"))
    assert "| 1.0096 |" in row
    assert "| 1.0400 (bad) | 1 of 2 |" in row
    assert row.endswith("| 2 of 2 |")
    assert all(way.name in told for way in WAYS[1:])
