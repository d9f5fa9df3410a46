"""The told filter is the limit that it claims to be: its own deviations are true."""

import numpy as np
import pytest

from tools.bench.clock.oscillator import OCXO, TCXO, Oscillator
from tools.bench.clock.predictions import HORIZONS_S, of_trace, rmse, run_baselines
from tools.bench.clock.recipe import Bursts, Reading, Recipe, Servo, draw
from tools.bench.clock.told import run_told
from tools.bench.clock.traces import Event


@pytest.mark.parametrize("oscillator", [TCXO, OCXO])
def test_errors_are_as_large_as_it_says(oscillator: Oscillator) -> None:
    """Errors over predicted deviations have mean square 1 at every horizon."""
    squares = []
    for seed in range(4):
        trace = draw(Recipe("r", oscillator, 1, 3000), seed)
        predicted, deviation, _ = run_told(trace, HORIZONS_S)
        squares.append(np.nanmean(((predicted - of_trace(trace).target_ns) / deviation) ** 2, axis=0))
    assert np.mean(squares, axis=0) == pytest.approx(np.ones(6), abs=0.25)


def test_no_baseline_comes_near_it_under_queueing() -> None:
    """With bursts it is better than every baseline, at every horizon."""
    trace = draw(Recipe("r", TCXO, 10, 400, Reading(bursts=Bursts("any"))), 1)
    series = of_trace(trace)
    limit = rmse(run_told(trace, HORIZONS_S)[0], series.target_ns)
    for predicted in run_baselines(series).values():
        assert (limit < rmse(predicted, series.target_ns)).all()


def test_a_jump_that_it_is_told_of_costs_nothing() -> None:
    """A millisecond's step leaves the error of the fourth sample after it within three deviations of the read."""
    trace = draw(Recipe("r", OCXO, 10, 300, events=(Event(200.0, "phase_step", 1e6),)), 2)
    predicted, _, _ = run_told(trace, (0.1,))
    after = np.searchsorted(trace.time_s, 200.0) + 4
    assert abs(predicted[after, 0] - trace.target_ns(0.1)[after]) < 3 * 30


def test_steering_costs_nothing() -> None:
    """The same clock with a servo underneath and without is predicted alike."""
    errors = []
    for servo in (None, Servo(16)):
        trace = draw(Recipe("r", OCXO, 16, 200, servo=servo), 3)
        errors.append(rmse(run_told(trace, (1.0,))[0], trace.target_ns(1.0)[:, None])[0])
    assert errors[1] == pytest.approx(errors[0], rel=0.02)
