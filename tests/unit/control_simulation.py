"""A simulated host: what the controller writes into a file tree decides what it then observes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from agent.control.controller import Controller
from agent.control.events import Event
from agent.control.journal import Journal, Scope, netns_inode
from agent.control.observation import InterfaceObservation, Observation
from agent.ffi.records import HIST_BUCKETS, hist_bucket
from agent.host.load import CpuLoad, CpuShare, Drops
from agent.host.masks import CpuMask
from agent.host.model import read_host
from tests.unit.test_host_model import FixtureHost

TICK_NS = 100_000_000


class SimulatedHost:
    """CPUs with a background softirq load, and one veth whose packets wait behind it where RPS sends them.

    The wait is exponential with mean R/(1-ρ), for the share ρ of packets that find the CPU busy.
    """

    def __init__(
        self, root: Path, cpus: str = "0-1", queues: int = 4, rps: str = "2", **topology: str
    ) -> None:
        self.tree = FixtureHost(root)
        self.tree.cpus(cpus, **topology)
        self.directory = self.tree.interface("veth0", 7, queues=queues)
        self.queues = queues
        for queue in range(queues):
            self.tree.file(self.rps_path(queue), rps + "\n")
        self.online = list(CpuMask.parse_list(cpus))
        self.soft = dict.fromkeys(self.online, 0.05)
        self.poll_cpu = self.online[0]
        self.residual_ns = 30_000.0
        self.base_ns = 3_000.0
        self.packets_per_tick = 500
        self.drops: Callable[[CpuMask], int] = lambda mask: 0
        self.out_of_order = 0
        self.delay_on: Callable[[int], float] | None = None
        """Overrides the mean delay on a CPU."""
        self.tx: npt.NDArray[np.int64] | None = None
        self.now_ns = 1_000_000_000
        self.rng = np.random.default_rng(7)
        self.events: list[Event] = []

    def rps_path(self, queue: int) -> Path:
        """The mask file of a receive queue."""
        return self.directory / f"queues/rx-{queue}/rps_cpus"

    def masks(self) -> list[str]:
        """What stands in the mask files."""
        return [self.rps_path(queue).read_text().strip() for queue in range(self.queues)]

    def controller(self, **options: object) -> Controller:
        """A controller of this host, with its journal."""
        host = read_host(self.tree.paths, ["veth0"])
        self.journal = Journal(
            self.tree.paths.sys / "state", Scope("veth0", 7, netns_inode()), self.tree.paths
        )
        return Controller(host, {"veth0": self.journal}, **options)  # type: ignore[arg-type]

    def cpus_of(self, queue: int) -> list[int]:
        """Where a queue's packets are processed now."""
        mask = CpuMask.parse_mask(self.rps_path(queue).read_text())
        return list(mask) or [self.poll_cpu]

    def observe(self) -> Observation:
        """One tick later."""
        self.now_ns += TICK_NS
        delays: dict[tuple[int, int], npt.NDArray[np.int64]] = {}
        packets: dict[tuple[int, int], int] = {}
        used = CpuMask()
        for queue in range(self.queues):
            cpus = self.cpus_of(queue)
            used |= CpuMask.of(cpus)
            for cpu in cpus:
                drawn = self._delays(cpu, self.packets_per_tick // len(cpus))
                counts = np.bincount(hist_bucket(drawn), minlength=HIST_BUCKETS)
                delays[queue, cpu] = delays.get((queue, cpu), np.zeros(HIST_BUCKETS, np.int64)) + counts
            packets[queue, self.poll_cpu] = self.packets_per_tick
        shares = {
            cpu: CpuShare(idle=1 - soft, user=0.0, softirq=soft, irq=0.0, busy=soft)
            for cpu, soft in self.soft.items()
        }
        drops = Drops(softnet=self.drops(used), tcp_out_of_order=self.out_of_order)
        interface = InterfaceObservation(xdp_to_stack=delays, packets=packets, tx_packets=self.tx)
        return Observation(CpuLoad(0.1, shares, drops), {"veth0": interface})

    def run(self, controller: Controller, ticks: int) -> list[Event]:
        """Tick the controller; returns what it told."""
        events: list[Event] = []
        for _ in range(ticks):
            events += controller.tick(self.observe(), self.now_ns)
        self.events += events
        return events

    def _delays(self, cpu: int, n: int) -> npt.NDArray[np.int64]:
        if self.delay_on is not None:
            return (self.base_ns + self.rng.exponential(self.delay_on(cpu), n)).astype(np.int64)
        rho = self.soft[cpu]
        waits = self.rng.exponential(self.residual_ns / (1 - rho), n) * (self.rng.random(n) < rho)
        return (self.base_ns + self.rng.exponential(500, n) + waits).astype(np.int64)
