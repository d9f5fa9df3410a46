"""The interrupt and softirq programs: run by hand with known moments, and attached while packets are received."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator
from typing import Literal

import numpy as np
import pytest

from agent.ffi.bpf import BpfObject, ProgramSet, load, test_run
from agent.ffi.records import SOFTIRQ_NET_RX, hist_edges_ns
from agent.host.cpus import read_cpus
from agent.host.paths import HostPaths
from agent.irqtrace import IrqTrace

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: BPF"),
]

TIMER = 1
PAUSE_S = 0.005
PAUSE_NS = 5_000_000
IRQ = 9
MS = 10**6


@pytest.fixture(params=["libbpf", "bcc"])
def programs(request: pytest.FixtureRequest) -> Iterator[BpfObject]:
    """The programs, attached to nothing: what a test runs is all that is counted."""
    loader: Literal["libbpf", "bcc"] = request.param
    if loader == "bcc":
        pytest.importorskip("bcc")
    with load(loader, ProgramSet("irq", map_entries={"irq_cpus": 1, "irq_lines": IRQ + 1})) as loaded:
        yield loaded


def run(programs: BpfObject, name: str, *arguments: int) -> None:
    """One passage of a tracepoint on CPU 0."""
    context = struct.pack(f"={len(arguments)}Q", *arguments)
    test_run(programs.prog_fd(name), ctx=context, cpu=0)


def test_interrupts_inside_a_softirq_are_not_its_time(programs: BpfObject) -> None:
    """The waits are slept through, so that each is known from below, and their sum from above."""
    began = time.monotonic_ns()
    run(programs, "softirq_raise", SOFTIRQ_NET_RX)
    time.sleep(PAUSE_S)
    run(programs, "softirq_raise", SOFTIRQ_NET_RX)  # pending already: the first counts
    run(programs, "softirq_entry", SOFTIRQ_NET_RX)
    time.sleep(PAUSE_S)
    run(programs, "irq_handler_entry", IRQ, 0)
    time.sleep(4 * PAUSE_S)
    run(programs, "irq_handler_exit", IRQ, 0, 1)
    run(programs, "softirq_exit", SOFTIRQ_NET_RX)
    span_ns = time.monotonic_ns() - began
    seen = programs.map("irq_cpus").mmap()[0]
    line = programs.map("irq_lines").mmap()[IRQ]
    softirq_ns = int(seen["softirq_ns"][SOFTIRQ_NET_RX])
    assert seen["irqs"] == line["count"] == 1
    assert seen["irq_ns"] == line["ns"] >= 4 * PAUSE_NS
    assert seen["softirqs"].tolist() == [int(vector == SOFTIRQ_NET_RX) for vector in range(10)]
    assert PAUSE_NS <= softirq_ns <= span_ns - int(seen["irq_ns"]) - PAUSE_NS
    (bucket,) = np.flatnonzero(seen["rx_wait"]["bucket"])
    assert hist_edges_ns()[bucket + 1] > PAUSE_NS


def test_other_vectors_have_no_wait(programs: BpfObject) -> None:
    """Only NET_RX is asked how long it waited; the others' time is counted all the same."""
    run(programs, "softirq_raise", TIMER)
    run(programs, "softirq_entry", TIMER)
    run(programs, "softirq_exit", TIMER)
    seen = programs.map("irq_cpus").mmap()[0]
    assert seen["softirqs"][TIMER] == 1
    assert not seen["rx_wait"]["bucket"].any()


def test_of_many_softirqs_few_are_timed_and_stand_for_all(programs: BpfObject) -> None:
    """Every one is counted; the waits of those that are timed add up to about as many, from fewer clock reads."""
    many = 2_000
    for _ in range(many):
        run(programs, "softirq_raise", SOFTIRQ_NET_RX)
        run(programs, "softirq_entry", SOFTIRQ_NET_RX)
        run(programs, "softirq_exit", SOFTIRQ_NET_RX)
    seen = programs.map("irq_cpus").mmap()[0]
    assert seen["softirqs"][SOFTIRQ_NET_RX] == many
    # Waits are skipped by chance: with one in 64 timed, the sum's standard deviation is a tenth of it.
    assert many / 2 < seen["rx_wait"]["bucket"].sum() < 2 * many


def test_softirqs_that_are_rare_are_all_timed(programs: BpfObject) -> None:
    """A few long ones keep a CPU as busy as many short ones: none of them is left out."""
    for _ in range(8):
        run(programs, "softirq_entry", TIMER)
        time.sleep(PAUSE_S)
        run(programs, "softirq_exit", TIMER)
    assert programs.map("irq_cpus").mmap()[0]["softirq_ns"][TIMER] >= 8 * PAUSE_NS


def test_an_end_without_a_beginning_is_no_time(programs: BpfObject) -> None:
    """Attached in the middle of an interrupt, its end is all that is seen."""
    run(programs, "irq_handler_exit", IRQ, 0, 1)
    run(programs, "softirq_exit", TIMER)
    seen = programs.map("irq_cpus").mmap()[0]
    assert seen["irq_ns"] == seen["softirq_ns"][TIMER] == 0


def test_polls_that_used_their_budget_are_told_apart(programs: BpfObject) -> None:
    """Three polls of 64: one took all of it, one nothing; a budget of 0 (netpoll) cannot be used up."""
    for work, budget in ((64, 64), (10, 64), (0, 64), (0, 0)):
        run(programs, "napi_poll", 0, work, budget)
    seen = programs.map("irq_cpus").mmap()[0]
    assert (int(seen["polls"]), int(seen["polled"]), int(seen["exhausted"])) == (4, 74, 1)


def test_received_packets_show_in_their_cpus_softirqs() -> None:
    """Attached, packets over the loopback are polled by the sender's CPU, in NET_RX."""
    topology = read_cpus(HostPaths())
    cpu = next(iter(topology.usable))
    allowed = os.sched_getaffinity(0)
    with (
        IrqTrace(topology.width, []) as trace,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
    ):
        receiver.bind(("127.0.0.1", 0))
        os.sched_setaffinity(0, {cpu})
        try:
            first = trace.sample(time.monotonic_ns())
            assert first is not None
            assert first.seconds == 0
            for _ in range(500):
                sender.sendto(b"x", receiver.getsockname())
            activity = trace.sample(time.monotonic_ns())
        finally:
            os.sched_setaffinity(0, allowed)
    assert activity is not None
    seen = activity.cpus[cpu]
    assert seen.polls_per_s * seen.packets_per_poll * activity.seconds >= 450
    assert 0 < seen.net_rx <= seen.softirq < 1
    assert seen.wait_p50_ns > 0


def test_stopping_detaches_and_starting_begins_anew() -> None:
    """Stopped it has nothing to tell; started again it knows nothing of what was going on before."""
    topology = read_cpus(HostPaths())
    trace = IrqTrace(topology.width, [])
    assert trace.sample(time.monotonic_ns()) is None
    for _ in range(2):
        with trace:
            first = trace.sample(time.monotonic_ns())
            assert first is not None
            assert not first.cpus
        assert trace.sample(time.monotonic_ns()) is None
