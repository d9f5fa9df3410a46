"""The count of interrupts to idle CPUs: known ones are counted, by who sends them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from agent.errors import UnsupportedError
from agent.ffi.bpf import BpfObject, ProgramSet, flush_cpus, load
from tools.testbed.ipis import IpiCount

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: BPF"),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU: there is nobody to interrupt"),
]
N = 200


@pytest.fixture
def programs() -> Iterator[tuple[BpfObject, int]]:
    """A program to run on another CPU than this process's, and which that is."""
    allowed = os.sched_getaffinity(0)
    here, there = sorted(allowed)[:2]
    os.sched_setaffinity(0, {here})
    try:
        with load("libbpf", ProgramSet("capture")) as loaded:
            yield loaded, there
    finally:
        os.sched_setaffinity(0, allowed)


def count(pid: int, programs: tuple[BpfObject, int]) -> int:
    """How many of `N` interrupts that this process sends are counted as `pid`'s."""
    loaded, there = programs
    try:
        with IpiCount(pid) as ipis:
            before = ipis.sent()
            for _ in range(N):
                flush_cpus(loaded.prog_fd("flush"), [there])
                time.sleep(0.0005)
            return int((ipis.sent() - before)[there])
    except UnsupportedError:
        pytest.skip("this kernel does not tell who interrupts whom")


def test_interrupts_to_an_idle_cpu_are_counted(programs: tuple[BpfObject, int]) -> None:
    """About as many as were sent; fewer where something else ran there. A machine that is full counts none."""
    idle = count(os.getpid(), programs)
    assert idle <= 1.1 * N  # a few of the kernel's own, that this process caused, are among them
    if os.getloadavg()[0] < 1:
        assert idle > N // 10


def test_those_of_others_are_not(programs: tuple[BpfObject, int]) -> None:
    """Process 1 sent none of them."""
    assert count(1, programs) < N // 10
