"""What `agent plan` and `agent bpf verify` say, on a real interface and with the real programs."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from agent.ffi.programs import built_objects
from tests.kernel.agent_run import AGENT, TIMEOUT_S, agent
from tests.kernel.frames import send, udp4
from tools.testbed.namespace import VethPair

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and BPF"),
]

RPS = Path("/sys/class/net/cap0/queues/rx-0/rps_cpus")


def plan(pair: VethPair, tmp_path: Path, *arguments: str) -> str:
    """What it prints of an interface with some traffic; nothing is changed by it."""
    before = pair.right.read(RPS)
    command = [
        *AGENT, "plan", "-i", "cap0", "--netns", pair.right.name, "--state-dir", str(tmp_path),
        "--seconds", "1.5", *arguments,
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not list(tmp_path.glob("*.journal")):
            time.sleep(0.02)
        while process.poll() is None:
            send(pair.left, (udp4() for _ in range(50)))
        said, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, errors
    assert pair.right.read(RPS) == before
    assert not list(tmp_path.iterdir())
    return said


def test_a_plan_as_json_tells_every_lane(pair: VethPair, tmp_path: Path) -> None:
    """One object: for each lane what is set, what is wanted, the delay measured, and the reason."""
    answer = json.loads(plan(pair, tmp_path, "--json"))
    assert answer["seconds"] == 1.5
    lanes = answer["lanes"]
    assert {(lane["ifname"], lane["actuator"]) for lane in lanes} >= {("cap0", "rps")}
    for lane in lanes:
        assert lane.keys() == {
            "ifname", "queues", "actuator", "current", "wanted", "measured", "predicted", "reason",
            "cause",
        }  # fmt: skip
        assert lane["reason"]
        assert lane["measured"].keys() == {"n", "p50_us", "p99_us"}
    assert sum(lane["measured"]["n"] for lane in lanes) > 0
    assert any("in softirq (net_rx" in lane["cause"] for lane in lanes)


def test_a_plan_in_words_names_queue_and_reason(pair: VethPair, tmp_path: Path) -> None:
    """Without --json it is for people."""
    assert "cap0" in plan(pair, tmp_path)


def test_verify_as_json_tells_every_program() -> None:
    """Each program of each object but the device-bound one, with the number of instructions that were verified."""
    done = agent("bpf", "verify", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["kernel"] == os.uname().release
    programs = answer["programs"]
    assert {row["object"] for row in programs} == {*built_objects()} - {"capture_xdpmeta"}
    assert {row["program"] for row in programs if row["object"] == "capture"} == {
        "xdp_capture", "tc_ingress", "tc_egress", "flush",
    }  # fmt: skip
    assert all(row["verified_insns"] > 0 and row["native_bytes"] > 0 for row in programs)


def test_verify_in_words_has_a_line_a_program() -> None:
    """The table names the kernel, and says which object was left out."""
    done = agent("bpf", "verify")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.decode().splitlines()
    assert os.uname().release in lines[0]
    assert any(line.split()[:3] == ["capture", "xdp_capture", "xdp"] for line in lines)
    assert b"capture_xdpmeta" in done.stderr
