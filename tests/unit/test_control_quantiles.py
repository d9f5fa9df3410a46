"""Quantiles of histograms and their intervals."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from agent.control.quantiles import figures
from agent.ffi.records import HIST_BUCKETS, hist_bucket


def ticks_of(samples: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """One histogram a row of samples."""
    return np.array(
        [np.bincount(hist_bucket(row.astype(np.int64)), minlength=HIST_BUCKETS) for row in samples]
    )


def test_an_empty_histogram_has_no_figures() -> None:
    """No packets: n is 0, everything else unknown."""
    empty = figures(np.zeros((3, HIST_BUCKETS), dtype=np.int64))
    assert empty.n == 0
    assert math.isnan(empty.p99_ns)
    assert empty.noise == 1.0


@pytest.mark.parametrize("per_tick", [40, 400])
def test_the_interval_covers_the_true_quantile(per_tick: int) -> None:
    """Exponential delays, many repetitions: the truth is inside at least 95 times in 100."""
    rng = np.random.default_rng(3)
    true50, true99 = 20_000 * math.log(2), 20_000 * math.log(100)
    inside50 = inside99 = 0
    for seed in range(100):
        got = figures(ticks_of(rng.exponential(20_000, (15, per_tick))), seed)
        inside50 += got.p50_low_ns <= true50 <= got.p50_high_ns
        inside99 += got.p99_low_ns <= true99 <= got.p99_high_ns
    assert inside50 >= 95
    assert inside99 >= 95


def test_bursts_widen_the_interval() -> None:
    """The same packets, but the slow ones all in one tick: that could as well have been none or three."""
    rng = np.random.default_rng(3)
    delays = rng.exponential(20_000, 6_000)
    mixed = figures(ticks_of(delays.reshape(15, -1)))
    bursty = figures(ticks_of(np.sort(delays).reshape(15, -1)))
    assert bursty.p99_ns == pytest.approx(mixed.p99_ns)
    assert bursty.p99_high_ns - bursty.p99_low_ns > 1.5 * (mixed.p99_high_ns - mixed.p99_low_ns)


def test_the_interval_holds_the_figure_itself() -> None:
    """Also where all packets are in one bucket."""
    counts = np.zeros((2, HIST_BUCKETS), dtype=np.int64)
    counts[:, 40] = 500
    got = figures(counts)
    assert got.p99_low_ns <= got.p99_ns <= got.p99_high_ns
    assert got.p50_low_ns <= got.p50_ns <= got.p50_high_ns
