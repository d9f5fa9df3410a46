"""Frequency steps that show in residuals that grow."""

from __future__ import annotations

import numpy as np
import pytest

from agent.clock.growth import Lasting, growth_in
from agent.clock.track import Suspect

_TENTH_NS = 100_000_000
_SIGMA_NS = 20.0


def _residuals(rate_ppb: float, since: int, count: int = 24) -> list[Suspect]:
    """Samples at 10 Hz of white noise, and of a drift that is off by `rate_ppb` from the one of `since` on."""
    noise = np.random.default_rng(1).normal(0.0, _SIGMA_NS, count)
    sizes = [round(n + rate_ppb * 0.1 * max(i - since, 0)) for i, n in enumerate(noise.tolist())]
    return [Suspect(i, i * _TENTH_NS, 0, r, _SIGMA_NS, 400.0, 0.0, 0) for i, r in enumerate(sizes)]


@pytest.mark.parametrize(("rate_ppb", "within"), [(-300.0, 5), (100.0, 10), (50.0, 15)])
def test_a_frequency_step_shows_within_few_samples(rate_ppb: float, within: int) -> None:
    """Found as soon as the line stands 6 sigma out of the noise, on its side of it."""
    samples = _residuals(rate_ppb, since=8)
    found = next((n for n in range(9, 24) if growth_in(samples[: n + 1], 6.0)), None)
    assert found is not None
    assert found - 8 <= within
    growth = growth_in(samples[: found + 1], 6.0)
    assert growth is not None
    assert growth[0] * rate_ppb > 0.0


def test_noise_does_not_grow() -> None:
    """White noise shows no growth."""
    samples = _residuals(0.0, since=0, count=2_000)
    assert not any(growth_in(samples[n : n + 24], 6.0) for n in range(len(samples) - 24))


@pytest.mark.parametrize(("kept_ppb", "lasted"), [(100.0, True), (0.0, False)])
def test_whether_a_change_lasted_is_seen_later(kept_ppb: float, lasted: bool) -> None:
    """Open until the time is over; then it has lasted if the offset went the changed drift's way."""
    lasting = Lasting()
    lasting.watch(0, 10 * _TENTH_NS, 5_000, 30.0, 100.0)
    assert not lasting.is_due(9 * _TENTH_NS)
    assert lasting.is_due(10 * _TENTH_NS)
    assert lasting.outcome(10 * _TENTH_NS, round(5_030 + kept_ppb)) is lasted
    assert not lasting.is_due(11 * _TENTH_NS)


def test_a_step_while_a_change_is_watched_ends_it() -> None:
    """What steps right after it seemed to grow has not changed its drift; asked once."""
    lasting = Lasting()
    assert not lasting.stepped()
    lasting.watch(0, _TENTH_NS, 0, 0.0, 100.0)
    assert lasting.stepped()
    assert not lasting.stepped()
