"""PTP Announces: what is read from them, and which changes are told and blamed."""

from __future__ import annotations

import os

import pytest

from agent.clock.ptp import Announce, PtpWatch, parse_announce
from tests.unit.telemetry_frames import announce

S = 1_000_000_000
FIRST, SECOND = 0x001B19FFFE0A0B0C, 0xECE555FFFE000001


def texts(watch: PtpWatch, mono_ns: int) -> list[str]:
    """What a tick tells."""
    watch.look(mono_ns)
    return [change.text for change in watch.take_changes()]


def heard(*messages: bytes, mono_ns: int = 0) -> PtpWatch:
    """A watch that has heard these and told nothing of them."""
    watch = PtpWatch()
    for message in messages:
        watch.hear(mono_ns, message)
    assert texts(watch, mono_ns) == []
    return watch


def test_an_announce_is_read() -> None:
    """Every field from its own position."""
    found = parse_announce(announce(SECOND, source=FIRST, clock_class=7, steps_removed=3))
    assert found == Announce(
        source="001b19.fffe.0a0b0c-1",
        domain=24,
        grandmaster="ece555.fffe.000001",
        clock_class=7,
        steps_removed=3,
        utc_offset_s=37,
        time_traceable=True,
        interval_s=1.0,
        quality=(128, 7, 0x21, 0x4E5D, 128, "ece555.fffe.000001"),
    )


def test_an_offset_that_is_not_valid_is_none() -> None:
    """currentUtcOffset counts only with its flag."""
    found = parse_announce(announce(utc_offset_s=None))
    assert found is not None
    assert found.utc_offset_s is None


@pytest.mark.parametrize(
    "message", [b"", announce()[:63], b"\x00" + announce()[1:], b"\x0b\x01" + announce()[2:]]
)
def test_what_is_no_announce_is_ignored(message: bytes) -> None:
    """Short, a Sync, version 1."""
    assert parse_announce(message) is None
    assert heard(message).masters == {}


@pytest.mark.parametrize(
    ("after", "text"),
    [
        (announce(SECOND), "changed from 001b19.fffe.0a0b0c to ece555.fffe.000001"),
        (announce(clock_class=7), "went from class 6 to 7"),
        (announce(utc_offset_s=38), "TAI − UTC went from 37 to 38"),
    ],
)
def test_a_change_is_told_once(after: bytes, text: str) -> None:
    """Another grandmaster by the same port, a lost reference, a leap second."""
    watch = heard(announce())
    watch.hear(S, after)
    (told,) = texts(watch, S)
    assert text in told
    watch.hear(2 * S, after)
    assert texts(watch, 2 * S) == []
    assert watch.changes == 1


def test_the_better_of_two_is_followed() -> None:
    """A worse one beside it is no change; when the better one falls silent, the other takes over."""
    worse = announce(SECOND, source=SECOND, priority1=200)
    watch = heard(announce(), worse)
    assert watch.masters[24].grandmaster == "001b19.fffe.0a0b0c"
    for second in range(1, 5):
        watch.hear(second * S, worse)
    (told,) = texts(watch, 4 * S)
    assert told == "PTP grandmaster changed from 001b19.fffe.0a0b0c to ece555.fffe.000001"


def test_domains_do_not_mix() -> None:
    """The grandmaster of another domain is none of this one's."""
    watch = heard(announce(domain=0), announce(SECOND, source=SECOND, domain=1, priority1=1))
    assert {domain: master.grandmaster for domain, master in watch.masters.items()} == {
        0: "001b19.fffe.0a0b0c",
        1: "ece555.fffe.000001",
    }


def test_silence_is_told_and_a_successor_compared_with_the_one_before() -> None:
    """Three intervals without an Announce; then another one begins."""
    watch = heard(announce())
    assert texts(watch, 3 * S) == []
    assert texts(watch, 4 * S) == ["PTP grandmaster 001b19.fffe.0a0b0c was no longer announced"]
    assert texts(watch, 5 * S) == []
    watch.hear(6 * S, announce(SECOND))
    assert "changed from 001b19" in texts(watch, 6 * S)[0]


def test_a_jump_is_put_down_to_the_change_before_it() -> None:
    """Within ten seconds after the change, or two before; not otherwise."""
    watch = heard(announce(), mono_ns=100 * S)
    watch.hear(101 * S, announce(SECOND))
    watch.look(101 * S)
    assert watch.cause_of(104 * S + S // 2).endswith("to ece555.fffe.000001 3.5 s before")
    assert watch.cause_of(100 * S).endswith("1.0 s after")
    assert watch.cause_of(112 * S) == ""
    assert watch.cause_of(98 * S) == ""


def test_made_up_sources_are_bounded() -> None:
    """A flood of identities keeps the latest few."""
    watch = PtpWatch()
    for number in range(1000):
        watch.hear(number, announce(source=number))
    watch.look(1000)
    assert len(watch._heard) == 16


def test_noise_never_raises() -> None:
    """Whatever passes on the wire."""
    watch = PtpWatch()
    for second in range(2_000):
        watch.hear(second * S, b"\x0b\x02" + os.urandom(62))
        watch.look(second * S)
