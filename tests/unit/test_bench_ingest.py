"""The ingest benchmark's arithmetic: when frames are due, which static windows win, how sides are compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tools.bench.ingest import measurement, picture, scenario
from tools.bench.ingest.bench import Outcome, PhaseOutcome, Side
from tools.bench.ingest.sweep import Sweep, with_drops_ms

MS = 1_000_000


def test_the_scenario_is_whole() -> None:
    """Frames of 20 to 60 KB in several packets, 1000 to 1400 a second, loads on both CPUs, at least ten pairs."""
    found = scenario.read()
    assert 20_000 <= found.frame.size <= 60_000
    assert found.frame.packets > 1
    assert {phase.rate for phase in found.phases} >= {1_000, 1_400}
    assert {phase.load for phase in found.phases} == {"none", "consumer", "sender"}
    assert found.pairs >= 10
    assert set(found.priorities) == {"camera", "service", "load"}


def test_frames_are_due_at_the_phases_rate() -> None:
    """As many as rate times seconds, in order, the frames of a burst at once; the same for the same seed."""
    phase = replace(scenario.read().phases[0], rate=1_200.0, seconds=2.0, burst=4, jitter_us=200.0)
    due = phase.times_ns(np.random.default_rng(3))
    assert len(due) == 2_400
    assert (np.diff(due) >= 0).all()
    assert (due.reshape(-1, 4) == due[::4, None]).all()
    assert 0 <= due[0] < 3 * MS
    assert abs(int(due[-1]) - 2_000 * MS) < 10 * MS
    assert (due == phase.times_ns(np.random.default_rng(3))).all()


def phase_of(latency_ms: float, sent: int = 100, inferred: int = 100) -> PhaseOutcome:
    """A phase whose frames all took the same."""
    at = np.arange(inferred, dtype=np.int64) * MS
    return PhaseOutcome(sent, at, np.full(inferred, round(latency_ms * MS)))


def outcome(*latencies_ms: float, drops: int = 0, cpu_percent: float = 20.0) -> Outcome:
    """A run whose phases took these, of which the first dropped some frames."""
    phases = [phase_of(latency) for latency in latencies_ms]
    phases[0] = phase_of(latencies_ms[0], inferred=100 - drops)
    return Outcome(tuple(phases), cpu_percent, 0.0)


def test_an_outcome_counts_what_was_sent() -> None:
    """Latencies are of the inferred frames, drops of those that were sent."""
    run = outcome(2.0, 4.0, drops=50)
    assert run.drops == pytest.approx(0.25)
    assert run.mean_ms == pytest.approx((50 * 2 + 100 * 4) / 150)
    assert run.p99_ms == 4.0


def test_nothing_is_gained_by_dropping() -> None:
    """In a search for windows a dropped frame counts as a second."""
    assert with_drops_ms(phase_of(2.0, inferred=99)).mean() == pytest.approx((99 * 2 + 1_000) / 100)


def test_static_windows_are_the_best_of_those_tried() -> None:
    """For the first phase, over all phases, and for each."""
    found = Sweep(
        cost_ms={(0, 4): (2.0, 9.0), (1_000, 8): (3.0, 4.0), (5_000, 16): (8.0, 3.5)},
        mean_ms={(0, 4): (1.0, 5.0), (1_000, 8): (1.5, 2.0), (5_000, 16): (4.0, 1.8)},
    )
    assert found.first == (0, 4)
    assert found.single == (1_000, 8)
    assert found.oracle == ((0, 4), (5_000, 16))


def found_for(oracle_ms: tuple[float, float]) -> Sweep:
    """A sweep whose best windows have these mean latencies."""
    return Sweep({(0, 1): (1.0, 1.0)}, {(0, 1): oracle_ms})


@pytest.mark.parametrize(
    ("agent_ms", "closed"),
    [((2.0, 2.0), 100.0), ((2.0, 6.0), 50.0), ((2.0, 10.0), 0.0), ((1.0, 1.0), 125.0)],
)
def test_the_gap_to_the_oracle_is_closed_in_part(agent_ms: tuple[float, float], closed: float) -> None:
    """From the tuned side's mean, 6 ms, to the oracle's, 2 ms."""
    pair = {"tuned": outcome(2.0, 10.0), "agent": outcome(*agent_ms)}
    assert measurement._closed_percent(pair, found_for((2.0, 2.0))) == pytest.approx(closed)


def test_without_a_gap_it_is_enough_to_be_no_worse() -> None:
    """The tuned window may be the oracle's in every phase."""
    same = {"tuned": outcome(2.0, 2.0), "agent": outcome(2.0, 2.0)}
    worse = {"tuned": outcome(2.0, 2.0), "agent": outcome(2.0, 3.0)}
    assert measurement._closed_percent(same, found_for((2.0, 2.0))) == 100.0
    assert measurement._closed_percent(worse, found_for((2.0, 2.0))) == 0.0


def test_figures_are_medians_of_the_pairs_ratios() -> None:
    """Static over agent for latencies, agent over static for rates, a difference for CPU; both beside."""
    setting = scenario.read()
    sides = [Side(name, (0, 4), 0) for name in ("usual", "tuned", "best")]
    pairs = [
        {
            "usual": outcome(20.0, 20.0),
            "tuned": outcome(tuned, tuned, drops=9, cpu_percent=20.0),
            "best": outcome(3.0, 3.0),
            "agent": outcome(2.0, 2.0, drops=1, cpu_percent=21.0),
        }
        for tuned in (4.0, 5.0, 6.0)
    ]
    sustained = {"tuned": [1_000.0, 0.0], "agent": [2_000.0, 1_600.0]}
    figures = measurement._figures(pairs, sustained, found_for((1.0, 1.0)), sides, setting)
    found = {figure.name: figure for figure in figures}
    assert found["ingest-mean"].value == pytest.approx(2.5)
    assert found["ingest-best"].value == pytest.approx(1.5)
    assert found["ingest-usual"].value == pytest.approx(10.0)
    assert found["ingest-drops"].value == pytest.approx(9.0)
    assert found["ingest-cpu"].value == pytest.approx(1.0)
    assert found["ingest-rate"].value == pytest.approx((2.0 + 1_600 / setting.sustained_rates[0]) / 2)
    assert found["ingest-mean"].detail["tuned"]["p99_ms"] == 5.0


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    """Both sides over time."""
    setting = scenario.read()
    run = outcome(*(2.0 for _ in setting.phases))
    picture.save(tmp_path / "latency.png", setting, {"tuned": run, "agent": run})
    assert (tmp_path / "latency.png").read_bytes()[:4] == b"\x89PNG"
