"""Synthetic clocks: their noise has the published levels, and what is said of them is true."""

from dataclasses import replace
from math import log, pi, sqrt

import numpy as np
import pytest

from tools.bench.clock import catalog
from tools.bench.clock.oscillator import OCXO, TCXO, Oscillator, phase_and_frequency
from tools.bench.clock.recipe import Bursts, Reading, Recipe, Servo, draw
from tools.bench.clock.traces import Event, Steering


def _allan_deviation(phase_ns: np.ndarray, step_s: float, tau_s: float) -> float:
    """Overlapping, in ppb."""
    m = round(tau_s / step_s)
    second = phase_ns[2 * m :] - 2 * phase_ns[m:-m] + phase_ns[: -2 * m]
    return float(np.sqrt(np.mean(second**2) / 2)) / tau_s


def _only(h0: float = 0.0, h_flicker: float = 0.0, h_walk: float = 0.0) -> Oscillator:
    return replace(TCXO, h0=h0, h_flicker=h_flicker, h_walk=h_walk)


@pytest.mark.parametrize("tau_s", [1.0, 10.0, 100.0])
def test_white_fm_has_the_level_of_its_coefficient(tau_s: float) -> None:
    """sigma_y^2 = h0 / (2 tau) (IEEE 1139, table B.2)."""
    phase, _ = phase_and_frequency(_only(h0=2e-20), 40_000, 1.0, np.random.default_rng(1))
    assert _allan_deviation(phase, 1.0, tau_s) == pytest.approx(sqrt(2e-20 / (2 * tau_s)) * 1e9, rel=0.1)


@pytest.mark.parametrize("tau_s", [1.0, 10.0, 100.0])
def test_flicker_fm_has_the_level_of_its_coefficient(tau_s: float) -> None:
    """sigma_y^2 = 2 ln 2 h-1 at every averaging time (IEEE 1139, table B.2)."""
    phase, _ = phase_and_frequency(_only(h_flicker=1e-20), 200_000, 0.25, np.random.default_rng(2))
    assert _allan_deviation(phase, 0.25, tau_s) == pytest.approx(sqrt(2 * log(2) * 1e-20) * 1e9, rel=0.1)


@pytest.mark.parametrize("tau_s", [1.0, 10.0, 100.0])
def test_random_walk_fm_has_the_level_of_its_coefficient(tau_s: float) -> None:
    """sigma_y^2 = 2 pi^2 tau h-2 / 3 (IEEE 1139, table B.2)."""
    phase, _ = phase_and_frequency(_only(h_walk=1e-20), 100_000, 0.5, np.random.default_rng(3))
    expected = sqrt(2 * pi**2 * tau_s * 1e-20 / 3) * 1e9
    assert _allan_deviation(phase, 0.5, tau_s) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("oscillator", [TCXO, OCXO])
def test_noise_does_not_depend_on_the_step(oscillator: Oscillator) -> None:
    """The same spread of the phase after 8 s, in steps of 1 s and of 1/16 s."""
    random = np.random.default_rng(4)
    coarse = [phase_and_frequency(oscillator, 9, 1.0, random)[0][-1] for _ in range(2000)]
    fine = [phase_and_frequency(oscillator, 129, 1 / 16, random)[0][-1] for _ in range(2000)]
    assert np.std(fine) == pytest.approx(np.std(coarse), rel=0.08)


def test_same_name_same_trace() -> None:
    """A named trace is the same, bit by bit, every time that it is drawn."""
    first, second = catalog.trace("tcxo-irregular"), catalog.trace("tcxo-irregular")
    assert np.array_equal(first.hw_ns, second.hw_ns)
    assert np.array_equal(first.local_ns, second.local_ns)


@pytest.mark.parametrize("side", ["any", "after", "unseen"])
def test_told_variance_is_that_of_the_errors(side: str) -> None:
    """Errors over their told deviation have mean square 1."""
    reading = Reading(bursts=Bursts(side))  # type: ignore[arg-type]
    trace = draw(Recipe("r", TCXO, 10, 4000, reading), 5)
    error = trace.measured_ns() - trace.offset_ns(trace.time_s)
    assert np.mean(error**2 / trace.variance_ns2) == pytest.approx(1.0, rel=0.05)


def test_waits_after_the_stamp_are_one_sided_and_seen() -> None:
    """Half of the excess delay is the error, always of one sign."""
    trace = draw(Recipe("r", TCXO, 10, 2000, Reading(0.0, 1500.0, 0.0, Bursts("after"))), 6)
    error = trace.measured_ns() - trace.offset_ns(trace.time_s)
    assert np.abs(error - (trace.read_delay_ns - 1500) / 2).max() <= 1.0


def test_waits_before_the_read_do_not_show_in_its_delay() -> None:
    """The delay of every read is the undisturbed one, errors reach tens of us."""
    trace = draw(Recipe("r", TCXO, 10, 2000, Reading(0.0, 1500.0, 0.0, Bursts("unseen"))), 7)
    error = trace.measured_ns() - trace.offset_ns(trace.time_s)
    assert (trace.read_delay_ns == 1500).all()
    assert error.max() > 20_000


def test_a_target_does_not_look_across_a_jump() -> None:
    """Predictions whose horizon contains a step have no target; those before and after it have one."""
    events = (Event(50.0, "phase_step", 1e6),)
    trace = draw(Recipe("r", TCXO, 1, 100, events=events), 8)
    has_target = np.isfinite(trace.target_ns(10.0))
    assert has_target[:40].all()
    assert not has_target[40:50].any()
    assert has_target[50:91].all()
    assert not has_target[91:].any()


def test_a_target_does_not_know_later_steering() -> None:
    """The prediction goes on with what was dialled in at the sample's time."""
    steered = draw(Recipe("r", OCXO, 10, 60, Reading(0.0, 1500.0, 0.0), servo=Servo(1)), 9)
    free = draw(Recipe("r", OCXO, 10, 60, Reading(0.0, 1500.0, 0.0)), 9)
    ahead = steered.target_ns(5.0) - steered.offset_ns(steered.time_s)
    unsteered = free.target_ns(5.0) - free.offset_ns(free.time_s)
    dialled = np.cumsum(steered.steering_per_sample()) * 5.0
    kept = np.isfinite(ahead)
    assert np.abs(ahead - unsteered - dialled)[kept].max() < 1e-3


def test_steering_is_told_to_the_sample_after_it() -> None:
    """A change at a sample's own time shows from the next sample on; all changes are told once."""
    trace = draw(Recipe("r", OCXO, 10, 10), 10)
    trace = replace(trace, steering=Steering(np.array([1.0, 2.05]), np.array([100.0, -30.0])))
    told = trace.steering_per_sample()
    assert told.nonzero()[0].tolist() == [11, 21]
    assert told.sum() == pytest.approx(70.0)


def test_a_servo_holds_the_offset() -> None:
    """Steered by linuxptp's constants at 16 Hz, the offset stays within a few times the servo's own noise."""
    trace = draw(Recipe("r", TCXO, 16, 300, servo=Servo(16)), 11)
    late = trace.time_s > 60
    offset = trace.offset_ns(trace.time_s)[late]
    assert np.std(offset) < 60
    assert trace.drift_ppb(trace.time_s[late]).std() < 1000
