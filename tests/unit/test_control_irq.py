"""The controller on a simulated NIC with interrupts, some of which cannot be moved."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from agent.control import settings as settings_module
from agent.control.controller import Controller
from agent.control.events import ChangeEvent, EffectEvent, Event, PlanEvent
from agent.control.journal import Journal, Scope, netns_inode
from agent.control.observation import InterfaceObservation, Observation
from agent.control.settings import FileSetting
from agent.ffi.records import HIST_BUCKETS, hist_bucket
from agent.host.load import CpuLoad, CpuShare
from agent.host.masks import CpuMask
from agent.host.model import read_host
from tests.unit.test_host_model import FixtureHost


class FakeIrqFiles(FileSetting):
    """A procfs in which writing an affinity raises, for some CPUs or for all."""

    def __init__(self, number: int, cpus: set[int] | None = None) -> None:
        self.number = number
        self.cpus = cpus
        self.refusals = 0

    def write(self, target: str, value: bytes) -> None:
        mask = set(CpuMask.parse_mask(value))
        if "/irq/" in target and (self.cpus is None or mask & self.cpus):
            self.refusals += 1
            raise OSError(self.number, "refused", target)
        super().write(target, value)


class SimulatedNic:
    """Four CPUs and two queues whose interrupts both go to the loaded CPU 1."""

    def __init__(self, root: Path) -> None:
        self.tree = FixtureHost(root)
        self.tree.cpus("0-3")
        self.tree.interface("eth0", 3, queues=2, device="pci/1", irqs=[31, 32])
        self.tree.interrupts([(31, "eth0-TxRx-0"), (32, "eth0-TxRx-1")])
        for irq in (31, 32):
            self.tree.file(self.tree.paths.irq(irq) / "smp_affinity", "2\n")
        self.soft = {0: 0.3, 1: 0.8, 2: 0.02, 3: 0.1}
        self.rng = np.random.default_rng(5)
        self.now_ns = 1_000_000_000
        host = read_host(self.tree.paths, ["eth0"])
        self.journal = Journal(root / "state", Scope("eth0", 3, netns_inode()), self.tree.paths)
        self.controller = Controller(host, {"eth0": self.journal}, cpu_time_ns=lambda: 0)

    def affinities(self) -> list[str]:
        return [(self.tree.paths.irq(irq) / "smp_affinity").read_text().strip() for irq in (31, 32)]

    def cpu_of(self, queue: int) -> int:
        rps = CpuMask.parse_mask((self.tree.paths.net("eth0") / f"queues/rx-{queue}/rps_cpus").read_text())
        return next(iter(rps or CpuMask.parse_mask(self.affinities()[queue])))

    def run(self, ticks: int) -> list[Event]:
        events: list[Event] = []
        for _ in range(ticks):
            self.now_ns += 100_000_000
            delays, packets = {}, {}
            for queue in (0, 1):
                cpu = self.cpu_of(queue)
                waits = self.rng.exponential(30_000 / (1 - self.soft[cpu]), 500) * (
                    self.rng.random(500) < self.soft[cpu]
                )
                counts = np.bincount(hist_bucket((3_000 + waits).astype(np.int64)), minlength=HIST_BUCKETS)
                delays[queue, cpu] = counts
                packets[queue, next(iter(CpuMask.parse_mask(self.affinities()[queue])))] = 500
            shares = {cpu: CpuShare(1 - soft, 0, soft, 0, soft) for cpu, soft in self.soft.items()}
            seen = InterfaceObservation(hook_delays=delays, hook_is_stack=True, packets=packets)
            events += self.controller.tick(Observation(CpuLoad(0.1, shares), {"eth0": seen}), self.now_ns)
        return events


@pytest.fixture
def nic(tmp_path: Path) -> SimulatedNic:
    """Nothing refused."""
    return SimulatedNic(tmp_path)


def test_interrupts_move_to_an_idle_cpu_and_back_at_the_end(nic: SimulatedNic) -> None:
    """The lever of a NIC is its affinity; both queues fit on the idle CPU, and both interrupts are restored."""
    events = nic.run(60)
    assert nic.affinities() == ["4", "4"]
    assert [event.outcome for event in events if isinstance(event, EffectEvent)] == ["kept"]
    assert {event.actuator for event in events if isinstance(event, ChangeEvent)} == {"irq"}
    nic.controller.close()
    assert nic.affinities() == ["2", "2"]


@pytest.mark.parametrize("number", [errno.EIO, errno.EPERM])
def test_managed_interrupts_are_told_once_and_rps_is_used(
    nic: SimulatedNic, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """EIO, EPERM since 6.12: each is tried once in its life; handing packets on still works."""
    fake = FakeIrqFiles(number)
    monkeypatch.setitem(settings_module._KINDS, "file", fake)
    nic.run(200)
    assert nic.affinities() == ["2", "2"]
    assert fake.refusals == 2
    assert len([note for note in nic.controller.notes if "managed" in note]) == 2
    assert {nic.cpu_of(0), nic.cpu_of(1)} == {2}


def test_a_cpu_without_free_vectors_is_passed_over(
    nic: SimulatedNic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENOSPC: the next best CPU takes it."""
    fake = FakeIrqFiles(errno.ENOSPC, {2})
    monkeypatch.setitem(settings_module._KINDS, "file", fake)
    nic.run(100)
    assert nic.affinities() == ["8", "8"]
    assert fake.refusals <= 2


def test_an_interrupt_for_two_queues_moves_both_at_once(tmp_path: Path) -> None:
    """One lever, one change, two queues in it."""
    nic = SimulatedNic(tmp_path)
    nic.tree.interrupts([(31, "ice-eth0-TxRx-0-1")])
    host = read_host(nic.tree.paths, ["eth0"])
    nic.controller = Controller(host, {"eth0": nic.journal}, cpu_time_ns=lambda: 0)
    plans = [event for event in nic.run(30) if isinstance(event, PlanEvent) and event.applied]
    assert [change.queues for change in plans[0].changes] == [(0, 1)]


def test_without_stamps_an_affinity_cannot_be_judged(nic: SimulatedNic) -> None:
    """No hardware stamp: the delay before the hook is not seen, so nothing is changed, and that is said."""
    shares = {cpu: CpuShare(1 - soft, 0, soft, 0, soft) for cpu, soft in nic.soft.items()}
    seen = InterfaceObservation(packets={(0, 1): 500})
    events: list[Event] = []
    for _ in range(30):
        nic.now_ns += 100_000_000
        events += nic.controller.tick(Observation(CpuLoad(0.1, shares), {"eth0": seen}), nic.now_ns)
    assert nic.affinities() == ["2", "2"]
    assert any(isinstance(event, PlanEvent) and "measured" in event.reason for event in events)


def test_an_interrupt_that_is_another_devices_now_is_left_alone(tmp_path: Path) -> None:
    """After `ethtool -L` the number 31 may be a disk's: nothing is written to it, and why is said once."""
    nic = SimulatedNic(tmp_path)
    for irq, name in ((31, "nvme0q1"), (32, "eth0-TxRx-1")):
        (nic.tree.paths.irq(irq) / name).mkdir()
    events = nic.run(60)
    refused = [event for event in events if isinstance(event, ChangeEvent) and event.outcome == "refused"]
    assert nic.affinities()[0] == "2"
    assert [event.reason for event in refused if "/irq/31/" in event.target] == [
        "interrupt 31 is nvme0q1 now, not eth0-TxRx-0: the driver has set up its queues anew"
    ]
