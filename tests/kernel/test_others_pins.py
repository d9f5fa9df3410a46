"""Programs of ours that stay attached without a process: `agent bpf attach`, `detach`, and a run that takes over."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.ffi import bpf
from tests.kernel.agent_run import AgentRun, agent
from tools.testbed.namespace import VethPair

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and BPF"),
]


@pytest.fixture
def attached(pair: VethPair) -> Iterator[VethPair]:
    """Our programs are attached by hand; detached afterwards if a test didn't."""
    done = agent("bpf", "attach", "-i", pair.right_if, "--netns", pair.right.name)
    try:
        assert done.returncode == 0, done.stderr
        assert b"attached, hook xdp" in done.stdout
        yield pair
    finally:
        agent("bpf", "detach", "-i", pair.right_if, "--netns", pair.right.name)


def programs(pair: VethPair) -> tuple[int | None, list[int], list[int]]:
    """Program ids on the interface: XDP, TCX ingress, TCX egress."""

    def look() -> tuple[int | None, list[int], list[int]]:
        index = socket.if_nametoindex(pair.right_if)
        owner = bpf.xdp_owner(index)
        return (
            owner.prog_id if owner else None,
            bpf.tcx_programs(index, "ingress"),
            bpf.tcx_programs(index, "egress"),
        )

    return pair.right.call(look)


def pins(pair: VethPair) -> list[Path]:
    """What is pinned for this namespace."""
    namespace = pair.right.call(lambda: Path("/proc/thread-self/ns/net").stat().st_ino)
    return list(Path("/sys/fs/bpf").glob(f"agent/{namespace}-*"))


def test_attached_programs_outlive_the_command(attached: VethPair) -> None:
    """XDP and both tc programs are there, and pinned."""
    xdp, ingress, egress = programs(attached)
    assert xdp is not None
    assert (len(ingress), len(egress)) == (1, 1)
    assert len(pins(attached)) == 1


def test_detach_removes_them(attached: VethPair) -> None:
    """Nothing is attached or pinned afterwards; doing it again says that there was nothing."""
    words = ("bpf", "detach", "-i", attached.right_if, "--netns", attached.right.name)
    done = agent(*words)
    assert done.returncode == 0, done.stderr
    assert b"detached tc_egress, tc_ingress, xdp" in done.stdout
    assert programs(attached) == (None, [], [])
    assert pins(attached) == []
    again = agent(*words)
    assert again.returncode == 0
    assert b"nothing of ours was attached" in again.stdout


def test_attaching_twice_is_a_conflict(attached: VethPair) -> None:
    """Exit 4, the remedy names the command, and the first ones stay."""
    before = programs(attached)
    done = agent("bpf", "attach", "-i", attached.right_if, "--netns", attached.right.name)
    assert done.returncode == 4
    assert b"attached to cap0 already" in done.stderr
    assert b"agent bpf detach -i cap0" in done.stderr
    assert programs(attached) == before


def test_a_run_takes_over(attached: VethPair, tmp_path: Path) -> None:
    """`agent run` detaches them, attaches its own, says so, and leaves nothing behind."""
    before = programs(attached)
    with AgentRun(attached.right, tmp_path) as run:
        run.started()
        during = programs(attached)
        assert run.stop() == 0
    assert during[0] not in (None, before[0])
    assert [len(ids) for ids in during[1:]] == [1, 1]
    assert "cap0: detached xdp, which `agent bpf attach` had left" in run.notes()
    assert programs(attached) == (None, [], [])
    assert pins(attached) == []


def test_detach_of_a_missing_interface_is_a_usage_error(pair: VethPair) -> None:
    """Exit 2, the interface named."""
    done = agent("bpf", "detach", "-i", "nope0", "--netns", pair.right.name)
    assert done.returncode == 2
    assert b"no such interface 'nope0'" in done.stderr
