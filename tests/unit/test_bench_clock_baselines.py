"""The baselines do what their sources say."""

import numpy as np
import pytest

from tools.bench.clock.baselines import Predictor, baselines
from tools.bench.clock.baselines.chrony import Chrony, best_line, slope_against_delay
from tools.bench.clock.baselines.fastread import FastReadKalman
from tools.bench.clock.baselines.linreg import Linreg
from tools.bench.clock.baselines.pi import Pi, PiServo
from tools.bench.clock.baselines.simple import Hold, MovingAverage


def _feed(predictor: Predictor, offsets: list[float], delays: list[float] | None = None) -> None:
    for second, offset in enumerate(offsets):
        predictor.observe(float(second), offset, delays[second] if delays else 1000.0)


def test_pi_constants_are_those_of_hardware_stamps() -> None:
    """At 1 s: kp 0.7, ki 0.3; an offset of 100 ns gives 70 ppb, the integral's 30 and what was there."""
    servo = PiServo(1.0)
    servo.sample(0.0, 0.0)
    assert servo.sample(500.0, 1.0) == pytest.approx(500.0)
    assert servo.sample(100.0, 2.0) == pytest.approx(500 + 70 + 30)
    assert servo.sample(0.0, 3.0) == pytest.approx(500 + 30)


def test_pi_constants_follow_the_interval() -> None:
    """At 1/16 s: kp = 0.7 * (1/16)^-0.3 = 1.608, ki = 0.3 * (1/16)^0.4 = 0.0990 (config.c's exponents)."""
    servo = PiServo(1 / 16)
    servo.sample(0.0, 0.0)
    servo.sample(0.0, 1.0)
    assert servo.sample(1000.0, 2.0) == pytest.approx(1608.2 + 98.96, abs=0.1)


def test_pi_predicts_a_line_that_it_has_settled_on() -> None:
    """On a line without noise the steered clock ends up on the line."""
    pi = Pi(1.0)
    _feed(pi, [5.0 + 200.0 * t for t in range(100)])
    assert pi.predict(10.0) == pytest.approx(5.0 + 200.0 * 109, abs=0.01)


def test_linreg_follows_a_line() -> None:
    """Any four points of a line predict it."""
    linreg = Linreg()
    _feed(linreg, [7.0 - 3.0 * t for t in range(4)])
    assert linreg.predict(10.0) == pytest.approx(7.0 - 3.0 * 13)


def test_linreg_fits_by_least_squares() -> None:
    """Points 0, 1, 0, 1 at 0..3 s: slope 0.2, 0.8 at the last (normal equations by hand)."""
    linreg = Linreg()
    _feed(linreg, [0.0, 1.0, 0.0, 1.0])
    assert linreg.predict(0.0) == pytest.approx(0.8)
    assert linreg.predict(5.0) == pytest.approx(1.8)


def test_linreg_takes_long_lines_in_noise_and_short_ones_on_curves() -> None:
    """Against white noise 64 points win, against a parabola 4."""
    random = np.random.default_rng(1)
    noisy, curved = Linreg(), Linreg()
    noise = random.normal(0, 10, 400)
    _feed(noisy, noise.tolist())
    _feed(curved, [10.0 * t * t for t in range(400)])
    slope, intercept = np.polyfit(np.arange(-63.0, 1.0), noise[-64:], 1)
    assert noisy.predict(1.0) == pytest.approx(intercept + slope)
    slope, intercept = np.polyfit(np.arange(-3.0, 1.0), 10.0 * np.arange(396, 400) ** 2, 1)
    assert curved.predict(1.0) == pytest.approx(intercept + slope)


def test_chrony_follows_a_line() -> None:
    """Samples on a line predict it."""
    chrony = Chrony()
    _feed(chrony, [7.0 - 3.0 * t for t in range(30)])
    assert chrony.predict(10.0) == pytest.approx(7.0 - 3.0 * 39)


def test_chrony_drops_samples_that_are_not_one_line() -> None:
    """After a bend the residuals have too few runs until most samples before it are gone: the rest is the new line."""
    back = np.arange(-39.0, 1.0)
    offsets = np.where(back < -9, 0.0, (back + 9) * 1000.0) + np.resize([1.0, -1.0], 40)
    start, intercept, slope = best_line(back, offsets, np.ones(40), 6)
    assert start >= 29
    assert slope == pytest.approx(1000.0, rel=0.02)
    assert intercept == pytest.approx(9000.0, rel=0.02)


def test_chrony_keeps_what_passes_the_runs_test() -> None:
    """Alternating residuals have the most runs possible: nothing is dropped."""
    offsets = np.resize([1.0, -1.0], 40)
    assert best_line(np.arange(-39.0, 1.0), offsets, np.ones(40), 6)[0] == 0


def test_chrony_weighs_by_delay() -> None:
    """Fit of 3 samples weighted 1, 1 and 1/4: line of weighted least squares by hand."""
    start, intercept, slope = best_line(
        np.array([-2.0, -1.0, 0.0]), np.array([0.0, 0.0, 9.0]), np.array([1.0, 1.0, 0.25]), 6
    )
    # Means over weights: x -4/3, y 1; sum w dx dy = 3, sum w dx^2 = 1.
    assert start == 0
    assert slope == pytest.approx(3.0)
    assert intercept == pytest.approx(5.0)


def test_chrony_takes_out_one_sided_delay() -> None:
    """Offsets that grow by half of the excess delay: asymmetry 0.5, found, and taken out once seen ten times."""
    random = np.random.default_rng(2)
    delays = 1000 + random.exponential(20_000, 200)
    offsets = 100.0 * np.arange(200) + (delays - delays.min()) / 2
    slope = slope_against_delay(np.arange(200.0), delays, offsets)
    assert slope == pytest.approx(0.5)
    chrony = Chrony()
    _feed(chrony, offsets.tolist(), delays.tolist())
    assert chrony.predict(1.0) == pytest.approx(100.0 * 200, abs=700)


def test_hold_stays() -> None:
    """The last offset, however far ahead."""
    hold = Hold()
    _feed(hold, [1.0, 2.0, 5.0])
    assert hold.predict(60.0) == 5.0


def test_average_is_of_the_last_second() -> None:
    """At 4 Hz the mean of the last four."""
    average = MovingAverage()
    for quarter, offset in enumerate([100.0, 1.0, 2.0, 3.0, 4.0]):
        average.observe(quarter / 4, offset, 0.0)
    assert average.predict(1.0) == pytest.approx(2.5)


def test_fast_read_takes_the_fastest_of_five() -> None:
    """Four of five reads are wrong and slow: the filter sees the fifth only."""
    fast = FastReadKalman()
    for second in range(500):
        slow = second % 5 != 2
        fast.observe(float(second), 50.0 * second + (1e5 if slow else 0.0), 20_000.0 if slow else 1_000.0)
    assert fast.predict(10.0) == pytest.approx(50.0 * 509, abs=1.0)


def test_every_baseline_has_its_own_name() -> None:
    """Results are kept by name."""
    names = [predictor.name for predictor in baselines(1.0)]
    assert len(set(names)) == len(names) == 6
