"""The host model on file trees in the shape of real hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.errors import UsageError
from agent.host.cpus import read_cpus
from agent.host.links import Link, LinkTable, Napi
from agent.host.model import read_host
from agent.host.paths import HostPaths
from tests.unit.test_host_interrupts import interrupts_text


class FixtureHost:
    """Writes `/proc` and `/sys` trees below a directory."""

    def __init__(self, root: Path) -> None:
        self.paths = HostPaths(proc=root / "proc", sys=root / "sys")
        self.paths.proc.mkdir(parents=True)
        (self.paths.sys / "class/net").mkdir(parents=True)

    def file(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def cpus(self, online: str, possible: str = "", isolated: str = "", nohz_full: str = "") -> None:
        for name, text in (("online", online), ("possible", possible or online), ("isolated", isolated)):
            self.file(self.paths.cpu / name, text + "\n")
        if nohz_full:
            self.file(self.paths.cpu / "nohz_full", nohz_full + "\n")

    def interface(
        self,
        name: str,
        ifindex: int,
        queues: int = 1,
        device: str | None = None,
        irqs: list[int] | None = None,
    ) -> Path:
        directory = self.paths.net(name)
        self.file(directory / "ifindex", f"{ifindex}\n")
        self.file(directory / "mtu", "1500\n")
        for i in range(queues):
            self.file(directory / f"queues/rx-{i}/rps_cpus", "0\n")
            (directory / f"queues/tx-{i}").mkdir(parents=True)
        if device is not None:
            bus = self.paths.sys / "devices" / device
            (bus / "net" / name).mkdir(parents=True, exist_ok=True)
            for irq in irqs or []:
                self.file(bus / f"msi_irqs/{irq}", "msix\n")
            (directory / "device").symlink_to(bus)
        return directory

    def interrupts(self, rows: list[tuple[int, str]], cpus: int = 4) -> None:
        table = [(number, [0] * cpus, f" PCI-MSI {number}-edge      {name}") for number, name in rows]
        (self.paths.proc / "interrupts").write_bytes(interrupts_text(list(range(cpus)), table))


@pytest.fixture
def host(tmp_path: Path) -> FixtureHost:
    """An empty host."""
    return FixtureHost(tmp_path)


def test_queues_and_their_interrupts_by_name(host: FixtureHost) -> None:
    """A PCI NIC: its vectors are those that msi_irqs lists, told apart by their names."""
    host.cpus("0-3")
    host.interface("eth0", 3, queues=2, device="pci0000:00/0000:01:00.0", irqs=[30, 31, 32])
    host.interrupts([(30, "eth0"), (31, "eth0-TxRx-0"), (32, "eth0-TxRx-1"), (33, "eth1-TxRx-0")])
    interface = read_host(host.paths, ["eth0"]).interfaces["eth0"]
    assert [(queue.index, queue.irq) for queue in interface.queues] == [(0, 31), (1, 32)]
    assert interface.irq_source == "names"


def test_netlink_goes_before_names(host: FixtureHost) -> None:
    """Where netdev netlink links queue, NAPI and IRQ, names are not asked: one netdev over two PCI devices works."""
    host.cpus("0-3")
    host.interface("eth0", 3, queues=2, device="pci0000:00/0000:08:00.0", irqs=[30])
    host.interrupts([(30, "mlx5_comp0@pci:0000:08:00.0"), (50, "mlx5_comp0@pci:0000:09:00.0")])
    table = LinkTable(
        links={"eth0": Link("eth0", 3, "", 9000, None, None, False, 2, 2, "")},
        queue_napi={(3, "rx", 0): 600, (3, "rx", 1): 601},
        napis={600: Napi(600, 3, 30, None), 601: Napi(601, 3, 50, None)},
    )
    interface = read_host(host.paths, ["eth0"], table).interfaces["eth0"]
    assert [(queue.napi_id, queue.irq) for queue in interface.queues] == [(600, 30), (601, 50)]
    assert interface.irq_source == "netdev"


def test_virtio_vectors_stand_on_the_bus_device_above(host: FixtureHost) -> None:
    """The net device's parent is virtioN; the vectors belong to the PCI function above it."""
    host.cpus("0-1")
    host.interface("eth0", 4, device="pci0000:00/0000:00:03.0/virtio2")
    for irq in (37, 38, 39):
        host.file(host.paths.sys / f"devices/pci0000:00/0000:00:03.0/msi_irqs/{irq}", "msix\n")
    host.interrupts([(37, "virtio2-config"), (38, "virtio2-input.0"), (39, "virtio2-output.0")], cpus=2)
    model = read_host(host.paths, ["eth0"])
    assert model.interfaces["eth0"].queues[0].irq == 38
    assert model.irqs[38].queues == (("eth0", 0),)
    assert not model.irqs[38].shared


def test_one_vector_for_two_queues_is_one_irq(host: FixtureHost) -> None:
    """`TxRx-0-1` serves queues 0 and 1, which then move together."""
    host.cpus("0-3")
    host.interface("ens2f1", 5, queues=4, device="pci/65", irqs=[70, 71])
    host.interrupts([(70, "ice-ens2f1-TxRx-0-1"), (71, "ice-ens2f1-TxRx-2-3")])
    model = read_host(host.paths, ["ens2f1"])
    assert model.irqs[70].queues == (("ens2f1", 0), ("ens2f1", 1))
    assert not model.irqs[70].shared


def test_a_line_with_several_handlers_is_shared(host: FixtureHost) -> None:
    """A legacy line that a second driver uses too must never be moved."""
    host.cpus("0-3")
    host.interface("eth1", 6, device="pci/1", irqs=[17])
    host.interrupts([(17, "eth1, ehci_hcd:usb2")])
    model = read_host(host.paths, ["eth1"])
    assert model.irqs[17].shared


def test_vectors_common_to_two_ports_are_shared(host: FixtureHost) -> None:
    """mlx4: two ports on one PCI function, completion vectors without a port's name."""
    host.cpus("0-3")
    host.interface("eth2", 6, device="pci/4", irqs=[20])
    host.interface("eth3", 7, device="pci/4")
    host.interrupts([(20, "mlx4-comp-0@pci:0000:04:00.0")])
    assert read_host(host.paths, ["eth2"]).irqs[20].shared


def test_bond_and_vlan_resolve_to_leaves(host: FixtureHost) -> None:
    """A VLAN on a bond of two NICs comes down to the two NICs."""
    host.cpus("0-3")
    for name, ifindex in (("eth0", 2), ("eth1", 3), ("bond0", 4), ("bond0.376", 5)):
        host.interface(name, ifindex)
    (host.paths.net("bond0") / "lower_eth0").symlink_to(host.paths.net("eth0"))
    (host.paths.net("bond0") / "lower_eth1").symlink_to(host.paths.net("eth1"))
    (host.paths.net("bond0.376") / "lower_bond0").symlink_to(host.paths.net("bond0"))
    model = read_host(host.paths, ["bond0.376"])
    assert model.interfaces["bond0.376"].leaves == ("eth0", "eth1")
    assert [leaf.name for leaf in model.leaves()] == ["eth0", "eth1"]


def test_an_interface_that_is_not_there_is_named_with_those_that_are(host: FixtureHost) -> None:
    """The refusal lists what exists."""
    host.interface("eth0", 2)
    with pytest.raises(UsageError, match="no such interface 'eth9'") as caught:
        read_host(host.paths, ["eth9"])
    assert "eth0" in caught.value.remedy


def test_a_virtual_device_has_no_interrupts(host: FixtureHost) -> None:
    """Without a device behind it, `/proc/interrupts` is not even read."""
    host.cpus("0-1")
    host.interface("veth0", 2, queues=4)
    interface = read_host(host.paths, ["veth0"]).interfaces["veth0"]
    assert [queue.irq for queue in interface.queues] == [None] * 4
    assert interface.irq_source == "none"


def test_threaded_napi_of_unlinked_queues_goes_by_order(host: FixtureHost) -> None:
    """veth adds one NAPI a queue, in order, and names its threads after them."""
    host.cpus("0-1")
    directory = host.interface("veth0", 2, queues=2)
    host.file(directory / "threaded", "1\n")
    for pid, napi_id in ((71, 4098), (70, 4097)):
        host.file(host.paths.proc / f"{pid}/comm", f"napi/veth0-{napi_id}\n")
        host.file(
            host.paths.proc / f"{pid}/stat", f"{pid} (napi/veth0-) S 2 0 {' '.join(['0'] * 16)} 4711 0 0\n"
        )
        host.file(host.paths.proc / f"{pid}/status", "Name:\tnapi\nCpus_allowed:\t3\n")
    interface = read_host(host.paths, ["veth0"]).interfaces["veth0"]
    assert interface.threaded
    threads = [queue.thread for queue in interface.queues]
    assert [thread.pid if thread else None for thread in threads] == [70, 71]
    assert threads[0] is not None
    assert threads[0].start_ticks == 4711
    assert list(threads[0].affinity) == [0, 1]


def test_isolated_and_offline_cpus_are_not_usable(host: FixtureHost) -> None:
    """More CPUs are possible than online, ids have holes, and isolated or nohz_full CPUs are left alone."""
    host.cpus("0-11,16-27", possible="0-127", isolated="2-3", nohz_full="4-5")
    topology = read_cpus(host.paths)
    assert topology.usable.format_list() == "0-1,6-11,16-27"
    assert topology.width == 128
    assert not topology.cpus[12].online
    assert topology.cpus[4].isolated


def test_a_host_without_topology_still_reads(host: FixtureHost) -> None:
    """No topology, no nodes: the facts are unknown, not wrong."""
    host.cpus("0-3", nohz_full="(null)")
    topology = read_cpus(host.paths)
    assert topology.cpus[0].core is None
    assert topology.cpus[0].node is None
    assert not topology.cpus[0].siblings
    assert len(topology.usable) == 4


def test_a_host_of_1152_cpus(host: FixtureHost) -> None:
    """More CPUs than any fixed mask has: every id, node and sibling is right, and masks are as wide as the kernel's."""
    host.cpus("0-1151", isolated="1151")
    for node in range(8):
        first = 72 * node
        host.file(
            host.paths.sys / f"devices/system/node/node{node}/cpulist",
            f"{first}-{first + 71},{first + 576}-{first + 647}\n",
        )
    host.file(host.paths.cpu / "cpu1100/topology/core_cpus_list", "524,1100\n")
    host.interface("eth0", 3, queues=2, device="pci/1", irqs=[4000, 4001])
    rows = [
        (4000, [0] * 1151 + [7], " PCI-MSI 0-edge      eth0-TxRx-0"),
        (4001, [1] * 1152, " PCI-MSI 1-edge      eth0-TxRx-1"),
    ]
    (host.paths.proc / "interrupts").write_bytes(interrupts_text(list(range(1152)), rows))
    model = read_host(host.paths, ["eth0"])
    topology = model.topology
    assert [queue.irq for queue in model.interfaces["eth0"].queues] == [4000, 4001]
    assert (topology.width, topology.nodes, len(topology.usable)) == (1152, 8, 1151)
    assert (topology.node_of(1150), topology.node_of(72), topology.node_of(576)) == (7, 1, 0)
    assert list(topology.cpus[1100].siblings) == [524, 1100]
    assert len(topology.usable.format_mask(topology.width)) == 36 * 9 - 1


def test_a_virtual_function_has_its_own_vectors(host: FixtureHost) -> None:
    """The physical function's are those of another interface, though both are on one card."""
    host.cpus("0-3")
    host.interface("pf0", 3, queues=2, device="pci0000:00/0000:01:00.0", irqs=[30, 31])
    directory = host.interface("vf0", 4, queues=2, device="pci0000:00/0000:01:00.7", irqs=[40, 41])
    (directory / "device/physfn").symlink_to(host.paths.sys / "devices/pci0000:00/0000:01:00.0")
    host.interrupts(
        [(30, "i40e-pf0-TxRx-0"), (31, "i40e-pf0-TxRx-1"), (40, "iavf-vf0-TxRx-0"), (41, "iavf-vf0-TxRx-1")]
    )
    model = read_host(host.paths, ["vf0"])
    assert [queue.irq for queue in model.interfaces["vf0"].queues] == [40, 41]
    assert not any(irq.shared for irq in model.irqs.values())


def test_a_scalable_function_is_told_from_the_card_below(host: FixtureHost) -> None:
    """Auxiliary bus: the card lists the vectors of both, each named after its device."""
    host.cpus("0-3")
    host.interface("en0", 2, queues=1, device="pci/0000:08:00.0", irqs=[50, 51, 52])
    host.interface("en0s88", 3, queues=1, device="pci/0000:08:00.0/mlx5_core.sf.4")
    host.interrupts(
        [
            (50, "mlx5_async0@pci:0000:08:00.0"),
            (51, "mlx5_comp0@pci:0000:08:00.0"),
            (52, "mlx5_comp0@aux:mlx5_core.sf.4"),
        ]
    )
    interfaces = read_host(host.paths, ["en0", "en0s88"]).interfaces
    assert interfaces["en0"].queues[0].irq == 51
    assert interfaces["en0s88"].queues[0].irq == 52


def test_a_bond_on_nics_of_two_nodes(host: FixtureHost) -> None:
    """Each leaf keeps its own node; the bond itself has none and no queues' interrupts."""
    host.cpus("0-3")
    for name, ifindex, node in (("eth0", 2, 0), ("eth1", 3, 1)):
        directory = host.interface(name, ifindex, device=f"pci/{ifindex}", irqs=[10 + ifindex])
        host.file(directory / "device/numa_node", f"{node}\n")
    host.interrupts([(12, "eth0-TxRx-0"), (13, "eth1-TxRx-0")])
    bond = host.interface("bond0", 4)
    for leaf in ("eth0", "eth1"):
        (bond / f"lower_{leaf}").symlink_to(host.paths.net(leaf))
    model = read_host(host.paths, ["bond0"])
    assert {leaf.name: leaf.numa_node for leaf in model.leaves()} == {"eth0": 0, "eth1": 1}
    assert model.interfaces["bond0"].numa_node is None
    assert model.interfaces["bond0"].irq_source == "none"


def test_queue_directories_beyond_the_vectors_have_no_interrupt(host: FixtureHost) -> None:
    """mlx5 before 6.1 lists twice as many rx directories as channels (XSK queues): the second half has none."""
    host.cpus("0-3")
    host.interface("p1", 3, queues=4, device="pci/1", irqs=[30, 31])
    host.interrupts([(30, "mlx5_comp0@pci:0000:01:00.0"), (31, "mlx5_comp1@pci:0000:01:00.0")])
    assert [queue.irq for queue in read_host(host.paths, ["p1"]).interfaces["p1"].queues] == [
        30,
        31,
        None,
        None,
    ]


def test_vectors_beyond_the_queues_are_not_queues(host: FixtureHost) -> None:
    """r8125 numbers further vectors than it has receive queues."""
    host.cpus("0-3")
    host.interface("eth0", 3, queues=2, device="pci/1", irqs=[30, 31, 32, 33])
    host.interrupts([(30, "eth0-0"), (31, "eth0-1"), (32, "eth0-16"), (33, "eth0-18")])
    model = read_host(host.paths, ["eth0"])
    assert [queue.irq for queue in model.interfaces["eth0"].queues] == [30, 31]
    assert set(model.irqs) == {30, 31}


def test_half_linked_netlink_is_completed_by_names(host: FixtureHost) -> None:
    """Where netdev netlink tells the interrupts of some queues only, names give the others, and never overrule it."""
    host.cpus("0-3")
    host.interface("eth0", 3, queues=2, device="pci/1", irqs=[30, 31])
    host.interrupts([(30, "eth0-TxRx-0"), (31, "eth0-TxRx-1")])
    table = LinkTable(
        links={"eth0": Link("eth0", 3, "", 1500, None, None, False, 2, 2, "")},
        queue_napi={(3, "rx", 0): 600},
        napis={600: Napi(600, 3, 44, None)},
    )
    assert [queue.irq for queue in read_host(host.paths, ["eth0"], table).interfaces["eth0"].queues] == [
        44,
        31,
    ]


def test_cpus_follow_the_files(host: FixtureHost) -> None:
    """Sparse ids, and a CPU that came back: what is read is what is there now."""
    host.cpus("0,3-7", possible="0-7")
    assert list(read_cpus(host.paths).usable) == [0, 3, 4, 5, 6, 7]
    host.cpus("0-7", possible="0-7")
    assert len(read_cpus(host.paths).usable) == 8


def test_efficiency_cores_are_slower(host: FixtureHost) -> None:
    """By the scheduler's capacity, or by the firmware's highest performance; equal or unknown CPUs are all 1."""
    host.cpus("0-3")
    assert {cpu.capacity for cpu in read_cpus(host.paths).cpus.values()} == {1.0}
    for cpu, perf in enumerate((64, 64, 40, 40)):
        host.file(host.paths.cpu / f"cpu{cpu}/acpi_cppc/highest_perf", f"{perf}\n")
    assert [cpu.capacity for cpu in read_cpus(host.paths).cpus.values()] == [1.0, 1.0, 0.625, 0.625]
    for cpu, capacity in enumerate((512, 512, 1024, 1024)):
        host.file(host.paths.cpu / f"cpu{cpu}/cpu_capacity", f"{capacity}\n")
    assert [cpu.capacity for cpu in read_cpus(host.paths).cpus.values()] == [0.5, 0.5, 1.0, 1.0]
