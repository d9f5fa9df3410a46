"""The tick's stage: from what consumers report to the window and the clocks that they read."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from agent.batch import BatchWindow, Window
from agent.batch import window as window_module
from agent.batch.arrivals import PacketForecast
from agent.batch.clockshelf import ClockShelf
from agent.batch.layout import CLOCKS, unpack_clocks
from agent.batch.page import Page
from agent.batch.stage import BatchStage
from agent.clock.alignment import ClockName, Reading
from agent.errors import ConflictError
from agent.ffi.records import HIST_BUCKETS, hist_bucket
from agent.options import BatchPage
from agent.telemetry.schema import BatchItem
from tests.unit import telemetry_frames as sample

S = 1_000_000_000
MS = 1_000_000
TICK_NS = 200 * MS
UID = os.geteuid()
DEFAULT = Window(999, 5)
BASE_NS, ITEM_NS = 1_000_000, 200_000


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Consumers begin before there is a window, which they would say."""
    caplog.set_level(logging.ERROR)


class Scene:
    """A stage with one page, a consumer on it, and the time of both."""

    def __init__(self, state_dir: Path, page: BatchPage, set_clock: Callable[[int], None]) -> None:
        self.state_dir = state_dir
        self._set_clock = set_clock
        self.now_ns = time.monotonic_ns()
        set_clock(self.now_ns)
        # A batch may end a little after the tick in which its items arrived.
        self.stage = BatchStage(state_dir, [page], [UID], TICK_NS, lambda: self.now_ns + 50 * MS)
        self.window = self.consumer(page.name)
        self._rng = np.random.default_rng(4)

    def consumer(self, page: str = "default") -> BatchWindow:
        """One more consumer of a page."""
        return BatchWindow(page, default=DEFAULT, state_dir=self.state_dir, owner_uid=UID)

    def report(self, per_s: float) -> None:
        """What a consumer without a window did in this tick: it took, in turn, what was there."""
        arrivals = np.sort(self._rng.integers(0, TICK_NS, int(per_s * TICK_NS / S))) + self.now_ns
        free_ns, first = self.now_ns, 0
        while first < len(arrivals):
            start_ns = max(free_ns, int(arrivals[first])) + 1
            end = max(first + 1, int(np.searchsorted(arrivals, start_ns)))
            free_ns = start_ns + BASE_NS + ITEM_NS * (end - first)
            self.window.report(arrivals[first:end].tolist(), start_ns, free_ns)
            first = end

    def ticks(self, n: int, per_s: float = 1_000.0, withheld: str = "", packets: int = 0) -> BatchItem:
        """Some ticks; what the last one told."""
        for _ in range(n):
            if per_s:
                self.report(per_s)
            self.now_ns += TICK_NS
            self._set_clock(self.now_ns)
            (item,) = self.stage.tick(self.now_ns, packets, [], withheld)
        return item


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """A default page whose goal is the least latency."""

    def set_clock(now_ns: int) -> None:
        monkeypatch.setattr(window_module, "monotonic_ns", lambda: now_ns)

    scene = Scene(tmp_path, BatchPage("default"), set_clock)
    yield scene
    scene.stage.close()


def test_reports_become_a_window(scene: Scene) -> None:
    """Service times are found, the rate too, and the consumer reads what was chosen."""
    item = scene.ticks(15)
    assert item["service_base_ns"] == pytest.approx(BASE_NS, rel=0.05)
    assert item["service_item_ns"] == pytest.approx(ITEM_NS, rel=0.05)
    assert item["items_per_s"] == pytest.approx(1_000, rel=0.05)
    assert (item["consumers"], item["missed"], item["refused"], item["reason"]) == (1, 0, 0, "")
    window = scene.window.read()
    assert (window.max_wait_us, window.max_items) == (item["max_wait_us"], item["max_items"])
    assert window.valid_until_ns == item["valid_until_mono_ns"] > scene.now_ns


def test_predictions_are_what_is_measured(scene: Scene) -> None:
    """The consumer takes what is there, as (0, any) would: that window's prediction is what it measures."""
    item = scene.ticks(15)
    assert item["measured_items"] == 200
    assert item["measured_mean_ns"] == pytest.approx(item["predicted_mean_ns"], rel=0.3)
    assert item["measured_p99_ns"] == pytest.approx(item["predicted_p99_ns"], rel=0.4)


def test_nothing_is_published_before_anything_is_known(scene: Scene) -> None:
    """No consumer, then too few batches: the default holds, and the reason is told."""
    assert scene.ticks(1, per_s=0)["reason"] == "no consumer is attached"
    scene.window.report([scene.now_ns], scene.now_ns, scene.now_ns + 1)
    assert scene.ticks(1, per_s=0)["reason"] == "too few batches were reported"
    assert scene.window.read() == DEFAULT


def test_a_consumer_that_went_ages_out(scene: Scene) -> None:
    """2 s after its last item there is no window, after 10 s its service times are forgotten."""
    scene.ticks(10)
    scene.window.close()
    gone = scene.consumer()
    assert scene.ticks(12, per_s=0)["reason"] == "no consumer is attached"
    assert gone.read() == DEFAULT
    assert scene.ticks(1, per_s=0)["service_base_ns"] is not None
    assert scene.ticks(45, per_s=0)["service_base_ns"] is None


def test_a_withheld_window_is_told_and_not_published(scene: Scene) -> None:
    """Observing only: what would be given is in the telemetry, and the default holds."""
    item = scene.ticks(15, withheld="observing only")
    assert item["max_items"] is not None
    assert (item["reason"], item["valid_until_mono_ns"]) == ("observing only", 0)
    assert scene.window.read() == DEFAULT


def test_the_delay_before_consumers_counts(scene: Scene) -> None:
    """The p99 over all packets of the interface where it is the largest."""
    rows = np.zeros((2, HIST_BUCKETS), dtype=np.int64)
    rows[0, hist_bucket(20_000)] = 90
    rows[1, hist_bucket(3_000_000)] = 10
    quick = np.zeros(HIST_BUCKETS, dtype=np.int64)
    quick[hist_bucket(1_000)] = 50
    scene.stage.observe_delays([{(0, 0): rows[0], (0, 1): rows[1]}, {(0, 0): quick}, {}])
    delay_ns = scene.ticks(1)["delay_p99_ns"]
    assert delay_ns == pytest.approx(3_000_000, rel=0.1)


def test_pages_have_their_own_consumers_and_goals(tmp_path: Path, scene: Scene) -> None:
    """What is reported on one page moves no other."""
    stage = BatchStage(tmp_path, [BatchPage("left", 9 * MS), BatchPage("right", None, 50.0)], [UID], TICK_NS)
    left, right = stage.tick(scene.now_ns, 0, [])
    assert (left["page"], left["target_p99_ns"], left["min_rate"]) == ("left", 9 * MS, None)
    assert (right["page"], right["target_p99_ns"], right["min_rate"]) == ("right", None, 50.0)
    stage.close()


def test_all_pages_or_none(tmp_path: Path, scene: Scene) -> None:
    """If another agent has one of the pages, the others are given up again."""
    with pytest.raises(ConflictError, match="another agent"):
        BatchStage(tmp_path, [BatchPage("free"), BatchPage("default")], [UID], TICK_NS)
    assert not list(tmp_path.glob("batch-free")) + list(tmp_path.glob("batch-free.sock"))


def test_more_packets_mean_more_items(scene: Scene) -> None:
    """Packets that come twice as often are expected to bring items twice as often, before any is reported."""
    scene.ticks(12, packets=1_000)
    item = scene.ticks(2, packets=2_000)
    assert item["expected_items_per_s"] > 1.4 * item["items_per_s"]


def test_the_forecast_of_packets() -> None:
    """Steady: nothing to expect but the same; a ramp goes on; silence and floods are not believed for ever."""
    steady = PacketForecast(TICK_NS)
    for _ in range(20):
        steady.observe(500)
    assert steady.scale(2 * S) == pytest.approx(1.0)
    ramp = PacketForecast(TICK_NS)
    for n in range(20):
        ramp.observe(1_000 + 100 * n)
    assert ramp.scale(2 * S) * np.mean([1_000 + 100 * n for n in range(10, 20)]) == pytest.approx(
        3_000, rel=0.05
    )
    flood = PacketForecast(TICK_NS)
    for packets in [10] * 9 + [100_000]:
        flood.observe(packets)
    assert flood.scale(2 * S) == 2.0
    assert PacketForecast(TICK_NS).scale(2 * S) == 1.0


def test_traffic_that_has_just_begun_does_not_grow() -> None:
    """What is recorded of items is compared with the packets of the same span, not with the silence before it."""
    begun = PacketForecast(TICK_NS)
    for packets in [0] * 10 + [500] * 4:
        begun.observe(packets)
    assert 0.8 < begun.scale(4 * TICK_NS) < 1.3


def test_the_clocks_are_on_every_page(tmp_path: Path, scene: Scene) -> None:
    """Whatever is known of windows, consumers get the clocks."""
    reading = Reading(ClockName("eth1", "trailer", 0x0203), sample.report(), 0)
    scene.stage.tick(scene.now_ns, 0, [reading])
    _, body = Page(tmp_path / "batch", UID).body(CLOCKS)
    assert unpack_clocks(body) == ClockShelf().take([reading])
