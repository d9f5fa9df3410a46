"""Packets on all CPUs while flushes interrupt them from elsewhere: nothing is lost uncounted, nothing counted twice."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from agent.ffi.bpf import flush_cpus
from agent.ffi.records import WINDOW_IDLE_CLOSE
from tests.kernel.capture_bench import CPUS, HW_NS, PORT, CaptureBench, frame, total, trailer

pytestmark = pytest.mark.kernel

_ROUNDS, _REPEAT = 10, 10_000


class _Threads:
    """Threads whose exceptions are not lost."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []

    def start(self, work: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                work()
            except BaseException as failure:  # join raises it
                self._failures.append(failure)

        thread = threading.Thread(target=guarded)
        self._threads.append(thread)
        thread.start()
        return thread

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
        if self._failures:
            raise self._failures[0]


def _storm(bench: CaptureBench) -> npt.NDArray[np.void]:
    """Packets from a thread on each CPU, flushes of all CPUs from another, drained meanwhile; all records."""
    threads = _Threads()
    packet = frame(behind=trailer(HW_NS, PORT))
    stop = threading.Event()

    def send(cpu: int) -> None:
        for _ in range(_ROUNDS):
            bench.run(packet, repeat=_REPEAT, cpu=cpu)

    def flush() -> None:
        fd = bench.object.prog_fd("flush")
        while not stop.is_set():
            assert flush_cpus(fd, CPUS) == len(CPUS)

    drained = []
    try:
        senders = [threads.start(lambda cpu=cpu: send(cpu)) for cpu in CPUS]  # type: ignore[misc]
        threads.start(flush)
        while any(sender.is_alive() for sender in senders):
            drained.append(bench.drain())
            stop.wait(0.002)
    finally:
        stop.set()
        threads.join()
    drained.append(bench.drain())
    drained.append(bench.close_windows())
    return np.concatenate(drained)


def test_every_packet_is_in_one_record() -> None:
    """The packets of all records are those that the programs saw, exactly, and no record was lost."""
    # Short windows: a flush mostly finds one that is overdue.
    with CaptureBench("trailer", window_ns=20_000, ring_bytes=4 << 20) as bench:
        windows = _storm(bench)
        counters = bench.counters()
    sent = len(CPUS) * _ROUNDS * _REPEAT
    assert counters["packets"] == sent
    assert (counters["slot_full"], counters["lost"]) == (0, 0)
    assert total(windows, "n") == sent
    assert total(windows, "n_stamped") == counters["stamped"] == sent - 7 * len(CPUS)
    assert counters["produced"] == len(windows)
    # Both ways of closing were at work.
    assert counters["flushed"] == np.count_nonzero(windows["flags"] & WINDOW_IDLE_CLOSE) > 0
    assert counters["flushed"] < counters["produced"]


def test_sequence_is_whole_under_flushes() -> None:
    """Records of a CPU are numbered without gap or double, whoever closed them."""
    with CaptureBench("trailer", window_ns=20_000, ring_bytes=4 << 20) as bench:
        windows = _storm(bench)
        assert bench.counters()["lost"] == 0
    for cpu in CPUS:
        numbers = windows["seq"][windows["cpu"] == cpu]
        assert np.array_equal(np.sort(numbers), np.arange(len(numbers)))


def test_losses_are_exact_under_load() -> None:
    """With rings of 4 KiB many records are lost, and produced = drained + lost holds to the record."""
    with CaptureBench("trailer", window_ns=1_000, ring_bytes=4096) as bench:
        windows = _storm(bench)
        counters = bench.counters()
    assert counters["lost"] > 0
    assert counters["produced"] == len(windows) + counters["lost"]
    assert total(windows, "n") <= counters["packets"] == len(CPUS) * _ROUNDS * _REPEAT


def test_histogram_has_every_delay() -> None:
    """The histograms' growth is the number of packets with a delay, flushes or not."""
    with CaptureBench("trailer", window_ns=20_000, ring_bytes=4 << 20) as bench:
        bench.set_model(PORT, HW_NS + 5_000)
        windows = _storm(bench)
        assert total(windows, "n_delay") == int(bench.hists.astype(np.int64).sum()) > 0
        assert total(windows, "delay_sum_ns") == 5_000 * total(windows, "n_delay")
