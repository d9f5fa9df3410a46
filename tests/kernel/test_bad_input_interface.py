"""Interfaces that are not there, go away, go down, are renamed, or refuse programs."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.errors import UnsupportedError
from agent.ffi import _native, bpf
from tests.kernel import ffi_probe
from tests.kernel.agent_run import AgentRun, agent
from tests.kernel.frames import send, trailer, udp4
from tools.testbed.namespace import VethPair, add_veth, netns_pair, run_ip

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and BPF"),
]


@pytest.fixture
def own_pair() -> Iterator[VethPair]:
    """A veth pair of the test's own, and a second one: cap1 at gen1's other end."""
    with netns_pair() as made:
        add_veth(made.left, made.right, "gen1", "cap1", net=1, queues=1)
        yield made


def test_a_missing_interface_is_named_with_those_that_exist(pair: VethPair, tmp_path: Path) -> None:
    """Exit 2."""
    with AgentRun(pair.right, tmp_path, interfaces=["eth7"]) as run:
        assert run.wait() == 2
        assert "no such interface 'eth7'" in run.said()
        assert "cap0" in run.said()


def test_a_neighbour_whose_name_is_no_text_is_no_obstacle(own_pair: VethPair, tmp_path: Path) -> None:
    """Interface names are bytes to the kernel; one that is not UTF-8 is listed, and the others are captured on."""
    run_ip("-n", own_pair.right.name, "link", "set", "cap1", "name", "cap\udcff")
    with AgentRun(own_pair.right, tmp_path, interfaces=["eth7"]) as run:
        assert run.wait() == 2
        assert "cap0" in run.said()
    with AgentRun(own_pair.right, tmp_path) as run:
        assert run.started().stop() == 0


def test_one_missing_interface_of_two_refuses_both(pair: VethPair, tmp_path: Path) -> None:
    """Nothing is attached to the one that exists."""
    with AgentRun(pair.right, tmp_path, interfaces=["cap0", "eth7"]) as run:
        assert run.wait() == 2
    assert pair.right.call(lambda: bpf.xdp_owner(socket.if_nametoindex("cap0"))) is None
    assert not list(tmp_path.iterdir())


def test_two_interfaces_are_told_apart(own_pair: VethPair, tmp_path: Path) -> None:
    """One run on two interfaces: each has its windows, counters and goodbye."""
    with AgentRun(own_pair.right, tmp_path, interfaces=["cap0", "cap1"]) as run:
        hello = run.wait_for("hello")
        send(own_pair.left, itertools.repeat(udp4(), 300), "gen0")
        send(own_pair.left, itertools.repeat(udp4(), 200), "gen1")
        assert run.stop() == 0
        assert [interface["ifname"] for interface in hello["interfaces"]] == ["cap0", "cap1"]
        assert (run.packets("cap0"), run.packets("cap1")) == (300, 200)
        assert (run.counters("cap0")["packets"], run.counters("cap1")["packets"]) == (300, 200)


def test_the_only_interface_vanishes(own_pair: VethPair, tmp_path: Path) -> None:
    """The run ends by itself with exit 5 and names it; what was counted is accounted for."""
    with AgentRun(own_pair.right, tmp_path) as run:
        run.started()
        send(own_pair.left, (udp4() + trailer(1) for _ in range(100)))
        run_ip("-n", own_pair.right.name, "link", "delete", "cap0")
        assert run.wait() == 5
        assert "cap0 is gone" in run.said()
        assert run.of_kind("goodbye")[0]["reason"] == "nothing is left to capture on"
        counters = run.counters()
    assert counters["produced"] == counters["drained"] + counters["lost"]
    assert not list(tmp_path.iterdir())


def test_one_of_two_interfaces_vanishes(own_pair: VethPair, tmp_path: Path) -> None:
    """The other goes on; the end says with exit 5 which one was lost."""
    with AgentRun(own_pair.right, tmp_path, interfaces=["cap0", "cap1"]) as run:
        run.started()
        run_ip("-n", own_pair.right.name, "link", "delete", "cap1")
        run.wait_for("health", lambda frame: any("cap1 is gone" in note for note in frame["notes"]))
        send(own_pair.left, itertools.repeat(udp4(), 100))
        run.wait_until(lambda: run.packets("cap0") == 100)
        assert run.stop() == 5
        assert "cap1 is gone" in run.said()
        assert run.of_kind("goodbye")[0]["exit_code"] == 5


@pytest.mark.parametrize("hook", ["xdp", "tc"])
def test_a_program_that_somebody_detached_is_noticed(own_pair: VethPair, tmp_path: Path, hook: str) -> None:
    """A capture that sees nothing any more does not go on as if the wire were silent: exit 5, and what happened."""
    with AgentRun(own_pair.right, tmp_path, "--hook", hook) as run:
        run.started()
        send(own_pair.left, itertools.repeat(udp4(), 100))
        run.wait_until(lambda: run.packets() == 100)
        for link in links_of(run.process.pid, hook):
            link.detach()
        assert run.wait() == 5
        assert f"cap0 has lost our {hook} program" in run.said()
        assert run.counters()["produced"] == run.counters()["drained"]
    assert not list(tmp_path.iterdir())


def links_of(pid: int, kind: str) -> list[bpf.Link]:
    """The BPF links of a type that a process holds (`tc`: TCX)."""
    found = []
    for entry in Path(f"/proc/{pid}/fdinfo").iterdir():
        facts = dict(line.split(":\t", 1) for line in entry.read_text().splitlines() if ":\t" in line)
        if facts.get("link_type") == kind.replace("tc", "tcx"):
            found.append(bpf.Link(_native.lib.bpf_link_get_fd_by_id(int(facts["link_id"])), "theirs"))
    return found


def test_an_interface_that_goes_down_and_up_is_captured_on(own_pair: VethPair, tmp_path: Path) -> None:
    """Its packets are counted again, and the run ends as usual."""
    with AgentRun(own_pair.right, tmp_path) as run:
        run.started()
        send(own_pair.left, itertools.repeat(udp4(), 100))
        for state in ("down", "up"):
            run_ip("-n", own_pair.right.name, "link", "set", "cap0", state)
        send(own_pair.left, itertools.repeat(udp4(), 100))
        assert run.stop() == 0
        assert run.counters()["packets"] == 200


def test_a_frags_refusal_names_the_mtu(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A program without frags at MTU 9000: the driver's reason instead of a bare EINVAL."""
    path = ffi_probe.probe_object(tmp_path_factory.getbasetemp())
    with netns_pair(mtu=9000) as jumbo, ffi_probe.load_probe(path, "probe_plain") as probe:
        fd = probe.prog_fd("probe_plain")

        def attach() -> None:
            bpf.attach_xdp(fd, socket.if_nametoindex("cap0"), "native")

        with pytest.raises(UnsupportedError, match="MTU") as error:
            jumbo.right.call(attach)
    assert "--hook tc" in error.value.remedy


@pytest.mark.parametrize("words", [("nowhere",), ("/etc/passwd",), ("/nowhere/at/all",)])
def test_a_missing_namespace_is_a_usage_error(words: tuple[str]) -> None:
    """Exit 2, the namespace named, and how to list them."""
    done = agent("run", "-i", "cap0", "--netns", *words)
    assert done.returncode == 2
    assert words[0].encode() in done.stderr
    assert b"ip netns list" in done.stderr
