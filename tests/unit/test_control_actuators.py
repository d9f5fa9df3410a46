"""Levers on file trees, and what the kernel may answer to a write."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from agent.control import settings as settings_module
from agent.control.actuators import IrqActuator, RpsActuator, XpsActuator, allowed_actuators
from agent.control.journal import Journal, Scope, netns_inode
from agent.control.settings import FileSetting
from agent.errors import UsageError
from agent.host.model import Host, read_host
from tests.unit.test_host_model import FixtureHost, host

__all__ = ["host"]


class FakeProcFs(FileSetting):
    """A file system in which writing raises."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.writes = 0

    def write(self, target: str, value: bytes) -> None:
        self.writes += 1
        raise OSError(self.number, "refused", target)


@pytest.fixture
def nic(host: FixtureHost) -> Host:
    """One NIC with two queues and an interrupt for each."""
    host.cpus("0-3")
    directory = host.interface("eth0", 3, queues=2, device="pci/1", irqs=[31, 32])
    host.interrupts([(31, "eth0-TxRx-0"), (32, "eth0-TxRx-1")])
    for irq in (31, 32):
        host.file(host.paths.irq(irq) / "smp_affinity", "f\n")
        host.file(host.paths.irq(irq) / "effective_affinity", "2\n")
    host.file(directory / "queues/tx-0/xps_cpus", "0\n")
    return read_host(host.paths, ["eth0"])


@pytest.fixture
def journal(tmp_path: Path, nic: Host) -> Journal:
    """The interface's journal."""
    return Journal(tmp_path / "state", Scope("eth0", 3, netns_inode()), nic.paths)


def test_a_write_is_journaled_and_read_back(nic: Host, journal: Journal) -> None:
    """The value changes, and restoring gives the old bytes."""
    rps = RpsActuator(nic)
    target = rps.target(nic.interfaces["eth0"], 1)
    assert target is not None
    outcome = rps.write(target, b"2", journal)
    assert outcome.ok
    assert outcome.before == b"0\n"
    assert rps.read(target) == b"2"
    assert [item.outcome for item in journal.restore()] == ["restored"]
    assert rps.read(target) == b"0\n"


def test_a_value_that_is_there_already_is_not_written(nic: Host, journal: Journal) -> None:
    """Nothing goes into the journal."""
    rps = RpsActuator(nic)
    target = rps.target(nic.interfaces["eth0"], 0)
    assert target is not None
    assert rps.write(target, b"00", journal).ok
    assert journal.restore() == []


@pytest.mark.parametrize(
    ("number", "permanent", "other_cpu", "words"),
    [
        (errno.EIO, True, False, "managed"),
        (errno.EPERM, True, False, "managed"),
        (errno.ENOSPC, False, True, "vector"),
        (errno.EROFS, True, False, "read-only"),
        (errno.EINVAL, False, True, "online"),
        (errno.EBUSY, False, False, "busy"),
        (errno.EAGAIN, False, False, "busy"),
        (errno.EOVERFLOW, False, True, "cannot have"),
        (errno.EACCES, True, False, "permission"),
        (errno.ENOENT, True, False, "not exist"),
        (errno.ERANGE, False, False, "range"),
    ],
)
def test_each_refusal_of_an_affinity_has_its_meaning(
    nic: Host,
    journal: Journal,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    permanent: bool,
    other_cpu: bool,
    words: str,
) -> None:
    """Nothing is raised; the outcome says whether to try again, elsewhere, or never."""
    monkeypatch.setitem(settings_module._KINDS, "file", FakeProcFs(number))
    irq = IrqActuator(nic)
    target = irq.target(nic.interfaces["eth0"], 0)
    assert target is not None
    outcome = irq.write(target, b"1", journal)
    assert not outcome.ok
    assert (outcome.error, outcome.permanent, outcome.other_cpu) == (number, permanent, other_cpu)
    assert words in outcome.reason


def test_rps_without_a_housekeeping_cpu_asks_for_another(
    nic: Host, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EINVAL of `rps_cpus` means the CPU, not the file."""
    monkeypatch.setitem(settings_module._KINDS, "file", FakeProcFs(errno.EINVAL))
    rps = RpsActuator(nic)
    target = rps.target(nic.interfaces["eth0"], 0)
    assert target is not None
    outcome = rps.write(target, b"2", journal)
    assert outcome.other_cpu
    assert "housekeeping" in outcome.reason


def test_nothing_is_written_when_the_journal_cannot_be(
    nic: Host, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk under the journal is not taken for a refusal of the interrupt."""

    def full(*_: object) -> None:
        raise UsageError("the journal could not be written: No space left on device")

    monkeypatch.setattr(journal, "record", full)
    fake = FakeProcFs(errno.EIO)
    monkeypatch.setitem(settings_module._KINDS, "file", fake)
    irq = IrqActuator(nic)
    target = irq.target(nic.interfaces["eth0"], 0)
    assert target is not None
    outcome = irq.write(target, b"1", journal)
    assert not outcome.ok
    assert not outcome.other_cpu
    assert "journal" in outcome.reason
    assert fake.writes == 0


def test_a_shared_interrupt_has_no_lever(host: FixtureHost) -> None:
    """It serves another device too: never moved."""
    host.cpus("0-3")
    host.interface("eth1", 6, device="pci/1", irqs=[17])
    host.interrupts([(17, "eth1, ehci_hcd:usb2")])
    model = read_host(host.paths, ["eth1"])
    assert IrqActuator(model).target(model.interfaces["eth1"], 0) is None


def test_xps_of_a_one_queue_device_is_no_lever(host: FixtureHost) -> None:
    """Its file is listed, but reading gives ENOENT: not an error."""
    host.cpus("0-1")
    host.interface("eth0", 3)
    model = read_host(host.paths, ["eth0"])
    assert XpsActuator(model).target(model.interfaces["eth0"], 0) is None


def test_effective_affinity_is_told_apart_from_the_wanted_one(nic: Host) -> None:
    """It lags until the next interrupt."""
    irq = IrqActuator(nic)
    target = irq.target(nic.interfaces["eth0"], 0)
    assert target is not None
    effective = irq.in_effect(target)
    assert effective is not None
    assert list(effective) == [1]


def test_names_of_actuators() -> None:
    """Defaults, additions, denials; unknown and unimplemented names are refused with what there is."""
    assert allowed_actuators() == ("irq", "rps", "xps", "napi")
    assert allowed_actuators(deny=["irq", "rss"]) == ("rps", "xps", "napi")
    with pytest.raises(UsageError, match="no actuator 'irqs'"):
        allowed_actuators(allow=["irqs"])
    with pytest.raises(UsageError, match="not in this version"):
        allowed_actuators(allow=["rss"])
    assert allowed_actuators(allow=["coalesce"])[-1] == "coalesce"


def test_a_read_only_procfs_is_found_at_the_start(nic: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening for write is refused already; nothing is written to find out, and the remedy is named."""
    assert IrqActuator(nic).problem() is None

    def refuse(path: Path, flags: int) -> int:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr("agent.control.actuators.os.open", refuse)
    problem = IrqActuator(nic).problem()
    assert problem is not None
    assert "ProtectKernelTunables" in problem
    assert "smp_affinity" in problem
