"""Drivers' names of their interrupt vectors."""

from __future__ import annotations

import pytest

from agent.host.irqnames import queue_irqs

PCI = "@pci:0000:01:00.0"


@pytest.mark.parametrize(
    ("names", "ifname", "queues", "rx"),
    [
        (["eth0", "eth0-rx-0", "eth0-rx-1", "eth0-tx-0", "eth0-tx-1"], "eth0", 2, {0: 11, 1: 12}),
        (["eth0-TxRx-1", "eth0-TxRx-0", "eth0-fdir-TxRx-0", "eth0"], "eth0", 2, {0: 11, 1: 10}),
        (["i40e-eth0-TxRx-0", "i40e-0000:01:00.0:fdir-TxRx-0", "i40e-0000:01:00.0:misc"], "eth0", 1, {0: 10}),
        (["ice-0000:65:00.0:ctrl-TxRx-0", "ice-lan1-TxRx-0", "ice-lan1-TxRx-1"], "lan1", 2, {0: 11, 1: 12}),
        (["ice-ens2f1-TxRx-0-1", "ice-ens2f1-TxRx-2-3"], "ens2f1", 4, {0: 10, 1: 10, 2: 11, 3: 11}),
        ([f"mlx5_pages_eq{PCI}", f"mlx5_async0{PCI}", f"mlx5_comp0{PCI}", f"mlx5_comp1{PCI}"], "p1", 2, {0: 12, 1: 13}),
        ([f"mlx4-comp-0{PCI}", f"mlx4-comp-1{PCI}", f"mlx4-async{PCI}"], "eth2", 2, {0: 10, 1: 11}),
        (["eth6-0", "eth6-1", "eth6-2"], "eth6", 3, {0: 10, 1: 11, 2: 12}),
        (["eth0-tx-0", "eth0-rx-1", "eth0-rx-2"], "eth0", 2, {0: 11, 1: 12}),
        (["virtio0-config", "virtio0-input.0", "virtio0-output.0"], "eth0", 1, {0: 11}),
        (["ena-mgmnt@pci:0000:00:05.0", "eth0-Tx-Rx-0", "eth0-Tx-Rx-1"], "eth0", 2, {0: 11, 1: 12}),
        (["eth%d-ntfy-block.0", "eth%d-ntfy-block.1", "eth%d-mgmnt"], "eth0", 1, {0: 11}),
        ([f"gve-ntfy-blk{i}@pci:0000:00:04.0" for i in range(4)], "eth0", 2, {0: 12, 1: 13}),
        (["eth0-q0-tx", "eth0-q0-rx", "eth0-q1-tx", "eth0-q1-rx"], "eth0", 2, {0: 11, 1: 13}),
        (["eth0-rxtx-0", "eth0-rxtx-1", "eth0-event-2"], "eth0", 2, {0: 10, 1: 11}),
        (["eth0"], "eth0", 1, {0: 10}),
        (["eth0", "eth0-fp-0", "eth0-fp-1"], "eth0", 2, {0: 11, 1: 12}),
        (["hclge-misc-0000:7d:00.0", "hns3-0000:7d:00.0-TxRx-0", "hns3-0000:7d:00.0-TxRx-1"], "e", 2, {0: 11, 1: 12}),
        (["cxgb4-0000:01:00.4", "eth0 (queue 0)", "eth0 (queue 1)"], "eth0", 2, {0: 11, 1: 12}),
        (["nfp-0000:02:00.0-lsc", "eth0-exn", "eth0-rxtx-0", "eth0-rxtx-1"], "eth0", 2, {0: 12, 1: 13}),
        (["ionic-0000:b5:00.0-adminq", "ionic-eth0-L0-rx0", "ionic-eth0-L0-tx0"], "eth0", 1, {0: 11}),
        (["eth0:mac", "eth0:wol", "eth0:rx-0", "eth0:rx-1", "eth0:tx-0"], "eth0", 2, {0: 12, 1: 13}),
        (["idpf-0000:01:00.0-Mailbox-0", "idpf-eth0-TxRx-0", "idpf-eth0-TxRx-1"], "eth0", 2, {0: 11, 1: 12}),
        (["iavf-0000:05:02.0:mbx", "iavf-eth0-TxRx-0"], "eth0", 1, {0: 11}),
        (["eth0-0", "eth0-1", "eth0-xdp-2"], "eth0", 2, {0: 10, 1: 11}),
        (["eth0-rxtx0", "eth0-rxtx1"], "eth0", 2, {0: 10, 1: 11}),
        (["virtio2-config", "virtio2-virtqueues"], "eth0", 2, {0: 11, 1: 11}),
        (["mlx5_async1", "mlx5_comp0@aux:mlx5_core.sf.2", "mlx5_comp1@aux:mlx5_core.sf.2"], "p", 2, {0: 11, 1: 12}),
        (["hinic_txq_0", "hinic_rxq_0", "hinic_rxq_1"], "eth0", 2, {0: 11, 1: 12}),
        (["eth0-rxtx-0", "eth0-sq-0", "eth0-rbdr-0", "eth0-qset-err-0"], "eth0", 1, {0: 10}),
        (["eth0[0]", "eth0[1]"], "eth0", 2, {0: 10, 1: 11}),
        (["LiquidIO0-pf0-rxtx-0", "LiquidIO0-pf0-aux"], "eth0", 1, {0: 10}),
        (["mana_hwc@pci:7870:00:00.0", "mana_q0@pci:7870:00:00.0", "mana_q1@pci:7870:00:00.0"], "e", 2, {0: 11, 1: 12}),
    ],
)  # fmt: skip
def test_receive_queues_of_known_drivers(
    names: list[str], ifname: str, queues: int, rx: dict[int, int]
) -> None:
    """The device's own vectors, numbered from 10, map to receive queues; management vectors are left out."""
    found = queue_irqs([(10 + i, name) for i, name in enumerate(names)], ifname, queues, is_device_irq=True)
    assert found.rx == rx


def test_without_the_devices_list_only_its_own_name_counts() -> None:
    """`eth1` does not take the vectors of `eth10`, nor nameless ones of another card."""
    named = [(10, "eth10-TxRx-0"), (11, "eth1-TxRx-0"), (12, f"mlx5_comp0{PCI}")]
    assert queue_irqs(named, "eth1", 1, is_device_irq=False).rx == {0: 11}


def test_transmit_halves_are_split_from_receive() -> None:
    """gve: the lower half of the notification blocks transmits, the upper half receives."""
    found = queue_irqs(
        [(i, f"gve-ntfy-blk{i}@pci:0000:00:04.0") for i in range(4)], "eth0", 2, is_device_irq=True
    )
    assert found.tx == {0: 0, 1: 1}
    assert found.rx == {0: 2, 1: 3}
