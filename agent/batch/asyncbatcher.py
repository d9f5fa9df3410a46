"""`AsyncBatcher`: items from the tasks of an event loop, handled in batches by a task of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from time import monotonic_ns
from typing import Generic, Self

from agent.batch.layout import DEFAULT_PAGE, STATE_DIR, Window
from agent.batch.waiting import Entry, ItemT, ResultT, Waiting, results_of
from agent.batch.window import DEFAULT_WINDOW, BatchWindow


class AsyncBatcher(Generic[ItemT, ResultT]):
    """As `Batcher`, for asyncio: `async with AsyncBatcher(handler) as batcher: result = await batcher.submit(item)`.

    The handler is awaited in a task; one that computes hands that to a thread (`asyncio.to_thread`), so that items go
    on arriving. asyncio's timers end on whole milliseconds: a batch may wait up to 1 ms longer than the window says.
    """

    def __init__(
        self,
        handler: Callable[[list[ItemT]], Awaitable[Sequence[ResultT] | None]],
        *,
        default: Window = DEFAULT_WINDOW,
        page: str = DEFAULT_PAGE,
        capacity: int = 4096,
        state_dir: Path = STATE_DIR,
        owner_uid: int = 0,
    ) -> None:
        """`handler` gets a batch, and gives as many results as it has items, or None. At most `capacity` items wait.

        `page`, `state_dir` and `owner_uid` as in `BatchWindow`.
        """
        self.window = BatchWindow(page, default=default, state_dir=state_dir, owner_uid=owner_uid)
        """What the batches are formed by."""
        self._handler = handler
        self._waiting: Waiting[ItemT, asyncio.Future[ResultT | None]] = Waiting(self.window, capacity)
        self._news = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    async def submit(self, item: ItemT, *, arrival_ns: int | None = None) -> ResultT | None:
        """Add an item, and return its result when its batch is done; or raise what that ended with.

        `arrival_ns` is when it arrived, on `time.monotonic_ns()`, if that was before now. Raises `BatcherFullError` if
        too many items wait, `ValueError` for an arrival to come, `TypeError` for one that is no whole number,
        `RuntimeError` before `start`, after `close`, and in another event loop than that of `start`.
        """
        if self._task is None or self._closing:
            raise RuntimeError("the batcher does not run")
        loop = asyncio.get_running_loop()
        if loop is not self._task.get_loop():
            raise RuntimeError("the batcher runs in another event loop: make one for each")
        future: asyncio.Future[ResultT | None] = loop.create_future()
        if self._waiting.put(item, arrival_ns, future):
            self._news.set()
        return await future

    def start(self) -> None:
        """Begin to handle batches in the running event loop; `async with` does so by itself.

        Raises `RuntimeError` after `close`.
        """
        if self._closing:
            raise RuntimeError("the batcher was closed: make another one")
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Handle what waits, at once, and end. Returns when that is done."""
        self._closing = True
        self._news.set()
        try:
            if self._task is not None and not self._task.done():
                await self._task
        finally:
            self.window.close()

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self) -> None:
        try:
            while batch := await self._next_batch():
                await self._handle([entry for entry in batch if not entry.future.done()])
        finally:
            # Cancelled, as the end of `asyncio.run` does with every task: nobody is to wait for what never comes.
            self._closing = True
            while rest := self._waiting.take():
                for entry in rest:
                    entry.future.cancel()

    async def _next_batch(self) -> list[Entry[ItemT, asyncio.Future[ResultT | None]]]:
        """The next batch when it is closed; an empty one at the end."""
        while True:
            self._news.clear()
            closes_in_ns = self._waiting.closes_in_ns()
            if self._closing or (closes_in_ns is not None and closes_in_ns <= 0):
                return self._waiting.take()
            with contextlib.suppress(TimeoutError):
                # Not wait_for: before Python 3.12 it may swallow a cancellation that meets the news.
                async with asyncio.timeout(None if closes_in_ns is None else closes_in_ns / 1e9):
                    await self._news.wait()

    async def _handle(self, batch: list[Entry[ItemT, asyncio.Future[ResultT | None]]]) -> None:
        if not batch:  # all of it was cancelled
            return
        start_ns = monotonic_ns()
        try:
            results = results_of(await self._handler([entry.item for entry in batch]), len(batch))
        except asyncio.CancelledError:
            for entry in batch:
                entry.future.cancel()
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Something that the handler waited for was cancelled, not the batcher: that is this batch's business.
            return
        except Exception as error:
            # Whoever waits for a result gets it; the batches after it are not its business.
            for entry in batch:
                if not entry.future.done():
                    entry.future.set_exception(error)
            return
        self.window.report(
            [entry.arrival_ns for entry in batch], start_ns, monotonic_ns(), len(self._waiting)
        )
        for entry, result in zip(batch, results, strict=True):
            if not entry.future.done():
                entry.future.set_result(result)
