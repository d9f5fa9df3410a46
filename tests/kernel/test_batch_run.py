"""`agent run --batch` and consumers of it, as processes of their own: windows, clocks, kills."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from agent.batch import Batcher, BatchWindow, Window
from agent.stamp import PhcClock
from tests.kernel.agent_run import AgentRun, Frame
from tests.kernel.conftest import MakeTestbed
from tools.testbed import Testbed

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and BPF"),
]

DEFAULT = Window(max_wait_us=1_500, max_items=6)
BASE_S, ITEM_S = 0.002, 0.0005


def work(items: list[int]) -> None:
    """A handler that takes 2 ms a batch and 0.5 ms an item, and a little for being woken."""
    time.sleep(BASE_S + ITEM_S * len(items))


class Load:
    """A consumer, and a thread that gives it items at random times, 300 a second."""

    def __init__(self, batcher: Batcher[int, None]) -> None:
        self._batcher = batcher
        self._end = threading.Event()
        self.failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        gaps_s = np.random.default_rng(1).exponential(1 / 300, 100_000)
        for n, gap_s in enumerate(gaps_s.tolist()):
            if self._end.wait(gap_s):
                return
            try:
                self._batcher.submit(n)
            except BaseException as error:
                self.failures.append(error)
                return

    def stop(self) -> None:
        """End it; it must not have failed."""
        self._end.set()
        self._thread.join()
        assert self.failures == []


@pytest.fixture
def bed(testbed: MakeTestbed) -> Testbed:
    """Traffic with stamps of a clock that drifts."""
    bed = testbed(queues=1, flows=4, rate_pps=2_000, drift_ppb=12_000, wander_ppb_per_sqrt_s=0.0)
    bed.start_traffic()
    return bed


@pytest.fixture
def load(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Load]:
    """A consumer with items to handle; it begins before there is an agent."""
    caplog.set_level(logging.ERROR)
    batcher: Batcher[int, None] = Batcher(work, default=DEFAULT, state_dir=tmp_path)
    with batcher:
        load = Load(batcher)
        yield load
        load.stop()


def is_published(frame: Frame) -> bool:
    """Whether consumers were given a window."""
    return bool(frame["valid_until_mono_ns"] > 0)


def test_a_consumer_gets_a_window_made_of_its_own_service_times(
    bed: Testbed, load: Load, tmp_path: Path
) -> None:
    """The fit finds what a batch takes; the consumer reads the window that the telemetry tells of."""
    with AgentRun(bed.cap, tmp_path, "--stamp", "trailer", "--observe", "--batch") as run:
        run.wait_for("batch", lambda frame: frame["batches"] > 200)
        assert all(
            frame["reason"] == "observing only" for frame in run.of_kind("batch") if frame["max_items"]
        )
        assert run.stop() == 0
    with AgentRun(bed.cap, tmp_path, "--stamp", "trailer", "--batch") as run:
        frame = run.wait_for("batch", lambda frame: is_published(frame) and frame["batches"] > 200)
        window = BatchWindow(state_dir=tmp_path).read()
        assert window.valid_until_ns > 0
        told = [(item["max_wait_us"], item["max_items"]) for item in run.of_kind("batch")]
        assert (window.max_wait_us, window.max_items) in told
        assert 0.5 * BASE_S < frame["service_base_ns"] / 1e9 < 3 * BASE_S
        assert frame["consumers"] == 1
        assert frame["items_per_s"] == pytest.approx(300, rel=0.3)
        assert run.stop() == 0
    assert not list(tmp_path.glob("*.sock"))
    assert not (tmp_path / "batch").exists()


def test_a_killed_agent_means_the_default_within_its_promise(
    bed: Testbed, load: Load, tmp_path: Path
) -> None:
    """After SIGKILL the window ends when it said; the consumer goes on; the next agent takes over."""
    with AgentRun(bed.cap, tmp_path, "--stamp", "none", "--batch") as run:
        run.wait_for("batch", is_published)
        window = BatchWindow(default=DEFAULT, state_dir=tmp_path)
        until_ns = window.read().valid_until_ns
        assert until_ns > 0
        run.process.kill()
        run.process.wait()
        until_ns = max(until_ns, window.read().valid_until_ns)
        while time.monotonic_ns() < until_ns:
            time.sleep(0.01)
        assert window.read() == DEFAULT
    with AgentRun(bed.cap, tmp_path, "--stamp", "none", "--batch") as run:
        run.wait_for("batch", is_published)
        while window.read() == DEFAULT:
            time.sleep(0.01)
        assert run.stop() == 0


def test_consumers_know_the_clock_within_its_bound(bed: Testbed, tmp_path: Path) -> None:
    """The switch's clock at 100 instants of 2 s, by the page, against the truth that its stamps were made of."""
    flags = ("--stamp", "trailer", "--observe", "--batch", "cameras")
    with AgentRun(bed.cap, tmp_path, *flags) as run:
        run.wait_until(lambda: sum(frame["state"] == "relative" for frame in run.of_kind("clock")) > 15)
        clock = PhcClock("cap0", page="cameras", state_dir=tmp_path)
        told = []
        for _ in range(100):
            mono_ns = time.monotonic_ns()
            told.append((mono_ns, clock.time(mono_ns)))
            time.sleep(0.02)
        assert run.stop() == 0
    truth = bed.phc.truth()
    for mono_ns, found in told:
        assert found is not None
        assert abs(found.phc_ns - int(truth.phc_ns(mono_ns))) <= found.bound_ns < 200_000
    assert clock.time(time.monotonic_ns() + 3 * 10**9) is None


def test_two_agents_do_not_write_one_page(bed: Testbed, tmp_path: Path) -> None:
    """The second is refused with exit code 4, and says whose it is and what to do."""
    with AgentRun(bed.cap, tmp_path, "--stamp", "none", "--batch", interfaces=("cap0",)) as run:
        run.started()
        with AgentRun(bed.cap, tmp_path, "--stamp", "none", "--batch", interfaces=("lo",)) as second:
            assert second.wait() == 4
            assert "another agent writes the page" in second.said()
        assert run.stop() == 0
