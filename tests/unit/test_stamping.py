"""Switching on RX stamping: journaled before, and back again where the journal cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent import stamping
from agent.control.journal import Journal, Scope, netns_inode
from agent.control.settings import Setting
from agent.errors import UsageError
from agent.ffi.hwtstamp import FILTER_ALL, HwtstampConfig

OFF = HwtstampConfig(0, 0, 0)


class FakeNic:
    """A driver that stamps more than it is asked to, as some do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.config = OFF
        monkeypatch.setattr(stamping, "hwtstamp_config", lambda ifname: self.config)
        monkeypatch.setattr(stamping, "set_hwtstamp_config", self.set)

    def set(self, ifname: str, config: HwtstampConfig) -> HwtstampConfig:
        """What the driver made of it."""
        self.config = HwtstampConfig(config.flags, 1, config.rx_filter) if config.rx_filter else config
        return self.config


@pytest.fixture
def nic(monkeypatch: pytest.MonkeyPatch) -> FakeNic:
    """One whose stamping is off."""
    return FakeNic(monkeypatch)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """Its journal."""
    return Journal(tmp_path, Scope("eth0", 2, netns_inode()))


def test_what_the_driver_made_of_it_is_put_back(nic: FakeNic, journal: Journal) -> None:
    """Also where that is more than was asked for."""
    stamping.switch_on("eth0", journal)
    assert nic.config == HwtstampConfig(0, 1, FILTER_ALL)
    assert [item.outcome for item in journal.restore()] == ["restored"]
    assert nic.config == OFF


@pytest.mark.parametrize("fits", [0, 1])
def test_a_full_disk_leaves_stamping_off(
    nic: FakeNic, journal: Journal, monkeypatch: pytest.MonkeyPatch, fits: int
) -> None:
    """Whether the first or the second line does not fit: what could not be restored is not left changed."""
    written: list[Setting] = []
    record = journal.record

    def full(setting: Setting, before: bytes, after: bytes) -> None:
        if len(written) == fits:
            raise UsageError("the journal could not be written")
        written.append(setting)
        record(setting, before, after)

    monkeypatch.setattr(journal, "record", full)
    with pytest.raises(UsageError, match="journal"):
        stamping.switch_on("eth0", journal)
    assert nic.config == OFF


def test_stamping_that_a_program_switched_off_comes_back(nic: FakeNic) -> None:
    """The driver lost a PTP daemon's filter as XDP was attached: it is put back, and said."""
    theirs = HwtstampConfig(0, 1, 12)
    nic.config = OFF
    said = stamping.keep("eth0", theirs)
    assert nic.config == theirs
    assert said is not None
    assert "filter 12" in said


@pytest.mark.parametrize(
    ("before", "now"),
    [(OFF, OFF), (None, OFF), (HwtstampConfig(0, 1, 12), HwtstampConfig(0, 1, 1))],
)
def test_stamping_is_left_alone_otherwise(
    nic: FakeNic, before: HwtstampConfig | None, now: HwtstampConfig
) -> None:
    """It was off before, nobody knows, or somebody has chosen another filter meanwhile."""
    nic.config = now
    assert stamping.keep("eth0", before) is None
    assert nic.config == now
