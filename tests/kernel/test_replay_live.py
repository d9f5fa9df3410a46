"""A live run recorded and replayed: the same clocks, fed the same, say the same."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from agent.telemetry.decode import Decoder
from tests.kernel.agent_run import AGENT, TIMEOUT_S, agent
from tests.kernel.conftest import MakeTestbed

pytestmark = pytest.mark.kernel

SECONDS = 8


@pytest.fixture
def recording(testbed: MakeTestbed, tmp_path: Path) -> Path:
    """The telemetry of a run that changes settings, on two switches' clocks, one of which jumps."""
    bed = testbed(wander_ppb_per_sqrt_s=50.0)
    bed.add_switch(9, -40_000)
    bed.start_traffic()
    bed.start_noise()
    path = tmp_path / "run.telemetry"
    command = [*AGENT, "run", "-i", bed.cap_if, "--netns", bed.cap.name, "--stamp", "trailer"]
    command += ["--seconds", str(SECONDS), "--state-dir", str(tmp_path / "state"), "--base-delay-ns", "900"]
    with path.open("wb") as file:
        run = subprocess.Popen(command, stdout=file)
        try:
            # Programs take their time to load: the clock jumps when the run has been telling of it for a while.
            deadline = time.monotonic() + TIMEOUT_S
            while path.stat().st_size == 0 and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(SECONDS / 2)
            bed.phc.jump(250_000)
            assert run.wait(TIMEOUT_S) == 0
        finally:
            run.kill()
            run.wait()
    return path


def frames(stream: bytes) -> list[dict[str, Any]]:
    """The frames of a stream."""
    return list(Decoder().feed(stream))


def test_a_replayed_run_says_what_it_said(recording: Path) -> None:
    """Every report of every clock, the model for the kernel included, equals the recorded frame."""
    result = agent("replay", str(recording), "--json")
    assert result.returncode == 0, result.stderr.decode()
    *rows, last = map(json.loads, result.stdout.splitlines())
    summary = last["summary"]
    recorded = [frame for frame in frames(recording.read_bytes()) if frame["t"] == "clock"]
    assert summary["recorded_reports"] == summary["identical_reports"] == len(recorded) > 5 * SECONDS
    assert [row["state"] for row in rows] == [frame["state"] for frame in recorded]
    told = {tag["kind"] for frame in recorded for tag in frame["tags"]}
    assert "phase_step" in told
    assert {kind for kind, n in summary["tags"].items() if n} == told
    assert [clock["clock"] for clock in summary["clocks"]] == ["cap0 trailer 7:3", "cap0 trailer 9:3"]


def test_a_truncated_recording_is_replayed_as_far_as_it_goes(recording: Path, tmp_path: Path) -> None:
    """Cut within a frame: what is whole is replayed, alike, and then it is said; exit code 5."""
    whole = recording.read_bytes()
    cut = tmp_path / "cut.telemetry"
    cut.write_bytes(whole[: 2 * len(whole) // 3])
    result = agent("replay", str(cut), "--json")
    assert result.returncode == 5
    assert b"truncated" in result.stderr
    summary = json.loads(result.stdout.splitlines()[-1])["summary"]
    assert summary["recorded_reports"] == summary["identical_reports"] > 0
