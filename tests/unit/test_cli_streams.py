"""Standard streams that are closed or full, and limits that are reached: an error for the user, never a traceback."""

from __future__ import annotations

import errno
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from agent.cli._refusals import explain

AGENT = f"{shlex.quote(sys.executable)} -m agent"


def shell(command: str) -> subprocess.CompletedProcess[str]:
    """What a command with redirections comes to."""
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.parametrize(
    "words", ["restore --state-dir /nowhere", "restore --json --state-dir /nowhere", "--help"]
)
def test_a_full_standard_output_is_partly_done(words: str) -> None:
    """Exit 5 and the cause: the report did not get out."""
    done = shell(f"{AGENT} {words} >/dev/full")
    assert done.returncode == 5
    assert "standard output cannot be written: No space left on device" in done.stderr


@pytest.mark.parametrize("stderr", ["2>&-", "2>/dev/full"])
def test_an_error_that_nobody_can_read_keeps_its_code(stderr: str) -> None:
    """Nor does it go to standard output, where it would mix with telemetry."""
    done = shell(f"{AGENT} decode /nowhere/at/all {stderr}")
    assert done.returncode == 2
    assert done.stdout == ""


def test_a_closed_standard_input_reads_as_an_empty_one() -> None:
    """`agent decode <&-` says what it says of an empty stream."""
    closed, empty = shell(f"{AGENT} decode <&-"), shell(f"{AGENT} decode </dev/null")
    assert closed.returncode == empty.returncode == 2
    assert closed.stderr == empty.stderr


def test_a_closed_standard_output_is_a_usage_error() -> None:
    """Nothing is begun without it."""
    done = shell(f"{AGENT} restore --state-dir /nowhere >&-")
    assert done.returncode == 2
    assert "standard output is closed" in done.stderr


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOMEM, ""), OSError(errno.EMFILE, "")])
def test_a_limit_is_a_host_that_cannot(error: OSError | MemoryError) -> None:
    """Exit 3, with the way to raise it."""
    explained = explain(error)
    assert explained.exit_code == 3
    assert "ulimit" in explained.remedy


def test_a_missing_proc_is_named(tmp_path: Path) -> None:
    """Files below /proc fail in many ways where it isn't mounted; there is one cause."""
    explained = explain(FileNotFoundError(errno.ENOENT, "", "/proc/self/mountinfo"), tmp_path)
    assert explained.exit_code == 3
    assert "not mounted" in explained.what


def test_an_unforeseen_refusal_names_its_file() -> None:
    """Exit 1: this program should have known."""
    explained = explain(PermissionError(errno.EPERM, "Operation not permitted", "/some/file"))
    assert explained.exit_code == 1
    assert "/some/file" in explained.what
