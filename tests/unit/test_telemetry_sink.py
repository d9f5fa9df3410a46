from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.errors import UnsupportedError, UsageError
from agent.telemetry.decode import Decoder
from agent.telemetry.encode import Encoder, pack
from agent.telemetry.sink import Sink
from tests.unit import telemetry_frames as sample


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe (read end, write end); ends that the test closed are left alone."""
    read_end, write_end = os.pipe()
    inodes = {fd: os.fstat(fd).st_ino for fd in (read_end, write_end)}
    yield read_end, write_end
    for fd, inode in inodes.items():
        try:
            if os.fstat(fd).st_ino == inode:
                os.close(fd)
        except OSError:
            pass


def wait_for(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Poll until the condition holds; the test fails if it never does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)


def read_all(fd: int) -> bytes:
    """What is left in a pipe whose writer is gone."""
    data = b""
    while portion := os.read(fd, 1 << 20):
        data += portion
    return data


def test_frames_arrive_whole_and_in_order(pipe: tuple[int, int]) -> None:
    """What is put comes out, byte for byte."""
    read_end, write_end = pipe
    sink = Sink(write_end)
    for index in range(100):
        sink.put(bytes([index]) * 300)
    assert sink.close()
    os.close(write_end)
    assert read_all(read_end) == b"".join(bytes([index]) * 300 for index in range(100))
    assert sink.health()["written_frames"] == 100
    assert sink.health()["dropped_frames"] == 0


def test_stalled_reader_costs_the_oldest_frames_only(pipe: tuple[int, int]) -> None:
    """With nobody reading, put returns, the oldest frames go, hello stays, and the stream is never torn."""
    read_end, write_end = pipe
    sink = Sink(write_end, max_bytes=100_000)
    encoder = Encoder()
    sink.put(pack(sample.hello(encoder)), keep=True)
    for _ in range(400):
        for frame in encoder.windows(0, "eth1", sample.windows(20)):
            sink.put(pack(frame))
    health = sink.health()
    assert health["dropped_frames"] > 0
    assert health["queued_bytes"] <= 100_000
    collected: list[bytes] = []
    reader = threading.Thread(target=lambda: collected.append(read_all(read_end)))
    reader.start()
    sink.put(pack(sample.goodbye(encoder)))
    assert sink.close(10.0)
    os.close(write_end)
    reader.join()
    decoder = Decoder()
    frames = list(decoder.feed(collected[0]))
    decoder.finish()
    assert frames[0]["t"] == "hello"
    assert frames[-1]["t"] == "goodbye"
    assert decoder.missing_frames == sink.health()["dropped_frames"]
    assert len(frames) == sink.health()["written_frames"]


def test_hello_outlives_a_full_queue(pipe: tuple[int, int]) -> None:
    """A kept frame in the queue is never what is dropped."""
    read_end, write_end = pipe
    sink = Sink(write_end, max_bytes=1000)
    sink.put(b"x" * 900)
    for _ in range(200):
        sink.put(b"f" * 600)  # the pipe's 64 KiB fill up, then the queue
    sink.put(b"HELLO", keep=True)
    for _ in range(20):
        sink.put(b"g" * 900)
    os.set_blocking(read_end, False)
    seen = b""

    def arrived() -> bool:
        nonlocal seen
        with contextlib.suppress(BlockingIOError):
            seen += os.read(read_end, 1 << 20)
        return b"HELLO" in seen

    wait_for(arrived)
    sink.close()


def test_reader_that_stops_does_not_hold_up_the_exit(pipe: tuple[int, int]) -> None:
    """close returns at its deadline, says that something is left, and counts it as dropped."""
    _, write_end = pipe
    sink = Sink(write_end)
    for _ in range(50):
        sink.put(b"x" * 10_000)
    assert not sink.close(0.05)
    health = sink.health()
    assert health["dropped_frames"] > 0
    assert health["written_bytes"] + health["dropped_bytes"] == 500_000
    assert health["queued_bytes"] == 0


def test_dead_reader_is_noticed_without_writing(pipe: tuple[int, int]) -> None:
    """The reader's end is seen at once, so that the loop can end; later frames are counted as dropped."""
    read_end, write_end = pipe
    sink = Sink(write_end)
    os.close(read_end)
    wait_for(lambda: sink.closed_reason)
    assert "reader" in (sink.closed_reason or "")
    sink.put(b"late")
    assert sink.health()["dropped_frames"] == 1
    sink.close()


def test_frame_larger_than_the_queue_is_dropped(pipe: tuple[int, int]) -> None:
    """A frame that can never fit is counted, and does not drive out others."""
    _, write_end = pipe
    sink = Sink(write_end, max_bytes=100)
    sink.put(b"x" * 101)
    assert sink.health()["dropped_frames"] == 1
    assert sink.close()


def test_full_disk_is_waited_for() -> None:
    """ENOSPC is told as trouble and retried, not the end of the stream."""
    fd = os.open("/dev/full", os.O_WRONLY)
    try:
        sink = Sink(fd)
        sink.put(b"frame")
        wait_for(lambda: sink.trouble)
        assert "No space" in (sink.trouble or "")
        assert sink.closed_reason is None
        assert not sink.close(0.05)
    finally:
        os.close(fd)


def test_file_gets_everything(tmp_path: Path) -> None:
    """A regular file takes all frames."""
    path = tmp_path / "run.telemetry"
    with path.open("wb") as file:
        sink = Sink(file.fileno())
        sink.put(b"a" * 1_000_000)
        sink.put(b"b")
        assert sink.close(10.0)
    assert path.stat().st_size == 1_000_001


def test_socket_stays_blocking_for_others() -> None:
    """A stalled peer is waited for without setting O_NONBLOCK on the shared socket; all arrives in the end."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sink = Sink(ours.fileno())
        sink.put(b"x" * 2_000_000)
        assert os.get_blocking(ours.fileno())
        received = 0
        while received < 2_000_000:
            assert select.select([theirs], [], [], 10.0)[0]
            received += len(theirs.recv(1 << 20))
        assert sink.close(10.0)


def test_descriptor_for_reading_is_refused(pipe: tuple[int, int]) -> None:
    """The wrong end of a pipe is a usage error, not a dead reader."""
    with pytest.raises(UsageError, match="reading only"):
        Sink(pipe[0])


def test_process_ends_though_its_reader_stalls() -> None:
    """A whole process with a full pipe ends by itself after its deadline."""
    program = (
        "from agent.telemetry.sink import Sink\n"
        "sink = Sink(1)\n"
        "[sink.put(b'x' * 10000) for _ in range(100)]\n"
        "raise SystemExit(0 if sink.close(0.1) else 7)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        try:
            assert process.wait(20) == 7
        finally:
            process.kill()


def test_a_host_without_room_for_a_thread_is_said(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`TasksMax=` or a limit of memory may refuse the writer: the cause and the remedy, not a RuntimeError."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(UnsupportedError, match="no thread"):
        Sink(pipe[1])
