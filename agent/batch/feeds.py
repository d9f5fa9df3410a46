"""Several feeds, aligned: what was taken up to an instant T goes together when every feed has delivered up to T.

For cameras that expose together, or market data of several venues. The instants have to be on one clock: hardware
stamps of feeds with clocks of their own are brought to CLOCK_MONOTONIC by `agent.stamp.PhcClock.mono`.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic_ns
from typing import Generic, NamedTuple, TypeVar

ItemT = TypeVar("ItemT")


class FeedItem(NamedTuple, Generic[ItemT]):
    """What a feed delivered."""

    feed: str
    item: ItemT
    taken_ns: int
    """When it was taken, on the clock that all feeds are compared on."""
    arrival_ns: int
    """When it arrived here, ns of CLOCK_MONOTONIC."""


class FeedGroup(NamedTuple, Generic[ItemT]):
    """The items that were taken up to an instant, in the order of when."""

    up_to_ns: int
    items: tuple[FeedItem[ItemT], ...]
    missing: tuple[str, ...]
    """Feeds that had not delivered up to it when the time was over; empty for a whole group."""

    @property
    def last_arrival_ns(self) -> int:
        """When the last of its items arrived: the group's own arrival at a batcher."""
        return max(item.arrival_ns for item in self.items)


class FeedAligner(Generic[ItemT]):
    """Forms groups of what several feeds deliver. Each feed has to deliver in the order of `taken_ns`.

    Stamps that cannot be have to be kept out: one of far ahead says that nothing before it will come from its feed, and
    when its group is closed all others are late. `PhcClock.mono` gives None for such a stamp.

    The oldest item that waits sets the instant, T. Its group takes what was taken up to T + tolerance, and is closed
    as soon as every feed has delivered something taken at T - tolerance or later; at the latest, when that item has
    waited for the timeout. Give groups to a batcher as its items, with `arrival_ns=group.last_arrival_ns`.
    """

    def __init__(self, feeds: Iterable[str], *, tolerance_ns: int, timeout_ns: int) -> None:
        """`tolerance_ns` is how far apart items of one instant may be taken: the exposures' spread, the clocks' bounds.

        Raises `ValueError` for fewer than two feeds.
        """
        self._latest_ns: dict[str, int | None] = dict.fromkeys(feeds)
        if len(self._latest_ns) < 2:
            raise ValueError("aligning takes at least two feeds")
        self._tolerance_ns = tolerance_ns
        self._timeout_ns = timeout_ns
        self._waiting: list[FeedItem[ItemT]] = []
        self._closed_ns: int | None = None
        self.late = 0
        """Items whose group was closed already: each is a group of its own."""

    def add(
        self, feed: str, item: ItemT, taken_ns: int, arrival_ns: int | None = None
    ) -> list[FeedGroup[ItemT]]:
        """Take an item; returns the groups that are closed by it, or by the time at which it arrived.

        Raises `ValueError` for a feed that was not named.
        """
        if feed not in self._latest_ns:
            raise ValueError(f"there is no feed {feed!r}: {', '.join(self._latest_ns)}")
        delivered = FeedItem(feed, item, taken_ns, monotonic_ns() if arrival_ns is None else arrival_ns)
        latest_ns = self._latest_ns[feed]
        self._latest_ns[feed] = taken_ns if latest_ns is None else max(latest_ns, taken_ns)
        groups = []
        if self._closed_ns is not None and taken_ns <= self._closed_ns:
            self.late += 1
            others = tuple(name for name in self._latest_ns if name != feed)
            groups.append(FeedGroup(taken_ns, (delivered,), others))
        else:
            self._waiting.append(delivered)
            self._waiting.sort(key=lambda waiting: waiting.taken_ns)
        return groups + self.expire(delivered.arrival_ns)

    def expire(self, now_ns: int | None = None) -> list[FeedGroup[ItemT]]:
        """The groups that are whole, or for which it is time at `now_ns`, by default now."""
        now_ns = monotonic_ns() if now_ns is None else now_ns
        groups = []
        while self._waiting:
            first = self._waiting[0]
            missing = self._missing(first.taken_ns)
            if missing and now_ns < first.arrival_ns + self._timeout_ns:
                break
            groups.append(self._close(first.taken_ns, missing))
        return groups

    @property
    def expires_ns(self) -> int | None:
        """When to call `expire` if nothing comes before; None while nothing waits."""
        return self._waiting[0].arrival_ns + self._timeout_ns if self._waiting else None

    def _missing(self, up_to_ns: int) -> tuple[str, ...]:
        least_ns = up_to_ns - self._tolerance_ns
        return tuple(
            feed for feed, latest_ns in self._latest_ns.items() if latest_ns is None or latest_ns < least_ns
        )

    def _close(self, up_to_ns: int, missing: tuple[str, ...]) -> FeedGroup[ItemT]:
        until_ns = up_to_ns + self._tolerance_ns
        inside = [item for item in self._waiting if item.taken_ns <= until_ns]
        self._waiting = self._waiting[len(inside) :]
        self._closed_ns = until_ns
        return FeedGroup(up_to_ns, tuple(inside), missing)
