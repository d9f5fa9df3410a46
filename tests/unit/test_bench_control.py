"""How `make bench-control` judges, on runs with known answers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tools.bench.control import judge
from tools.bench.control.scenario import DEFAULTS, STATICS, Phase
from tools.bench.control.scene import Run, Span
from tools.testbed.testbed import ConsumerReport, Slice

SLICE_NS = 20_000_000
FIRST, SECOND = Phase(1, 1), Phase(0, 0)


def consumer(*buckets: int) -> ConsumerReport:
    """Slices of 20 ms, each with 100 packets in one bucket of the consumer's histogram."""
    slices = [Slice(i * SLICE_NS, SLICE_NS, 100, np.array([[b, 100]])) for i, b in enumerate(buckets)]
    return ConsumerReport(slices, 100 * len(slices), 0, 0)


def span(phase: Phase, slices: int, start: int = 0, after: int = 0) -> Span:
    """A phase over some slices that goes from one of the static settings to another."""
    end_ns = (start + slices) * SLICE_NS
    return Span(phase, start * SLICE_NS, end_ns, STATICS[0], STATICS[after])


def change(mono_ns: int, outcome: str = "applied") -> dict[str, object]:
    """A change frame."""
    return {"t": "change", "mono_ns": mono_ns, "outcome": outcome}


def test_p99_is_averaged_over_time() -> None:
    """A quarter of the time at the delay of bucket 400 counts as a quarter, of its logarithm or of itself."""
    low, high = (judge.mean_p99_us(consumer(*[b] * 5), 0, 5 * SLICE_NS) for b in (300, 400))
    mixed = consumer(*[400] * 5, *[300] * 15)
    assert judge.mean_p99_us(mixed, 0, 20 * SLICE_NS) == pytest.approx(high**0.25 * low**0.75)
    plain = judge.mean_p99_us(mixed, 0, 20 * SLICE_NS, "arithmetic")
    assert plain == pytest.approx(0.25 * high + 0.75 * low)


def test_the_decision_is_the_first_change_of_the_phase() -> None:
    """Not one of the phase before, nor one that was refused."""
    frames = [change(5), change(SLICE_NS + 2_000_000, "refused"), change(SLICE_NS + 40_000_000)]
    assert judge.decision_ms(span(SECOND, 10, start=1), frames) == 40.0
    assert judge.decision_ms(span(SECOND, 1, start=1), frames) is None


def test_recovery_is_when_p99_is_near_the_oracles() -> None:
    """Bad for five slices, then good: the first 100 ms without a bad one begin there."""
    report = consumer(*[400] * 5, *[300] * 15)
    good_us = judge.mean_p99_us(report, 5 * SLICE_NS, 20 * SLICE_NS)
    assert judge.recovery_ms(report, span(SECOND, 20), good_us) == 100.0
    assert judge.recovery_ms(report, span(SECOND, 20), good_us / 2) == 400.0


def test_the_gap_is_closed_in_proportion_to_log_p99() -> None:
    """At the oracle wholly, at the static setting not at all, beyond it negatively."""
    assert judge.gap_closed(1000, 100, 100) == 1.0
    assert judge.gap_closed(1000, 100, 1000) == 0.0
    assert judge.gap_closed(1000, 100, 2000) < 0
    assert math.isnan(judge.gap_closed(100, 100, 100))


def test_best_single_setting_and_oracle() -> None:
    """One that is fair in both phases beats two that are best in one each; the oracle takes those."""
    a, b, c = STATICS[:3]
    table = {
        (FIRST, a): 100.0, (FIRST, b): 50.0, (FIRST, c): 1000.0,
        (SECOND, a): 100.0, (SECOND, b): 1000.0, (SECOND, c): 50.0,
    }  # fmt: skip
    assert judge.best_static(table, [FIRST, SECOND]) == a
    assert [judge.oracle(table, phase) for phase in (FIRST, SECOND)] == [b, c]


def test_a_phase_left_in_a_worse_setting_is_counted() -> None:
    """By the sweep, with some allowance for noise."""
    table = {(FIRST, STATICS[0]): 100.0, (FIRST, STATICS[1]): 200.0, (FIRST, STATICS[2]): 110.0}
    runs = [Run([span(FIRST, 5, after=number)], consumer()) for number in (0, 1, 2)]
    assert [judge.worse_and_stayed(run, table) for run in runs] == [0, 1, 0]


def test_predictions_are_scored_beside_the_ablation_without() -> None:
    """A change that was never judged counts in neither."""
    effect = {"t": "effect", "before": {"p99_ns": 4e5}, "after": {"p99_ns": 1e5}, "predicted_p99_ns": 2e5}
    unjudged = {"t": "effect", "before": {"p99_ns": None}, "after": {"p99_ns": None}, "predicted_p99_ns": 2e5}
    ((predicted, persistent),) = judge.log_ratios([effect, unjudged])
    assert predicted == pytest.approx(math.log(2))
    assert persistent == pytest.approx(math.log(4))


def test_the_statics_are_all_there_are() -> None:
    """The kernel's default, and every way to pin two queues to two CPUs."""
    assert len(set(STATICS)) == 5
    assert STATICS[0] == DEFAULTS
