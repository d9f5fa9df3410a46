"""The items that wait for their batch, and when it is closed: the same for threads and for asyncio."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Sequence
from time import monotonic_ns
from typing import Generic, NamedTuple, TypeVar

from agent.batch.window import BatchWindow
from agent.errors import AgentError

ItemT = TypeVar("ItemT")
FutureT = TypeVar("FutureT")
ResultT = TypeVar("ResultT")


class BatcherFullError(AgentError):
    """As many items wait as may: the handler does not keep up."""


class Entry(NamedTuple, Generic[ItemT, FutureT]):
    """One item that waits."""

    item: ItemT
    arrival_ns: int
    future: FutureT


class Waiting(Generic[ItemT, FutureT]):
    """Items in the order in which they came, of which the oldest make the next batch."""

    def __init__(self, window: BatchWindow, capacity: int) -> None:
        """At most `capacity` items wait. Raises `ValueError` if that is none."""
        if capacity < 1:
            raise ValueError("a batcher needs room for at least one item")
        self._window = window
        self._capacity = capacity
        self._entries: deque[Entry[ItemT, FutureT]] = deque()
        self._closed_at = 1

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, item: ItemT, arrival_ns: int | None, future: FutureT) -> bool:
        """Add an item; returns whether whoever waits for the next batch has to look again.

        Raises `BatcherFullError`, `ValueError` for an arrival that has not been yet, `TypeError` for one that is no
        whole number.
        """
        now_ns = monotonic_ns()
        arrival_ns = now_ns if arrival_ns is None else operator.index(arrival_ns)
        if not 0 <= arrival_ns <= now_ns:
            raise ValueError(f"arrival_ns={arrival_ns}: time.monotonic_ns() has not been there yet")
        if len(self._entries) >= self._capacity:
            raise BatcherFullError(
                f"{self._capacity} items wait for their batch already: the handler does not keep up",
                "shed load, make the handler faster, or give the batcher a larger capacity",
            )
        self._entries.append(Entry(item, arrival_ns, future))
        return len(self._entries) in (1, self._closed_at)

    def closes_in_ns(self) -> int | None:
        """How long to wait before the batch is closed, at most 0 for not at all; None while nothing waits."""
        if not self._entries:
            return None
        window = self._window.read()
        self._closed_at = window.max_items
        if len(self._entries) >= window.max_items:
            return 0
        return self._entries[0].arrival_ns + window.max_wait_us * 1_000 - monotonic_ns()

    def take(self) -> list[Entry[ItemT, FutureT]]:
        """The next batch."""
        most = self._window.read().max_items
        return [self._entries.popleft() for _ in range(min(most, len(self._entries)))]


def results_of(found: Sequence[ResultT] | None, items: int) -> Sequence[ResultT | None]:
    """What a handler gave back, one result an item; None for each if it gave None. Raises `ValueError` otherwise."""
    if found is None:
        return [None] * items
    if len(found) != items:
        raise ValueError(f"the handler gave {len(found)} results for a batch of {items} items")
    return found
