"""A real driver's interrupts, queues and PHC: igb, in the guest's emulation of Intel's 82576."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.clock.anchor import anchor_of
from agent.control.actuators import Actuator, Target, make_actuators
from agent.control.journal import Journal, restore, this_scope
from agent.ffi.phc import Phc
from agent.host.coalescing import Coalescing
from agent.host.model import Host, read_host
from agent.host.netlink import query_links
from agent.host.paths import HostPaths
from tests.kernel.agent_run import agent

LEVERS = ("irq", "rps", "xps", "coalesce")
MASKS = (b"1", b"2", b"4", b"8")
WAITS_US = (0, 10, 40, 125)
KILLS = 30


def _host() -> Host:
    return read_host(HostPaths(), ["eth0"], query_links())


def _irq_names() -> dict[int, str]:
    """Interrupt number -> the name that the driver gave it."""
    rows = [line.split() for line in Path("/proc/interrupts").read_text().splitlines()[1:]]
    return {int(row[0][:-1]): row[-1] for row in rows if row[0][:-1].isdigit()}


def _channels(*arguments: str) -> None:
    subprocess.run(["ethtool", "-L", "eth0", *arguments], check=True, timeout=30)


@pytest.fixture
def eight_channels() -> Iterator[None]:
    """As many channels as the device has; igb then serves both directions of a queue by one interrupt."""
    _channels("combined", "8")
    yield
    _channels("combined", "4")


def test_queues_are_mapped_to_their_own_interrupts() -> None:
    """Each receive queue has the interrupt that the driver calls rx-N."""
    (interface,) = _host().leaves()
    assert interface.driver == "igb"
    names = _irq_names()
    found = {queue.index: names[queue.irq] for queue in interface.queues if queue.irq is not None}
    assert found == {index: f"eth0-rx-{index}" for index in range(4)}


def test_paired_queues_are_mapped_too(eight_channels: None) -> None:
    """After `ethtool -L combined 8` the driver calls them TxRx-N, and the map follows."""
    (interface,) = _host().leaves()
    names = _irq_names()
    found = {queue.index: names[queue.irq] for queue in interface.queues if queue.irq is not None}
    assert found == {index: f"eth0-TxRx-{index}" for index in range(8)}


def _targets(host: Host) -> list[tuple[Actuator, Target]]:
    (interface,) = host.leaves()
    found = []
    for actuator in make_actuators(host, LEVERS).values():
        for queue in range(1 if actuator.name == "coalesce" else 4):
            target = actuator.target(interface, queue)
            if target is not None:
                found.append((actuator, target))
    return found


def _values(targets: list[tuple[Actuator, Target]]) -> dict[str, bytes]:
    return {target.setting.target: actuator.read(target) for actuator, target in targets}


def _some_value(chooser: random.Random, actuator: Actuator, target: Target) -> bytes:
    if actuator.name != "coalesce":
        return chooser.choice(MASKS)
    now = Coalescing.parse(actuator.read(target).decode())
    return f"{replace(now, rx_usecs=chooser.choice(WAITS_US))}\n".encode()


def test_affinity_takes_effect_at_the_next_interrupt(tmp_path: Path) -> None:
    """A moved interrupt reads back at once; what is in effect may lag until the queue has an interrupt again."""
    host = _host()
    (interface,) = host.leaves()
    irq = make_actuators(host, ("irq",))["irq"]
    target = irq.target(interface, 0)
    assert target is not None
    moved = MASKS[3] if irq.read(target).strip(b"0\n,") != MASKS[3] else MASKS[2]
    with Journal(tmp_path, this_scope("eth0")) as journal:
        outcome = irq.write(target, moved, journal)
        assert (outcome.ok, outcome.reason) == (True, "")
        wanted = {2: MASKS[2], 3: MASKS[3]}
        cpu = next(cpu for cpu, mask in wanted.items() if mask == moved)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            _receive_some()
            effective = irq.in_effect(target)
            if effective is not None and set(effective) == {cpu}:
                break
        assert effective is not None
        assert set(effective) == {cpu}
        restored = journal.restore()
        assert all(item.complete for item in restored)
        journal.close(restored)


def _receive_some() -> None:
    """Have the peer send to us, over all flows that hash to different queues."""
    code = (
        "import socket\n"
        "for port in range(2000, 2032):\n"
        "  s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'x', ('192.0.2.1', port)); s.close()\n"
    )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("192.0.2.1", 2000))
        subprocess.run(
            ["ip", "netns", "exec", "peer", "/usr/bin/python3", "-c", code], check=True, timeout=60
        )


def _write_until_killed(targets: list[tuple[Actuator, Target]], state: Path, seed: int, begun: int) -> None:
    chooser = random.Random(seed)
    with Journal(state, this_scope("eth0")) as journal:
        while True:
            actuator, target = chooser.choice(targets)
            actuator.write(target, _some_value(chooser, actuator, target), journal)
            os.write(begun, b".")


def _killed_writer(targets: list[tuple[Actuator, Target]], state: Path, seed: int, after_s: float) -> None:
    """A process that writes settings, killed that long after its first write."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _write_until_killed(targets, state, seed, writer)
        finally:
            os._exit(1)
    os.close(writer)
    assert os.read(reader, 1) == b".", "the writer failed"
    time.sleep(after_s)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reader)


def test_settings_are_byte_identical_after_random_kills(tmp_path: Path) -> None:
    """30 processes killed while they move interrupts, RPS, XPS and coalescing: all is put back, to the byte."""
    targets = _targets(_host())
    assert len(targets) == 13
    before = _values(targets)
    chooser = random.Random(6)
    changed = 0
    for seed in range(KILLS):
        _killed_writer(targets, tmp_path, seed, chooser.uniform(0.0, 0.1))
        changed += _values(targets) != before
        restore(tmp_path)
        assert _values(targets) == before, f"kill {seed}"
    assert changed > KILLS // 2
    if "RIG_RESULTS" in os.environ:
        figures = {"kernel": os.uname().release, "kills": KILLS, "changed": changed, "settings": len(targets)}
        Path(os.environ["RIG_RESULTS"], "igb-kills.json").write_text(json.dumps(figures) + "\n")


def test_agent_restore_puts_everything_back(tmp_path: Path) -> None:
    """The same by the command that an operator gives."""
    targets = _targets(_host())
    before = _values(targets)
    _killed_writer(targets, tmp_path, 1, 0.2)
    assert _values(targets) != before
    done = agent("restore", "--state-dir", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert _values(targets) == before


def test_the_phc_is_anchored_by_extended_reads() -> None:
    """igb has no cross-timestamps: EXTENDED, against raw from 6.12, and its reads agree with each other."""
    with Phc(socket.if_nametoindex("eth0")) as phc:
        burst = phc.read_burst(10)
        assert burst.method == "extended"
        release = tuple(int(part) for part in os.uname().release.split(".")[:2])
        assert burst.local_clock == ("raw" if release >= (6, 12) else "realtime")
        anchor = anchor_of(burst, 0.0)
    assert anchor is not None
    assert anchor.consistent
    assert anchor.low_ns <= anchor.offset_ns <= anchor.high_ns


def test_beside_a_virtual_clock_the_physical_one_is_read() -> None:
    """Packets are stamped by the physical clock, which a virtual one leaves to run free: reads stay, and are steady."""
    (count,) = Path("/sys/class/net/eth0/device/ptp").glob("ptp*/n_vclocks")
    before = count.read_text()
    with Phc(socket.if_nametoindex("eth0")) as phc:
        alone = anchor_of(phc.read_burst(10), 0.0)
        count.write_text("1\n")
        try:
            virtual = [path for path in count.parent.glob("ptp*") if path.is_dir()]
            with Phc(socket.if_nametoindex("eth0")) as again:
                beside = anchor_of(again.read_burst(10), 0.0)
        finally:
            count.write_text(before)
    assert virtual
    assert alone is not None
    assert beside is not None
    assert beside.consistent
    # The emulated oscillator is off by some ppm; a virtual clock begins at the host's time.
    assert abs(beside.offset_ns - alone.offset_ns) < 1_000_000
