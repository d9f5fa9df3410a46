"""The filter bank and the noise scale on clocks of known truth."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

from agent.clock.kalman import Member
from tests.unit.clock_core import Bank, Noise, ffi, lib


def _clock(
    rng: np.random.Generator, n: int, interval_s: float, walk_ppb: float
) -> tuple[np.ndarray, np.ndarray]:
    """Offset and drift of a clock with random-walk frequency, and white frequency noise of 1e-9."""
    drift = 5_000.0 + np.cumsum(rng.normal(0.0, walk_ppb * sqrt(interval_s), n))
    offset = np.cumsum(drift * interval_s + rng.normal(0.0, sqrt(interval_s), n)) - drift * interval_s
    return offset, drift


@pytest.mark.parametrize("walk_ppb", [0.3, 3.0, 20.0])
def test_bounds_cover_without_knowing_the_walk(walk_ppb: float) -> None:
    """For quiet and wandering clocks alike, 2.8 sigma of drift and of 1 s predictions cover 98.5 % or more."""
    inside = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        offset, drift = _clock(rng, 900, 0.1, walk_ppb)
        noise = rng.normal(0.0, 30.0, len(offset))
        bank = Bank()
        bank.start(0.0, float(offset[0] + noise[0]), 900.0)
        for i in range(1, len(offset) - 10):
            bank.advance(i * 0.1)
            bank.update(float(offset[i] + noise[i]), Noise(900.0))
            if i > 50:
                found, drift_var = bank.drift()
                theta, var = bank.forecast(1.0)
                inside.append(abs(found - drift[i]) <= 2.8 * sqrt(drift_var))
                inside.append(abs(theta - offset[i + 10]) <= 2.8 * sqrt(var))
    assert np.mean(inside) >= 0.985


def test_a_quiet_clock_is_averaged_for_long() -> None:
    """On a clock without wander, the drift gets better than the noisiest member alone would know it."""
    rng = np.random.default_rng(1)
    offset, drift = _clock(rng, 2000, 0.1, 0.0)
    bank, nervous = Bank(), Bank((Member(1.0, 60.0),))
    for b in (bank, nervous):
        b.start(0.0, float(offset[0]), 900.0)
    for i in range(1, len(offset)):
        measured = float(offset[i] + rng.normal(0.0, 30.0))
        for b in (bank, nervous):
            b.advance(i * 0.1)
            b.update(measured, Noise(900.0))
    found, var = bank.drift()
    assert abs(found - drift[-1]) < 3.0
    assert var < nervous.drift()[1] / 4


def test_a_forgotten_offset_keeps_the_drift() -> None:
    """After that, one sample of any size sets the offset and leaves the drift."""
    bank = Bank()
    bank.start(0.0, 0.0, 100.0)
    for i in range(1, 200):
        bank.advance(i * 0.1)
        bank.update(12_000.0 * i * 0.1, Noise(100.0))
    before, _ = bank.drift()
    lib.agent_bank_forget_offset(bank.native)
    bank.update(1e12, Noise(100.0))
    theta, var = bank.forecast(0.0)
    assert theta == pytest.approx(1e12, abs=1e-3)
    assert bank.drift()[0] == pytest.approx(before, abs=1e-3)
    assert var == pytest.approx(100.0, rel=1e-6)


def test_noise_scale_finds_the_noise() -> None:
    """Samples ten times as noisy as said come out at a scale near 100, with drift and a jump between."""
    rng = np.random.default_rng(2)
    noise = ffi.new("struct agent_noise *")
    lib.agent_noise_start(noise)
    for i in range(600):
        if i == 300:
            lib.agent_noise_forget_neighbours(noise)
        offset = 1e4 * i * 0.1 + (i >= 300) * 1e9 + rng.normal(0.0, 100.0)
        lib.agent_noise_add(noise, i * 0.1, offset, 100.0, 0.0)
    assert 60 < noise.scale < 160


def test_a_huge_residual_pulls_no_harder_than_the_limit() -> None:
    """The pull of an outlier equals that of a sample at its limit, above and below."""
    predicted, var = 400.0, 100.0
    spread = predicted + var
    for side, limit in ((1.0, 1.5), (-1.0, 4.0)):
        at_limit = limit * sqrt(spread)
        pull = predicted / spread * at_limit
        used = lib.agent_robust_variance(side * 1e6, spread, var, 1.5, 4.0)
        assert predicted / (predicted + used) * 1e6 == pytest.approx(pull)
        assert lib.agent_robust_variance(side * at_limit * 0.99, spread, var, 1.5, 4.0) == var
