"""The way of kernels without TCX: our clsact filters beside those of others, and what a killed run leaves."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyroute2 import IPRoute

from agent import tc
from agent.control.journal import Journal, this_scope
from agent.errors import ConflictError
from agent.ffi.bpf import BpfObject, enable_bpf_stats, prog_info
from tests.kernel import ffi_probe
from tests.kernel.agent_run import AgentRun, agent
from tests.kernel.frames import send, udp4
from tools.testbed.namespace import VethPair

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and BPF"),
]

PACKETS = 500
INGRESS = 0xFFFFFFF2
# The kernel is asked for TCX through this one function; with it refusing, the agent is on Linux 6.5 or older.
SIMULATED_OLD_KERNEL = """\
import sys
if "run" in sys.orig_argv:
    import agent.tc
    from agent.errors import UnsupportedError

    def attach_tcx(prog_fd, ifindex, direction):
        raise UnsupportedError("simulated: this kernel has no TCX")

    agent.tc.attach_tcx = attach_tcx
"""


@pytest.fixture
def ifindex(pair: VethPair) -> Iterator[int]:
    """The interface's index; no clsact qdisc is on it afterwards."""
    index = pair.right.call(lambda: socket.if_nametoindex(pair.right_if))
    yield index
    if "clsact" in qdiscs(pair, index):
        pair.right.call(lambda: change("del", "clsact", index))


@pytest.fixture
def probe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BpfObject]:
    """Programs to attach."""
    with ffi_probe.load_probe(ffi_probe.probe_object(tmp_path_factory.getbasetemp()), "probe_tc") as loaded:
        yield loaded


@pytest.fixture
def old_kernel(tmp_path: Path) -> dict[str, str]:
    """An environment in which `agent run` finds a kernel without TCX."""
    directory = tmp_path / "simulated"
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(SIMULATED_OLD_KERNEL)
    # The simulation imports numpy earlier than the agent would: no BLAS threads, so that signals go to the agent.
    return {**os.environ, "PYTHONPATH": str(directory), "OPENBLAS_NUM_THREADS": "1"}


def change(*words: object, **attributes: object) -> None:
    """One change by rtnetlink, in the calling thread's namespace."""
    with IPRoute() as netlink:
        netlink.tc(*words, **attributes)


def add_foreign_filter(pair: VethPair, ifindex: int, fd: int) -> None:
    """A filter of somebody else on clsact ingress, behind ours."""
    pair.right.call(
        lambda: change(
            "add-filter", "bpf", ifindex, 1,
            fd=fd, name="theirs", parent=INGRESS, prio=0xBFF8, protocol=3, direct_action=True,
        )
    )  # fmt: skip


def qdiscs(pair: VethPair, ifindex: int) -> list[str]:
    """The kinds of qdiscs on the interface."""

    def look() -> list[str]:
        with IPRoute() as netlink:
            return [str(found.get_attr("TCA_KIND")) for found in netlink.get_qdiscs(index=ifindex)]

    return pair.right.call(look)


def filters(pair: VethPair, ifindex: int) -> list[str]:
    """The names of the filters on clsact ingress, in the order they run."""

    def look() -> list[str]:
        with IPRoute() as netlink:
            options = [f.get_attr("TCA_OPTIONS") for f in netlink.get_filters(index=ifindex, parent=INGRESS)]
        return [str(found.get_attr("TCA_BPF_NAME")) for found in options if found is not None]

    return pair.right.call(look)


def attach(pair: VethPair, ifindex: int, fd: int) -> tc.ClsactFilter:
    """Our filter on clsact ingress."""
    made = pair.right.call(lambda: tc.attach_tc(fd, ifindex, "ingress", lambda *_: None, clsact=True))
    assert isinstance(made, tc.ClsactFilter)
    return made


def test_a_qdisc_of_ours_goes_with_the_filter(pair: VethPair, ifindex: int, probe: BpfObject) -> None:
    """Where there was no clsact qdisc there is none afterwards, and a second close does nothing."""
    ours = attach(pair, ifindex, probe.prog_fd("probe_tc"))
    assert filters(pair, ifindex) == ["agent_tc_ingress"]
    pair.right.call(ours.close)
    assert "clsact" not in qdiscs(pair, ifindex)
    pair.right.call(ours.close)


def test_a_foreign_qdisc_stays(pair: VethPair, ifindex: int, probe: BpfObject) -> None:
    """A clsact qdisc that was there before is still there, though it is empty."""
    pair.right.call(lambda: change("add", "clsact", ifindex))
    ours = attach(pair, ifindex, probe.prog_fd("probe_tc"))
    assert ours.created_qdisc is False
    pair.right.call(ours.close)
    assert "clsact" in qdiscs(pair, ifindex)
    assert filters(pair, ifindex) == []


def test_a_foreign_filter_keeps_the_qdisc_that_we_made(
    pair: VethPair, ifindex: int, probe: BpfObject
) -> None:
    """Somebody put a filter on our qdisc meanwhile: it survives us."""
    ours = attach(pair, ifindex, probe.prog_fd("probe_tc"))
    add_foreign_filter(pair, ifindex, probe.prog_fd("probe_tc"))
    pair.right.call(ours.close)
    assert filters(pair, ifindex) == ["theirs"]


def test_a_filter_in_our_place_is_a_conflict(pair: VethPair, ifindex: int, probe: BpfObject) -> None:
    """A filter that is there already is not replaced, and the remedy names the ways out."""
    ours = attach(pair, ifindex, probe.prog_fd("probe_tc"))
    try:
        with pytest.raises(ConflictError, match="already") as error:
            attach(pair, ifindex, probe.prog_fd("probe_tc"))
        assert "agent restore" in error.value.remedy
        assert filters(pair, ifindex) == ["agent_tc_ingress"]
    finally:
        pair.right.call(ours.close)


def test_a_run_without_tcx_hands_every_packet_on(
    pair: VethPair, ifindex: int, probe: BpfObject, tmp_path: Path, old_kernel: dict[str, str]
) -> None:
    """On the clsact path, a filter behind ours sees what we count, and is all that is left afterwards."""
    fd = probe.prog_fd("probe_tc")
    with AgentRun(pair.right, tmp_path / "state", "--hook", "tc", env=old_kernel) as run, enable_bpf_stats():
        run.started()
        add_foreign_filter(pair, ifindex, fd)
        assert filters(pair, ifindex) == ["agent_tc_ingress", "theirs"]
        send(pair.left, itertools.repeat(udp4(), PACKETS))
        assert run.stop() == 0
        assert prog_info(fd).run_cnt == run.counters()["packets"] == PACKETS
    assert filters(pair, ifindex) == ["theirs"]


def test_a_stopped_run_without_tcx_leaves_nothing(
    pair: VethPair, ifindex: int, tmp_path: Path, old_kernel: dict[str, str]
) -> None:
    """Neither filter nor qdisc nor journal."""
    with AgentRun(pair.right, tmp_path / "state", "--hook", "tc", env=old_kernel) as run:
        run.started()
        assert "clsact" in qdiscs(pair, ifindex)
        assert run.stop() == 0
    assert "clsact" not in qdiscs(pair, ifindex)
    assert not list((tmp_path / "state").iterdir())


def test_a_killed_runs_filters_block_the_next_until_restored(
    pair: VethPair, ifindex: int, tmp_path: Path, old_kernel: dict[str, str]
) -> None:
    """SIGKILL leaves clsact filters: exit 4 for the next run, `agent restore` removes them, then a run is welcome."""
    state = tmp_path / "state"
    with AgentRun(pair.right, state, "--hook", "tc", env=old_kernel) as run:
        run.started()
        run.process.kill()
        run.wait()
    assert filters(pair, ifindex) == ["agent_tc_ingress"]
    with AgentRun(pair.right, state) as blocked:
        assert blocked.wait() == 4
        assert "killed" in blocked.said()
        assert "remedy: put them back with `agent restore`" in blocked.said()
    restored = agent("restore", "--state-dir", str(state))
    assert restored.returncode == 0, restored.stderr
    assert "clsact" not in qdiscs(pair, ifindex)
    assert not list(state.iterdir())


def test_restore_leaves_foreign_filters(
    pair: VethPair, ifindex: int, probe: BpfObject, tmp_path: Path, old_kernel: dict[str, str]
) -> None:
    """After SIGKILL, `agent restore` removes ours, and the qdisc stays for the filter of somebody else."""
    state = tmp_path / "state"
    with AgentRun(pair.right, state, "--hook", "tc", env=old_kernel) as run:
        run.started()
        add_foreign_filter(pair, ifindex, probe.prog_fd("probe_tc"))
        run.process.kill()
        run.wait()
    restored = agent("restore", "--state-dir", str(state))
    assert restored.returncode == 0, restored.stderr
    assert filters(pair, ifindex) == ["theirs"]


@pytest.mark.parametrize("whose", ["ours", "theirs"])
def test_a_run_killed_before_its_first_filter(
    pair: VethPair, ifindex: int, probe: BpfObject, tmp_path: Path, whose: str
) -> None:
    """Between qdisc and filter: `agent restore` removes the empty qdisc, but not one with a filter of somebody else."""

    def begin() -> None:
        journal = Journal(tmp_path, this_scope(pair.right_if))
        journal.record(tc.clsact_setting(ifindex, "ingress", created_qdisc=True), tc.ABSENT, tc.ATTACHED)
        change("add", "clsact", ifindex)
        os.close(journal._fd)  # as the kernel does it for a process that is killed

    pair.right.call(begin)
    if whose == "theirs":
        add_foreign_filter(pair, ifindex, probe.prog_fd("probe_tc"))
    restored = agent("restore", "--state-dir", str(tmp_path))
    assert restored.returncode == 0, restored.stderr
    assert ("clsact" in qdiscs(pair, ifindex)) == (whose == "theirs")
    assert not list(tmp_path.iterdir())
