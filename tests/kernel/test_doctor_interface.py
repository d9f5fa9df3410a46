"""The doctor on real interfaces: what it says of queues, owners and MTU, and that it leaves no trace."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from agent.ffi import bpf
from agent.ffi.bpf import BpfObject
from tests.kernel import ffi_probe
from tests.kernel.ffi_probe import VethPair, ip

pytestmark = pytest.mark.kernel


@pytest.fixture
def veth() -> Iterator[VethPair]:
    """This thread is in a namespace with a veth pair."""
    with ffi_probe.inside_veth_pair() as pair:
        yield pair


@pytest.fixture
def probe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BpfObject]:
    """Programs of somebody else."""
    with ffi_probe.load_probe(ffi_probe.probe_object(tmp_path_factory.getbasetemp())) as loaded:
        yield loaded


def interface_checks(veth: VethPair, ifname: str) -> dict[str, dict[str, str]]:
    """The report's part about an interface, by check."""
    command = [sys.executable, "-m", "agent", "doctor", "--netns", veth.netns, "-i", ifname, "--json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.stderr == ""
    checks = json.loads(result.stdout)["checks"]
    return {check["name"]: check for check in checks if check["group"] == f"interface {ifname}"}


def test_free_veth(veth: VethPair) -> None:
    """A veth end has native XDP, a free slot and no PHC; run would take XDP and look for trailers."""
    checks = interface_checks(veth, "inner")
    assert checks["link"]["severity"] == "ok"
    assert "veth" in checks["link"]["found"]
    assert "peer outer" in checks["link"]["found"]
    assert "the slot is free" in checks["XDP"]["found"]
    assert checks["tc"]["found"] == "free"
    assert "no PHC" in checks["stamps"]["found"]
    assert "hook xdp" in checks["agent run takes"]["found"]
    unanswered = {name for name, check in checks.items() if check["found"].startswith("not checked")}
    assert {"managed interrupts", "shared interrupts"} <= unanswered  # it has none
    assert not unanswered & {
        "queues",
        "RPS and XPS",
        "cost of attaching XDP",
        "jumbo frames",
        "drops",
        "polling",
    }
    assert "GSO" in checks["cost of attaching XDP"]["found"]


def test_owner_of_the_slot_is_named(veth: VethPair, probe: BpfObject) -> None:
    """A redirecting XDP program is a warning with its name; run would use tc and count what it can't see."""
    with bpf.attach_xdp(probe.prog_fd("probe_redirect"), veth.inner, "native"):
        checks = interface_checks(veth, "inner")
    assert checks["XDP"]["severity"] == "warn"
    assert "probe_redirect" in checks["XDP"]["found"]
    assert "unseen" in checks["XDP"]["why"]
    assert "hook tc" in checks["agent run takes"]["found"]


def test_tc_programs_and_filters_are_named(veth: VethPair, probe: BpfObject) -> None:
    """A TCX program and a clsact filter of others are both listed."""
    subprocess.run(["tc", "qdisc", "add", "dev", "inner", "clsact"], check=True)
    match = ["u32", "match", "u32", "0", "0"]
    subprocess.run(["tc", "filter", "add", "dev", "inner", "ingress", *match], check=True)
    with bpf.attach_tcx(probe.prog_fd("probe_tc"), veth.inner, "egress"):
        checks = interface_checks(veth, "inner")
    assert "TCX egress probe_tc" in checks["tc"]["found"]
    assert "ingress filter u32" in checks["tc"]["found"]


def test_down_and_jumbo(veth: VethPair) -> None:
    """A link that is down says how to bring it up; veth takes XDP with fragments at MTU 9000."""
    ip("link", "set", "inner", "mtu", "9000")
    ip("link", "set", "inner", "down")
    checks = interface_checks(veth, "inner")
    assert "administratively down" in checks["link"]["found"]
    assert checks["jumbo frames"]["severity"] == "ok"
    assert "9000" in checks["jumbo frames"]["found"]


def test_stacked_interface_is_checked_by_what_is_below(veth: VethPair) -> None:
    """Packets of a macvlan (or bond, or VLAN) come in by the interface below it: that one is looked at."""
    ip("link", "add", "name", "upper", "link", "inner", "type", "macvlan")
    command = [sys.executable, "-m", "agent", "doctor", "--netns", veth.netns, "-i", "upper"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    groups = [line for line in result.stdout.splitlines() if line.startswith("interface ")]
    assert groups == ["interface inner"]


def test_nothing_is_left_attached(veth: VethPair) -> None:
    """Loading the programs to see whether they load attaches nothing."""
    interface_checks(veth, "inner")
    assert bpf.xdp_owner(veth.inner) is None
    assert bpf.tcx_programs(veth.inner, "ingress") == []
