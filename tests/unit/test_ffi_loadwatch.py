"""Glances at the load: what is a move, what is none, and what ends a wait."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from agent.ffi.loadwatch import LoadWatch, Motion
from agent.ffi.records import HIST_BUCKETS, MAP_DTYPES, hist_bucket

GLANCE_NS = 20_000_000


class Glances:
    """Counters of a host with two CPUs and one queue that grow from glance to glance."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(5)
        self.mono_ns = 1_000_000_000
        self.cpus: npt.NDArray[Any] = np.zeros(2, dtype=MAP_DTYPES["irq_cpus"])
        self.slots: npt.NDArray[Any] = np.zeros(8, dtype=MAP_DTYPES["slots"])
        self.hists: npt.NDArray[Any] = np.zeros(8, dtype=MAP_DTYPES["hists"])
        self.slots["in_use"][3] = 1
        self.watch = LoadWatch()
        self.watch.add_delays(self.slots, self.hists)
        self.watch.follow_cpus(self.cpus)

    def grow(self, *shares: float, mean_ns: float = 20_000.0, n: int = 250) -> None:
        """What 20 ms bring, NET_RX and interrupts half and half."""
        self.mono_ns += GLANCE_NS
        noisy = np.clip(np.array(shares) + self.rng.normal(0, 0.04, len(shares)), 0, 1)
        half = (noisy * GLANCE_NS / 2).astype(np.uint64)
        self.cpus["irq_ns"] += half
        self.cpus["softirq_ns"][:, 3] += half
        delays = hist_bucket(self.rng.exponential(mean_ns, n).astype(np.int64) + 2_000)
        self.hists["bucket"][3] += np.bincount(delays, minlength=HIST_BUCKETS).astype(np.uint32)

    def look(self, *shares: float, mean_ns: float = 20_000.0, n: int = 250) -> Motion:
        """One glance later."""
        self.grow(*shares, mean_ns=mean_ns, n=n)
        return self.watch.look(self.mono_ns)


@pytest.fixture
def glances() -> Glances:
    """Two seconds of a load on CPU 1."""
    glances = Glances()
    for _ in range(100):
        assert glances.look(0.05, 0.6) is Motion.STEADY
    return glances


def test_a_load_that_goes_to_another_cpu_is_suspected_and_then_known(glances: Glances) -> None:
    """Two glances, 40 ms."""
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
    """A share that jumps every 80 ms is that load's way: after the first seconds it is left alone."""
    glances = Glances()
    seen = [glances.look(0.05, 0.7 if i // 4 % 2 else 0.1) for i in range(1600)]
    assert seen[1200:].count(Motion.MOVED) == 0


def test_a_load_that_will_not_stay_put_is_told_less_often(glances: Glances) -> None:
    """It changes CPUs every 0.3 s: after the first two times not each is answered, as it would be too late again."""
    moves = 10
    seen = [glances.look(0.05, 0.6) if i // 15 % 2 else glances.look(0.6, 0.05) for i in range(15 * moves)]
    assert 2 <= seen.count(Motion.MOVED) <= moves / 2


def test_after_a_move_that_lasts_the_next_is_told_at_once(glances: Glances) -> None:
    """Every 3 s."""
    seen = [glances.look(0.05, 0.6) if i // 150 % 2 else glances.look(0.6, 0.05) for i in range(600)]
    assert [i for i, motion in enumerate(seen) if motion is Motion.MOVED] == [1, 151, 301, 451]


def test_after_a_change_of_settings_all_is_learnt_anew(glances: Glances) -> None:
    """What moved is the packets' work, and how long they wait is the guard's to judge."""
    glances.watch.rebase()
    assert {glances.look(0.6, 0.05, mean_ns=400_000.0) for _ in range(20)} == {Motion.STEADY}


def test_counters_that_wrap_are_no_move(glances: Glances) -> None:
    """The histogram's buckets are u32."""
    glances.hists["bucket"][3] = 0xFFFFFFF0
    glances.watch.rebase()
    assert {glances.look(0.05, 0.6) for _ in range(100)} == {Motion.STEADY}


def test_a_queue_that_begins_is_no_move(glances: Glances) -> None:
    """Its histogram counted long ago, for another queue."""
    glances.hists["bucket"][5] = 100_000
    glances.slots["in_use"][5] = 1
    assert {glances.look(0.05, 0.6) for _ in range(100)} == {Motion.STEADY}


def test_without_traced_cpus_the_delays_tell(glances: Glances) -> None:
    """Where the tracepoints are stopped."""
    glances.watch.follow_cpus(None)
    for _ in range(20):
        assert glances.look(0.9, 0.1) is Motion.STEADY
    glances.look(0.9, 0.1, mean_ns=400_000.0)
    assert glances.look(0.9, 0.1, mean_ns=400_000.0) is Motion.MOVED


def test_a_wait_ends_when_its_time_has_come() -> None:
    """Nothing moves."""
    until_ns = time.monotonic_ns() + 30_000_000
    assert Glances().watch.wait(until_ns, ()) is Motion.STEADY
    assert time.monotonic_ns() >= until_ns


def test_a_signal_that_is_held_back_ends_a_wait() -> None:
    """Its number is the answer."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR2)
        found = Glances().watch.wait(time.monotonic_ns() + 60_000_000_000, {signal.SIGUSR2})
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
    assert found == signal.SIGUSR2


def test_a_load_that_moves_ends_a_wait() -> None:
    """Here packets wait longer from some moment on."""
    glances = Glances()
    until_ns = time.monotonic_ns() + 60_000_000_000
    done = threading.Event()

    def load() -> None:
        grown = 0
        while not done.wait(0.005):
            grown += 1
            glances.grow(0.05, 0.05, mean_ns=20_000.0 if grown < 100 else 4_000_000.0)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        assert glances.watch.wait(until_ns, ()) is Motion.MOVED
    finally:
        done.set()
        thread.join()
