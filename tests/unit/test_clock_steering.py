"""Known steering: its phase to the nanosecond, and a clock that is none the wiser for a servo underneath."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from agent.clock.forecast import HORIZONS_S
from tests.unit.clock_core import Steering
from tools.bench.clock import product
from tools.bench.clock.oscillator import OCXO
from tools.bench.clock.recipe import Recipe, Servo, draw

START_NS = 1_790_000_000_000_000_000


def test_the_phase_is_exact_over_years() -> None:
    """Sixteen changes a second for an hour, then a year: rational arithmetic says the same, to half a nanosecond."""
    rng = np.random.default_rng(1)
    known, exact, rate, at = Steering(), Fraction(0), Fraction(0), START_NS
    for change in rng.normal(0.0, 30.0, 16 * 3600).tolist():
        known.dial(at, change)
        rate += Fraction(change)
        at += 62_500_000
        exact += rate * 62_500_000 / 10**9
    year_ns = 31_557_600 * 10**9
    assert abs(known.phase_ns(at) - exact) <= 0.51
    assert abs(known.phase_ns(at + year_ns) - exact - rate * year_ns / 10**9) <= 1


def test_the_past_keeps_the_steering_that_it_had() -> None:
    """A sample that is looked at again after later changes gets the phase that it had."""
    known = Steering()
    known.dial(START_NS, 1_000.0)
    known.dial(START_NS + 10**9, -3_000.0)
    assert [known.phase_ns(START_NS + s * 10**9 // 2) for s in (-1, 0, 1, 2, 3)] == [0, 0, 500, 1_000, 0]
    assert known.rate_ppb == -2_000.0


def test_a_change_between_two_moments_is_taken_from_the_middle() -> None:
    """Its phase is that of the middle; its variance that of a time anywhere between."""
    known = Steering()
    var = known.dial_between(START_NS, START_NS + 10**8, 600.0)
    assert known.phase_ns(START_NS + 10**8) == 30
    np.testing.assert_allclose(var, 60.0**2 / 12.0)


def test_a_servo_underneath_changes_no_forecast() -> None:
    """The same clock, read alike, with and without a PI servo at 10 Hz: equal errors to the rounding of samples."""
    errors, tags = [], []
    for servo in (Servo(10), None):
        trace = draw(Recipe("r", OCXO, 10, 200, servo=servo), 3)
        ran = product.run(trace.samples(), trace.base_ns, trace.steering_per_sample())
        target = np.column_stack([trace.target_ns(h) for h in HORIZONS_S])
        errors.append((ran.predicted_ns - target)[200:])
        tags.append(ran.tags())
    assert tags == [[], []]
    apart = np.abs(errors[0] - errors[1])
    # Samples are whole nanoseconds: those of the steered clock are rounded elsewhere.
    assert np.nanmax(apart / (1.0 + np.array(HORIZONS_S))) < 2.5
    spread = np.nanstd(errors[1], axis=0)
    np.testing.assert_allclose(np.nanstd(errors[0], axis=0), spread, rtol=0.02)
