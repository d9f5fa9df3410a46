"""Reading a PHC on ticks: its budget, its refusals, what others dial into it. The device is a fake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from agent.errors import AgentError, UnsupportedError
from agent.ffi.clocks import ClockPairs
from agent.ffi.phc import LocalClock, PhcBurst, PhcBusyError, PhcCaps, PhcGoneError
from agent.phcreader import PhcReader

TICK_NS = 200_000_000


class FakePhc:
    """A device that answers every read, unless `answer` raises for the moment; `frequency` is what is dialled."""

    path = Path("/dev/ptp-fake")

    def __init__(self, local_clock: LocalClock = "raw") -> None:
        self.bursts: list[int] = []
        self.answer: Callable[[], None] = lambda: None
        self.frequency: Callable[[], float] = lambda: 0.0
        self.read_ns = 1
        self._local_clock: LocalClock = local_clock

    def caps(self) -> PhcCaps:
        return PhcCaps(62_499_999, False, False, False, 0, 0)

    def frequency_ppb(self) -> float:
        return self.frequency()

    def read_burst(self, n: int) -> PhcBurst:
        self.bursts.append(n)
        self.answer()
        at = np.arange(n) * self.read_ns
        return PhcBurst("extended", self._local_clock, at, at, at + self.read_ns)


def fake_pairs(n: int) -> ClockPairs:
    """`n` rows of nothing."""
    zero = np.zeros(n, dtype=np.int64)
    return ClockPairs(zero, zero, zero, zero, zero, zero, zero)


def reader_of(phc: FakePhc, reads_per_s: int = 100) -> PhcReader:
    """A reader of a fake."""
    return PhcReader(phc, "eth1", reads_per_s, fake_pairs)  # type: ignore[arg-type]


def raising(error: AgentError) -> Callable[[], NoReturn]:
    """An answer that is this error."""

    def refuse() -> NoReturn:
        raise error

    return refuse


@pytest.mark.parametrize("reads_per_s", [1, 2, 7, 100, 125])
@pytest.mark.parametrize("tick_ns", [TICK_NS, 37_000_000])
def test_the_budget_is_kept_and_used(reads_per_s: int, tick_ns: int) -> None:
    """Over ten seconds of ticks, ten times the budget is read, and one more at most."""
    phc = FakePhc()
    reader = reader_of(phc, reads_per_s)
    for at in range(0, 10_000_000_000 + 1, tick_ns):
        reader.read(at)
    assert 10 * reads_per_s - 25 <= sum(phc.bursts) <= 10 * reads_per_s + 1
    assert reader.reads == sum(phc.bursts)


def test_interfaces_that_share_a_clock_share_its_reading() -> None:
    """Asked twice in one tick, the device is read once."""
    phc = FakePhc()
    reader = reader_of(phc)
    assert reader.read(TICK_NS) is reader.read(TICK_NS)
    assert len(phc.bursts) == 1


def test_a_late_tick_does_not_make_up_for_what_was_missed() -> None:
    """After a long stall a burst is at most what one ioctl takes."""
    phc = FakePhc()
    reader = reader_of(phc)
    reader.read(0)
    reader.read(60_000_000_000)
    assert phc.bursts == [1, 25]


def test_a_slow_device_does_not_hold_the_tick_up() -> None:
    """Where a read takes 100 us, five of them are a burst; one that takes longer than all of that is read alone."""
    phc = FakePhc()
    phc.read_ns = 100_000
    reader = reader_of(phc)
    for at in range(0, 5 * TICK_NS, TICK_NS):
        reader.read(at)
    assert phc.bursts == [1, 5, 5, 5, 5]
    phc.read_ns = 2_000_000
    reader.read(5 * TICK_NS)
    reader.read(6 * TICK_NS)
    assert phc.bursts[-2:] == [5, 1]


@pytest.mark.parametrize("error", [PhcBusyError("busy"), UnsupportedError("EOPNOTSUPP"), AgentError("EIO")])
def test_a_refusing_clock_is_left_alone_ever_longer(error: AgentError) -> None:
    """Whatever the reason: pauses double up to 30 s, each refusal counts, and people are told once."""
    phc = FakePhc()
    phc.answer = raising(error)
    reader = reader_of(phc)
    asked = []
    for at in range(0, 200_000_000_000, TICK_NS):
        before = len(phc.bursts)
        assert reader.read(at).burst is None
        if len(phc.bursts) > before:
            asked.append(at)
    pauses = np.diff(asked) / 1e9
    assert pauses[:8].tolist() == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6])
    assert set(pauses[8:].tolist()) == {30.0}
    assert reader.refusals == len(asked)
    assert len(reader.take_notes()) == 1
    assert reader.facts()["pause_ns"] == 30_000_000_000


def test_a_clock_that_refuses_every_other_read_is_not_asked_at_the_full_rate() -> None:
    """Success halves the pause, it does not end it: one that can't keep up settles at a pace that it can."""
    phc = FakePhc()
    reader = reader_of(phc)
    refusals = iter(range(10**6))

    def every_other() -> None:
        if next(refusals) % 2 == 0:
            raise PhcBusyError("busy")

    for at in range(0, 2_000_000_000, TICK_NS):
        phc.answer = raising(PhcBusyError("busy"))
        reader.read(at)
    phc.bursts.clear()
    phc.answer = every_other
    for at in range(10_000_000_000, 40_000_000_000, TICK_NS):
        reader.read(at)
    assert len(phc.bursts) < 75


def test_a_clock_that_answers_again_is_read_at_once() -> None:
    """After the pause the full budget is back within a few reads, and people are told."""
    phc = FakePhc()
    reader = reader_of(phc)
    phc.answer = raising(PhcBusyError("busy"))
    reader.read(0)
    phc.answer = lambda: None
    assert reader.read(TICK_NS).burst is not None
    assert reader.pause_ns == 0
    assert any("answers again" in note for note in reader.take_notes())


def test_a_clock_that_has_gone_is_not_asked_again() -> None:
    """Unplugged: told once, never read again."""
    phc = FakePhc()
    phc.answer = raising(PhcGoneError("/dev/ptp-fake has gone"))
    reader = reader_of(phc)
    for at in range(0, 10 * TICK_NS, TICK_NS):
        assert reader.read(at).burst is None
    assert (reader.gone, len(phc.bursts), len(reader.take_notes())) == (True, 1, 1)


def test_what_others_dial_in_is_a_known_change() -> None:
    """Each change comes with the tick that saw it; all are counted, the first is told with its values."""
    phc = FakePhc()
    reader = reader_of(phc)
    dialled = iter([100.0, 100.0, 350.5, 350.5, -1000.0])
    phc.frequency = lambda: next(dialled)
    changes = [reader.read(at).steered_ppb for at in range(0, 5 * TICK_NS, TICK_NS)]
    assert changes == [0.0, 0.0, 250.5, 0.0, -1350.5]
    assert (reader.adjustments, reader.frequency_ppb) == (2, -1000.0)
    (note,) = [note for note in reader.take_notes() if "steers" in note]
    assert "+100.0 to +350.5 ppb" in note


def test_an_unreadable_frequency_is_told_once_and_reads_go_on() -> None:
    """A device opened for reading only, on a kernel that wants more to tell the frequency."""
    phc = FakePhc()
    phc.frequency = raising(UnsupportedError("cannot read the frequency", "give access"))
    reader = reader_of(phc)
    for at in range(0, 5 * TICK_NS, TICK_NS):
        assert reader.read(at).steered_ppb == 0.0
    assert len(phc.bursts) == 5
    assert [note for note in reader.take_notes() if "taken for drift" in note] != []
    assert reader.facts()["frequency_ppb"] is None


@pytest.mark.parametrize(("local_clock", "rows"), [("raw", 5), ("realtime", 10)])
def test_reads_against_realtime_have_pairs_on_both_sides(local_clock: LocalClock, rows: int) -> None:
    """The kernel's clocks are read before every burst, and again after one against realtime."""
    reading = reader_of(FakePhc(local_clock)).read(0)
    assert len(reading.pairs) == rows
