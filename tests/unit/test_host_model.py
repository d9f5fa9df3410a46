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
        links={"eth0": Link("eth0", 3, "", 9000, None, None, False, 2, 2)},
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
