"""TDEV and MTIE in bounded memory, against the figures of the whole series."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from agent.clock.stability import mtie, tdev
from agent.replay.evenly import EvenStability
from agent.replay.octaves import OctaveStability

RNG = np.random.default_rng(5)
WALK = np.cumsum(RNG.normal(0.0, 1.0, 20_000))


def in_portions(series: npt.NDArray[np.float64], portions: int) -> OctaveStability:
    """The series fed in portions of chance length."""
    octaves = OctaveStability(1)
    cuts = np.sort(RNG.integers(0, len(series), portions - 1))
    for portion in np.array_split(series[:, None], cuts):
        octaves.feed(portion)
    return octaves


def test_short_taus_are_exact() -> None:
    """Up to 8 samples the terms are those of the whole series, however it comes."""
    octaves = in_portions(WALK, 100)
    for m, figure in octaves.tdev():
        if m <= 8:
            assert figure[0] == pytest.approx(tdev(WALK, m), rel=1e-9)
    for n, figure in octaves.mtie():
        if n <= 7:
            assert figure[0] == mtie(WALK, n)


def test_long_taus_are_near() -> None:
    """Beyond, TDEV is the mean of an eighth of the terms, and MTIE can't be above the true one."""
    octaves = in_portions(WALK, 100)
    factors = [m for m, _ in octaves.tdev()]
    assert factors == [1 << k for k in range(len(factors))]
    assert factors[-1] >= len(WALK) // 8
    for m, figure in octaves.tdev():
        assert figure[0] == pytest.approx(tdev(WALK, m), rel=0.01)
    for n, figure in octaves.mtie():
        assert 0.88 * mtie(WALK, n) <= figure[0] <= mtie(WALK, n) + 1e-9


def test_an_interruption_joins_nothing() -> None:
    """Two quiet pieces far apart are quiet."""
    octaves = OctaveStability(1)
    octaves.feed(np.zeros((40, 1)))
    octaves.interrupt()
    octaves.feed(np.full((40, 1), 1e6))
    assert all(figure[0] == 0.0 for _, figure in (*octaves.tdev(), *octaves.mtie()))


def test_columns_are_apart_and_nan_is_missing() -> None:
    """A column of NaN has no figure, one with a hole has its own, and the others don't notice."""
    rows = np.stack((WALK[:500], np.full(500, np.nan), WALK[:500]), axis=1)
    rows[250, 2] = np.nan
    octaves = OctaveStability(3)
    octaves.feed(rows)
    first = octaves.tdev()[0][1]
    assert first[0] == pytest.approx(tdev(WALK[:500], 1), rel=1e-9)
    assert np.isnan(first[1])
    assert first[2] == pytest.approx(first[0], rel=0.05)


def test_jitter_of_the_moments_is_evened_out() -> None:
    """A slope seen at jittering moments is a slope: MTIE is rate times tau, TDEV nothing."""
    moments = np.arange(1000) * 1_000_000 + RNG.integers(0, 300_000, 1000)
    even = EvenStability(1)
    even.feed(moments, moments[:, None].astype(np.float64) * 1e-3, np.zeros(1000, dtype=np.int64))
    tau_of_tdev, tau_of_mtie = even.figures()
    assert max(float(figure[0]) for _, figure in tau_of_tdev) < 1e-6
    for tau_s, figure in tau_of_mtie:
        assert figure[0] == pytest.approx(1e6 * tau_s, rel=1e-6)


@pytest.mark.parametrize("by", ["hole", "piece"])
def test_nothing_is_formed_across(by: str) -> None:
    """A hole of many spacings, or another piece, is no slope between the values on both sides."""
    n = np.arange(400)
    late = n >= 200
    moments = n * 1_000_000 + (late * 10**9 if by == "hole" else 0)
    piece = (late & (by == "piece")).astype(np.int64)
    even = EvenStability(1)
    for part in np.array_split(n, 7):
        even.feed(moments[part], late[part, None].astype(np.float64) * 1e6, piece[part])
    tdevs, mties = even.figures()
    assert tdevs
    assert all(figure[0] == 0.0 for _, figure in (*tdevs, *mties))
