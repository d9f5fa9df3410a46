"""What the mixture expects of clocks that somebody disciplines, and of those that run free."""

from __future__ import annotations

import numpy as np
import pytest

from agent.clock.estimator import Sample
from agent.clock.replay import ClockReplay

_HORIZON_S = 60
_START_NS = 1_700_000_000_000_000_000


def _errors(offset_ns: np.ndarray) -> tuple[float, float]:
    """Return the RMSE in ns of predictions over 60 s of a series at 1 Hz, and that of the last offset."""
    replay = ClockReplay(horizons_s=(1.0, 10.0, float(_HORIZON_S)))
    expected = np.full(len(offset_ns), np.nan)
    for second, offset in enumerate(offset_ns.tolist()):
        local_ns = _START_NS + second * 1_000_000_000
        for report in replay.feed(Sample(local_ns, local_ns - offset)):
            if report.horizons is not None:
                expected[report.index] = int(report.horizons.offset_ns[-1])
    then = offset_ns[_HORIZON_S:]
    of_mixture, of_hold = expected[:-_HORIZON_S] - then, offset_ns[:-_HORIZON_S] - then
    known = np.isfinite(of_mixture) & (np.arange(len(then)) >= _HORIZON_S)
    return float(np.sqrt(np.mean(of_mixture[known] ** 2))), float(np.sqrt(np.mean(of_hold[known] ** 2)))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_disciplined_clock_is_expected_to_return(seed: int) -> None:
    """Of a clock that wanders about its mean for minutes, less is expected than that it stays where it is."""
    rng = np.random.default_rng(seed)
    wander, offset = 0.0, []
    for _ in range(2400):
        wander += -wander / 60.0 + rng.normal(0.0, 300.0)
        offset.append(round(wander + rng.normal(0.0, 50.0)))
    of_mixture, of_hold = _errors(np.array(offset, dtype=np.int64))
    assert of_mixture < 0.97 * of_hold


def test_a_free_clock_is_not_expected_to_return() -> None:
    """A clock that has always gone on at its rate is expected to do so."""
    rng = np.random.default_rng(4)
    offset = np.rint(np.arange(1200) * 2000.0 + rng.normal(0.0, 30.0, 1200)).astype(np.int64)
    of_mixture, of_hold = _errors(offset)
    assert of_mixture < 0.01 * of_hold


def test_a_clock_whose_first_stamps_are_bad_is_not_followed_into_later_bursts() -> None:
    """Once most bursts have come to nothing, predictions stay with the clock during the next ones."""
    rng = np.random.default_rng(5)
    replay = ClockReplay(horizons_s=(1.0,))
    missed_ns = []
    bad = True
    for i in range(9000):
        bad = i < 50 or (rng.random() > 0.1 if bad else rng.random() < 0.011)
        local_ns = _START_NS + i * 100_000_000
        late_ns = round(rng.exponential(20_000.0)) if bad else 0
        offset_ns = i * 1200 + late_ns + round(rng.normal(0.0, 15.0))
        for report in replay.feed(Sample(local_ns, local_ns - offset_ns)):
            if report.horizons is not None and report.index >= 4500:
                missed_ns.append(abs(int(report.horizons.offset_ns[0]) - (report.index + 10) * 1200))
    assert np.sqrt(np.mean(np.square(missed_ns))) < 500.0
