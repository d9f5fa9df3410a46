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
from agent.host.activity import IrqActivity
from agent.host.load import CpuLoad, CpuShare, Drops
from agent.host.masks import CpuMask
from agent.host.model import read_host
from tests.unit.test_host_model import FixtureHost

TICK_NS = 100_000_000


class SimulatedHost:
    """CPUs with a background softirq load, and one veth whose packets wait behind it where RPS sends them.

    The wait is exponential with mean R/(1-ρ), for the share ρ of packets that find the CPU busy. Packets wait on the
    CPU that polls, before the hook, and again on the one that RPS hands them to.
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
        self.stamped = True
        """Packets carry hardware stamps."""
        self.delay_on: Callable[[int], float] | None = None
        """Overrides the mean delay behind the hook, on a CPU."""
        self.tx: npt.NDArray[np.int64] | None = None
        self.now_ns = 1_000_000_000
        self.rng = np.random.default_rng(7)
        self.events: list[Event] = []
        self.activity: IrqActivity | None = None
        """What the tracepoints show; None: they are not there."""

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
        # Planning costs no simulated time: a loaded test machine must not space the plans out.
        options.setdefault("cpu_time_ns", lambda: 0)
        return Controller(host, {"veth0": self.journal}, **options)  # type: ignore[arg-type]

    def cpus_of(self, queue: int) -> list[int]:
        """Where a queue's packets are processed now."""
        mask = CpuMask.parse_mask(self.rps_path(queue).read_text())
        return list(mask) or [self.poll_cpu]

    def observe(self) -> Observation:
        """One tick later."""
        self.now_ns += TICK_NS
        hook: dict[tuple[int, int], npt.NDArray[np.int64]] = {}
        hw_to_stack: dict[tuple[int, int], npt.NDArray[np.int64]] = {}
        xdp_to_stack: dict[tuple[int, int], npt.NDArray[np.int64]] = {}
        packets: dict[tuple[int, int], int] = {}
        used = CpuMask()
        for queue in range(self.queues):
            cpus = self.cpus_of(queue)
            used |= CpuMask.of(cpus)
            packets[queue, self.poll_cpu] = self.packets_per_tick
            for cpu in cpus:
                n = self.packets_per_tick // len(cpus)
                before = self.base_ns + self._waits(self.poll_cpu, n)
                handed_over = bool(CpuMask.parse_mask(self.rps_path(queue).read_text()))
                after = 1_000 + self._waits(cpu, n) if handed_over else np.full(n, 500.0)
                if self.delay_on is not None:
                    after = self.rng.exponential(self.delay_on(cpu), n)
                _add(hook, (queue, self.poll_cpu), before)
                _add(hw_to_stack, (queue, cpu), before + after)
                _add(xdp_to_stack, (queue, cpu), after)
        shares = {
            cpu: CpuShare(idle=1 - soft, user=0.0, softirq=soft, irq=0.0, busy=soft)
            for cpu, soft in self.soft.items()
        }
        drops = Drops(softnet=self.drops(used), tcp_out_of_order=self.out_of_order)
        interface = InterfaceObservation(
            hook_delays=hook if self.stamped else {},
            hw_to_stack=hw_to_stack if self.stamped else {},
            xdp_to_stack=xdp_to_stack,
            packets=packets,
            tx_packets=self.tx,
        )
        return Observation(CpuLoad(0.1, shares, drops), {"veth0": interface}, activity=self.activity)

    def run(self, controller: Controller, ticks: int) -> list[Event]:
        """Tick the controller; returns what it told."""
        events: list[Event] = []
        for _ in range(ticks):
            events += controller.tick(self.observe(), self.now_ns)
        self.events += events
        return events

    def _waits(self, cpu: int, n: int) -> npt.NDArray[np.float64]:
        rho = self.soft[cpu]
        return self.rng.exponential(self.residual_ns / (1 - rho), n) * (self.rng.random(n) < rho)


def _add(
    rows: dict[tuple[int, int], npt.NDArray[np.int64]], key: tuple[int, int], delays: npt.NDArray[np.float64]
) -> None:
    counts = np.bincount(hist_bucket(delays.astype(np.int64)), minlength=HIST_BUCKETS)
    rows[key] = rows[key] + counts if key in rows else counts
