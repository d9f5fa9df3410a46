"""Telemetry readers that stop reading, die or go away early, and what `agent decode` says of damaged streams."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import msgpack
import pytest

from tests.kernel.agent_run import AGENT, TIMEOUT_S, AgentRun, agent
from tests.kernel.frames import send, trailer, udp4
from tools.testbed.namespace import VethPair

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and BPF"),
]

# 64 KiB of frames instead of 8 MiB, so that a test need not fill that.
SIMULATED_SHORT_QUEUE = """\
import sys
if "run" in sys.orig_argv:
    from agent.telemetry.output import StreamOutput

    StreamOutput.__init__.__defaults__ = (64 << 10,)
"""


@pytest.fixture(scope="module")
def recorded(pair: VethPair, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The telemetry of a short run with some packets."""
    directory = tmp_path_factory.mktemp("run")
    file = directory / "run.telemetry"
    with file.open("wb") as stdout:
        run = subprocess.Popen(
            [
                *AGENT, "run", "-i", "cap0", "--netns", pair.right.name, "--seconds", "0.6",
                "--state-dir", str(directory / "state"),
            ],
            stdout=stdout,
        )  # fmt: skip
        try:
            while not file.stat().st_size:
                assert run.poll() is None
                time.sleep(0.01)
            send(pair.left, (udp4() + trailer(1) for _ in range(100)))
            assert run.wait(TIMEOUT_S) == 0
        finally:
            run.kill()
            run.wait()
    return file.read_bytes()


def test_a_reader_that_stops_reading_costs_frames_only(pair: VethPair, tmp_path: Path) -> None:
    """The agent goes on, drops its oldest frames, and tells a reader that comes back how many."""
    (tmp_path / "sitecustomize.py").write_text(SIMULATED_SHORT_QUEUE)
    arguments = ("--stamp", "trailer", "--window", "100us")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with AgentRun(pair.right, tmp_path / "state", *arguments, env=environment) as run:
        run.started()
        run.pause_reading()
        for _ in range(8):  # more than the pipe and the queue hold, over several ticks
            send(pair.left, (udp4(16) + trailer(port) for _ in range(300) for port in range(1, 7)))
            time.sleep(0.2)
        run.resume_reading()
        told = run.wait_for("health", lambda frame: frame["sink"]["dropped_frames"] > 0)
        assert run.stop() == 0
        numbers = [frame["seq"] for frame in run.frames]
    assert told["sink"]["dropped_bytes"] > 0
    missing = numbers[-1] + 1 - len(numbers)
    assert missing == run.of_kind("goodbye")[0]["sink"]["dropped_frames"]
    assert numbers == sorted(set(numbers))
    # Nothing was lost on the way to us: only the reader missed something.
    counters = run.counters()
    assert counters["produced"] == counters["drained"] + counters["lost"]


def test_a_reader_that_never_reads_again_does_not_hang_the_end(pair: VethPair, tmp_path: Path) -> None:
    """The exit is not held up, and says what was not read."""
    with AgentRun(pair.right, tmp_path, "--stamp", "trailer", "--window", "100us") as run:
        run.started()
        run.pause_reading()
        send(pair.left, (udp4(16) + trailer(port) for _ in range(3_000) for port in range(1, 8)))
        time.sleep(0.5)  # two ticks: the pipe is full and more is queued
        run.process.terminate()
        code = run.process.wait(TIMEOUT_S)
        said = run.said()
    assert code == 5
    assert "did not read" in said
    assert not list(tmp_path.iterdir())


def test_a_reader_that_dies_ends_the_run(pair: VethPair, tmp_path: Path) -> None:
    """Exit 5, the cause said, no traceback, nothing left behind."""
    run = subprocess.Popen(
        [*AGENT, "run", "-i", "cap0", "--netns", pair.right.name, "--state-dir", str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert run.stdout is not None
        assert run.stderr is not None
        assert run.stdout.read(10)
        run.stdout.close()
        said = run.stderr.read().decode()
        assert run.wait(TIMEOUT_S) == 5
    finally:
        run.kill()
        run.wait()
    assert "the reader of the telemetry went away" in said
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())


def test_piping_into_head_ends_both(pair: VethPair, tmp_path: Path) -> None:
    """`agent run | head -c 10`: the agent ends when head does."""
    pipeline = (
        f"{' '.join(AGENT)} run -i cap0 --netns {pair.right.name} --state-dir {tmp_path} | head -c 10; "
        'echo "${PIPESTATUS[0]}" >&2'
    )
    done = subprocess.run(["bash", "-c", pipeline], capture_output=True, timeout=TIMEOUT_S, check=True)
    assert len(done.stdout) == 10
    assert b"Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == b"5"


def test_output_that_cannot_be_written_is_refused(pair: VethPair, tmp_path: Path) -> None:
    """A closed stdout, or one for reading only, is a usage error before anything is attached."""
    for redirection in (">&-", "1</dev/null"):
        command = (
            f"{' '.join(AGENT)} run -i cap0 --netns {pair.right.name} --state-dir {tmp_path} {redirection}"
        )
        done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=TIMEOUT_S, check=False)
        assert done.returncode == 2, done.stderr
        assert b"Traceback" not in done.stderr
        assert b"remedy" in done.stderr


def test_a_full_disk_does_not_end_the_run(pair: VethPair, tmp_path: Path) -> None:
    """/dev/full refuses every byte: the run goes on to its end, and says that nothing was written."""
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [
                *AGENT, "run", "-i", "cap0", "--netns", pair.right.name, "--seconds", "0.3",
                "--state-dir", str(tmp_path),
            ],
            stdout=full, stderr=subprocess.PIPE, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    assert done.returncode == 5
    assert b"No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.999])
def test_a_real_stream_cut_off_is_damaged(recorded: bytes, kept: float) -> None:
    """Wherever within a frame it is cut: exit 5, the byte named, what came before given."""
    ends = []
    unpacker = msgpack.Unpacker(max_buffer_size=0)
    unpacker.feed(recorded)
    for _ in unpacker:
        ends.append(unpacker.tell())
    cut = int(len(recorded) * kept)
    cut -= cut in ends
    whole = sum(end <= cut for end in ends)
    done = agent("decode", "--json", input=recorded[:cut])
    assert done.returncode == 5
    assert len(done.stdout.splitlines()) == whole
    assert b"byte" in done.stderr


@pytest.mark.parametrize(
    "foreign", [msgpack.packb({"a": 1}), msgpack.packb([1, 2, 3]), b"\xd4\xc3\xb2\xa1" + bytes(20), b"{}"]
)
def test_a_foreign_stream_is_refused(foreign: bytes) -> None:
    """Other msgpack, a pcap file, JSON: exit 2 and nothing on stdout."""
    done = agent("decode", input=foreign)
    assert done.returncode == 2
    assert done.stdout == b""
    assert b"Traceback" not in done.stderr


def test_foreign_msgpack_behind_a_real_stream_is_damage(recorded: bytes) -> None:
    """Everything of the real stream is given, then exit 5."""
    done = agent("decode", "--json", input=recorded + msgpack.packb({"a": 1}))
    assert done.returncode == 5
    assert b'"goodbye"' in done.stdout.splitlines()[-1]
