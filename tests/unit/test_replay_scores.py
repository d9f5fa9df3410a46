"""Prediction errors: scored against what was measured later, and only where that says something."""

from __future__ import annotations

import numpy as np
import pytest

from agent.clock.estimator import State
from agent.clock.forecast import Forecast
from agent.clock.jumps import TagKind
from agent.clock.replay import SampleReport
from agent.replay.rows import Row
from agent.replay.scores import BLOCK, HorizonFigures, Scores

STEP_NS = 100_000_000
EPOCH_NS = -1_790_000_000_000_000_000


def row(
    i: int,
    measured_ns: int | None,
    predicted: tuple[int, int],
    *,
    local_ns: int | None = None,
    tag: TagKind | None = None,
    state: State = "tracking",
    p99_ns: float = 10.0,
    noise_ns: float = 0.0,
) -> Row:
    """Sample `i` at 10 Hz, its forecast (mixture, expert) for one horizon."""
    forecast = Forecast(
        np.array([EPOCH_NS + predicted[0]]),
        np.array([1.0]),
        np.array([p99_ns]),
        np.array([[EPOCH_NS + predicted[1]]]),
        np.array([[1.0]]),
    )
    local = i * STEP_NS if local_ns is None else local_ns
    report = SampleReport(
        i,
        local,
        0,
        0.0,
        1.0,
        1.0,
        noise_ns,
        state,
        tag,
        "",
        1.0 if measured_ns is not None else 0.0,
        forecast,
    )
    return Row(i, "", report, None if measured_ns is None else EPOCH_NS + measured_ns)


def scored(rows: list[Row], horizon_s: float = 1.0) -> HorizonFigures:
    """The figures of the rows' one horizon."""
    scores = Scores((horizon_s,), ("hold",))
    for each in rows:
        scores.add(each)
    (figures,) = scores.figures()
    return figures


def test_errors_are_those_against_the_later_sample() -> None:
    """On a clock of 100 ppb, a mixture that is 3 ns high and an expert that holds, across several blocks."""
    n = 3 * BLOCK
    figures = scored([row(i, 10 * i, (10 * i + 100 + 3, 10 * i)) for i in range(n)])
    assert figures.mixture.n == n - 10
    assert figures.mixture.rmse_ns == 3.0
    assert figures.experts["hold"].rmse_ns == 100.0
    assert figures.experts["hold"].p99_ns == pytest.approx(100.0, rel=0.01)
    assert figures.coverage == 1.0
    assert figures.median_bound_ns == pytest.approx(10.0, rel=0.01)
    assert set(figures.mixture.mtie_ns.values()) == {0.0}


def test_between_samples_is_interpolated() -> None:
    """A forecast for 150 ms ahead is held against the middle of two samples."""
    figures = scored([row(i, 10 * i, (10 * i + 15, 0)) for i in range(40)], 0.15)
    assert figures.mixture.n == 38
    assert figures.mixture.rmse_ns == 0.0


def test_what_did_not_count_is_not_compared_with() -> None:
    """Against a bounce nothing is scored: the samples around it stand in."""
    rows = [row(i, 0, (0, 0)) for i in range(40)]
    rows[20] = row(20, None, (5000, 0), tag="bounce")
    figures = scored(rows)
    assert figures.mixture.rmse_ns == 0.0
    assert figures.left_out == {"init": 0, "held": 1, "reanchored": 0, "hole": 0}


def test_a_step_that_nobody_can_know_is_left_out() -> None:
    """Forecasts over a phase step, and those made until its verdict, are counted and not scored."""
    rows = [row(i, 0, (0, 0)) for i in range(40)]
    rows += [row(40, 5000, (0, 0), tag="phase_step")]
    rows += [row(i, 5000, (0 if i < 43 else 5000, 5000)) for i in range(41, 80)]
    figures = scored(rows)
    assert figures.mixture.rmse_ns == 0.0
    assert figures.left_out == {"init": 0, "held": 3, "reanchored": 10, "hole": 0}


def test_a_rate_step_is_scored() -> None:
    """What the oscillator does is what predictions are for."""
    rows = [row(i, 0, (0, 0)) for i in range(40)]
    rows += [row(i, 10 * (i - 40), (0, 0), tag="freq_step" if i == 40 else None) for i in range(40, 80)]
    assert scored(rows).mixture.rmse_ns > 100.0


def test_holes_are_left_out() -> None:
    """Into a hole of the recording nothing is scored."""
    rows = [row(i, 0, (7, 0)) for i in range(20)]
    rows += [row(i, 0, (7, 0), local_ns=i * STEP_NS + 10**10) for i in range(20, 40)]
    figures = scored(rows)
    assert figures.left_out["hole"] == 10
    assert figures.mixture.n == 20


def test_a_recording_too_coarse_for_a_horizon_says_nothing_of_it() -> None:
    """At 10 Hz there is no telling what the clock did a millisecond later."""
    figures = scored([row(i, 0, (7, 0)) for i in range(40)], 0.001)
    assert figures.mixture.n == 0
    assert np.isnan(figures.mixture.rmse_ns)


def test_forecasts_before_the_drift_is_known_are_left_out() -> None:
    """State init makes no promises."""
    rows = [row(i, 0, (10**6 if i < 5 else 0, 0), state="init" if i < 5 else "tracking") for i in range(40)]
    assert scored(rows).left_out["init"] == 5
    assert scored(rows).mixture.rmse_ns == 0.0


def test_coverage_allows_for_the_noise_of_what_is_measured() -> None:
    """An error of 20 ns is outside a bound of 10 ns, unless the sample compared with is that noisy itself."""
    assert scored([row(i, 0, (20, 0)) for i in range(40)]).coverage == 0.0
    assert scored([row(i, 0, (20, 0), noise_ns=10.0) for i in range(40)]).coverage == 1.0


def test_an_expert_that_cannot_tell_yet_is_not_scored() -> None:
    """Weight 0 is no forecast."""
    rows = [row(i, 0, (0, 0)) for i in range(40)]
    for each in rows[:15]:
        assert each.report.horizons is not None
        each.report.horizons.weights[:] = 0.0
    assert scored(rows).experts["hold"].n == 15


def test_many_samples_in_a_horizon_are_thinned() -> None:
    """At most 4096 forecasts a horizon are under way."""
    rows = [row(i, 0, (1, 0), local_ns=i * 10_000) for i in range(20_000)]
    figures = scored(rows, 0.1)
    assert figures.mixture.rmse_ns == 1.0
    assert figures.mixture.n <= 4096 * 20_000 // 10_000
