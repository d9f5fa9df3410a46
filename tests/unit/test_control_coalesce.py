"""Coalescing as a lever: read, set in the order that drivers take, planned in steps, judged, and put back."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agent.control import coalesce
from agent.control.coalesce import CoalesceSetting
from agent.control.controller import Controller
from agent.control.events import ChangeEvent, ConflictEvent, EffectEvent, Event, PlanEvent
from agent.control.journal import Journal, Scope, netns_inode
from agent.control.observation import InterfaceObservation, Observation
from agent.ffi.records import HIST_BUCKETS, hist_bucket
from agent.host.activity import IrqActivity, IrqRate
from agent.host.coalescing import Coalescing
from agent.host.load import CpuLoad, CpuShare
from agent.host.model import read_host
from tests.unit.test_host_model import FixtureHost

PPS = 40_000


class FakeDriver:
    """A driver's coalescing: like ice it refuses a wait while it chooses that itself, like others it may do nothing."""

    def __init__(self, now: Coalescing, effective: bool = True) -> None:
        self.now = now
        self.effective = effective
        self.in_force = now

    def read(self, ifname: str) -> Coalescing | None:
        return self.now

    def write(self, ifname: str, wanted: Coalescing) -> None:
        new = replace(
            self.now,
            **{name: value for name in wanted.__slots__ if (value := getattr(wanted, name)) is not None},
        )
        if new.adaptive_rx and wanted.rx_usecs not in (None, self.now.rx_usecs):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self.now = new
        if self.effective:
            self.in_force = new

    @property
    def wait_us(self) -> float:
        """How long the first packet waits for its interrupt."""
        return 60.0 if self.in_force.adaptive_rx else float(self.in_force.rx_usecs or 0)


class SimulatedNic:
    """One queue on a CPU of four; packets wait between nothing and the coalescing's time for their interrupt."""

    def __init__(self, root: Path, driver: FakeDriver, soft: float = 0.1) -> None:
        self.driver = driver
        self.soft = soft
        tree = FixtureHost(root)
        tree.cpus("0-3")
        tree.interface("eth0", 3, queues=1, device="pci/1", irqs=[31])
        tree.interrupts([(31, "eth0-TxRx-0")])
        tree.file(tree.paths.irq(31) / "smp_affinity", "2\n")
        self.rng = np.random.default_rng(5)
        self.now_ns = 1_000_000_000
        self.journal = Journal(root / "state", Scope("eth0", 3, netns_inode()), tree.paths)
        self.controller = Controller(
            read_host(tree.paths, ["eth0"]),
            {"eth0": self.journal},
            allow=["coalesce"],
            deny=["irq", "rps", "napi"],
            cpu_time_ns=lambda: 0,
        )

    def run(self, ticks: int) -> list[Event]:
        events: list[Event] = []
        for _ in range(ticks):
            self.now_ns += 100_000_000
            n = PPS // 10
            waits = self.rng.uniform(0, 1e3 * self.driver.wait_us, n) + self.rng.exponential(1_500, n)
            counts = np.bincount(hist_bucket((2_000 + waits).astype(np.int64)), minlength=HIST_BUCKETS)
            seen = InterfaceObservation(hook_delays={(0, 1): counts}, hook_is_stack=True, packets={(0, 1): n})
            shares = {cpu: CpuShare(1 - self.soft, 0, self.soft, 0, self.soft) for cpu in range(4)}
            per_s = min(PPS, 1e6 / max(self.driver.wait_us, 1.0))
            activity = IrqActivity(0.1, {}, {31: IrqRate(per_s, 0.01)})
            observation = Observation(CpuLoad(0.1, shares), {"eth0": seen}, activity=activity)
            events += self.controller.tick(observation, self.now_ns)
        return events


def simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: FakeDriver, soft: float = 0.1
) -> SimulatedNic:
    """A NIC with this driver."""
    monkeypatch.setattr(coalesce, "read_coalescing", driver.read)
    monkeypatch.setattr(coalesce, "write_coalescing", driver.write)
    return SimulatedNic(tmp_path, driver, soft)


def effects(events: list[Event]) -> list[EffectEvent]:
    """What became of the plans."""
    return [event for event in events if isinstance(event, EffectEvent)]


def test_a_long_wait_is_halved_while_that_helps_and_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step by step, each measured; predictions come true; the end finds the driver as it was."""
    before = Coalescing(80, 0, False)
    nic = simulated(tmp_path, monkeypatch, FakeDriver(before))
    events = nic.run(300)
    kept = [effect for effect in effects(events) if effect.outcome == "kept"]
    assert len(kept) >= 2
    assert nic.driver.now.rx_usecs is not None
    assert nic.driver.now.rx_usecs <= 20
    for effect in kept:
        assert effect.after.p99_ns == pytest.approx(effect.predicted_p99_ns, rel=0.3)
    assert {event.actuator for event in events if isinstance(event, ChangeEvent)} == {"coalesce"}
    nic.controller.close()
    assert nic.driver.now == before


def test_an_adaptive_driver_is_held_to_a_short_wait_and_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait may be set only while the driver does not choose it: switching back comes last."""
    before = Coalescing(50, 0, True)
    nic = simulated(tmp_path, monkeypatch, FakeDriver(before))
    nic.run(60)
    assert nic.driver.now.adaptive_rx is False
    assert nic.driver.now.rx_usecs is not None
    assert nic.driver.now.rx_usecs <= 8
    nic.controller.close()
    assert nic.driver.now == before


def test_a_driver_that_accepts_without_effect_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read back it looks done; delay and the rate of interrupts say otherwise: undone, and put aside."""
    nic = simulated(tmp_path, monkeypatch, FakeDriver(Coalescing(80, 0, False), effective=False))
    (effect,) = effects(nic.run(100))
    assert effect.outcome == "rolled_back"
    assert "without effect" in effect.reason
    assert nic.driver.now == Coalescing(80, 0, False)


def test_a_value_that_the_driver_rounds_is_not_taken_for_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What reads otherwise after the write is refused, and put back."""
    driver = FakeDriver(Coalescing(80, 0, False))
    nic = simulated(tmp_path, monkeypatch, driver)
    write = driver.write

    def rounding(ifname: str, wanted: Coalescing) -> None:
        write(ifname, replace(wanted, rx_usecs=80 if wanted.rx_usecs == 80 else 62))

    monkeypatch.setattr(coalesce, "write_coalescing", rounding)
    events = nic.run(60)
    refused = [event for event in events if isinstance(event, ChangeEvent) and event.outcome == "refused"]
    assert "rx-usecs 62" in refused[0].reason
    assert driver.now == Coalescing(80, 0, False)


def test_somebody_elses_coalescing_is_left_to_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changed between two looks: told, and not touched again, not at the end either."""
    driver = FakeDriver(Coalescing(80, 0, False))
    nic = simulated(tmp_path, monkeypatch, driver)
    nic.run(300)
    assert driver.now != Coalescing(80, 0, False)
    theirs = Coalescing(90, 0, False)
    driver.write("eth0", theirs)
    events = nic.run(100)
    (conflict,) = [event for event in events if isinstance(event, ConflictEvent)]
    assert conflict.found == str(theirs)
    assert [item.outcome for item in nic.controller.close()] == ["changed_by_others"]
    assert driver.now == theirs


def test_a_busy_cpu_gets_no_more_interrupts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Coalescing is what keeps it from more softirqs than it can serve."""
    nic = simulated(tmp_path, monkeypatch, FakeDriver(Coalescing(80, 0, False)), soft=0.6)
    events = nic.run(60)
    assert not any(event.changes for event in events if isinstance(event, PlanEvent))


@pytest.mark.parametrize(
    "now", [Coalescing(0, 0, False), Coalescing(4, 0, False), Coalescing(None, 16, None)]
)
def test_short_waits_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: Coalescing) -> None:
    """What could be gained is less than a change is worth; frames alone are no wait."""
    nic = simulated(tmp_path, monkeypatch, FakeDriver(now))
    assert not effects(nic.run(60))
    assert nic.driver.now == now


@pytest.mark.parametrize(
    "now", [Coalescing(50, 0, False), Coalescing(3, None, True), Coalescing(None, 16, None)]
)
def test_text_is_exact(now: Coalescing) -> None:
    """What the journal keeps is what is set again."""
    assert Coalescing.parse(str(now)) == now


@pytest.mark.parametrize("text", ["rx-usecs", "rx-usecs x", "tx-usecs 3", "adaptive-rx maybe"])
def test_other_texts_are_refused(text: str) -> None:
    """A damaged journal sets nothing."""
    with pytest.raises(ValueError, match=r".+"):
        Coalescing.parse(text)


def test_figures_of_an_adaptive_driver_mean_nothing() -> None:
    """Two readings while it chooses are the same setting."""
    kind = CoalesceSetting()
    assert kind.same(b"rx-usecs 50 adaptive-rx on\n", b"rx-usecs 8 adaptive-rx on\n")
    assert not kind.same(b"rx-usecs 50 adaptive-rx off\n", b"rx-usecs 8 adaptive-rx off\n")
    assert kind.belongs("eth0", "eth0", 3)
    assert not kind.belongs("eth1", "eth0", 3)
