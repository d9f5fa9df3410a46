"""Packets become frames again, whatever the network does to them; and feeds are aligned."""

from __future__ import annotations

import random

import pytest

from agent.batch import FeedAligner, FeedGroup, Frame, FrameAssembler

MS = 1_000_000


def test_a_frame_is_whole_with_its_last_packet() -> None:
    """Its content in order, and when its first and last packet arrived, whatever the order of arrival."""
    frames = FrameAssembler()
    assert frames.add(7, 1, 3, b"b", 20) is None
    assert frames.add(7, 2, 3, b"c", 10) is None
    assert frames.add(7, 0, 3, b"a", 30) == Frame(7, b"abc", 10, 30)


def test_frames_in_any_order_with_duplicates() -> None:
    """A hundred frames whose packets are shuffled among their neighbours, each sent twice: each comes out once."""
    rng = random.Random(1)
    packets = [(n, i, 4, bytes([n, i])) for n in range(100) for i in range(4)] * 2
    packets.sort(key=lambda packet: packet[0] + rng.random() * 5)
    frames = FrameAssembler()
    whole = [frame for at, packet in enumerate(packets) if (frame := frames.add(*packet, at))]
    assert {frame.number: frame.data for frame in whole} == {
        n: b"".join(bytes([n, i]) for i in range(4)) for n in range(100)
    }
    assert len(whole) == 100
    assert (frames.duplicates, frames.incomplete) == (400, 0)


def test_a_frame_that_lost_a_packet_is_given_up() -> None:
    """Room is limited: the frame that began first goes, is counted, and is not begun again by a late packet."""
    frames = FrameAssembler(max_frames=2)
    for number in range(3):
        assert frames.add(number, 0, 2, b"x") is None
    assert frames.incomplete == 1
    assert frames.add(0, 1, 2, b"y") is None
    assert frames.add(2, 1, 2, b"y") is not None
    assert frames.add(1, 1, 2, b"y") is not None
    assert frames.incomplete == 1


@pytest.mark.parametrize(("index", "count"), [(-1, 2), (2, 2), (0, 0), (0, 5000), (0, 3)])
def test_a_packet_that_cannot_be_of_its_frame_is_refused(index: int, count: int) -> None:
    """Outside the frame, of too many packets, or of another number of packets than the others say."""
    frames = FrameAssembler()
    frames.add(1, 1, 2, b"x")
    assert frames.add(1, index, count, b"y") is None
    assert frames.refused == 1
    assert frames.add(1, 0, 2, b"a") is not None


def test_a_limit_of_nothing_is_refused() -> None:
    """No frame fits into none."""
    with pytest.raises(ValueError, match="at least one"):
        FrameAssembler(max_frames=0)


# ---- feeds -----------------------------------------------------------------------------------------------------


def aligner(**options: int) -> FeedAligner[str]:
    """Two cameras that expose within 1 ms of each other."""
    return FeedAligner(["left", "right"], **({"tolerance_ns": MS, "timeout_ns": 50 * MS} | options))


def names(groups: list[FeedGroup[str]]) -> list[list[str]]:
    """The items of each group."""
    return [[item.item for item in group.items] for group in groups]


def test_a_group_is_closed_when_every_feed_has_delivered() -> None:
    """At once with the last of them, not when the next exposure comes."""
    feeds = aligner()
    assert feeds.add("left", "L1", 100 * MS, 101 * MS) == []
    (group,) = feeds.add("right", "R1", 100 * MS - 5_000, 108 * MS)
    assert [item.item for item in group.items] == ["R1", "L1"]
    assert (group.missing, group.last_arrival_ns) == ((), 108 * MS)


def test_a_feed_that_skipped_an_instant_is_not_waited_for() -> None:
    """What it delivers of later says that nothing of then will come."""
    feeds = aligner()
    feeds.add("left", "L1", 100 * MS, 101 * MS)
    groups = feeds.add("right", "R2", 133 * MS, 134 * MS)
    assert names(groups) == [["L1"]]
    assert groups[0].missing == ()
    assert names(feeds.add("left", "L2", 133 * MS, 135 * MS)) == [["R2", "L2"]]


def test_a_feed_that_is_silent_holds_nobody_up_for_long() -> None:
    """After the timeout the group goes without it, and says who is missing."""
    feeds = aligner()
    assert feeds.expires_ns is None
    feeds.add("left", "L1", 100 * MS, 101 * MS)
    assert feeds.expires_ns == 151 * MS
    assert feeds.expire(151 * MS - 1) == []
    (group,) = feeds.expire(151 * MS)
    assert (names([group]), group.missing) == ([["L1"]], ("right",))


def test_what_comes_too_late_is_a_group_of_its_own() -> None:
    """It is not lost, not mixed with later items, and counted."""
    feeds = aligner()
    feeds.add("left", "L1", 100 * MS, 101 * MS)
    feeds.expire(151 * MS)
    (group,) = feeds.add("right", "R1", 100 * MS, 160 * MS)
    assert (names([group]), group.missing, feeds.late) == ([["R1"]], ("left",), 1)


def test_everything_taken_until_then_is_in_the_group() -> None:
    """Of feeds that deliver often, all that was taken up to the instant."""
    feeds = FeedAligner[str](["a", "b"], tolerance_ns=2 * MS, timeout_ns=50 * MS)
    feeds.add("a", "a1", 10 * MS, 11 * MS)
    feeds.add("a", "a2", 11 * MS, 12 * MS)
    feeds.add("a", "a3", 15 * MS, 16 * MS)
    assert names(feeds.add("b", "b1", 12 * MS, 17 * MS)) == [["a1", "a2", "b1"]]
    assert names(feeds.add("b", "b2", 15 * MS, 18 * MS)) == [["a3", "b2"]]


def test_every_item_is_in_one_group() -> None:
    """Two feeds with random delays, some items lost: nothing comes twice, nothing is left, order is kept."""
    rng = random.Random(3)
    sent = []
    for feed, start in (("left", 0), ("right", 40_000)):
        arrival = 0
        for n in range(300):
            taken = 10 * MS * n + start + rng.randrange(100_000)
            arrival = max(arrival, taken + rng.randrange(20 * MS))
            if rng.random() > 0.05:
                sent.append((arrival, feed, f"{feed}{n}", taken))
    feeds = aligner()
    groups = [
        group
        for arrival, feed, item, taken in sorted(sent)
        for group in feeds.add(feed, item, taken, arrival)
    ]
    groups += feeds.expire(1 << 62)
    found = [item for group in names(groups) for item in group]
    assert sorted(found) == sorted(item for _, _, item, _ in sent)
    whole = [group for group in groups if len(group.items) == 2]
    assert len(whole) > 250
    for group in whole:
        first, second = group.items
        assert {first.feed, second.feed} == {"left", "right"}
        assert abs(first.taken_ns - second.taken_ns) <= MS


def test_feeds_have_to_be_named() -> None:
    """One feed has nothing to be aligned with, and an unknown one would never be waited for."""
    with pytest.raises(ValueError, match="two feeds"):
        FeedAligner(["one"], tolerance_ns=0, timeout_ns=0)
    with pytest.raises(ValueError, match="no feed 'middle'"):
        aligner().add("middle", "M1", 0)
