"""The queue → interrupt map of every NIC in the tables collected from real hosts: all of it right."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from agent.host.model import read_host
from tests.unit.test_host_interrupts import SAMPLES
from tests.unit.test_host_model import FixtureHost


@dataclass(frozen=True)
class Nic:
    """One NIC of a table, read off by eye: its receive queues are served by `queues` interrupts from `first` on."""

    table: str
    name: str
    first: int
    queues: int
    vectors: range
    """All of the device's vectors, as msi_irqs lists them."""
    named: bool = True
    """Its vectors carry its name, so that they are found without msi_irqs too."""


def _igb(name: str, first: int) -> Nic:
    # The first vector is the link's, then four for receive, four for transmit.
    return Nic("igb_4cpu", name, first + 1, 4, range(first, first + 9))


def _ixgbe(table: str, name: str, first: int, queues: int, link: int) -> Nic:
    return Nic(table, name, first, queues, range(min(first, link), max(first + queues, link + 1)))


NICS = (
    Nic("i40e_fdir_misc_e1000e_4cpu", "eth0", 33, 4, range(32, 46)),
    Nic("i40e_fdir_misc_e1000e_4cpu", "eth2", 60, 1, range(60, 61)),
    Nic("i40e_fdir_misc_e1000e_4cpu", "eth3", 62, 4, range(61, 66)),
    *(
        _igb(name, first)
        for name, first in (("eth0", 57), ("eth1", 66), ("eth3", 84), ("eth4", 93), ("eth5", 102))
    ),
    _ixgbe("ixgbe_12cpu", "eth0", 66, 8, 65),
    _ixgbe("ixgbe_12cpu", "eth1", 75, 8, 74),
    Nic("ixgbe_12cpu", "eth2", 63, 1, range(63, 64)),
    Nic("ixgbe_12cpu", "eth3", 64, 1, range(64, 65)),
    _ixgbe("ixgbe_igb_32cpu", "eth0", 92, 8, 91),
    _ixgbe("ixgbe_igb_32cpu", "eth1", 101, 8, 100),
    _ixgbe("ixgbe_igb_32cpu", "eth5", 109, 32, 141),
    _ixgbe("ixgbe_igb_32cpu", "eth4", 142, 32, 174),
    _ixgbe("ixgbe_igb_32cpu", "eth2", 175, 32, 207),
    _ixgbe("ixgbe_igb_32cpu", "eth3", 208, 32, 240),
    Nic("mlx4_be2net_16cpu", "eth2", 109, 3, range(109, 113), named=False),
    Nic("mlx4_be2net_16cpu", "eth6", 113, 8, range(113, 121)),
    Nic("mlx4_be2net_16cpu", "eth7", 121, 8, range(121, 129)),
    # tg3: `tx-0` is vector 0, `rx-1` is receive queue 0.
    Nic("mlx4_be2net_16cpu", "eth0", 162, 4, range(161, 166)),
    Nic("mlx4_be2net_16cpu", "eth1", 167, 4, range(166, 171)),
    Nic("mlx5_2port_4cpu", "p1p1", 30, 4, range(27, 34), named=False),
    Nic("mlx5_2port_4cpu", "p1p2", 37, 4, range(34, 41), named=False),
    Nic("mlx5_2port_4cpu", "eth0", 41, 1, range(41, 42)),
    Nic("vscale_1cpu", "eth0", 27, 1, range(26, 29), named=False),
    Nic("wide_counters_8cpu", "eth0", 52, 8, range(52, 60)),
    Nic("wide_counters_8cpu", "eth1", 61, 8, range(61, 69)),
    Nic("local_firecracker_virtio_6.18", "eth0", 38, 1, range(37, 40), named=False),
)


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="needs ../shared/host-samples")
@pytest.mark.parametrize("nic", NICS, ids=lambda nic: f"{nic.table}-{nic.name}")
def test_queues_of_real_hosts(tmp_path: Path, nic: Nic) -> None:
    """By the device's list of vectors, and for drivers that put the interface's name in theirs without it as well."""
    expected = {queue: nic.first + queue for queue in range(nic.queues)}
    for way in ("listed", "named"):
        if way == "named" and not nic.named:
            continue
        host = FixtureHost(tmp_path / way)
        (host.paths.proc / "interrupts").write_bytes((SAMPLES / f"{nic.table}.txt").read_bytes())
        host.interface(
            nic.name, 3, nic.queues, device="pci/1", irqs=list(nic.vectors) if way == "listed" else None
        )
        queues = read_host(host.paths, [nic.name]).interfaces[nic.name].queues
        assert {queue.index: queue.irq for queue in queues} == expected, way


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="needs ../shared/host-samples")
def test_no_table_is_left_out() -> None:
    """Every table with a NIC in it is looked at."""
    tables = {path.stem for path in SAMPLES.glob("*.txt")} - {"excerpts"}
    assert {nic.table for nic in NICS} == tables
