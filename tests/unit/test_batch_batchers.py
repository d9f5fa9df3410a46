"""Batches are formed as the window says, by threads and in an event loop; and results go where they belong."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agent.batch import AsyncBatcher, Batcher, BatcherFullError, Window
from agent.batch.consumers import ConsumerServer
from agent.batch.layout import PublishedWindow
from agent.batch.publisher import PagePublisher

S = 1_000_000_000
UID = os.geteuid()
HOUR_US = 3_600_000_000
TIMEOUT_S = 30


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Most tests have no page, which every consumer would say."""
    caplog.set_level(logging.ERROR)


class Handler:
    """Notes its batches; begins each only when it is let."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.entered = threading.Semaphore(0)
        self.leave = threading.Semaphore(0)

    def __call__(self, items: list[int]) -> Sequence[int]:
        self.batches.append(items)
        self.entered.release()
        assert self.leave.acquire(timeout=TIMEOUT_S)
        return [-item for item in items]


def threaded(handler: Any, state_dir: Path, window: Window, **options: Any) -> Batcher[int, int]:
    """A batcher of this test's user."""
    return Batcher(handler, default=window, state_dir=state_dir, owner_uid=UID, **options)


def doubled(items: list[int]) -> list[int]:
    """Results that can be told apart."""
    return [2 * item for item in items]


def test_a_full_batch_is_not_waited_for(tmp_path: Path) -> None:
    """As soon as it holds max_items it is handled, however long it might wait."""
    with threaded(doubled, tmp_path, Window(HOUR_US, 4)) as batcher:
        futures = [batcher.submit(item) for item in range(8)]
        assert [future.result(TIMEOUT_S) for future in futures] == [0, 2, 4, 6, 8, 10, 12, 14]


def test_a_batch_is_closed_when_its_oldest_item_has_waited(tmp_path: Path) -> None:
    """An item that arrived before max_wait has waited already; one alone is a batch."""
    handler = Handler()
    handler.leave.release()
    with threaded(handler, tmp_path, Window(10_000_000, 100)) as batcher:
        arrived_ns = time.monotonic_ns() - 10 * S
        assert batcher.submit(3, arrival_ns=arrived_ns).result(TIMEOUT_S) == -3
    assert handler.batches == [[3]]


def test_what_came_meanwhile_is_the_next_batch(tmp_path: Path) -> None:
    """With no wait at all, whatever came while the handler was busy goes together, in order, max_items at most."""
    handler = Handler()
    with threaded(handler, tmp_path, Window(0, 3)) as batcher:
        batcher.submit(0)
        assert handler.entered.acquire(timeout=TIMEOUT_S)
        for item in range(1, 6):
            batcher.submit(item)
        for _ in range(3):
            handler.leave.release()
    assert handler.batches == [[0], [1, 2, 3], [4, 5]]


def test_closing_handles_what_waits(tmp_path: Path) -> None:
    """Nothing that was accepted is lost, and nothing is accepted after it."""
    batcher = threaded(doubled, tmp_path, Window(HOUR_US, 100))
    futures = [batcher.submit(item) for item in range(5)]
    batcher.close()
    assert [future.result(0) for future in futures] == [0, 2, 4, 6, 8]
    with pytest.raises(RuntimeError, match="closed"):
        batcher.submit(1)


def test_a_failing_handler_fails_its_batch_only(tmp_path: Path) -> None:
    """Its items get the exception, the next batch its results."""

    def refuses_odd(items: list[int]) -> list[int]:
        if items[0] % 2:
            raise ArithmeticError("odd")
        return items

    with threaded(refuses_odd, tmp_path, Window(0, 1)) as batcher:
        odd, even = batcher.submit(1), batcher.submit(2)
        with pytest.raises(ArithmeticError, match="odd"):
            odd.result(TIMEOUT_S)
        assert even.result(TIMEOUT_S) == 2


def test_results_that_do_not_match_are_refused(tmp_path: Path) -> None:
    """A handler that gives too few results would give some item another's."""
    with threaded(lambda items: [1], tmp_path, Window(HOUR_US, 2)) as batcher:
        futures = [batcher.submit(item) for item in range(2)]
        for future in futures:
            with pytest.raises(ValueError, match="1 results for a batch of 2"):
                future.result(TIMEOUT_S)


def test_a_handler_without_results(tmp_path: Path) -> None:
    """One that gives None has handled each item all the same."""
    with threaded(lambda items: None, tmp_path, Window(0, 8)) as batcher:
        assert batcher.submit(1).result(TIMEOUT_S) is None


def test_there_is_a_most_of_waiting_items(tmp_path: Path) -> None:
    """A consumer that does not keep up is told so, instead of growing."""
    handler = Handler()
    with threaded(handler, tmp_path, Window(0, 1), capacity=2) as batcher:
        batcher.submit(0)
        assert handler.entered.acquire(timeout=TIMEOUT_S)
        batcher.submit(1)
        batcher.submit(2)
        with pytest.raises(BatcherFullError, match="2 items wait"):
            batcher.submit(3)
        for _ in range(3):
            handler.leave.release()
    assert handler.batches == [[0], [1], [2]]


def test_cancelled_items_are_left_out(tmp_path: Path) -> None:
    """Nobody waits for them any more."""
    handler = Handler()
    with threaded(handler, tmp_path, Window(0, 8)) as batcher:
        batcher.submit(0)
        assert handler.entered.acquire(timeout=TIMEOUT_S)
        assert batcher.submit(1).cancel()
        batcher.submit(2)
        handler.leave.release()
        handler.leave.release()
    assert handler.batches == [[0], [2]]


@pytest.mark.parametrize("arrival_ns", [-1, time.time_ns(), 1 << 70])
def test_an_arrival_on_another_clock_is_refused(tmp_path: Path, arrival_ns: int) -> None:
    """Wall time for monotonic time would make a batch wait for decades."""
    with (
        threaded(doubled, tmp_path, Window(0, 1)) as batcher,
        pytest.raises(ValueError, match="monotonic_ns"),
    ):
        batcher.submit(1, arrival_ns=arrival_ns)


def test_the_agents_window_holds_and_then_the_default(tmp_path: Path) -> None:
    """Batches follow the page; when the agent has gone, they are formed by the default, without an exception."""
    with threaded(doubled, tmp_path, Window(HOUR_US, 2)) as batcher:
        with PagePublisher(tmp_path, "default") as publisher:
            now_ns = time.monotonic_ns()
            publisher.publish_window(PublishedWindow(now_ns, now_ns + 50 * S, HOUR_US, 3))
            while batcher.window.read().max_items != 3:
                time.sleep(0.01)
            futures = [batcher.submit(item) for item in range(3)]
            assert [future.result(TIMEOUT_S) for future in futures] == [0, 2, 4]
        futures = [batcher.submit(item) for item in range(2)]
        assert [future.result(TIMEOUT_S) for future in futures] == [0, 2]
        assert batcher.window.trouble != ""


def test_the_agent_is_told_of_each_batch(tmp_path: Path) -> None:
    """How many items, and how long after their arrivals they were done."""
    with ConsumerServer(tmp_path, "default", [UID]) as server:
        with threaded(doubled, tmp_path, Window(0, 1)) as batcher:
            while not len(server) or batcher.window.report_trouble:
                batcher.submit(1).result(TIMEOUT_S)
                server.poll()
                time.sleep(0.01)
            server.poll()
            arrived_ns = time.monotonic_ns()
            batcher.submit(1, arrival_ns=arrived_ns).result(TIMEOUT_S)
            (told,) = server.poll()
        assert told.items.tolist() == [1]
        assert told.arrivals_ns.tolist() == [arrived_ns]
        assert told.latency_ns.tolist() == [int(told.end_ns[0]) - arrived_ns]


def test_an_arrival_that_is_no_whole_number_is_refused(tmp_path: Path) -> None:
    """Seconds as a float are not taken for ns: whoever submits is told, and the batcher goes on."""
    with threaded(doubled, tmp_path, Window(0, 1)) as batcher:
        with pytest.raises(TypeError, match="float"):
            batcher.submit(1, arrival_ns=time.monotonic())  # type: ignore[arg-type]
        assert batcher.submit(1).result(TIMEOUT_S) == 2


def test_after_a_fork_the_child_handles_its_own_items(tmp_path: Path) -> None:
    """A server that loads the service and then forks its workers: each has a thread, none the parent's items."""
    with threaded(doubled, tmp_path, Window(HOUR_US, 2)) as batcher:
        waiting = batcher.submit(1)
        child = os.fork()
        if child == 0:
            futures = [batcher.submit(item) for item in (10, 20)]
            os._exit(sum(future.result(TIMEOUT_S) or 0 for future in futures))
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 60
        assert batcher.submit(2).result(TIMEOUT_S) == 4
        assert waiting.result(TIMEOUT_S) == 2


def test_a_fork_while_locks_are_held_leaves_the_child_free(tmp_path: Path) -> None:
    """The thread that held a lock at the fork does not exist in the child, which does not wait for it."""
    with threaded(doubled, tmp_path, Window(0, 1)) as batcher:
        window = batcher.window
        with batcher._news, window._lock, window._link._lock:
            child = os.fork()
            if child == 0:
                os._exit(batcher.submit(10).result(TIMEOUT_S) or 0)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 20


# ---- asyncio ---------------------------------------------------------------------------------------------------


async def doubled_later(items: list[int]) -> list[int]:
    """Results after the loop went on."""
    await asyncio.sleep(0)
    return doubled(items)


def in_loop(handler: Any, state_dir: Path, window: Window, **options: Any) -> AsyncBatcher[int, int]:
    """A batcher of this test's user."""
    return AsyncBatcher(handler, default=window, state_dir=state_dir, owner_uid=UID, **options)


def test_tasks_share_batches(tmp_path: Path) -> None:
    """Items of many tasks are handled together, and each task gets its own result."""
    batches = []

    async def handler(items: list[int]) -> list[int]:
        batches.append(len(items))
        return doubled(items)

    async def run() -> list[int | None]:
        async with in_loop(handler, tmp_path, Window(HOUR_US, 4)) as batcher:
            return await asyncio.gather(*(batcher.submit(item) for item in range(8)))

    assert asyncio.run(asyncio.wait_for(run(), TIMEOUT_S)) == [0, 2, 4, 6, 8, 10, 12, 14]
    assert batches == [4, 4]


def test_a_task_alone_is_a_batch_after_the_wait(tmp_path: Path) -> None:
    """It is closed when its oldest item has waited, with whatever it holds."""

    async def run() -> int | None:
        async with in_loop(doubled_later, tmp_path, Window(2_000, 100)) as batcher:
            return await batcher.submit(21)

    assert asyncio.run(asyncio.wait_for(run(), TIMEOUT_S)) == 42


def test_closing_in_the_loop_handles_what_waits(tmp_path: Path) -> None:
    """Nothing that was accepted is lost, and nothing is accepted after it."""

    async def run() -> list[int | None]:
        batcher = in_loop(doubled_later, tmp_path, Window(HOUR_US, 100))
        batcher.start()
        tasks = [asyncio.create_task(batcher.submit(item)) for item in range(3)]
        await asyncio.sleep(0)
        await batcher.close()
        with pytest.raises(RuntimeError, match="does not run"):
            await batcher.submit(1)
        return await asyncio.gather(*tasks)

    assert asyncio.run(asyncio.wait_for(run(), TIMEOUT_S)) == [0, 2, 4]


def test_a_failing_handler_in_the_loop_fails_its_batch_only(tmp_path: Path) -> None:
    """Its items get the exception, the next batch its results."""

    async def refuses_odd(items: list[int]) -> list[int]:
        if items[0] % 2:
            raise ArithmeticError("odd")
        return items

    async def run() -> Sequence[object]:
        async with in_loop(refuses_odd, tmp_path, Window(0, 1)) as batcher:
            return await asyncio.gather(batcher.submit(1), batcher.submit(2), return_exceptions=True)

    failed, done = asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))
    assert isinstance(failed, ArithmeticError)
    assert done == 2


def test_a_cancelled_task_leaves_the_others(tmp_path: Path) -> None:
    """Its item is left out of a batch that is not begun."""
    batches = []

    async def handler(items: list[int]) -> list[int]:
        batches.append(items)
        return items

    async def run() -> int:
        async with in_loop(handler, tmp_path, Window(HOUR_US, 3)) as batcher:
            tasks = [asyncio.create_task(batcher.submit(item)) for item in range(2)]
            await asyncio.sleep(0)
            tasks[0].cancel()
            await asyncio.sleep(0)
            await batcher.submit(2)
            return await tasks[1] or 0

    assert asyncio.run(asyncio.wait_for(run(), TIMEOUT_S)) == 1
    assert batches == [[1, 2]]


def test_a_handler_whose_helper_was_cancelled_fails_its_batch_only(tmp_path: Path) -> None:
    """A task that a handler waits for may be cancelled: its items are, and the next batch is handled."""

    async def handler(items: list[int]) -> list[int]:
        if items == [1]:
            helper = asyncio.create_task(asyncio.sleep(TIMEOUT_S))
            helper.cancel()
            await helper
        return doubled(items)

    async def run() -> int | None:
        async with in_loop(handler, tmp_path, Window(0, 1)) as batcher:
            with pytest.raises(asyncio.CancelledError):
                await batcher.submit(1)
            return await batcher.submit(2)

    assert asyncio.run(asyncio.wait_for(run(), TIMEOUT_S)) == 4


def test_nobody_waits_for_a_batcher_that_was_cancelled(tmp_path: Path) -> None:
    """Whoever cancels all tasks cancels the batcher: its items end as cancelled, later ones are refused."""

    async def run() -> list[object]:
        batcher = in_loop(doubled_later, tmp_path, Window(HOUR_US, 2))
        others = asyncio.all_tasks()
        batcher.start()
        (own,) = asyncio.all_tasks() - others
        tasks = [asyncio.create_task(batcher.submit(1))]
        await asyncio.sleep(0)
        own.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        with pytest.raises(RuntimeError, match="does not run"):
            await batcher.submit(2)
        await batcher.close()
        return list(results)

    (result,) = asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))
    assert isinstance(result, asyncio.CancelledError)


def test_another_event_loop_is_refused(tmp_path: Path) -> None:
    """A result could not wake a task of another thread's loop: it is told so instead of waiting for ever."""

    async def run() -> None:
        async with in_loop(doubled_later, tmp_path, Window(0, 1)) as batcher:
            with pytest.raises(RuntimeError, match="another event loop"):
                await asyncio.to_thread(asyncio.run, batcher.submit(1))

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


def test_a_closed_batcher_is_not_started_again(tmp_path: Path) -> None:
    """It has left the agent; a service that is started twice needs one each time."""

    async def run() -> None:
        batcher = in_loop(doubled_later, tmp_path, Window(0, 1))
        async with batcher:
            pass
        with pytest.raises(RuntimeError, match="make another one"):
            batcher.start()

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))
