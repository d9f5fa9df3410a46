"""Recorded arrivals served by a window: by hand, and against a plain event-by-event simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.ffi.batchreplay import ServiceModel, replay_batches

BASE, ITEM = 1_000.0, 100.0
EXACT = ServiceModel(BASE, ITEM, np.zeros(1))


def replay(
    arrivals: list[int], max_wait_ns: int, max_items: int, service: ServiceModel = EXACT
) -> list[float]:
    """Latencies of the items."""
    latency, _ = replay_batches(np.array(arrivals), service, max_wait_ns, max_items)
    return [float(value) for value in latency]


def test_an_item_alone_waits_and_is_served() -> None:
    """Nobody else comes: the whole wait, then a batch of one."""
    assert replay([5], 300, 8) == [300 + 1_100]


def test_a_full_batch_does_not_wait() -> None:
    """It begins when its last item is there."""
    assert replay([0, 50], 10_000, 2) == [50 + 1_200, 1_200]


def test_what_comes_while_it_is_busy_is_the_next_batch() -> None:
    """Items 10 and 20 wait for the first batch to end at 1100, and then together take 1200."""
    assert replay([0, 10, 20], 0, 8) == [1_100, 1_100 + 1_200 - 10, 1_100 + 1_200 - 20]


def test_residuals_are_used_in_turn() -> None:
    """Batch by batch, and a batch never ends before it began."""
    service = ServiceModel(BASE, ITEM, np.array([0.0, 500.0, -9_999.0]))
    assert replay([0, 10_000, 20_000, 30_000], 0, 8, service) == [1_100, 1_600, 0, 1_100]


def test_it_tells_how_busy_the_consumer_is() -> None:
    """The sum of what the batches took."""
    _, busy_ns = replay_batches(np.array([0, 10, 20]), EXACT, 0, 8)
    assert busy_ns == 1_100 + 1_200


def test_epoch_times_lose_no_nanosecond() -> None:
    """Arrivals are taken relative to the first one: at 2^60 a double has steps of 256 ns."""
    start = 1 << 60
    assert replay([start, start + 1], 0, 8) == [1_100, 1_099 + 1_100]


@pytest.mark.parametrize(("residuals", "max_items"), [([], 1), ([0.0], 0)])
def test_what_cannot_be_replayed_is_refused(residuals: list[float], max_items: int) -> None:
    """No residual to draw from, or batches of nothing."""
    with pytest.raises(ValueError, match="at least one"):
        replay_batches(np.array([1]), ServiceModel(BASE, ITEM, np.array(residuals)), 0, max_items)


def by_events(arrivals: list[int], max_wait_ns: int, max_items: int) -> list[float]:
    """The same, nanosecond by nanosecond: who waits, is the batch closed, is the consumer free."""
    done: dict[int, float] = {}
    waiting: list[int] = []
    free_ns = now = 0
    while len(done) < len(arrivals):
        waiting += [i for i, at in enumerate(arrivals) if at == now]
        while (
            waiting
            and now >= free_ns
            and (len(waiting) >= max_items or now >= arrivals[waiting[0]] + max_wait_ns)
        ):
            batch, waiting = waiting[:max_items], waiting[max_items:]
            free_ns = now + round(3 + 2 * len(batch))
            done |= {i: free_ns - arrivals[i] for i in batch}
        now += 1
    return [done[i] for i in range(len(arrivals))]


@settings(max_examples=200, deadline=None)
@given(
    gaps=st.lists(st.integers(0, 12), min_size=1, max_size=30),
    max_wait_ns=st.integers(0, 20),
    max_items=st.integers(1, 6),
)
def test_it_equals_a_simulation_by_events(gaps: list[int], max_wait_ns: int, max_items: int) -> None:
    """Any arrivals and any window give the same latencies as the definition of a batch window, run step by step."""
    arrivals = np.cumsum([0, *gaps[1:]]).tolist()
    service = ServiceModel(3.0, 2.0, np.zeros(1))
    assert replay(arrivals, max_wait_ns, max_items, service) == by_events(arrivals, max_wait_ns, max_items)
