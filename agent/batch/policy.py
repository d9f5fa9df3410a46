"""The window that would have served the expected arrivals best: each candidate is tried on them.

A candidate is replayed on the recorded arrivals, at the rate that is expected, with the fitted service times and their
residuals. That needs no assumption about how items arrive: bursts, jitter and gaps are those that were seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agent.batch.arrivals import rate_per_s
from agent.ffi.batchreplay import ServiceModel, replay_batches

IntArray = npt.NDArray[np.int64]

WAITS_US = (0, 100, 200, 400, 700, 1_000, 1_500, 2_000, 3_000, 5_000, 8_000, 12_000, 20_000, 35_000, 60_000)
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
# Until the next window holds, a consumer may get slower by this much, or its items as much more: half of what a window
# costs is what it would cost then. One that has no room to spare comes out worse, before it is chosen.
_SLOWER = 1.25
# Beyond the largest batch that was seen the service time is a guess; this much further is tried.
_STRETCH = 2
# A consumer as busy as this has no room for what is not expected.
_HEADROOM = 0.9
# A target is aimed at with this much of it: what comes is not what was.
_MARGIN = 0.9
# Windows this close, in what they cost and in how long items take now, are as good as each other: of them the one is
# taken that keeps the CPUs least busy.
_ALIKE = 0.05
# The present window is kept while it is within this, unless another keeps them less busy by as much as the latter.
_KEPT = 0.1
_HYSTERESIS = 0.1


@dataclass(frozen=True, slots=True)
class Goal:
    """What a page's window is for. Without a target, the least latency is."""

    target_p99_ns: int | None = None
    """From a packet's arrival until its batch is done."""
    min_rate: float | None = None
    """Items a second that each consumer must be able to serve."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One window, and what it would come to. Latencies are from an item's arrival at its consumer, ns."""

    max_wait_us: int
    max_items: int
    p99_ns: float
    mean_ns: float
    slower_ns: float
    """p99 + mean if the consumers were slower by a quarter."""
    busy: float
    """Share of the time that the consumers' handlers would run."""
    rate: float
    """Items a second that one consumer could serve in batches of this size."""

    @property
    def now_ns(self) -> float:
        """The p99, which a few items decide, steadied by the mean, which all do."""
        return self.p99_ns + self.mean_ns

    @property
    def cost_ns(self) -> float:
        """What is made small: the latencies now and slower."""
        return 0.5 * (self.now_ns + self.slower_ns)


class WindowPolicy:
    """Chooses a page's window, again and again; starts from the one before."""

    def __init__(self, goal: Goal) -> None:
        self._goal = goal
        self._window = (WAITS_US[0], SIZES[0])
        self._begun = False

    def choose(
        self, streams: Sequence[IntArray], service: ServiceModel, largest: int, before_ns: float
    ) -> Candidate:
        """The window for arrivals like `streams`, int64[n] ns each, of which at least one has items.

        `largest` is the largest batch that was seen, `before_ns` the p99 of the delay before items reach a consumer.
        Waits are tried at the present size, sizes with the wait that fills them, and then with the best wait.
        """
        sizes = [size for size in SIZES if size <= _STRETCH * largest]
        expected = max(rate_per_s(stream) for stream in streams)
        floor = max(self._goal.min_rate or 0.0, expected / _HEADROOM)
        if not self._begun:
            # Batches without waiting, of any size: what a consumer does that takes whatever is there.
            self._window, self._begun = (0, sizes[-1]), True
        tried = [_try(*self._window, streams, service)]
        tried += [_try(wait, self._window[1], streams, service) for wait in WAITS_US]
        tried += [_try(_wait_for(size, expected), size, streams, service) for size in sizes]
        best = self._best(tried, floor, before_ns)
        tried += [_try(best.max_wait_us, size, streams, service) for size in sizes]
        best = self._best(tried, floor, before_ns)
        self._window = (best.max_wait_us, best.max_items)
        return best

    def _best(self, tried: Sequence[Candidate], floor: float, before_ns: float) -> Candidate:
        """The best of the candidates, of which the first is the present window."""
        good = self._good(tried, floor, before_ns, _ALIKE)
        best = min(good, key=lambda candidate: (candidate.busy, candidate.cost_ns))
        present = tried[0]
        is_kept = present in self._good(tried, floor, before_ns, _KEPT)
        return present if is_kept and best.busy > (1.0 - _HYSTERESIS) * present.busy else best

    def _good(
        self, tried: Sequence[Candidate], floor: float, before_ns: float, alike: float
    ) -> list[Candidate]:
        """Those that keep the target; where none does or none is set, those at most `alike` above the cheapest.

        What cannot serve `floor` items a second is left out, unless nothing can: then it is what serves the most.
        """
        served = [candidate for candidate in tried if candidate.rate >= floor]
        if not served:
            most = max(candidate.rate for candidate in tried)
            served = [candidate for candidate in tried if candidate.rate == most]
        if self._goal.target_p99_ns is not None:
            room_ns = _MARGIN * self._goal.target_p99_ns - before_ns
            fitting = [candidate for candidate in served if candidate.p99_ns <= room_ns]
            if fitting:
                return fitting
        least = min(served, key=lambda candidate: candidate.cost_ns)
        above = 1.0 + alike
        return [
            candidate
            for candidate in served
            if candidate.cost_ns <= above * least.cost_ns and candidate.now_ns <= above * least.now_ns
        ]


def _wait_for(items: int, per_s: float) -> int:
    """The least wait, us, in which so many items are expected; the longest if none is long enough."""
    return next((wait for wait in WAITS_US if wait * per_s >= 1e6 * (items - 1)), WAITS_US[-1])


def _try(max_wait_us: int, max_items: int, streams: Sequence[IntArray], service: ServiceModel) -> Candidate:
    slower = ServiceModel(_SLOWER * service.base_ns, _SLOWER * service.item_ns, _SLOWER * service.residual_ns)
    p99_ns, mean_ns, busy = _replay(max_wait_us, max_items, streams, service)
    slower_p99_ns, slower_mean_ns, _ = _replay(max_wait_us, max_items, streams, slower)
    largest_ns = service.base_ns + service.item_ns * max_items + float(np.mean(service.residual_ns))
    return Candidate(
        max_wait_us,
        max_items,
        p99_ns=p99_ns,
        mean_ns=mean_ns,
        slower_ns=slower_p99_ns + slower_mean_ns,
        busy=busy,
        rate=max_items * 1e9 / max(largest_ns, 1.0),
    )


def _replay(
    max_wait_us: int, max_items: int, streams: Sequence[IntArray], service: ServiceModel
) -> tuple[float, float, float]:
    """p99 and mean of the latency, ns, and the share of the time that the handlers would run."""
    latencies, busy_ns, span_ns = [], 0.0, 0
    for stream in streams:
        latency_ns, busy = replay_batches(stream, service, max_wait_us * 1_000, max_items)
        latencies.append(latency_ns)
        busy_ns += busy
        span_ns += int(stream[-1] - stream[0])
    every_ns = np.concatenate(latencies)
    rank = int(0.99 * len(every_ns))
    p99_ns = float(np.partition(every_ns, rank)[rank])
    return p99_ns, float(every_ns.mean()), busy_ns / span_ns if span_ns else 1.0
