from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent.telemetry.encode import Encoder, pack
from tests.unit import telemetry_frames as sample

COMMAND = [sys.executable, "-m", "agent", "decode"]


def run_decode(data: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """The command with these bytes on its standard input."""
    return subprocess.run([*COMMAND, *arguments], input=data, capture_output=True, timeout=60, check=False)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A whole run in a file."""
    path = tmp_path / "run.telemetry"
    path.write_bytes(sample.stream())
    return path


def test_pipe_gives_json_lines() -> None:
    """Each line is one JSON object, each frame has one; exit code 0."""
    result = run_decode(sample.stream())
    assert result.returncode == 0, result.stderr
    kinds = [json.loads(line)["t"] for line in result.stdout.splitlines()]
    assert kinds == [frame["t"] for frame in sample.run_of_frames()]
    assert result.stderr == b""


@pytest.mark.parametrize(("detail", "lines"), [("summary", 1), ("full", 4), ("none", 0)])
def test_windows_as_asked_for(recorded: Path, detail: str, lines: int) -> None:
    """A batch of four windows is one line, four, or none."""
    result = run_decode(b"", str(recorded), "--windows", detail)
    assert result.returncode == 0
    others = sum(frame["t"] != "windows" for frame in sample.run_of_frames())
    assert len(result.stdout.splitlines()) == others + lines


def test_truncated_stream_ends_with_5() -> None:
    """All complete frames are printed, then the error names the byte."""
    result = run_decode(sample.stream()[:-1])
    assert result.returncode == 5
    assert len(result.stdout.splitlines()) == len(sample.run_of_frames()) - 1
    assert b"truncated" in result.stderr
    assert b"remedy" in result.stderr


@pytest.mark.parametrize("data", [b"", b"this is a log file\n", b"\x93\x01\x02\x03"])
def test_foreign_stream_ends_with_2(data: bytes) -> None:
    """What is no telemetry is a usage error, and prints nothing on standard output."""
    result = run_decode(data)
    assert result.returncode == 2
    assert result.stdout == b""
    assert b"expected" in result.stderr


def test_missing_file_ends_with_2(tmp_path: Path) -> None:
    """The path is named."""
    result = run_decode(b"", str(tmp_path / "nothing"))
    assert result.returncode == 2
    assert b"nothing" in result.stderr


def test_run_that_was_killed_is_said() -> None:
    """A stream that ends between two frames is whole, but the missing goodbye and dropped frames are told."""
    encoder = Encoder()
    frames = [sample.hello(encoder), sample.health(encoder), sample.health(encoder)]
    result = run_decode(pack(frames[0]) + pack(frames[2]))
    assert result.returncode == 0
    assert b"without a goodbye" in result.stderr
    assert b"1 frames are missing" in result.stderr


def test_closed_output_is_no_error(recorded: Path) -> None:
    """`agent decode FILE | head -1` ends quietly."""
    recorded.write_bytes(sample.stream() * 200)
    with subprocess.Popen(
        [*COMMAND, str(recorded)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline().startswith(b"{")
            process.stdout.close()
            assert process.stderr.read() == b""
            assert process.wait(30) == 0
        finally:
            process.kill()


def test_first_interrupt_is_the_writers() -> None:
    """Ctrl-C reaches the whole pipeline: the goodbye that follows it is still decoded."""
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            *frames, last = (pack(frame) for frame in sample.run_of_frames())
            process.stdin.write(b"".join(frames))
            process.stdin.flush()
            for _ in frames:
                process.stdout.readline()
            process.send_signal(signal.SIGINT)
            process.stdin.write(last)
            process.stdin.close()
            assert json.loads(process.stdout.readline())["t"] == "goodbye"
            assert process.wait(30) == 0
        finally:
            process.kill()


def test_follow_waits_for_the_goodbye(tmp_path: Path) -> None:
    """A file that is still written is followed until the run says goodbye."""
    path = tmp_path / "run.telemetry"
    *frames, last = (pack(frame) for frame in sample.run_of_frames())
    path.write_bytes(b"".join(frames))
    with subprocess.Popen([*COMMAND, "--follow", str(path)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            for _ in frames:
                process.stdout.readline()
            assert process.poll() is None
            with path.open("ab") as file:
                file.write(last)
            assert json.loads(process.stdout.readline())["t"] == "goodbye"
            assert process.wait(30) == 0
        finally:
            process.kill()


def test_terminal_gets_readable_lines(recorded: Path) -> None:
    """On a terminal a frame is a line for people, `--json` makes it JSON again."""
    for arguments, expected in (([], b"250 \xc2\xb5s"), (["--json"], b'"t":"hello"')):
        ours, theirs = pty.openpty()
        try:
            with subprocess.Popen([*COMMAND, str(recorded), *arguments], stdout=theirs) as process:
                os.close(theirs)
                shown = b""
                end = time.monotonic() + 30
                while time.monotonic() < end:
                    try:
                        portion = os.read(ours, 65536)
                    except OSError:  # EIO: the other side is closed
                        break
                    shown += portion
                assert process.wait(30) == 0
        finally:
            os.close(ours)
        assert expected in shown
