"""The chosen window against every other one, on arrivals of known patterns."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest

from agent.batch.policy import SIZES, WAITS_US, Candidate, Goal, WindowPolicy
from agent.ffi.batchreplay import ServiceModel, replay_batches

IntArray = npt.NDArray[np.int64]
MS = 1_000_000
FAST = ServiceModel(1.0 * MS, 0.2 * MS, np.zeros(1))
SLOW_START = ServiceModel(4.0 * MS, 0.15 * MS, np.zeros(1))


def poisson(per_s: float, seed: int = 1) -> IntArray:
    """Two seconds of independent arrivals."""
    rng = np.random.default_rng(seed)
    return np.sort(rng.integers(0, 2_000 * MS, int(2 * per_s)))


def bursts(per_s: float, size: int, spacing_us: int) -> IntArray:
    """Two seconds of bursts at random times."""
    starts = np.random.default_rng(2).integers(0, 2_000 * MS, int(2 * per_s / size))
    return np.sort((starts[:, None] + np.arange(size) * spacing_us * 1_000).ravel())


def settle(goal: Goal, arrivals: IntArray, service: ServiceModel, *, largest: int = 64) -> Candidate:
    """What is chosen when the same arrivals come again and again."""
    policy = WindowPolicy(goal)
    for _ in range(6):
        chosen = policy.choose([arrivals], service, largest, 0.0)
    return chosen


def cost_ns(arrivals: IntArray, service: ServiceModel, max_wait_us: int, max_items: int) -> float:
    """The sum of p99 and mean that a window comes to, on average of now and of a service slower by a quarter."""
    sums = []
    for slower in (1.0, 1.25):
        slowed = ServiceModel(
            slower * service.base_ns, slower * service.item_ns, slower * service.residual_ns
        )
        latency, _ = replay_batches(arrivals, slowed, 1_000 * max_wait_us, max_items)
        sums.append(np.sort(latency)[int(0.99 * len(latency))] + latency.mean())
    return float(np.mean(sums))


@pytest.mark.parametrize("service", [FAST, SLOW_START])
@pytest.mark.parametrize(
    "arrivals", [poisson(50), poisson(1_000), poisson(2_500), bursts(1_000, 8, 100), bursts(800, 16, 200)]
)
def test_without_a_target_it_is_near_the_least_latency(arrivals: IntArray, service: ServiceModel) -> None:
    """p99 + mean is within 12 % of the best of all windows."""
    chosen = settle(Goal(), arrivals, service)
    least = min(cost_ns(arrivals, service, wait, size) for wait in WAITS_US for size in SIZES)
    assert cost_ns(arrivals, service, chosen.max_wait_us, chosen.max_items) <= 1.12 * least


def test_a_window_has_room_for_a_slower_service() -> None:
    """Batches of one would serve these best, as long as nothing gets slower: too many would wait if it did."""
    even = np.arange(0, 2_000 * MS, MS)
    tight = ServiceModel(0.85 * MS, 0.1 * MS, np.zeros(1))
    assert cost_ns(even, tight, 0, 1) > 20 * MS
    assert settle(Goal(), even, tight).max_items >= 2


def test_a_burst_is_waited_for() -> None:
    """Eight items 100 µs apart, a batch costs 4 ms to begin: it waits for the burst, not taking its first item."""
    assert settle(Goal(), bursts(400, 8, 100), SLOW_START).max_wait_us >= 400


def test_items_that_come_alone_are_not_made_to_wait() -> None:
    """Nobody else comes within a service time: waiting would only add to the latency."""
    assert settle(Goal(), np.arange(0, 2_000 * MS, 20 * MS), FAST).max_wait_us <= 100


def test_a_target_is_used_for_larger_batches() -> None:
    """Where the target leaves room, batches are larger and the consumer less busy; and the target is kept."""
    arrivals = poisson(1_000)
    least, target = settle(Goal(), arrivals, FAST), settle(Goal(target_p99_ns=20 * MS), arrivals, FAST)
    assert target.busy < 0.6 * least.busy
    assert least.p99_ns < target.p99_ns <= 20 * MS


def test_a_target_out_of_reach_means_the_least_latency() -> None:
    """What cannot be kept is come as near to as possible."""
    arrivals = poisson(1_000)
    assert settle(Goal(target_p99_ns=MS // 10), arrivals, FAST) == settle(Goal(), arrivals, FAST)


def test_the_delay_before_the_consumer_is_part_of_the_target() -> None:
    """12 ms on the way leave 8 of 20 ms."""
    policy = WindowPolicy(Goal(target_p99_ns=20 * MS))
    for _ in range(6):
        chosen = policy.choose([poisson(1_000)], FAST, 64, 12.0 * MS)
    assert chosen.p99_ns <= 8 * MS


def test_batches_are_large_enough_for_the_rate() -> None:
    """A floor of 4000 items a second needs b / (1 ms + 0.2 ms b) at least as high: 20 items."""
    chosen = settle(Goal(min_rate=4_000.0), poisson(100), FAST)
    assert chosen.max_items >= 20
    assert chosen.rate >= 4_000.0


def test_arrivals_that_nothing_can_serve_get_the_largest_batches() -> None:
    """Above 1/c items a second no window helps; the one that serves the most is given."""
    assert settle(Goal(), poisson(8_000), FAST, largest=32).max_items == 64


def test_sizes_that_were_never_seen_are_tried_step_by_step() -> None:
    """The line holds for what was seen; at most twice that is tried."""
    assert settle(Goal(min_rate=4_000.0), poisson(100), FAST, largest=3).max_items <= 6


def test_it_does_not_change_for_noise() -> None:
    """The latest 2 s of a steady process, tick by tick: for most of its ticks, a window stays what it was."""
    policy = WindowPolicy(Goal())
    arrivals = np.concatenate([poisson(1_000, seed) + 2_000 * MS * seed for seed in range(10)])
    windows = []
    for end_ns in range(2_000 * MS, 20_000 * MS, 200 * MS):
        span = np.searchsorted(arrivals, (end_ns - 2_000 * MS, end_ns))
        chosen = policy.choose([arrivals[slice(*span)]], FAST, 64, 0.0)
        windows.append((chosen.max_wait_us, chosen.max_items))
    changes = sum(a != b for a, b in itertools.pairwise(windows))
    assert changes <= len(windows) // 5


def test_several_consumers_are_replayed_apart() -> None:
    """Two consumers of 1000 items a second each are not one of 2000."""
    policy = WindowPolicy(Goal())
    both = policy.choose([poisson(1_000, 1), poisson(1_000, 2)], FAST, 64, 0.0)
    one = WindowPolicy(Goal()).choose([poisson(1_000, 1)], FAST, 64, 0.0)
    assert both.p99_ns == pytest.approx(one.p99_ns, rel=0.2)
