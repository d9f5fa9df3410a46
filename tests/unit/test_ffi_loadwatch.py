"""Glances at the CPUs' softirq time, in memory that the test writes."""

from __future__ import annotations

import signal
import threading
import time

import numpy as np
import pytest

from agent.ffi.loadwatch import GLANCE_NS, LoadWatch, Woken
from agent.ffi.records import MAP_DTYPES
from agent.signals import end_signals


class Counters:
    """What the tracepoints would count on some CPUs, in a wider value as in the map."""

    def __init__(self, cpus: int) -> None:
        item = np.dtype(MAP_DTYPES["irq_cpus"])
        stride = item.itemsize + 64
        self.memory = bytearray(stride * cpus)
        self.rows = np.ndarray((cpus,), dtype=item, buffer=self.memory, strides=(stride,))
        self.watch = LoadWatch(self.rows)
        self.now_ns = 5_000_000_000
        self.watch.look(self.now_ns)

    def glance(self, *shares: float) -> Woken:
        """One glance later, each CPU having been so busy; a part of it in interrupts."""
        for row, share in zip(self.rows, shares, strict=True):
            row["softirq_ns"][3] += round(0.9 * share * GLANCE_NS)
            row["irq_ns"] += round(0.1 * share * GLANCE_NS)
        self.now_ns += GLANCE_NS
        return self.watch.look(self.now_ns)

    def glances(self, count: int, *shares: float) -> set[Woken]:
        """Several alike; what they showed."""
        return {self.glance(*shares) for _ in range(count)}


@pytest.fixture
def counters() -> Counters:
    """CPU 0 serves and is nearly idle, CPU 1 is loaded; both as they are used to be."""
    counters = Counters(2)
    counters.watch.serve({0})
    counters.glances(40, 0.02, 0.4)
    return counters


def test_a_load_that_comes_is_suspected_and_then_told_once(counters: Counters) -> None:
    """The second glance confirms it, within 100 ms of the move; then it is usual."""
    assert counters.glance(0.4, 0.0) is Woken.SUSPECTED
    assert counters.glance(0.4, 0.0) is Woken.MOVED
    assert counters.glances(80, 0.4, 0.0) == {Woken.DUE}


def test_one_burst_is_no_load(counters: Counters) -> None:
    """Suspected, and not confirmed."""
    assert counters.glance(0.25, 0.4) is Woken.SUSPECTED
    assert counters.glances(20, 0.02, 0.4) == {Woken.DUE}


def test_what_comes_to_a_cpu_that_serves_nothing_is_not_told(counters: Counters) -> None:
    """Nothing has to be answered at once."""
    assert counters.glances(20, 0.02, 0.95) == {Woken.DUE}


def test_a_heavy_load_scatters_without_having_moved(counters: Counters) -> None:
    """Its share of a glance is anything up to twice the mean."""
    counters.watch.serve({1})
    assert counters.glance(0.02, 0.75) is Woken.DUE


def test_where_a_load_was_a_moment_ago_it_is_not_now(counters: Counters) -> None:
    """It was on CPU 1 in half of the glance before."""
    counters.glance(0.2, 0.2)
    counters.glance(0.4, 0.0)
    assert counters.watch.shares[1] == pytest.approx(0.0, abs=0.01)
    assert counters.watch.shares[0] == pytest.approx(0.3, abs=0.01)


def test_work_that_the_agent_moved_itself_is_no_move(counters: Counters) -> None:
    """What comes right after a change is what it brought."""
    counters.watch.settle(counters.now_ns)
    assert counters.glances(40, 0.3, 0.4) == {Woken.DUE}


def test_counters_that_begin_anew_are_no_load(counters: Counters) -> None:
    """A smaller sum than before says nothing."""
    counters.rows["softirq_ns"] = 0
    counters.rows["irq_ns"] = 0
    assert counters.glance(0.0, 0.0) is Woken.DUE


def test_without_counters_it_sleeps_until_it_is_due() -> None:
    """Where nothing is traced."""
    due_ns = time.monotonic_ns() + 60_000_000
    assert LoadWatch(None).wait(due_ns, end_signals()) is Woken.DUE
    assert time.monotonic_ns() >= due_ns


def test_a_signal_ends_the_wait() -> None:
    """Its number is returned."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, end_signals())
    try:
        thread = threading.get_ident()
        timer = threading.Timer(0.05, lambda: signal.pthread_kill(thread, signal.SIGTERM))
        timer.start()
        ended_by = LoadWatch(None).wait(time.monotonic_ns() + 20_000_000_000, end_signals())
        timer.join()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert ended_by == signal.SIGTERM


def test_a_load_that_comes_ends_the_wait() -> None:
    """Long before it is due."""
    counters = Counters(1)
    counters.watch.serve({0})
    stop = threading.Event()

    def grow() -> None:
        while not stop.wait(0.002):
            counters.rows["softirq_ns"][0, 3] += 1_500_000

    thread = threading.Thread(target=grow)
    assert counters.watch.wait(time.monotonic_ns() + 200_000_000, set()) is Woken.DUE
    thread.start()
    woken = counters.watch.wait(time.monotonic_ns() + 20_000_000_000, set())
    stop.set()
    thread.join()
    assert woken is Woken.SUSPECTED
