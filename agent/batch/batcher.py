"""`Batcher`: items from any thread, handled in batches by a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from time import monotonic_ns
from typing import Generic, Self

from agent.batch.forks import renew_in_children
from agent.batch.layout import DEFAULT_PAGE, STATE_DIR, Window
from agent.batch.waiting import Entry, ItemT, ResultT, Waiting, results_of
from agent.batch.window import DEFAULT_WINDOW, BatchWindow


class Batcher(Generic[ItemT, ResultT]):
    """Hands items to a handler in batches, as the agent's window says, and tells the agent what they took.

    A batch is closed when its oldest item has waited for `max_wait_us`, or when it holds `max_items`; what came while
    the handler was busy has waited already. Without an agent, the default window holds. A context manager.

    Its thread begins with the first item. In the child of a fork it has none of the parent's items, and a thread of its
    own: a server may load the service first and fork its workers then.
    """

    def __init__(
        self,
        handler: Callable[[list[ItemT]], Sequence[ResultT] | None],
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
        self._capacity = capacity
        self._closing = False
        self.begin_anew()
        renew_in_children(self)

    def begin_anew(self) -> None:
        """In the child of a fork: without the items that the parent handles, and the thread that it has."""
        self._waiting: Waiting[ItemT, Future[ResultT | None]] = Waiting(self.window, self._capacity)
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None

    def submit(self, item: ItemT, *, arrival_ns: int | None = None) -> Future[ResultT | None]:
        """Add an item; returns the future of its result, or of the exception that its batch ended with.

        `arrival_ns` is when it arrived, on `time.monotonic_ns()`, if that was before now. Raises `BatcherFullError` if
        too many items wait, `ValueError` for an arrival to come, `TypeError` for one that is no whole number,
        `RuntimeError` after `close`.
        """
        future: Future[ResultT | None] = Future()
        with self._news:
            if self._closing:
                raise RuntimeError("the batcher was closed")
            if self._waiting.put(item, arrival_ns, future):
                self._news.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="batcher", daemon=True)
                self._thread.start()
        return future

    def close(self) -> None:
        """Handle what waits, at once, and end. Returns when that is done."""
        with self._news:
            self._closing = True
            self._news.notify()
        if self._thread is not None:
            self._thread.join()
        self.window.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        while batch := self._next_batch():
            self._handle([entry for entry in batch if entry.future.set_running_or_notify_cancel()])

    def _next_batch(self) -> list[Entry[ItemT, Future[ResultT | None]]]:
        """The next batch when it is closed; an empty one at the end."""
        with self._news:
            while True:
                closes_in_ns = self._waiting.closes_in_ns()
                if self._closing or (closes_in_ns is not None and closes_in_ns <= 0):
                    return self._waiting.take()
                self._news.wait(None if closes_in_ns is None else closes_in_ns / 1e9)

    def _handle(self, batch: list[Entry[ItemT, Future[ResultT | None]]]) -> None:
        if not batch:  # all of it was cancelled
            return
        start_ns = monotonic_ns()
        try:
            results = results_of(self._handler([entry.item for entry in batch]), len(batch))
        except BaseException as error:
            # Whoever waits for a result gets it, as with an executor; the batches after it are not its business.
            for entry in batch:
                entry.future.set_exception(error)
            return
        self.window.report(
            [entry.arrival_ns for entry in batch], start_ns, monotonic_ns(), len(self._waiting)
        )
        for entry, result in zip(batch, results, strict=True):
            entry.future.set_result(result)
