"""`agent run --consumer … --pin-consumer` and `agent exec` on the real kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent.ffi.mempolicy import bound_nodes
from tests.kernel.agent_run import AgentRun, agent
from tests.kernel.frames import send, udp4
from tools.testbed.namespace import VethPair

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and BPF"),
]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU: there is nowhere to move to")
def test_a_consumer_moves_off_the_packets_cpu_and_back(pair: VethPair, tmp_path: Path) -> None:
    """While packets are processed by one CPU the consumer is kept off it; after the run it may run where it could."""
    cpu = min(os.sched_getaffinity(0))
    allowed = os.sched_getaffinity(0)
    with subprocess.Popen(["sleep", "60"]) as consumer:
        try:
            # Of a veth the sender's CPU polls.
            os.sched_setaffinity(0, {cpu})
            arguments = ("--consumer", str(consumer.pid), "--pin-consumer", "--deny", "rps,xps,napi")
            with AgentRun(pair.right, tmp_path, *arguments) as run:
                run.started()
                deadline = time.monotonic() + 20
                while cpu in os.sched_getaffinity(consumer.pid) and time.monotonic() < deadline:
                    send(pair.left, (udp4() for _ in range(200)))
                moved_to = os.sched_getaffinity(consumer.pid)
                assert run.stop() == 0
                notes = run.notes()
            assert moved_to == allowed - {cpu}
            assert f"consumer {consumer.pid}: pid {consumer.pid}" in notes
            assert f"thread {consumer.pid} (sleep) moved" in notes
            assert os.sched_getaffinity(consumer.pid) == allowed
        finally:
            os.sched_setaffinity(0, allowed)
            consumer.kill()


def test_observing_moves_no_consumer(pair: VethPair, tmp_path: Path) -> None:
    """--observe forbids everything."""
    with subprocess.Popen(["sleep", "60"]) as consumer:
        try:
            before = os.sched_getaffinity(consumer.pid)
            arguments = ("--consumer", "sleep", "--pin-consumer", "--observe", "--seconds", "4")
            with AgentRun(pair.right, tmp_path, *arguments) as run:
                run.started()
                while run.process.poll() is None:
                    send(pair.left, (udp4() for _ in range(200)))
                assert run.wait() == 0
                assert "moved" not in run.notes()
            assert os.sched_getaffinity(consumer.pid) == before
        finally:
            consumer.kill()


@pytest.mark.skipif(not Path("/dev/cpu_dma_latency").exists(), reason="the kernel has no CPU latency limit")
def test_a_run_holds_the_idle_limit_while_it_is_wanted(pair: VethPair, tmp_path: Path) -> None:
    """What `agent doctor --fix` left for runs: the device is open while its file is there, and no longer."""
    wanted = tmp_path / "fixes/idle_limit_us"
    wanted.parent.mkdir()
    wanted.write_text("20\n")
    with AgentRun(pair.right, tmp_path, "--deny", "rps,xps,napi") as run:
        run.started()
        run.wait_until(lambda: "not used while this runs" in run.notes())
        assert "/dev/cpu_dma_latency" in open_files(run.process.pid)
        wanted.unlink()
        run.wait_until(lambda: "idle limit released" in run.notes())
        assert "/dev/cpu_dma_latency" not in open_files(run.process.pid)
        assert run.stop() == 0


def open_files(pid: int) -> set[str]:
    """The paths of what a process has open."""
    return {str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()}


def test_pinning_needs_a_name(tmp_path: Path) -> None:
    """--pin-consumer alone ends with 2."""
    result = agent("run", "-i", "lo", "--pin-consumer", "--state-dir", str(tmp_path))
    assert result.returncode == 2
    assert b"--consumer" in result.stderr


def test_exec_becomes_the_command() -> None:
    """Its output and exit code are the command's; what cannot be started is named."""
    done = agent("exec", "--numa", "lo", "--", sys.executable, "-c", "print('here'); raise SystemExit(7)")
    assert (done.returncode, done.stdout) == (7, b"here\n")
    done = agent("exec", "--numa", "lo", "--", "/no/such/program")
    assert done.returncode == 2
    assert b"/no/such/program" in done.stderr
    done = agent("exec", "--numa", "agt-nothing", "--", "true")
    assert done.returncode == 2


def test_memory_policy_is_inherited_by_what_is_started() -> None:
    """Bound to a node, a process and what it becomes have their memory there; nothing is bound before."""
    assert bound_nodes() == ()
    code = (
        "import os, sys; from agent.ffi.mempolicy import bind_memory, bound_nodes\n"
        "if len(sys.argv) > 1: print(bound_nodes())\n"
        "else: bind_memory(0); os.execv(sys.executable, [sys.executable, '-c', os.environ['CODE'], 'again'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "CODE": code},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "(0,)\n", done.stderr
