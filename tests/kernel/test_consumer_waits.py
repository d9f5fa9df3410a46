"""What reaches a consumer: how long packets wait for it, and what its sockets do not take."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.consumerwaits import ConsumerTrace, ConsumerWait
from agent.host.consumers import ConsumerThread, consumer_threads
from agent.host.paths import HostPaths
from agent.host.sockdiag import socket_counts, socket_inodes
from tests.kernel.agent_run import AgentRun
from tests.kernel.frames import send, udp4
from tools.testbed.namespace import VethPair

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: BPF"),
]

ETH_P_ALL = 0x0003
PAUSE_S = 0.02


@pytest.fixture
def trace() -> Iterator[ConsumerTrace]:
    """Attached; this process is the consumer."""
    with ConsumerTrace(HostPaths()) as started:
        assert started.note == ""
        sample(started)
        yield started


def threads() -> tuple[ConsumerThread, ...]:
    """This process."""
    return consumer_threads(HostPaths(), [os.getpid()])


def sample(trace: ConsumerTrace) -> ConsumerWait:
    """What reached this process since the last call."""
    (seen,) = trace.sample(threads(), time.monotonic_ns()).consumers
    return seen


def taps() -> socket.socket:
    """A packet socket on the loopback."""
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    tap.bind(("lo", 0))
    return tap


def test_packets_wait_as_long_as_they_are_left(trace: ConsumerTrace) -> None:
    """Ten are read some time after they came: each waited that long at least, none longer than all of it took."""
    with taps() as tap, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sample(trace)
        began_ns = time.monotonic_ns()
        for _ in range(10):
            sender.sendto(b"x", ("127.0.0.1", 9))
        time.sleep(PAUSE_S)
        for _ in range(10):
            tap.recv(2048)
        seen = sample(trace)
        took_ns = time.monotonic_ns() - began_ns
    assert seen.n >= 10
    assert 0.97e9 * PAUSE_S <= seen.p50_ns <= seen.p99_ns <= 1.07 * took_ns


def test_what_others_read_is_not_counted(trace: ConsumerTrace) -> None:
    """The same by a process that was not named."""
    with taps() as tap, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sample(trace)
        sender.sendto(b"x", ("127.0.0.1", 9))
        child = os.fork()
        if child == 0:
            tap.recv(2048)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        seen = sample(trace)
    assert seen.n == 0


def test_packets_that_find_no_room_are_the_sockets_own() -> None:
    """A UDP and a packet socket with room for a few: what was sent is what was read, is held, or was dropped."""
    with (
        taps() as tap,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
        ConsumerTrace(HostPaths()) as trace,
    ):
        receiver.bind(("127.0.0.1", 0))
        for sock in (tap, receiver):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_304)
        sample(trace)
        for _ in range(100):
            sender.sendto(b"x" * 100, receiver.getsockname())
        seen = sample(trace)
        held = 0
        receiver.setblocking(False)
        try:
            while receiver.recv(200):
                held += 1
        except BlockingIOError:
            pass
    assert seen.sockets.udp == 100 - held > 0
    assert seen.sockets.packet > 0
    assert seen.sockets.backlog_bytes > 0
    assert seen.sockets.sockets >= 3
    assert seen.sockets.ring_lost == seen.sockets.packet


def test_sockets_of_others_are_left_out() -> None:
    """Only those whose inodes are asked for."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mine, taps() as other:
        mine.bind(("127.0.0.1", 0))
        inodes = {sock: os.fstat(sock.fileno()).st_ino for sock in (mine, other)}
        assert set(socket_inodes(HostPaths(), os.getpid())) >= set(inodes.values())
        assert socket_counts({inodes[mine]}).keys() == {inodes[mine]}
        assert socket_counts(inodes.values()).keys() == set(inodes.values())


def test_a_run_tells_what_reached_its_consumer(pair: VethPair, tmp_path: Path) -> None:
    """`agent run --consumer PID` writes frames about it; without one there are none."""
    with AgentRun(pair.right, tmp_path, "--consumer", str(os.getpid()), "--observe", "--seconds", "3") as run:
        run.started()
        while run.process.poll() is None:
            send(pair.left, (udp4() for _ in range(50)))
            time.sleep(0.05)
        assert run.wait() == 0
        rows = [frame["consumers"] for frame in run.of_kind("consumer")]
    assert len(rows) >= 3
    assert all(row["pid"] == os.getpid() for consumers in rows for row in consumers)
