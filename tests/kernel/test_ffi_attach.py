"""Attaching to veth interfaces by links: what works, what is refused and why, what is left behind."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.errors import AgentError, ConflictError, UnsupportedError, UsageError
from agent.ffi import bpf
from agent.ffi.bpf import BpfObject, Link
from tests.kernel import ffi_probe
from tests.kernel.ffi_probe import VethPair, ip

pytestmark = pytest.mark.kernel


@pytest.fixture
def probe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BpfObject]:
    """The loaded probe."""
    with ffi_probe.load_probe(ffi_probe.probe_object(tmp_path_factory.getbasetemp())) as loaded:
        yield loaded


@pytest.fixture
def veth() -> Iterator[VethPair]:
    """This thread is in a namespace with a veth pair."""
    with ffi_probe.inside_veth_pair() as pair:
        yield pair


@pytest.mark.parametrize("mode", ["native", "generic"])
def test_xdp_is_attached_until_the_link_is_closed(probe: BpfObject, veth: VethPair, mode: str) -> None:
    """The program owns the hook in the mode asked for, and no longer after close."""
    fd = probe.prog_fd("probe_plain")
    with bpf.attach_xdp(fd, veth.inner, mode):  # type: ignore[arg-type]
        owner = bpf.xdp_owner(veth.inner)
        assert owner is not None
        assert (owner.prog_id, owner.name, owner.mode) == (bpf.prog_info(fd).id, "probe_plain", mode)
        assert not owner.redirects
    assert bpf.xdp_owner(veth.inner) is None


@pytest.mark.parametrize("mode", ["native", "generic"])
def test_the_owner_of_the_hook_is_named_and_stays(probe: BpfObject, veth: VethPair, mode: str) -> None:
    """A second program is refused with the first one's name and id, which is untouched."""
    first = probe.prog_fd("probe_redirect")
    with bpf.attach_xdp(first, veth.inner, "native"):
        with pytest.raises(ConflictError, match="probe_redirect") as error:
            bpf.attach_xdp(probe.prog_fd("probe_plain"), veth.inner, mode)  # type: ignore[arg-type]
        owner = bpf.xdp_owner(veth.inner)
        assert owner is not None
        assert owner.prog_id == bpf.prog_info(first).id
        assert str(owner.prog_id) in error.value.what


def test_a_redirecting_owner_is_recognised(probe: BpfObject, veth: VethPair) -> None:
    """A program with an XSKMAP can take packets away from tc: that is said."""
    with bpf.attach_xdp(probe.prog_fd("probe_redirect"), veth.inner, "native"):
        owner = bpf.xdp_owner(veth.inner)
    assert owner is not None
    assert owner.redirects
    assert owner.redirect_maps == ("XSKMAP",)
    assert "XSKMAP" in str(owner)


def test_an_owner_in_another_process_is_named(probe: BpfObject, veth: VethPair) -> None:
    """The process that holds the program is part of the owner."""
    fd = probe.prog_fd("probe_plain")
    holder = subprocess.Popen(["sleep", "60"], pass_fds=[fd])
    try:
        with bpf.attach_xdp(fd, veth.inner, "native"):
            owner = bpf.xdp_owner(veth.inner)
    finally:
        holder.kill()
        holder.wait()
    assert owner is not None
    assert owner.processes == (f"sleep ({holder.pid})",)


def test_a_refused_mtu_is_named(probe: BpfObject, veth: VethPair) -> None:
    """The driver's own words come along with the bare errno; nothing is left attached."""
    ip("link", "set", "outer", "mtu", "9000")
    with pytest.raises(UnsupportedError, match="MTU") as error:
        bpf.attach_xdp(probe.prog_fd("probe_plain"), veth.inner, "native")
    assert "--hook tc" in error.value.remedy
    assert bpf.xdp_owner(veth.inner) is None


def test_a_frags_program_takes_a_jumbo_mtu(probe: BpfObject, veth: VethPair) -> None:
    """SEC("xdp.frags") sets the load flag that veth asks for at MTU 9000."""
    ip("link", "set", "outer", "mtu", "9000")
    with bpf.attach_xdp(probe.prog_fd("probe_xdp"), veth.inner, "native"):
        assert bpf.xdp_owner(veth.inner) is not None


def test_an_interface_that_is_not_there_is_said_so(probe: BpfObject, veth: VethPair) -> None:
    """XDP and TCX name the index of a missing interface."""
    with pytest.raises(AgentError, match="interface 9999"):
        bpf.attach_xdp(probe.prog_fd("probe_plain"), 9999, "native")
    with pytest.raises(AgentError, match="interface 9999"):
        bpf.attach_tcx(probe.prog_fd("probe_tc"), 9999, "ingress")


@pytest.mark.parametrize("direction", ["ingress", "egress"])
def test_tcx_programs_run_behind_those_that_are_there(
    probe: BpfObject, veth: VethPair, direction: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Ours is appended, the list shows the order, and closing removes only ours."""
    fd = probe.prog_fd("probe_tc")
    path = ffi_probe.probe_object(tmp_path_factory.getbasetemp())
    with ffi_probe.load_probe(path, "probe_tc") as other:
        other_fd = other.prog_fd("probe_tc")
        with bpf.attach_tcx(other_fd, veth.inner, direction):  # type: ignore[arg-type]
            with bpf.attach_tcx(fd, veth.inner, direction):  # type: ignore[arg-type]
                expected = [bpf.prog_info(other_fd).id, bpf.prog_info(fd).id]
                assert bpf.tcx_programs(veth.inner, direction) == expected  # type: ignore[arg-type]
            assert bpf.tcx_programs(veth.inner, direction) == expected[:1]  # type: ignore[arg-type]
    assert bpf.tcx_programs(veth.inner, direction) == []  # type: ignore[arg-type]


def test_a_pinned_link_outlives_its_owner(probe: BpfObject, veth: VethPair, tmp_path: Path) -> None:
    """A pinned link stays attached when closed, can be opened again, and ends when asked to."""
    directory = tmp_path / "bpf"
    bpf.ensure_bpffs(directory)
    try:
        bpf.ensure_bpffs(directory)  # a second time: nothing to do
        link = bpf.attach_tcx(probe.prog_fd("probe_tc"), veth.inner, "ingress")
        link.pin(directory / "ours")
        link.close()
        assert len(bpf.tcx_programs(veth.inner, "ingress")) == 1
        with Link.from_pin(directory / "ours") as again:
            again.detach()
            again.detach()
        assert bpf.tcx_programs(veth.inner, "ingress") == []
        with pytest.raises(AgentError, match="theirs"):
            Link.from_pin(directory / "theirs")
    finally:
        subprocess.run(["umount", directory], check=True)


def test_a_killed_process_leaves_nothing_attached(
    veth: VethPair, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """SIGKILL: the kernel detaches XDP and TCX links by itself."""
    path = ffi_probe.probe_object(tmp_path_factory.getbasetemp())
    code = (
        "import sys, time; from pathlib import Path; from agent.ffi import bpf\n"
        "o = bpf.load_object_file(Path(sys.argv[1]), bpf.ProgramSet('p', programs=('probe_xdp', 'probe_tc')))\n"
        "x = bpf.attach_xdp(o.prog_fd('probe_xdp'), int(sys.argv[2]), 'native')\n"
        "t = bpf.attach_tcx(o.prog_fd('probe_tc'), int(sys.argv[2]), 'ingress')\n"
        "print('attached', flush=True); time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, path, str(veth.inner)], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"attached\n"
        assert bpf.xdp_owner(veth.inner) is not None
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
    assert bpf.xdp_owner(veth.inner) is None
    assert bpf.tcx_programs(veth.inner, "ingress") == []


@pytest.mark.skipif(
    os.environ.get("AGENT_TEST_DEVICE_BOUND") != "1",
    reason="removing a device that a program was bound to can crash the kernel: set AGENT_TEST_DEVICE_BOUND=1 "
    "on a machine that may be lost",
)
def test_a_device_bound_program_belongs_to_its_device(
    veth: VethPair, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """It attaches to the interface that it was loaded for, and to no other."""
    path = ffi_probe.probe_object(tmp_path_factory.getbasetemp())
    source = bpf.ProgramSet(
        "ffi_probe", programs=("probe_plain",), device_bound=("probe_plain",), ifindex=veth.inner
    )
    with bpf.load_object_file(path, source) as loaded:
        fd = loaded.prog_fd("probe_plain")
        with pytest.raises(UnsupportedError):
            bpf.attach_xdp(fd, veth.outer, "native")
        with bpf.attach_xdp(fd, veth.inner, "native"):
            assert bpf.xdp_owner(veth.inner) is not None


def test_an_interface_that_vanished_is_a_usage_error(probe: BpfObject, veth: VethPair) -> None:
    """Between being found and being attached to: exit 2, as if it had never been there."""
    ip("link", "delete", "dev", socket.if_indextoname(veth.inner))
    with pytest.raises(UsageError, match="no such interface"):
        bpf.attach_xdp(probe.prog_fd("probe_plain"), veth.inner, "native")
    with pytest.raises(UsageError, match="no such interface"):
        bpf.attach_tcx(probe.prog_fd("probe_tc"), veth.inner, "ingress")
