"""What one control tick sees: delays and packets by queue and CPU, load, drops, all as growth since the tick before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from agent.host.activity import IrqActivity
from agent.host.load import CpuLoad
from agent.host.masks import CpuMask

Counts = npt.NDArray[np.int64]
"""Growth of one delay histogram, int64[HIST_BUCKETS]."""
Delays = Mapping[tuple[int, int], Counts]
"""(receive queue, CPU) → growth."""


@dataclass(frozen=True, slots=True)
class InterfaceObservation:
    """One interface's growth since the previous tick. Every mapping is keyed by (receive queue, CPU)."""

    hook_delays: Delays = field(default_factory=dict)
    """Hardware stamp to the stamping hook, by the CPU that ran the hook."""
    hw_to_stack: Delays = field(default_factory=dict)
    """Hardware stamp to the stack's entry, sampled, by the CPU behind RPS."""
    xdp_to_stack: Delays = field(default_factory=dict)
    """XDP hook to the stack's entry, sampled, by the CPU behind RPS."""
    hook_is_stack: bool = False
    """The stamping hook is tc ingress: `hook_delays` already are delays up to the stack."""
    packets: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """Packets at the stamping hook."""
    reordered: int = 0
    """Packets whose hardware stamp goes backwards within their queue and clock."""
    clock_disturbed: bool = False
    """The hardware clock jumped or is not tracked: delays from its stamps compare with nothing."""
    tx_packets: Counts | None = None
    """Packets sent, [CPU, TX queue]."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One tick of all watched interfaces, by name."""

    load: CpuLoad
    interfaces: Mapping[str, InterfaceObservation]
    consumers: Mapping[int, CpuMask] = field(default_factory=dict)
    """Thread id → CPUs that a consumer's thread may run on."""
    waiting_bytes: int = 0
    """What waits in the named consumers' sockets to be read."""
    activity: IrqActivity | None = None
    """Interrupts and softirqs by CPU; None where they are not traced."""
