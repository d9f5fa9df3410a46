"""The tick's stage that serves consumers: their reports in, the batch window and the clocks out, page by page."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from agent.batch.arrivals import PacketForecast, RecordedArrivals
from agent.batch.clockshelf import ClockShelf
from agent.batch.consumers import ConsumerServer, Reported
from agent.batch.layout import PublishedClock, PublishedWindow
from agent.batch.policy import Candidate, Goal, WindowPolicy
from agent.batch.publisher import PagePublisher
from agent.batch.servicetime import ServiceTime
from agent.clock.alignment import Reading
from agent.control.observation import Delays
from agent.ffi.records import hist_quantile
from agent.options import BatchPage
from agent.telemetry.schema import BatchItem

# Fewer items tell nothing about the latency of most of them.
_MIN_ITEMS = 16
# A window outlives some ticks that come late.
_VALID_TICKS = 5
_VALID_MIN_NS = 500_000_000
# Service times of a consumer that reported nothing for so long are those of another one.
_AGE_OUT_NS = 10_000_000_000


class BatchStage:
    """All pages of a run. Make it before the first tick, `tick` it once a tick, `close` it at the end."""

    def __init__(
        self,
        state_dir: Path,
        pages: Iterable[BatchPage],
        uids: Iterable[int],
        tick_ns: int,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`uids` are the users whose consumers may report.

        Raises `ConflictError` if another agent writes one of the pages, `UnsupportedError` if one cannot be made.
        """
        self._packets = PacketForecast(tick_ns)
        self._delay_p99_ns = math.nan
        self._clocks = ClockShelf()
        users = tuple(uids)
        with ExitStack() as stack:
            self._pages = [_Page(page, state_dir, users, tick_ns, clock, stack) for page in pages]
            self._opened = stack.pop_all()

    def observe_delays(self, delays: Sequence[Delays]) -> None:
        """Take the delays of packets before they reach a consumer: histograms by (queue, CPU) of each interface."""
        totals = [np.sum(list(rows.values()), axis=0) for rows in delays if rows]
        worst = max((float(hist_quantile(total, 0.99)) for total in totals), default=math.nan)
        if math.isfinite(worst):
            self._delay_p99_ns = worst

    def tick(
        self, mono_ns: int, packets: int, readings: Sequence[Reading], withheld: str = ""
    ) -> list[BatchItem]:
        """Publish what holds from now on; returns each page's state.

        `packets` came since the tick before, `readings` are the clocks' of this tick. With `withheld`, no window is
        published, for that reason.
        """
        self._packets.observe(packets)
        clocks = self._clocks.take(readings)
        return [
            page.tick(mono_ns, self._packets, self._delay_p99_ns, clocks, withheld) for page in self._pages
        ]

    def take_notes(self) -> list[str]:
        """What was noticed since the call before, for people."""
        return [note for page in self._pages for note in page.server.take_notes()]

    def close(self) -> None:
        """Withdraw and remove the pages, and let the consumers go."""
        self._opened.close()


@dataclass(frozen=True, slots=True)
class _Measured:
    """Latencies of a tick, from an item's arrival until its batch was done."""

    items: int
    p99_ns: float
    mean_ns: float


class _Page:
    """One page: its consumers, what is known of them, and the window that they are given."""

    def __init__(
        self,
        page: BatchPage,
        state_dir: Path,
        uids: Sequence[int],
        tick_ns: int,
        clock: Callable[[], int],
        stack: ExitStack,
    ) -> None:
        self._page = page
        self._publisher = stack.enter_context(PagePublisher(state_dir, page.name))
        self.server = stack.enter_context(ConsumerServer(state_dir, page.name, uids, clock))
        self._validity_ns = max(_VALID_TICKS * tick_ns, _VALID_MIN_NS)
        self._reported_ns = 0
        self._batches = 0
        self._forget()

    def _forget(self) -> None:
        self._arrivals = RecordedArrivals()
        self._service = ServiceTime()
        self._policy = WindowPolicy(Goal(self._page.target_p99_ns, self._page.min_rate))

    def tick(
        self,
        mono_ns: int,
        packets: PacketForecast,
        delay_p99_ns: float,
        clocks: Sequence[PublishedClock],
        withheld: str,
    ) -> BatchItem:
        """Learn from the reports, choose, publish, and tell."""
        reported = self.server.poll()
        self._learn(reported, mono_ns)
        scale = packets.scale(self._arrivals.span_ns)
        reason = self._why_none()
        chosen = None
        if not reason:
            before_ns = delay_p99_ns if math.isfinite(delay_p99_ns) else 0.0
            streams = self._arrivals.streams(scale)
            chosen = self._policy.choose(streams, self._service.model(), self._service.largest, before_ns)
        valid_until_ns = 0
        reason = withheld or reason
        if chosen is not None and not reason:
            valid_until_ns = mono_ns + self._validity_ns
            self._publisher.publish_window(
                PublishedWindow(mono_ns, valid_until_ns, chosen.max_wait_us, chosen.max_items)
            )
        else:
            self._publisher.publish_window(PublishedWindow(mono_ns, 0, 0, 0))
        self._publisher.publish_clocks(mono_ns, clocks)
        return self._item(chosen, valid_until_ns, reason, scale, delay_p99_ns, _measure(reported))

    def _learn(self, reported: Sequence[Reported], mono_ns: int) -> None:
        if reported:
            self._reported_ns = mono_ns
        elif self._service.known and mono_ns - self._reported_ns > _AGE_OUT_NS:
            self._forget()
        self._arrivals.observe(reported, mono_ns)
        for told in reported:
            self._batches += len(told.items)
            self._service.observe(told.items, told.end_ns - told.start_ns)

    def _why_none(self) -> str:
        """Why there is no window to give; empty if there is."""
        if not len(self.server) and not self._arrivals.items:
            return "no consumer is attached"
        if not self._service.known:
            return "too few batches were reported"
        if self._arrivals.items < _MIN_ITEMS:
            return "too few items arrived lately"
        return ""

    def _item(
        self,
        chosen: Candidate | None,
        valid_until_ns: int,
        reason: str,
        scale: float,
        delay_p99_ns: float,
        measured: _Measured | None,
    ) -> BatchItem:
        per_s = self._arrivals.per_s
        service = self._service.model() if self._service.known else None
        return {
            "page": self._page.name,
            "max_wait_us": None if chosen is None else chosen.max_wait_us,
            "max_items": None if chosen is None else chosen.max_items,
            "valid_until_mono_ns": valid_until_ns,
            "reason": reason,
            "consumers": len(self.server),
            "batches": self._batches,
            "missed": self.server.missed,
            "refused": self.server.refused,
            "items_per_s": per_s,
            "expected_items_per_s": per_s * scale,
            "service_base_ns": None if service is None else service.base_ns,
            "service_item_ns": None if service is None else service.item_ns,
            "service_sigma_ns": None if service is None else self._service.sigma_ns,
            "delay_p99_ns": delay_p99_ns if math.isfinite(delay_p99_ns) else None,
            "predicted_p99_ns": None if chosen is None else chosen.p99_ns,
            "predicted_mean_ns": None if chosen is None else chosen.mean_ns,
            "measured_items": 0 if measured is None else measured.items,
            "measured_p99_ns": None if measured is None else measured.p99_ns,
            "measured_mean_ns": None if measured is None else measured.mean_ns,
            "target_p99_ns": self._page.target_p99_ns,
            "min_rate": self._page.min_rate,
        }


def _measure(reported: Iterable[Reported]) -> _Measured | None:
    latencies = [told.latency_ns for told in reported if len(told.latency_ns)]
    if not latencies:
        return None
    every_ns = np.concatenate(latencies)
    return _Measured(len(every_ns), float(np.percentile(every_ns, 99)), float(every_ns.mean()))
