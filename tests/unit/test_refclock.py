"""What chronyd is told, when, and what keeps it from being told. chronyd is a socket of our own here."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.clock import ClockReport, Tag
from agent.ffi.clocks import ClockPairs
from agent.refclock import Refclock, ReferenceSample, chrony_line, datagram, reference_sample
from tests.unit import telemetry_frames as sample

S = 1_000_000_000
MONO_NS = 5_000 * S
REALTIME_NS = 1_790_000_000_123_456_789
MAX_ERROR_NS = 10_000


def pairs(tai_utc_s: int = 37, width_ns: int = 60) -> ClockPairs:
    """One instant."""
    mono, realtime, width = np.array([MONO_NS]), np.array([REALTIME_NS]), np.array([width_ns])
    return ClockPairs(mono, mono, realtime, realtime + tai_utc_s * S, width, width, width)


def report(hw_ahead_of_realtime_ns: int, **changed: Any) -> ClockReport:
    """A tracking clock that counts TAI, at the instant of the pairs."""
    facts = {
        "state": "tracking",
        "mono_ns": MONO_NS,
        "offset_ns": MONO_NS - REALTIME_NS - hw_ahead_of_realtime_ns,
        "bound_ns": 800.0,
        "timescale": "tai",
        "tags": (),
    }
    return sample.report(**(facts | changed))


def test_a_tai_clock_is_told_in_utc() -> None:
    """37 s and 1234 ns ahead of realtime: UTC by the clock is 1234 ns ahead, exactly."""
    found = reference_sample(report(37 * S + 1_234), pairs(), None, MAX_ERROR_NS)
    assert found == ReferenceSample(REALTIME_NS, 1_234, 860.0)


def test_a_utc_clock_needs_no_tai_offset() -> None:
    """A clock in UTC is told as it is, whatever the kernel knows."""
    found = reference_sample(report(-5_678, timescale="utc"), pairs(tai_utc_s=0), None, MAX_ERROR_NS)
    assert isinstance(found, ReferenceSample)
    assert found.ahead_ns == -5_678


def test_a_known_base_delay_is_taken_out() -> None:
    """An envelope is late by the base delay: hardware time at an instant is later than it says."""
    late = report(37 * S + 1_234 - 3_000, state="relative")
    found = reference_sample(late, pairs(), 3_000, MAX_ERROR_NS)
    assert isinstance(found, ReferenceSample)
    assert found.ahead_ns == 1_234


@pytest.mark.parametrize(
    ("clock", "around", "why"),
    [
        (report(37 * S), pairs(tai_utc_s=0), "nobody told the kernel TAI"),
        (report(0, timescale="unknown"), pairs(), "time scale is unknown"),
        (report(0, timescale="unset"), pairs(), "time scale is unset"),
        (report(37 * S, bound_ns=9_950.0), pairs(), "above 10000 ns"),
        (report(37 * S, bound_ns=float("inf")), pairs(), "above 10000 ns"),
        (report(37 * S, state="relative"), pairs(), "--base-delay-ns"),
    ],
)
def test_what_is_not_known_is_not_told(clock: ClockReport, around: ClockPairs, why: str) -> None:
    """No UTC without TAI - UTC, no time of an unknown scale, nothing above the bound, no unknown base delay."""
    found = reference_sample(clock, around, None, MAX_ERROR_NS)
    assert isinstance(found, str)
    assert why in found


def test_the_datagram_is_chronys_sock_sample() -> None:
    """timeval, offset in seconds, pulse, leap, padding and magic, 40 bytes on 64-bit machines."""
    data = datagram(ReferenceSample(REALTIME_NS, -1_234, 1.0))
    assert struct.unpack("@qqdiiii", data) == (1_790_000_000, 123_456, -1.234e-6, 0, 0, 0, 0x534F434B)


def test_the_line_for_chrony_includes_the_bound() -> None:
    """Half of the delay counts as error, so it is twice the bound."""
    line = chrony_line(Path("/run/chrony/agent.sock"), MAX_ERROR_NS)
    assert line == "refclock SOCK /run/chrony/agent.sock refid AGNT poll 2 delay 0.000020000"


class FakeConflicts:
    """Says what a test told it to."""

    conflict = ""

    def look_on(self, processes: int) -> str:
        return self.conflict


@dataclass
class Scene:
    """A feed whose reader is this test."""

    feed: Refclock
    path: Path
    conflicts: FakeConflicts
    reader: socket.socket
    now_ns: int = MONO_NS

    def tick(self, *reports: ClockReport) -> None:
        """The next second's tick."""
        self.now_ns += S
        self.feed.take(self.now_ns, reports or (report(37 * S + 1_234),), pairs())

    def received(self) -> list[float]:
        """Offsets of the datagrams that are waiting."""
        offsets = []
        while True:
            try:
                offsets.append(struct.unpack("@qqdiiii", self.reader.recv(64))[2])
            except BlockingIOError:
                return offsets


def listen(path: Path) -> socket.socket:
    """A socket such as chronyd makes."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    made.bind(str(path))
    return made


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """A feed of eth1's clock and who it feeds."""
    path, conflicts = tmp_path / "agent.sock", FakeConflicts()
    feed = Refclock(path, "eth1", MAX_ERROR_NS, None, conflicts)
    made = Scene(feed, path, conflicts, listen(path))
    yield made
    feed.close()
    made.reader.close()


def test_one_sample_a_second_is_sent(scene: Scene) -> None:
    """However many ticks there are."""
    for _ in range(10):
        scene.now_ns += S // 5
        scene.feed.take(scene.now_ns, [report(37 * S + 1_234)], pairs())
    assert scene.received() == [1.234e-6] * 2
    facts = scene.feed.facts()
    assert (facts["sent"], facts["ahead_ns"], facts["bound_ns"]) == (2, 1_234, 860.0)


@pytest.mark.parametrize("state", ["init", "holdover", "software", "invalid"])
def test_an_untrustworthy_state_is_not_told(scene: Scene, state: str) -> None:
    """Nothing goes out, it is counted, and the reason is there; the note comes once."""
    scene.tick()
    scene.tick(report(37 * S, state=state))
    scene.tick(report(37 * S, state=state))
    assert len(scene.received()) == 1
    facts = scene.feed.facts()
    assert (facts["refused"], facts["trouble"], facts["ahead_ns"]) == (
        2,
        f"the clock's state is {state}",
        None,
    )
    assert [note for note in scene.feed.take_notes() if state in note] == [
        f"refclock: the clock's state is {state}"
    ]


def test_after_a_jump_the_clock_has_to_settle(scene: Scene) -> None:
    """Not in the tick of the tag, nor in the second after it."""
    jump = (Tag("phase_step", MONO_NS, 500, "stepped"),)
    scene.tick(report(37 * S + 1_234, tags=jump))
    scene.tick(report(37 * S + 1_234, mono_ns=MONO_NS + S // 2))
    assert scene.received() == []
    scene.tick(report(37 * S + 1_234, mono_ns=MONO_NS + 2 * S))
    assert len(scene.received()) == 1


def test_two_clocks_on_the_interface_are_a_choice_that_nobody_made(scene: Scene) -> None:
    """Which of two device ids is right is unknown."""
    scene.tick(report(37 * S), report(37 * S, key=0x0301))
    assert scene.received() == []
    assert "eth1 has 2 clocks" in scene.feed.facts()["trouble"]


def test_what_never_was_a_clock_is_no_choice(scene: Scene) -> None:
    """A few packets looked as if they had a trailer: the clock that is one goes on being fed."""
    for _ in range(3):
        scene.tick(report(37 * S, key=0x0301, state="init"), report(37 * S + 1_234))
    assert scene.received() == [1.234e-6] * 3


def test_a_clock_that_is_not_found_yet_is_waited_for(scene: Scene) -> None:
    """No stamped packet, or one that has just come."""
    scene.tick(report(37 * S, state="init"))
    scene.feed.take(scene.now_ns + S, [], pairs())
    assert scene.received() == []
    assert scene.feed.facts()["trouble"] == "no clock of eth1 can be trusted yet"


def test_a_conflict_that_comes_later_stops_the_feed(scene: Scene) -> None:
    """phc2sys was started: nothing more goes out while it runs."""
    scene.tick()
    scene.conflicts.conflict = "phc2sys (pid 812) holds /dev/ptp0 open"
    scene.tick()
    scene.conflicts.conflict = ""
    scene.tick()
    assert len(scene.received()) == 2
    assert (scene.feed.sent, scene.feed.refused) == (2, 1)
    assert "refclock: phc2sys (pid 812) holds /dev/ptp0 open" in scene.feed.take_notes()


def test_chronyd_may_go_and_come_back(scene: Scene) -> None:
    """Without a socket samples are counted as failed and told once; a new socket of the same name is fed again."""
    scene.tick()
    scene.reader.close()
    scene.path.unlink()
    scene.tick()
    scene.tick()
    assert (scene.feed.sent, scene.feed.failed) == (1, 2)
    scene.reader = listen(scene.path)
    scene.tick()
    assert len(scene.received()) == 1
    notes = [note for note in scene.feed.take_notes() if note.startswith("refclock: ")]
    assert [note.split(":")[1][:12] for note in notes] == [" chronyd is ", " no chronyd ", " chronyd is "]


def test_a_chronyd_that_does_not_read_holds_nothing_up(scene: Scene) -> None:
    """Its queue is full at some point: from then on samples fail, none waits."""
    for _ in range(2_000):
        scene.tick()
    assert scene.feed.failed > 0
    assert scene.feed.sent + scene.feed.failed == 2_000
