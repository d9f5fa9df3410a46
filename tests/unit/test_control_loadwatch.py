"""Glances at the load: what is a move, and what is none."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from agent.control.loadwatch import LoadWatch, Motion
from agent.ffi.records import HIST_BUCKETS, hist_bucket

GLANCE_NS = 25_000_000


class Glances:
    """Counters of a host that grow from glance to glance."""

    def __init__(self) -> None:
        self.watch = LoadWatch()
        self.rng = np.random.default_rng(5)
        self.mono_ns = 1_000_000_000
        self.busy_ns = np.zeros(2, dtype=np.int64)
        self.counts: npt.NDArray[np.uint32] = np.zeros(HIST_BUCKETS, dtype=np.uint32)

    def look(self, *shares: float, mean_ns: float = 20_000.0, n: int = 250) -> Motion:
        """One glance later."""
        self.mono_ns += GLANCE_NS
        noisy = np.array(shares) + self.rng.normal(0, 0.04, len(shares))
        self.busy_ns = self.busy_ns + (np.clip(noisy, 0, 1) * GLANCE_NS).astype(np.int64)
        delays = hist_bucket(self.rng.exponential(mean_ns, n).astype(np.int64) + 2_000)
        self.counts = self.counts + np.bincount(delays, minlength=HIST_BUCKETS).astype(np.uint32)
        return self.watch.look(self.mono_ns, self.busy_ns, self.counts)


@pytest.fixture
def glances() -> Glances:
    """Two seconds of a load on CPU 1."""
    glances = Glances()
    for _ in range(80):
        assert glances.look(0.05, 0.6) is Motion.STEADY
    return glances


def test_a_load_that_goes_to_another_cpu_is_suspected_and_then_known(glances: Glances) -> None:
    """Two glances, 50 ms."""
    assert glances.look(0.6, 0.05) is Motion.SUSPECTED
    assert glances.look(0.6, 0.05) is Motion.MOVED


def test_after_a_move_the_new_load_is_the_usual_one(glances: Glances) -> None:
    """It is told once."""
    glances.look(0.6, 0.05)
    glances.look(0.6, 0.05)
    assert {glances.look(0.6, 0.05) for _ in range(40)} == {Motion.STEADY}


def test_one_odd_glance_is_no_move(glances: Glances) -> None:
    """The next is as ever."""
    assert glances.look(0.9, 0.6) is Motion.SUSPECTED
    assert glances.look(0.05, 0.6) is Motion.STEADY


def test_packets_that_wait_longer_are_a_move_whatever_makes_them_wait(glances: Glances) -> None:
    """User load shows in no softirq share."""
    assert glances.look(0.05, 0.6, mean_ns=400_000.0) is Motion.SUSPECTED
    assert glances.look(0.05, 0.6, mean_ns=400_000.0) is Motion.MOVED


def test_packets_that_wait_less_are_none(glances: Glances) -> None:
    """There is nothing to hurry for."""
    assert {glances.look(0.05, 0.6, mean_ns=2_000.0) for _ in range(10)} == {Motion.STEADY}


def test_a_load_in_bursts_is_not_taken_for_one_that_moves() -> None:
    """A share that jumps every 100 ms is that load's way: after the first seconds it is left alone."""
    glances = Glances()
    seen = [glances.look(0.05, 0.7 if i // 4 % 2 else 0.1) for i in range(1600)]
    assert seen[1200:].count(Motion.MOVED) == 0


def test_after_a_change_of_settings_the_shares_are_learnt_anew(glances: Glances) -> None:
    """What moved is the packets' work."""
    glances.watch.rebase()
    assert {glances.look(0.6, 0.05) for _ in range(20)} == {Motion.STEADY}


def test_counters_that_wrap_are_no_move(glances: Glances) -> None:
    """The histogram's buckets are u32."""
    glances.counts = glances.counts + np.uint32(0)
    glances.watch.rebase()
    glances.counts = np.full(HIST_BUCKETS, 0xFFFFFFF0, dtype=np.uint32)
    assert {glances.look(0.05, 0.6) for _ in range(20)} == {Motion.STEADY}
