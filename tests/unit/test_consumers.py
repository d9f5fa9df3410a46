"""Consumers: found, followed, and moved off the CPUs that process packets, with everything put back."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cli.exec import cpus_on_node
from agent.consumers import ConsumerPins, Consumers
from agent.control.journal import Journal, Scope, netns_inode, restore
from agent.errors import UsageError
from agent.host.consumers import ConsumerThread, consumer_threads
from agent.host.cpus import CpuTopology, read_cpus
from agent.host.masks import CpuMask
from agent.host.paths import HostPaths
from tests.unit.test_doctor_host import process
from tests.unit.test_host_model import FixtureHost

S = 10**9


@pytest.fixture
def host(tmp_path: Path) -> FixtureHost:
    """Two nodes of two cores with two threads each: CPUs n and n + 4 share a core; CPU 7 is isolated."""
    tree = FixtureHost(tmp_path)
    tree.cpus("0-7", isolated="7")
    for node, cpulist in ((0, "0-1,4-5"), (1, "2-3,6-7")):
        tree.file(tree.paths.sys / f"devices/system/node/node{node}/cpulist", cpulist + "\n")
    for cpu in range(8):
        tree.file(tree.paths.cpu / f"cpu{cpu}/topology/core_cpus_list", f"{cpu % 4},{cpu % 4 + 4}\n")
    return tree


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """An open journal."""
    with Journal(tmp_path / "state", Scope("lo", 1, netns_inode())) as opened:
        yield opened


def cpus(text: str) -> CpuMask:
    """From a list."""
    return CpuMask.parse_list(text)


@pytest.mark.parametrize(
    ("node", "original", "serving", "place"),
    [
        (0, "0-7", "0", "1,5"),  # on the NIC's node, not even on the core of the CPU that serves
        (0, "0-7", "0-1", "4-5"),  # only siblings are left on the node: still nearer than the other node
        (0, "0-7", "0-1,4-5", "2-3,6"),  # the node is full of packets; the isolated CPU is nobody's
        (0, "2-3", "0", "2-3"),  # it was bound to the other node by somebody: not widened
        (0, "7", "0", "7"),  # put on an isolated CPU on purpose
        (0, "0", "0", "1,5"),  # bound to the packets' CPU: that is what it is to be moved from
        (None, "0-7", "0", "1-3,5-6"),  # no node known: any but the serving core
    ],
)
def test_where_a_thread_goes(
    host: FixtureHost, journal: Journal, node: int | None, original: str, serving: str, place: str
) -> None:
    """The NIC's node first, off the packets' cores, within what it was allowed."""
    pins = ConsumerPins(read_cpus(host.paths), node, journal)
    assert pins.place(cpus(original), cpus(serving)) == cpus(place)


def test_a_host_full_of_packets_leaves_nothing(host: FixtureHost, journal: Journal) -> None:
    """Where every CPU processes packets, no thread is moved."""
    pins = ConsumerPins(read_cpus(host.paths), 0, journal)
    assert not pins.place(cpus("0"), cpus("0-6"))


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that may run anywhere."""
    with subprocess.Popen(["sleep", "60"]) as child:
        yield child
        child.kill()


def two_cpus() -> CpuTopology:
    """This machine's topology."""
    topology = read_cpus(HostPaths())
    if len(topology.usable & CpuMask.of(os.sched_getaffinity(0))) < 2:
        pytest.skip("one CPU: there is nowhere to move to")
    return topology


def threads_of(pid: int) -> tuple[ConsumerThread, ...]:
    """A live process's threads."""
    return consumer_threads(HostPaths(), [pid])


def test_a_thread_moves_and_is_put_back(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    """Only after the packets' CPUs have settled; what a killed run left, `restore` puts back."""
    topology = two_cpus()
    first = next(iter(topology.usable))
    before = os.sched_getaffinity(sleeper.pid)
    journal = Journal(tmp_path / "state", Scope("lo", 1, netns_inode()))
    pins = ConsumerPins(topology, None, journal)
    threads = threads_of(sleeper.pid)
    assert pins.follow(threads, CpuMask.of([first]), 0) == []
    assert os.sched_getaffinity(sleeper.pid) == before
    (note,) = pins.follow(threads, CpuMask.of([first]), 3 * S)
    assert f"thread {sleeper.pid} (sleep) moved" in note
    assert first not in os.sched_getaffinity(sleeper.pid)
    assert pins.follow(threads, CpuMask.of([first]), 4 * S) == []
    os.close(journal._fd)  # as a killed agent leaves it
    (item,) = restore(tmp_path / "state")
    assert item.outcome == "restored"
    assert os.sched_getaffinity(sleeper.pid) == before


def test_packets_that_move_take_the_thread_along(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    """It goes out of their way again, and at the end to where it was at first."""
    topology = two_cpus()
    first, second = list(topology.usable)[:2]
    before = os.sched_getaffinity(sleeper.pid)
    with Journal(tmp_path / "state", Scope("lo", 1, netns_inode())) as journal:
        pins = ConsumerPins(topology, None, journal)
        for when, cpu in ((0, first), (3, first), (4, second), (7, second)):
            pins.follow(threads_of(sleeper.pid), CpuMask.of([cpu]), when * S)
        assert second not in os.sched_getaffinity(sleeper.pid)
        assert first in os.sched_getaffinity(sleeper.pid)
    assert os.sched_getaffinity(sleeper.pid) == before


def test_a_thread_that_others_move_is_left_to_them(
    journal: Journal, sleeper: subprocess.Popen[bytes]
) -> None:
    """Two owners of one affinity: the other one wins, once and for all."""
    topology = two_cpus()
    first, second = list(topology.usable)[:2]
    pins = ConsumerPins(topology, None, journal)
    for when in (0, 3):
        pins.follow(threads_of(sleeper.pid), CpuMask.of([first]), when * S)
    pinned = os.sched_getaffinity(sleeper.pid)
    os.sched_setaffinity(sleeper.pid, {first})
    if {first} == pinned:
        pytest.skip("needs a value that was never set")
    (note,) = pins.follow(threads_of(sleeper.pid), CpuMask.of([first]), 5 * S)
    assert "left to them" in note
    assert pins.follow(threads_of(sleeper.pid), CpuMask.of([second]), 9 * S) == []
    assert os.sched_getaffinity(sleeper.pid) == {first}


def test_a_named_consumer_may_start_later(host: FixtureHost) -> None:
    """It is looked for again, and its threads' CPUs are told by thread."""
    consumers = Consumers(host.paths, ["capture"])
    assert consumers.follow(0) == {}
    assert consumers.take_notes() == ["consumer capture: does not run now"]
    process(host, 42, "capture", cpus_allowed="2", tids=(43,))
    assert consumers.follow(5 * S) == {}
    assert consumers.follow(10 * S) == {42: cpus("1"), 43: cpus("1")}
    assert consumers.take_notes() == ["consumer capture: pid 42"]


def test_a_process_id_that_is_not_there_is_refused(host: FixtureHost) -> None:
    """A number is a mistake, or a process that ended."""
    with pytest.raises(UsageError, match="--consumer 4242"):
        Consumers(host.paths, ["4242"])


def test_a_process_id_that_is_another_process_later_is_not_followed(host: FixtureHost) -> None:
    """The kernel gives numbers again: a stranger's threads are nobody's consumer."""
    process(host, 42, "capture")
    consumers = Consumers(host.paths, ["42"])
    assert set(consumers.follow(0)) == {42}
    for file in ("42/stat", "42/task/42/stat"):
        text = (host.paths.proc / file).read_text()
        host.file(host.paths.proc / file, text.replace(" 4042 ", " 9999 "))
    assert consumers.follow(10 * S) == {}
    assert consumers.take_notes()[-1] == "consumer 42: does not run now"


def test_exec_leaves_isolated_cpus_out_unless_they_were_asked_for(host: FixtureHost) -> None:
    """The CPUs of the node that are allowed; isolated ones where nothing else is."""
    topology = read_cpus(host.paths)
    assert cpus_on_node(topology, 1, cpus("0-7")) == cpus("2-3,6")
    assert cpus_on_node(topology, 1, cpus("7")) == cpus("7")
    assert not cpus_on_node(topology, 1, cpus("0-1"))
