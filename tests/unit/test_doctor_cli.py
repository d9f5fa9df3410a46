from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.fixes import wanted_fixes
from agent.host.paths import HostPaths

pytestmark = pytest.mark.rtnl

COMMAND = [sys.executable, "-m", "agent", "doctor"]


def run_doctor(*arguments: str, user: int | None = None) -> subprocess.CompletedProcess[str]:
    """The command's result."""
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False, user=user
    )


def test_json_is_one_object_and_agrees_with_the_exit_code() -> None:
    """0 unless a check failed, then 3."""
    result = run_doctor("--json")
    report = json.loads(result.stdout)
    assert result.returncode == (3 if report["verdict"] == "fail" else 0)
    assert {"group", "name", "severity", "found", "why", "remedy"} <= set(report["checks"][0])


def test_no_such_interface_ends_with_2() -> None:
    """It is named, with those that exist."""
    result = run_doctor("-i", "agt-nothing")
    assert result.returncode == 2
    assert "agt-nothing" in result.stderr
    assert "lo" in result.stderr


def test_no_such_namespace_ends_with_2() -> None:
    """The namespace is named."""
    result = run_doctor("--netns", "agt-nowhere")
    assert result.returncode == 2
    assert "agt-nowhere" in result.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_user_is_told_that_it_takes_root() -> None:
    """Without privileges the report is still made, ends with 3, and has no traceback."""
    result = run_doctor("-i", "lo", user=65534)
    assert result.returncode == 3, result.stderr
    assert "uid 65534" in result.stdout
    assert "Traceback" not in result.stderr


def test_consumers_are_looked_at() -> None:
    """By process id; one that does not run is a usage error."""
    result = run_doctor("-i", "lo", "--consumer", str(os.getpid()), "--json")
    names = {check["name"]: check["found"] for check in json.loads(result.stdout)["checks"]}
    assert f"pid {os.getpid()} on CPUs" in names["NUMA: consumer CPUs"]
    result = run_doctor("-i", "lo", "--consumer", "agt-nothing")
    assert result.returncode == 2
    assert "agt-nothing" in result.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_fixing_takes_root(tmp_path: Path) -> None:
    """As another user nothing is tried, and the exit code says that the host cannot."""
    result = run_doctor("--fix", "--state-dir", str(tmp_path / "state"), user=65534)
    assert result.returncode == 3
    assert "root" in result.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.skipif(
    bool(list(wanted_fixes(HostPaths(), Path("/run/agent")))), reason="would change this machine's settings"
)
def test_a_host_without_faults_is_left_as_it_is(tmp_path: Path) -> None:
    """Nothing to fix: nothing written, not even a journal."""
    result = run_doctor("--fix", "--json", "--state-dir", str(tmp_path / "state"))
    assert json.loads(result.stdout)["fixed"] == []
    assert not (tmp_path / "state").exists()
