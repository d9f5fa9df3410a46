"""`agent demo` as a process: the whole loop on real packets, judged against the truth."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and BPF"),
]

# Issue 2 names these keys; `consumer` holds the application's own figures.
KEYS = {
    "packets", "windows", "produced", "drained", "lost", "drift_ppb", "offset_error_ns", "jumps", "delay_us",
    "changes", "restored", "cpu_percent", "rss_mib", "seconds", "consumer",
}  # fmt: skip


def start_demo(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """The demo as a child process."""
    command = [sys.executable, "-m", "agent", "demo", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def namespaces_of(pid: int) -> list[Path]:
    """The testbed's namespaces that belong to a process."""
    return list(Path("/run/netns").glob(f"agt-*-{pid}-*"))


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Return when the condition holds; fail after a while."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def run_demo() -> dict[str, Any]:
    """One run's JSON summary."""
    demo = start_demo(
        "--json", "--seconds", "8", "--drift-ppb", "-20000", "--jump-ns", "-400000", "--seed", "3"
    )
    out, err = demo.communicate(timeout=60)
    assert demo.returncode == 0, err
    assert not namespaces_of(demo.pid)
    summary: dict[str, Any] = json.loads(out)
    return summary


@pytest.fixture(scope="module")
def summary() -> dict[str, Any]:
    """The summary that all of these tests look at.

    On a machine that others load, the guard may rightly not be convinced that a change helped: then once more.
    """
    first = run_demo()
    kept = any(change["outcome"] == "kept" for change in first["changes"])
    return first if kept or len(os.sched_getaffinity(0)) == 1 else run_demo()


def test_summary_has_the_documented_keys(summary: dict[str, Any]) -> None:
    """One JSON object with the keys that the documentation names."""
    assert set(summary) == KEYS
    assert set(summary["drift_ppb"]) == {"true", "estimated", "error", "kernel"}
    assert set(summary["offset_error_ns"]) == {"p50", "p99", "base_delay"}


def test_drift_is_found_with_its_sign(summary: dict[str, Any]) -> None:
    """The estimate is near the true drift of -20 ppm, and so is the kernel's own figure (how near: `make bench`)."""
    drift = summary["drift_ppb"]
    assert drift["true"] == pytest.approx(-20_000, abs=200)
    assert abs(drift["error"]) < 2_000
    assert drift["kernel"] == pytest.approx(drift["true"], abs=5_000)
    assert drift["error"] == pytest.approx(drift["estimated"] - drift["true"], abs=0.11)


def test_the_jump_is_tagged_and_no_other(summary: dict[str, Any]) -> None:
    """The injected backward step is found; nothing else is called one."""
    assert summary["jumps"] == {"injected": 1, "tagged": 1, "false": 0}


def test_every_window_is_accounted_for(summary: dict[str, Any]) -> None:
    """produced = drained + lost, and packets and windows were seen."""
    assert summary["produced"] == summary["drained"] + summary["lost"] > 0
    assert summary["packets"] > 10_000


def test_everything_is_restored(summary: dict[str, Any]) -> None:
    """The settings are byte for byte what they were."""
    assert summary["restored"] is True


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU: there is no other to steer to")
def test_a_kept_change_cut_the_delay(summary: dict[str, Any]) -> None:
    """A change was applied and kept, and the delay is better by the agent's figures and by the application's."""
    assert any(change["outcome"] == "kept" for change in summary["changes"])
    for delay in (summary["delay_us"], summary["consumer"]["delay_us"]):
        assert delay["after"]["p50"] < delay["before"]["p50"] / 2
        assert delay["after"]["p99"] < delay["before"]["p99"]


def test_sigterm_cleans_up() -> None:
    """A demo that is told to end in the middle leaves no namespace and no process."""
    demo = start_demo("--seconds", "30")
    wait_until(lambda: len(namespaces_of(demo.pid)) == 2)
    time.sleep(2)
    children = [int(pid) for pid in Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split()]
    demo.send_signal(signal.SIGTERM)
    demo.communicate(timeout=30)
    assert demo.returncode == 130
    assert not namespaces_of(demo.pid)
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]


def test_an_agent_that_fails_is_shown(tmp_path: Path) -> None:
    """If the agent does not start, the demo says what it said, leaves with 5, and cleans up."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif 'run' in sys.orig_argv:\n    sys.exit('the agent of this test always fails')\n"
    )
    demo = start_demo("--seconds", "4", env=os.environ | {"PYTHONPATH": str(tmp_path)})
    _, err = demo.communicate(timeout=60)
    assert demo.returncode == 5
    assert "the agent of this test always fails" in err
    assert not namespaces_of(demo.pid)
