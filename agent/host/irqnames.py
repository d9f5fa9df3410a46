"""Which queues an interrupt serves, told by the name that its driver gave it.

Used where netdev netlink does not say (kernels before 6.8, drivers that do not link their queues). The
names are the drivers' own: `i40e-eth0-TxRx-3`, `mlx5_comp3@pci:0000:01:00.0`, `virtio2-input.0`, `eth%d-ntfy-block.4`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

# Vectors that belong to the device but to no data queue.
_OTHER = re.compile(
    r"(?:^|[-_:@.])(?:fdir|ctrl|misc|async|cmd|pages|config|control|mgmnt|mgmt|aeq|ceq|adminq|aenq|fw|event|err|"
    r"lsc|link|mbox|oicr|wd|health|slowpath|sp|hpd|rdma|asq|mailbox|xdp|other)(?:[-_:@.]|\d|$)",
    re.IGNORECASE,
)
# "mlx5_comp0@pci:0000:01:00.0", and a vector that has the card's address for a name: "cxgb4-0000:01:00.4".
_BUS = re.compile(
    r"@(?:pci|platform|aux|auxiliary)?:?[\w:.\-]*$|-[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$"
)
# virtio, where there are too few vectors for each queue to have one.
_ALL_QUEUES = re.compile(r"-virtqueues$")
_PAIR = re.compile(r"(?:tx-?rx|rx-?tx|combined)[-_.]?(\d+)(?:-(\d+))?$", re.IGNORECASE)
_RX = re.compile(r"(?:rx|input|recv)[-_.q]*(\d+)$", re.IGNORECASE)
_TX = re.compile(r"(?:tx|output|send)[-_.q]*(\d+)$", re.IGNORECASE)
_QUEUE_SIDE = re.compile(r"q(\d+)-(rx|tx)$", re.IGNORECASE)
_NTFY = re.compile(r"ntfy-?bl(?:oc)?k\.?(\d+)$")
_COMP = re.compile(r"(?:comp|fp|queue|ring|q|ch|vec|qvec|io)[-_.]?(\d+)$", re.IGNORECASE)
# "eth0-3", "eth0[3]", "eth0 (queue 3)".
_BARE = re.compile(r"(?:[-_.\[]|\(queue )(\d+)[\])]?$")


@dataclass(frozen=True, slots=True)
class QueueIrqs:
    """Queue number → interrupt number, for each direction. Queues without an own interrupt are missing."""

    rx: dict[int, int]
    tx: dict[int, int]


def queue_irqs(
    named: Iterable[tuple[int, str]], ifname: str, rx_queues: int, *, is_device_irq: bool
) -> QueueIrqs:
    """Map queues to interrupts by name.

    `named` are (number, handler name). With `is_device_irq` they are known to be the device's own (`msi_irqs`), and
    a name without the interface's (`mlx5_comp0@pci:…`) counts; otherwise only names that contain `ifname` do.
    """
    rx: dict[int, int] = {}
    tx: dict[int, int] = {}
    notify: dict[int, int] = {}
    whole: list[int] = []
    for number, name in named:
        own = _own_part(name, ifname)
        if own is None:
            if not is_device_irq:
                continue
            own = name
        own = _BUS.sub("", own)
        if own == "" or own == ifname:
            whole.append(number)
        elif _ALL_QUEUES.search(own):
            rx.update(dict.fromkeys(range(rx_queues), number))
            tx.update(dict.fromkeys(range(rx_queues), number))
        elif match := _NTFY.search(own):
            notify[int(match[1])] = number
        elif _OTHER.search(own):
            continue
        elif match := _PAIR.search(own):
            # "TxRx-0-1": out-of-tree ice lets one vector serve two queues.
            for queue in range(int(match[1]), int(match[2] or match[1]) + 1):
                rx[queue] = tx[queue] = number
        elif match := _QUEUE_SIDE.search(own):
            (rx if match[2].lower() == "rx" else tx)[int(match[1])] = number
        elif match := _RX.search(own):
            rx[int(match[1])] = number
        elif match := _TX.search(own):
            tx[int(match[1])] = number
        elif match := (_COMP.search(own) or _BARE.search(own)):
            rx.setdefault(int(match[1]), number)
            tx.setdefault(int(match[1]), number)
    if notify:
        _split_notify_blocks(notify, rx, tx)
    if rx and 0 not in rx and sorted(rx) == list(range(1, len(rx) + 1)) and len(rx) <= rx_queues:
        # tg3 and bnx2 count vectors, not queues: vector 0 carries transmit and link, rx-1 is receive queue 0.
        rx = {queue - 1: number for queue, number in rx.items()}
    if not rx and not tx and len(whole) == 1 and rx_queues == 1:
        rx[0] = tx[0] = whole[0]
    return QueueIrqs(rx, tx)


def _split_notify_blocks(notify: dict[int, int], rx: dict[int, int], tx: dict[int, int]) -> None:
    """Google's gve: the lower half of the notification blocks is for transmit, the upper half for receive."""
    half = len(notify) // 2
    for block, number in notify.items():
        if block < half:
            tx[block] = number
        else:
            rx[block - half] = number


def _own_part(name: str, ifname: str) -> str | None:
    """What stands behind the interface's name, `-TxRx-3`; None where the name is not of this interface.

    A gve driver registered its vectors before the interface had a name: they really read `eth%d-ntfy-block.0`.
    """
    match = re.search(rf"(?:^|[-_:]){re.escape(ifname)}(?=$|[-_:.@ ])", name)
    if match:
        return name[match.end() :]
    return None
