"""Bounds in holdover, by how earlier silences ended."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from agent.clock.estimator import Estimator, Sample
from agent.clock.silence import Silences
from agent.clock.track import P99_SIGMAS

_S = 1_000_000_000


def test_before_any_silence_the_bound_is_students_of_eight() -> None:
    """Nothing learnt: the bank's sigma counts like one of eight errors."""
    assert Silences().sigmas == pytest.approx(stats.t.ppf(0.9995, 8), rel=0.01)


@pytest.mark.parametrize("spread", [0.4, 1.0, 1.5])
def test_errors_after_silences_scale_the_bound(spread: float) -> None:
    """When clocks wander less or more than their filters think, the bound comes to hold 99.9 % of that."""
    silences = Silences()
    for error in np.random.default_rng(1).normal(0.0, spread, 400).tolist():
        silences.ended(1_000.0 * error, 1_000.0**2, 0.0)
    assert silences.sigmas == pytest.approx(3.29 * spread, rel=0.25)


def test_one_stamp_that_is_far_off_does_not_make_bounds_useless() -> None:
    """Whatever came back with it, no silence counts for more than five sigmas."""
    silences = Silences()
    silences.ended(1e9, 1_000.0**2, 0.0)
    assert silences.sigmas < 2.0 * Silences().sigmas


def test_a_silence_too_short_to_show_in_the_noise_teaches_nothing() -> None:
    """An error that is the sample's own noise says nothing about the clock."""
    silences = Silences()
    silences.ended(0.0, 1_000.0, 900.0)
    assert silences.sigmas == Silences().sigmas


def test_a_steady_clock_is_trusted_more_after_its_silences() -> None:
    """A clock that always comes back as predicted: its later holdovers are bounded more narrowly than its first."""
    estimator, rng, ratios = Estimator(), np.random.default_rng(1), []
    for episode in range(20):
        for i in range(120):
            local_ns = (episode * 720 + i) * _S + 1_700_000_000 * _S
            estimator.update(Sample(local_ns, local_ns - 5_000 + round(rng.normal(0.0, 20.0)), 100))
        end_ns = local_ns + 600 * _S
        sigma_ns = estimator.offset_at(end_ns)[1]
        assert estimator.state(end_ns) == "holdover"
        ratios.append(estimator.bound_ns(sigma_ns, "holdover") / sigma_ns)
    assert ratios[0] > P99_SIGMAS
    assert ratios[-1] < 0.8 * ratios[0]
