"""XPS: give each sending CPU a transmit queue of its own, where several CPUs are seen to share one."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from agent.control.actuators import Target
from agent.control.assignment import linear_sum_assignment
from agent.control.plan import Change, Plan
from agent.host.cpus import CpuTopology
from agent.host.masks import CpuMask

_MIN_PPS = 1_000.0
_MIN_SHARED = 0.1
_TAU_S = 2.0


class TxUsage:
    """Packets per second by (CPU, transmit queue), smoothed."""

    def __init__(self) -> None:
        self.rate: npt.NDArray[np.float64] | None = None

    def observe(self, packets: npt.NDArray[np.int64], seconds: float) -> None:
        """Take in one tick's growth, [CPU, TX queue]."""
        if seconds <= 0:
            return
        keep = math.exp(-seconds / _TAU_S)
        grown = np.asarray((1 - keep) / seconds * packets, dtype=np.float64)
        self.rate = grown if self.rate is None else keep * self.rate + grown

    @property
    def shared(self) -> float:
        """The share of packets that went by a queue which another CPU uses more; 0 below 1,000 packets/s."""
        if self.rate is None or self.rate.sum() < _MIN_PPS:
            return 0.0
        return float(1 - self.rate.max(axis=0).sum() / self.rate.sum())


def plan_tx(
    ifname: str, usage: TxUsage, targets: Mapping[int, tuple[Target, bytes]], topology: CpuTopology
) -> Plan:
    """One transmit queue a sending CPU, keeping the pairs that carry most packets; other CPUs are spread over all.

    `targets` are (target, value now) by queue. No changes where queues are not shared, or are fewer than sending CPUs.
    """
    shared = usage.shared
    if usage.rate is None or shared < _MIN_SHARED:
        return Plan(ifname, (), "no transmit queue is shared between CPUs", "transmit queues")
    queues = sorted(queue for queue in targets if queue < usage.rate.shape[1])
    by_cpu = usage.rate.sum(axis=1)
    senders = [int(cpu) for cpu in np.flatnonzero(by_cpu > 0.01 * by_cpu.sum())]
    if len(senders) < 2 or len(queues) < len(senders):
        reason = f"{len(senders)} CPUs send by {len(queues)} queues: they have to share"
        return Plan(ifname, (), reason, "transmit queues")
    rows, columns = linear_sum_assignment(-usage.rate[np.ix_(senders, queues)])
    owner = {queues[int(j)]: {senders[int(i)]} for i, j in zip(rows, columns, strict=True)}
    others = [cpu for cpu in topology.online if cpu not in senders]
    for position, cpu in enumerate(others):
        owner.setdefault(queues[position % len(queues)], set()).add(cpu)
    changes = []
    for queue in queues:
        target, value = targets[queue]
        mask = CpuMask.of(owner.get(queue, set()))
        wanted = mask.format_like(value).encode() + b"\n"
        if CpuMask.parse_mask(value) != mask:
            changes.append(Change(target, (queue,), value, wanted, min(mask, default=-1), None, None))
    reason = f"{shared:.0%} of the packets go by a transmit queue that several CPUs use"
    return Plan(ifname, tuple(changes), reason, "transmit queues", source="tx")
