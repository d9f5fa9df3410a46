"""How a run is ended: by signals at any moment, or by itself; it always cleans up and says goodbye."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from agent.ffi import bpf
from tests.kernel.agent_run import AgentRun
from tools.testbed.namespace import VethPair

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and BPF"),
]


def assert_clean(pair: VethPair, state_dir: Path) -> None:
    """No program on the interface, no journal."""

    def look() -> list[object]:
        index = socket.if_nametoindex(pair.right_if)
        return [bpf.xdp_owner(index), bpf.tcx_programs(index, "ingress"), bpf.tcx_programs(index, "egress")]

    assert pair.right.call(look) == [None, [], []]
    assert not state_dir.is_dir() or not list(state_dir.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_cleanly(pair: VethPair, tmp_path: Path, number: signal.Signals) -> None:
    """Exit code 0, the goodbye names the signal, nothing is left."""
    with AgentRun(pair.right, tmp_path) as run:
        run.started()
        run.process.send_signal(number)
        assert run.wait() == 0
        assert run.of_kind("goodbye")[0]["reason"] == number.name
        assert run.said() == ""
    assert_clean(pair, tmp_path)


def test_nohup_is_respected(pair: VethPair, tmp_path: Path) -> None:
    """Where SIGHUP is ignored, a terminal that closes does not end the run."""
    with AgentRun(pair.right, tmp_path, before=("sh", "-c", 'trap "" HUP; exec "$@"', "sh")) as run:
        run.started()
        run.process.send_signal(signal.SIGHUP)
        run.wait_for("health")
        assert run.stop() == 0
        assert run.of_kind("goodbye")[0]["reason"] == "SIGTERM"
    assert_clean(pair, tmp_path)


def test_threads_of_libraries_do_not_take_the_signal(pair: VethPair, tmp_path: Path) -> None:
    """With BLAS threads, which the environment can ask for, SIGTERM still reaches the loop."""
    with AgentRun(pair.right, tmp_path, env={**os.environ, "OPENBLAS_NUM_THREADS": "4"}) as run:
        run.started()
        assert len(list(Path(f"/proc/{run.process.pid}/task").iterdir())) > 1
        assert run.stop() == 0
    assert_clean(pair, tmp_path)


def test_a_second_signal_does_not_cut_the_restoring_short(pair: VethPair, tmp_path: Path) -> None:
    """An impatient Ctrl-C Ctrl-C, and others among them: the goodbye is said all the same."""
    with AgentRun(pair.right, tmp_path) as run:
        run.started()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE) * 3:
            run.process.send_signal(number)
            time.sleep(0.005)
        assert run.wait() == 0
        assert run.of_kind("goodbye")
    assert_clean(pair, tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("after_s", [0.2, 0.45, 0.7])
def test_a_signal_during_start_up_leaves_nothing(
    pair: VethPair, tmp_path: Path, number: signal.Signals, after_s: float
) -> None:
    """Either it dies before it began (of the signal, or 130), or it begins and ends cleanly; never a traceback."""
    with AgentRun(pair.right, tmp_path) as run:
        time.sleep(after_s)
        run.process.send_signal(number)
        code = run.wait()
    assert code in (0, 130, -number)
    assert code != 0 or run.of_kind("goodbye")
    assert_clean(pair, tmp_path)


def test_it_ends_by_itself_after_the_seconds_asked_for(pair: VethPair, tmp_path: Path) -> None:
    """`--seconds` ends it with 0 and says so; the span between hello and goodbye is at least that."""
    with AgentRun(pair.right, tmp_path, "--seconds", "0.5") as run:
        assert run.wait() == 0
        (hello,), (goodbye,) = run.of_kind("hello"), run.of_kind("goodbye")
    assert goodbye["reason"] == "--seconds 0.5 passed"
    assert goodbye["mono_ns"] - hello["mono_ns"] >= 500_000_000
    assert goodbye["exit_code"] == 0
    assert_clean(pair, tmp_path)
