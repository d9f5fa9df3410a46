"""Other people's programs on the same interface: they go on seeing their packets, and are named where it matters."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from agent.ffi import bpf
from agent.ffi.bpf import BpfObject, enable_bpf_stats, prog_info
from tests.kernel import ffi_probe
from tests.kernel.agent_run import AgentRun
from tests.kernel.frames import send, udp4
from tools.testbed.namespace import VethPair
from tools.testbed.receivers import PacketReceiver, XskReceiver

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and BPF"),
]

T = TypeVar("T")
PACKETS = 3_000


@pytest.fixture
def probe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BpfObject]:
    """Programs that belong to somebody else."""
    with ffi_probe.load_probe(ffi_probe.probe_object(tmp_path_factory.getbasetemp())) as loaded:
        yield loaded


def ifindex(pair: VethPair) -> int:
    """The index of the interface that is captured on."""
    return pair.right.call(lambda: socket.if_nametoindex(pair.right_if))


def attached(pair: VethPair) -> tuple[object, list[int], list[int]]:
    """What is on the interface: XDP owner, TCX ingress and egress programs."""
    index = ifindex(pair)

    def look() -> tuple[object, list[int], list[int]]:
        return bpf.xdp_owner(index), bpf.tcx_programs(index, "ingress"), bpf.tcx_programs(index, "egress")

    return pair.right.call(look)


@contextlib.contextmanager
def hold(pair: VethPair, attach: Callable[[], T]) -> Iterator[T]:
    """Something attached from within the namespace; closed at the end."""
    link = pair.right.call(attach)
    try:
        yield link
    finally:
        link.close()  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Seen:
    """Runs of a foreign tc program, by where it stands, and what the agent counted."""

    behind: int
    before: int
    by_agent: int


@pytest.fixture(scope="module", params=["xdp", "tc"])
def chain(
    request: pytest.FixtureRequest,
    pair: VethPair,
    tmp_path_factory: pytest.TempPathFactory,
) -> Seen:
    """One run with a foreign TCX program on either side of ours."""
    path = ffi_probe.probe_object(tmp_path_factory.getbasetemp())
    index = ifindex(pair)
    with (
        ffi_probe.load_probe(path, "probe_tc") as first,
        ffi_probe.load_probe(path, "probe_tc") as second,
        enable_bpf_stats(),
    ):
        before, behind = first.prog_fd("probe_tc"), second.prog_fd("probe_tc")
        with (
            hold(pair, lambda: bpf.attach_tcx(before, index, "ingress")),
            AgentRun(pair.right, tmp_path_factory.mktemp("state"), "--hook", request.param) as run,
        ):
            run.started()
            with hold(pair, lambda: bpf.attach_tcx(behind, index, "ingress")):
                ids = attached(pair)[1]
                assert [ids[0], ids[2]] == [prog_info(before).id, prog_info(behind).id]
                send(pair.left, itertools.repeat(udp4(), PACKETS))
            assert run.stop() == 0
            return Seen(prog_info(behind).run_cnt, prog_info(before).run_cnt, run.counters()["packets"])


def test_a_tcx_program_behind_ours_sees_every_packet(chain: Seen) -> None:
    """Ours hand every packet on, with either hook."""
    assert chain.behind == PACKETS


def test_a_tcx_program_before_ours_sees_every_packet(chain: Seen) -> None:
    """One that was there first stays first, and both count the same packets."""
    assert chain.before == chain.by_agent == PACKETS


def test_auto_leaves_a_taken_xdp_slot_alone(pair: VethPair, probe: BpfObject, tmp_path: Path) -> None:
    """With the slot taken, `auto` uses tc, says whose program it is, and it is there afterwards as before."""
    fd, index = probe.prog_fd("probe_plain"), ifindex(pair)
    with hold(pair, lambda: bpf.attach_xdp(fd, index, "native")):
        with AgentRun(pair.right, tmp_path, "--hook", "auto") as run:
            (interface,) = run.wait_for("hello")["interfaces"]
            send(pair.left, itertools.repeat(udp4(), 100))
            assert run.stop() == 0
        owner = pair.right.call(lambda: bpf.xdp_owner(index))
    assert interface["hook"] == "tc"
    assert any("probe_plain" in why and str(prog_info(fd).id) in why for why in interface["reasons"])
    assert owner is not None
    assert owner.prog_id == prog_info(fd).id
    # It passes packets on, so that nothing is unseen.
    assert (run.counters()["packets"], run.counters()["unseen"]) == (100, 0)


@pytest.mark.parametrize("hook", ["xdp", "xdp-generic"])
def test_a_taken_xdp_slot_is_never_forced(
    pair: VethPair, probe: BpfObject, tmp_path: Path, hook: str
) -> None:
    """Asked for by name: exit 4 with the owner's name and id, which stays attached."""
    fd, index = probe.prog_fd("probe_plain"), ifindex(pair)
    with hold(pair, lambda: bpf.attach_xdp(fd, index, "native")):
        with AgentRun(pair.right, tmp_path, "--hook", hook) as run:
            assert run.wait() == 4
            said = run.said()
        owner = pair.right.call(lambda: bpf.xdp_owner(index))
    assert "probe_plain" in said
    assert f"id {prog_info(fd).id}" in said
    assert "remedy: use --hook tc" in said
    assert owner is not None
    assert owner.prog_id == prog_info(fd).id


def test_what_an_af_xdp_receiver_takes_is_named_and_counted(pair: VethPair, tmp_path: Path) -> None:
    """An AF_XDP receiver redirects everything: it is said so by name, and each packet counts as unseen."""
    with XskReceiver(pair.right, pair.right_if) as receiver:
        with AgentRun(pair.right, tmp_path) as run:
            (interface,) = run.wait_for("hello")["interfaces"]
            send(pair.left, itertools.repeat(udp4(), PACKETS))
            told = run.wait_for("health", lambda f: f["interfaces"][0]["counters"]["unseen"] == PACKETS)
            assert run.stop() == 0
        totals = receiver.stop()
    assert interface["hook"] == "tc"
    redirect = next(why for why in interface["reasons"] if "redirects" in why)
    assert "xsk_redirect" in redirect
    assert f"id {receiver.program_id}" in redirect
    assert "XSKMAP" in redirect
    assert told["interfaces"][0]["counters"]["packets"] == 0
    assert (run.counters()["packets"], run.counters()["unseen"]) == (0, PACKETS)
    assert totals.received + totals.dropped == PACKETS


@pytest.mark.parametrize("hook", ["xdp", "tc"])
def test_a_tpacket_receiver_beside_us_gets_every_packet(pair: VethPair, tmp_path: Path, hook: str) -> None:
    """A TPACKET_V3 ring on the same interface has every frame, and so have we."""
    with (
        PacketReceiver(pair.right, pair.right_if) as receiver,
        AgentRun(pair.right, tmp_path, "--hook", hook) as run,
    ):
        run.started()
        send(pair.left, itertools.repeat(udp4(), PACKETS))
        assert run.stop() == 0
        totals = receiver.stop()
    assert (totals.received, totals.dropped) == (PACKETS, 0)
    assert run.counters()["packets"] == PACKETS
    assert run.packets() == PACKETS


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_nothing_is_left_behind(pair: VethPair, tmp_path: Path, how: str) -> None:
    """After an end of either kind: no XDP, no TCX, no clsact qdisc, no pin; after a clean one no journal either."""
    with AgentRun(pair.right, tmp_path, "--hook", "xdp") as run:
        run.started()
        owner, ingress, egress = attached(pair)
        assert owner is not None
        assert (len(ingress), len(egress)) == (1, 1)
        if how == "stopped":
            assert run.stop() == 0
        else:
            run.process.kill()
            run.wait()
    assert attached(pair) == (None, [], [])
    qdiscs = subprocess.run(
        ["tc", "-n", pair.right.name, "qdisc", "show", "dev", "cap0"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "clsact" not in qdiscs.stdout
    namespace = pair.right.call(lambda: Path("/proc/thread-self/ns/net").stat().st_ino)
    assert not list(Path("/sys/fs/bpf").glob(f"agent/{namespace}-*"))
    assert how == "killed" or not list(tmp_path.iterdir())
