"""What consumers report reaches the agent, as far as it can be true; and who may report at all."""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import resource
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.batch import BatchWindow, reports
from agent.batch.consumers import MAX_CONSUMERS, ConsumerServer, Reported
from agent.batch.layout import socket_path
from agent.errors import UnsupportedError

S = 1_000_000_000
MS = 1_000_000
UID = os.geteuid()


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """There is no page here, which every consumer would say."""
    caplog.set_level(logging.ERROR)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ConsumerServer]:
    """An agent's socket, that this test's user may report on."""
    with ConsumerServer(tmp_path, "default", [UID]) as server:
        yield server


NOW_NS = 1_000 * S


@pytest.fixture
def still(tmp_path: Path) -> Iterator[ConsumerServer]:
    """The same, for which it is always NOW_NS."""
    with ConsumerServer(tmp_path, "default", [UID], clock=lambda: NOW_NS) as server:
        yield server


class Reporter:
    """A consumer of this test, whose clock goes on by itself."""

    def __init__(self, state_dir: Path) -> None:
        self.window = BatchWindow(state_dir=state_dir, owner_uid=UID)
        self.now_ns = time.monotonic_ns() - 5 * S

    def attach(self, server: ConsumerServer) -> None:
        """Come to where reports arrive."""
        for _ in range(2):
            self.report(1)
            server.poll()
        assert self.window.report_trouble == ""

    def report(self, items: int, pending: int = 0) -> tuple[list[int], int, int]:
        """A batch of items that arrived 1 ms after each other and took 2 ms; 100 ms after the one before."""
        self.now_ns += 100 * MS
        arrivals = [self.now_ns + n * MS for n in range(items)]
        start_ns = arrivals[-1] + 3
        end_ns = start_ns + 2 * MS
        self.window.report(arrivals, start_ns, end_ns, pending)
        return arrivals, start_ns, end_ns


def only(told: list[Reported]) -> Reported:
    """The one consumer's reports."""
    (reported,) = told
    return reported


def test_batches_are_read_as_they_were_reported(tmp_path: Path, server: ConsumerServer) -> None:
    """Service times, sizes, what waits, arrivals, and the latency of each item, exactly."""
    consumer = Reporter(tmp_path)
    consumer.attach(server)
    batches = [consumer.report(items, pending=items + 1) for items in (3, 1, 5)]
    told = only(server.poll())
    assert told.start_ns.tolist() == [start for _, start, _ in batches]
    assert told.end_ns.tolist() == [end for _, _, end in batches]
    assert told.items.tolist() == [3, 1, 5]
    assert told.pending.tolist() == [4, 2, 6]
    assert told.arrivals_ns.tolist() == [at for arrivals, _, _ in batches for at in arrivals]
    assert told.latency_ns.tolist() == [end - at for arrivals, _, end in batches for at in arrivals]
    assert server.poll() == []
    assert (server.missed, server.refused) == (0, 0)


def test_what_was_overwritten_is_counted(tmp_path: Path, server: ConsumerServer) -> None:
    """A consumer that is faster than the agent's polls loses its oldest batches, in both rings."""
    consumer = Reporter(tmp_path)
    consumer.attach(server)
    consumer.now_ns = time.monotonic_ns() - 5 * S
    step = 10 * MS
    for n in range(300):
        start_ns = consumer.now_ns + n * step
        consumer.window.report([start_ns - 9 + k for k in range(9)], start_ns, start_ns + MS, 0)
    told = only(server.poll())
    assert server.missed == 300 - reports.BATCHES
    assert told.start_ns.tolist() == [consumer.now_ns + n * step for n in range(300 - reports.BATCHES, 300)]
    assert len(told.arrivals_ns) == reports.ARRIVALS
    assert len(told.latency_ns) == 0


def memory_of(state_dir: Path, server: ConsumerServer) -> tuple[socket.socket, mmap.mmap, int]:
    """A hostile consumer's connection, its memory and descriptor."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(str(socket_path(state_dir, "default")))
    server.poll()
    message, fds, _, _ = socket.recv_fds(connection, reports.MAX_ANSWER, 1)
    assert message == reports.GRANTED
    return connection, mmap.mmap(fds[0], reports.SIZE), fds[0]


@pytest.mark.parametrize(
    ("start_ns", "end_ns", "items", "number"),
    [
        (NOW_NS - 2 * MS, NOW_NS - 3 * MS, 1, 0),
        (NOW_NS - 2 * MS, NOW_NS + 1, 1, 0),
        (NOW_NS - 11 * S, NOW_NS - 1, 1, 0),
        (-(1 << 63), NOW_NS - 1, 1, 0),
        (NOW_NS - 2 * MS, (1 << 63) - 1, 1, 0),
        (NOW_NS - 2 * MS, NOW_NS - MS, 0, 0),
        (NOW_NS - 2 * MS, NOW_NS - MS, 0xFFFFFFFF, 0),
        (NOW_NS - 2 * MS, NOW_NS - MS, 1, 77),
    ],
)
def test_what_cannot_have_been_is_not_believed(
    tmp_path: Path, still: ConsumerServer, start_ns: int, end_ns: int, items: int, number: int
) -> None:
    """Batches that end before they begin, in the future, of long ago, empty, huge, or of another place."""
    connection, memory, fd = memory_of(tmp_path, still)
    reports.BATCH.pack_into(memory, reports.BATCHES_AT, start_ns, end_ns, items, 0, number, 1)
    memory[reports.COUNT_AT] = 1
    told = only(still.poll())
    assert len(told.start_ns) == 0
    assert len(told.latency_ns) == 0
    assert still.refused == 1
    os.close(fd)
    connection.close()


@pytest.mark.parametrize("count", [1 << 63, (1 << 64) - 1, 255, 257])
def test_random_memory_is_survived(tmp_path: Path, still: ConsumerServer, count: int) -> None:
    """Whatever a consumer writes, reading it ends, and gives nothing that cannot be."""
    connection, memory, fd = memory_of(tmp_path, still)
    memory[128 : reports.SIZE] = os.urandom(reports.SIZE - 128)
    for written in (count, count // 2, count):
        memory[reports.COUNT_AT : reports.COUNT_AT + 8] = written.to_bytes(8, "little")
        for told in still.poll():
            assert (told.end_ns <= NOW_NS).all()
            assert (told.arrivals_ns <= NOW_NS).all()
    assert still.refused > 0
    os.close(fd)
    connection.close()


def test_a_count_beyond_reason_is_not_taken_for_missed_batches(tmp_path: Path, still: ConsumerServer) -> None:
    """Consumers that claim 2^64 batches each don't bring the sum beyond what telemetry can tell."""
    for _ in range(2):
        connection, memory, fd = memory_of(tmp_path, still)
        memory[reports.COUNT_AT : reports.COUNT_AT + 8] = b"\xff" * 8
        assert still.poll() == []
        os.close(fd)
        connection.close()
    assert (still.missed, still.refused) == (0, 2)


def test_reports_that_are_no_whole_numbers_are_refused_without_an_agent_too(tmp_path: Path) -> None:
    """A mistake is seen where it is made, not on the first host that has an agent."""
    window = BatchWindow(state_dir=tmp_path, owner_uid=UID)
    with pytest.raises(TypeError, match="float"):
        window.report([1.5], 1, 2)  # type: ignore[list-item]
    with pytest.raises(TypeError, match="float"):
        window.report([1], 1, 2.5)  # type: ignore[arg-type]
    with pytest.raises(OverflowError):
        window.report([1 << 63], 1, 2)


def test_a_consumer_without_descriptors_says_so(tmp_path: Path, server: ConsumerServer) -> None:
    """The memory comes as a descriptor: a process that may open none has no exception, but the cause."""
    consumer = Reporter(tmp_path)
    consumer.report(1)
    server.poll()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        consumer.report(1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "no descriptor is left" in consumer.window.report_trouble


def test_the_memory_cannot_be_cut_short(tmp_path: Path, server: ConsumerServer) -> None:
    """A consumer that truncates its memory would end the agent by SIGBUS: the seals forbid it."""
    connection, _, fd = memory_of(tmp_path, server)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)
    with pytest.raises(PermissionError):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    os.close(fd)
    connection.close()


def test_a_consumer_that_sends_is_dropped(tmp_path: Path, server: ConsumerServer) -> None:
    """Nothing is read from a consumer's socket: whoever writes there is none."""
    connection, _, fd = memory_of(tmp_path, server)
    connection.send(b"x" * 1000)
    server.poll()
    assert len(server) == 0
    os.close(fd)
    connection.close()


def test_another_user_may_not_report(tmp_path: Path) -> None:
    """Peer credentials decide; the consumer and the agent both say why, the agent once."""
    with ConsumerServer(tmp_path, "default", [UID + 1]) as server:
        windows = [BatchWindow(state_dir=tmp_path, owner_uid=UID) for _ in range(3)]
        for round_ns in (time.monotonic_ns(), time.monotonic_ns() + S):
            for window in windows:
                window.report([round_ns], round_ns, round_ns + 1)
            server.poll()
        assert len(server) == 0
        assert f"user {UID} may not report" in windows[0].report_trouble
        (note,) = server.take_notes()
        assert f"user {UID} may not report" in note


def test_another_users_socket_is_not_talked_to(tmp_path: Path, server: ConsumerServer) -> None:
    """The credentials of the listener are checked, too."""
    window = BatchWindow(state_dir=tmp_path, owner_uid=UID + 1)
    window.report([1], 1, 2)
    assert f"user {UID} listens" in window.report_trouble


def test_without_an_agent_reports_are_lost_quietly(tmp_path: Path) -> None:
    """No exception, and the cause at hand."""
    window = BatchWindow(state_dir=tmp_path, owner_uid=UID)
    window.report([1], 1, 2)
    assert window.report_trouble == f"no agent listens on {tmp_path / 'batch.sock'}"


def test_a_new_agent_gets_the_reports(tmp_path: Path) -> None:
    """A consumer that outlives its agent reports to the next one."""
    consumer = Reporter(tmp_path)
    for _ in range(2):
        with ConsumerServer(tmp_path, "default", [UID]) as server:
            consumer.now_ns += S
            consumer.attach(server)
            consumer.report(4)
            assert only(server.poll()).items.tolist() == [4]
        consumer.report(1)
        assert consumer.window.report_trouble == "the agent has gone"


def test_a_killed_consumer_is_gone(tmp_path: Path, server: ConsumerServer) -> None:
    """A consumer that was killed by SIGKILL leaves nothing behind in the agent."""
    child = os.fork()
    if child == 0:
        consumer = Reporter(tmp_path)
        while True:
            consumer.report(1)
            time.sleep(0.001)
    while not len(server):
        server.poll()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    server.poll()
    assert len(server) == 0


def test_after_a_fork_the_child_is_a_consumer_of_its_own(tmp_path: Path, server: ConsumerServer) -> None:
    """Two processes never write the same memory."""
    consumer = Reporter(tmp_path)
    consumer.attach(server)
    child = os.fork()
    if child == 0:
        while True:
            consumer.now_ns = time.monotonic_ns() - 5 * S
            consumer.report(7)
            time.sleep(0.001)
    sizes: dict[int, set[int]] = {}
    while sum(len(seen) for seen in sizes.values()) < 2:
        consumer.now_ns = time.monotonic_ns() - 5 * S
        consumer.report(2)
        for told in server.poll():
            sizes.setdefault(told.consumer, set()).update(told.items.tolist())
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert sorted(sizes.values(), key=min) == [{2}, {7}]


def open_descriptors() -> int:
    """How many this process has."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_thousand_consumers_come_and_go(tmp_path: Path, server: ConsumerServer) -> None:
    """All report at once, and when they have left no descriptor and no consumer remains."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * 1000 + 200
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"needs {wanted} descriptors, the hard limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        before = open_descriptors()
        consumers = [Reporter(tmp_path) for _ in range(1000)]
        for _ in range(2):
            for consumer in consumers:
                consumer.report(1)
            server.poll()
        assert len(server) == 1000
        for consumer in consumers:
            consumer.report(3)
        told = server.poll()
        assert len({reported.consumer for reported in told}) == 1000
        for consumer in consumers:
            consumer.window.close()
        server.poll()
        assert len(server) == 0
        assert open_descriptors() == before
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_there_is_a_most_of_consumers(
    tmp_path: Path, server: ConsumerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes when all places are taken is told so."""
    monkeypatch.setattr("agent.batch.consumers.MAX_CONSUMERS", 0)
    assert MAX_CONSUMERS >= 1000
    window = BatchWindow(state_dir=tmp_path, owner_uid=UID)
    window.report([1], 1, 2)
    server.poll()
    window.report([1], 1, S)
    assert "consumers already" in window.report_trouble


def test_the_socket_goes_with_the_agent(tmp_path: Path) -> None:
    """What a killed agent left is replaced, and closing leaves nothing."""
    (tmp_path / "batch.sock").touch()
    ConsumerServer(tmp_path, "default", [UID]).close()
    assert list(tmp_path.iterdir()) == []


def test_a_socket_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    """A path that is too long for a socket, or missing, is refused with its cause."""
    with pytest.raises(UnsupportedError, match="cannot be made"):
        ConsumerServer(tmp_path / ("x" * 120), "default", [UID])
