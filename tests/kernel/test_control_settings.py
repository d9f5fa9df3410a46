"""Levers and the journal on real interfaces, in network namespaces."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from agent.control.actuators import NapiActuator, RpsActuator, XpsActuator
from agent.control.journal import Journal, restore, this_scope
from agent.host.links import LinkTable
from agent.host.masks import CpuMask
from agent.host.model import Host, read_host
from agent.host.netlink import query_links
from agent.host.paths import HostPaths
from tests.kernel.conftest import MakePair
from tools.testbed import VethPair
from tools.testbed.namespace import run_ip

pytestmark = pytest.mark.kernel

PATHS = HostPaths()


def settings(pair: VethPair) -> dict[str, bytes]:
    """Every steering file of the right interface, byte for byte."""

    def read() -> dict[str, bytes]:
        base = PATHS.net(pair.right_if)
        paths = [base / "threaded", *base.glob("queues/*/rps_cpus"), *base.glob("queues/*/xps_cpus")]
        return {str(path): path.read_bytes() for path in sorted(paths)}

    return pair.right.call(read)


def host_of(pair: VethPair, links: bool = False) -> Host:
    """The host model as seen in the right namespace."""
    return pair.right.call(lambda: read_host(PATHS, [pair.right_if], query_links() if links else None))


def gro_on(pair: VethPair) -> None:
    """Without GRO or XDP, a veth has no NAPI."""
    done = pair.right.popen(["ethtool", "-K", pair.right_if, "gro", "on"], stdout=subprocess.DEVNULL)
    assert done.wait(timeout=10) == 0


def test_netlink_tells_what_a_veth_is(netns_pair: MakePair) -> None:
    """Kind, peer, queues and XDP features; its XDP metadata has a timestamp."""
    pair = netns_pair(queues=4)
    host = host_of(pair, links=True)
    interface = host.interfaces[pair.right_if]
    assert (interface.kind, interface.driver, len(interface.queues), interface.tx_queues) == (
        "veth",
        "veth",
        4,
        4,
    )
    assert interface.peer is not None
    assert "another namespace" in interface.peer
    assert interface.irq_source == "none"
    if interface.rx_metadata is not None:
        assert "timestamp" in interface.rx_metadata
    links: LinkTable = pair.right.call(query_links)
    assert pair.right_if in links.links


def test_masks_are_set_in_the_kernel_and_restored(netns_pair: MakePair, tmp_path: Path) -> None:
    """RPS and XPS of real queues: the kernel shows the value, and afterwards the bytes of before."""
    pair = netns_pair(queues=2)
    host = host_of(pair)
    interface = host.interfaces[pair.right_if]
    before = settings(pair)

    def use() -> list[str]:
        with Journal(tmp_path, this_scope(pair.right_if, pair.right.name)) as journal:
            for actuator in (RpsActuator(host), XpsActuator(host)):
                for queue in (0, 1):
                    target = actuator.target(interface, queue)
                    assert target is not None
                    outcome = actuator.write(target, b"1", journal)
                    assert outcome.ok, outcome.reason
                    assert CpuMask.parse_mask(actuator.read(target)) == CpuMask(1)
            return [item.outcome for item in journal.restore()]

    assert pair.right.call(use) == ["restored"] * 4
    assert settings(pair) == before
    assert list(tmp_path.iterdir()) == []


def test_a_cpu_that_cannot_be_is_refused_with_its_reason(netns_pair: MakePair, tmp_path: Path) -> None:
    """The kernel answers EOVERFLOW: another CPU may do, and nothing changed."""
    pair = netns_pair(queues=2)
    host = host_of(pair)
    before = settings(pair)

    def use() -> tuple[bool, bool]:
        rps = RpsActuator(host)
        target = rps.target(host.interfaces[pair.right_if], 0)
        assert target is not None
        with Journal(tmp_path, this_scope(pair.right_if)) as journal:
            outcome = rps.write(
                target, CpuMask.of([host.topology.width + 64]).format_mask(1).encode(), journal
            )
        return outcome.ok, outcome.other_cpu

    assert pair.right.call(use) == (False, True)
    assert settings(pair) == before


def test_a_one_queue_device_has_no_xps_lever(netns_pair: MakePair) -> None:
    """Its file is listed, or not there; either way it is no lever and no error."""
    pair = netns_pair(queues=1)
    host = host_of(pair)
    assert pair.right.call(lambda: XpsActuator(host).target(host.interfaces[pair.right_if], 0)) is None


def test_threaded_napi_and_its_threads(netns_pair: MakePair, tmp_path: Path) -> None:
    """Switched on, the queues' threads are found and moved; restored, it is off again."""
    pair = netns_pair(queues=2)
    gro_on(pair)
    host = host_of(pair, links=True)
    before = settings(pair)
    journal = pair.right.call(lambda: Journal(tmp_path, this_scope(pair.right_if, pair.right.name)))
    napi = NapiActuator(host)
    interface = host.interfaces[pair.right_if]
    assert napi.target(interface, 0) is None
    switched = pair.right.call(lambda: napi.write(napi.switch(interface), b"1", journal))
    assert switched.ok, switched.reason
    threaded = host_of(pair, links=True)
    interface = threaded.interfaces[pair.right_if]
    assert interface.threaded
    threads = [queue.thread for queue in interface.queues]
    assert all(thread is not None for thread in threads)
    napi = NapiActuator(threaded)
    target = napi.target(interface, 1)
    assert target is not None
    outcome = napi.write(target, b"1", journal)
    assert outcome.ok, outcome.reason
    thread = threads[1]
    assert thread is not None
    assert os.sched_getaffinity(thread.pid) == {0}
    restored = pair.right.call(journal.restore)
    assert all(item.complete for item in restored), restored
    journal.close(restored)
    assert settings(pair) == before


def test_napi_without_instances_says_so(netns_pair: MakePair, tmp_path: Path) -> None:
    """A veth without GRO and XDP has no NAPI to thread."""
    pair = netns_pair(queues=2)
    host = host_of(pair)

    def use() -> str:
        napi = NapiActuator(host)
        with Journal(tmp_path, this_scope(pair.right_if)) as journal:
            outcome = napi.write(napi.switch(host.interfaces[pair.right_if]), b"1", journal)
        assert outcome.ok or outcome.permanent
        return outcome.reason

    assert pair.right.call(use) in ("", "the interface has no NAPI to thread")


def kill_after_changing(pair: VethPair, state: Path) -> None:
    """A process in the namespace changes both masks, and is killed."""
    host = host_of(pair)

    def use() -> int:
        pid = os.fork()
        if pid == 0:
            try:
                rps = RpsActuator(host)
                journal = Journal(state, this_scope(pair.right_if, pair.right.name))
                for queue in (0, 1):
                    target = rps.target(host.interfaces[pair.right_if], queue)
                    assert target is not None
                    rps.write(target, b"1", journal)
                os.kill(os.getpid(), signal.SIGKILL)
            finally:
                os._exit(1)
        return os.waitpid(pid, 0)[1]

    assert os.WTERMSIG(pair.right.call(use)) == signal.SIGKILL


def test_a_killed_run_in_a_namespace_is_restored_from_outside(netns_pair: MakePair, tmp_path: Path) -> None:
    """`agent restore` runs on the host, and enters the namespace that the journal names."""
    pair = netns_pair(queues=2)
    before = settings(pair)
    kill_after_changing(pair, tmp_path)
    assert settings(pair) != before
    restored = restore(tmp_path)
    assert [item.outcome for item in restored] == ["restored", "restored"]
    assert settings(pair) == before
    assert list(tmp_path.iterdir()) == []


def test_a_vanished_interface_is_gone(netns_pair: MakePair, tmp_path: Path) -> None:
    """Deleted after the kill: there is nothing to put back."""
    pair = netns_pair(queues=2)
    kill_after_changing(pair, tmp_path)
    run_ip("-n", pair.right.name, "link", "delete", pair.right_if)
    assert [item.outcome for item in restore(tmp_path)] == ["gone", "gone"]
    assert list(tmp_path.iterdir()) == []


def test_an_interface_made_anew_is_not_the_one_of_the_journal(netns_pair: MakePair, tmp_path: Path) -> None:
    """Same name, same namespace, another interface: its settings stay."""
    pair = netns_pair(queues=2)
    kill_after_changing(pair, tmp_path)
    run_ip("-n", pair.right.name, "link", "delete", pair.right_if)
    run_ip("-n", pair.right.name, "link", "add", pair.right_if, "type", "veth", "peer", "name", "other0")
    after = settings(pair)
    assert {item.outcome for item in restore(tmp_path)} == {"gone"}
    assert settings(pair) == after
