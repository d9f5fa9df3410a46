"""`BatchWindow`: the batch window that holds now, for any consumer, without a system call."""

from __future__ import annotations

import logging
import operator
import threading
from collections.abc import Sequence
from pathlib import Path
from time import monotonic_ns
from typing import Self

from agent.batch.forks import renew_in_children
from agent.batch.layout import (
    DEFAULT_PAGE,
    MAX_VALIDITY_NS,
    STATE_DIR,
    WINDOW,
    PageError,
    PublishedWindow,
    Window,
    page_path,
    socket_path,
    unpack_window,
)
from agent.batch.page import LOOK_NS, FollowedPage
from agent.batch.reports import ReportLink

DEFAULT_WINDOW = Window(max_wait_us=2_000, max_items=16)

_log = logging.getLogger("agent.batch")
_SEQ = WINDOW.seq_index
_FOR_EVER_NS = 1 << 63


class BatchWindow:
    """The window on one of the agent's pages, or the consumer's own default where there is none to go by.

    No method raises because of the page: an agent that is not there, has gone, or whose page is damaged or not its
    own, means the default. `trouble` says why, and each new cause is logged once. Threads may share one.

    The agent makes windows of what consumers report: `Batcher` and `AsyncBatcher` do so, other loops call `report`.
    """

    def __init__(
        self,
        page: str = DEFAULT_PAGE,
        *,
        default: Window = DEFAULT_WINDOW,
        state_dir: Path = STATE_DIR,
        owner_uid: int = 0,
    ) -> None:
        """`owner_uid` is the user that the agent runs as: only a page of theirs is believed.

        Raises `ValueError` for a name that no page can have, or a default of no items or a negative wait; `TypeError`
        for one that is not in whole numbers.
        """
        self._followed = FollowedPage(page_path(state_dir, page), owner_uid)
        self._default = _checked(default)
        self._link = ReportLink(socket_path(state_dir, page), owner_uid)
        # What `read` looks at: `_current` is right while the sequence number stands and `_until_ns` has not passed.
        self._seq = 0
        self._until_ns = 0
        self._current = self._default
        self.trouble = ""
        """Why the default holds; empty while an agent's window does."""
        self.begin_anew()
        renew_in_children(self)
        self.read()

    def begin_anew(self) -> None:
        """In the child of a fork: no thread of the parent's holds anything here."""
        self._lock = threading.Lock()

    def read(self) -> Window:
        """The window that holds now."""
        now_ns = monotonic_ns()
        if self._followed.words[_SEQ] == self._seq and now_ns < self._until_ns:
            return self._current
        with self._lock:
            self._read_anew(now_ns)
        return self._current

    def report(self, arrivals_ns: Sequence[int], start_ns: int, end_ns: int, pending: int = 0) -> None:
        """Tell the agent of a batch, ns of `time.monotonic_ns()`.

        `arrivals_ns` is when each of its items arrived, `start_ns` and `end_ns` are when its processing began and was
        done, `pending` is how many items wait already. Never waits; while there is no agent, nobody is told.
        """
        self._link.report(arrivals_ns, start_ns, end_ns, pending)

    @property
    def report_trouble(self) -> str:
        """Why reports do not reach the agent; empty while they do."""
        return self._link.trouble

    def close(self) -> None:
        """Unmap the page and leave the agent. `read` gives the default from now on."""
        self._link.close()
        with self._lock:
            self._followed.drop()
            self._seq = 0
            self._current, self._until_ns = self._default, _FOR_EVER_NS
            self.trouble = "it was closed"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_anew(self, now_ns: int) -> None:
        """Find out what holds, when what was read before no longer does."""
        try:
            self._seq, body = self._followed.look(now_ns, bool(self.trouble)).body(WINDOW)
            self._believe(unpack_window(body), now_ns)
        except PageError as error:
            self._seq = self._followed.words[_SEQ]
            self._use_default(error.what, max(self._followed.look_ns, now_ns))

    def _believe(self, found: PublishedWindow, now_ns: int) -> None:
        if found.valid_until_ns == 0:
            self._use_default(
                "the agent has no window to give: its status view and telemetry say why", now_ns + LOOK_NS
            )
        elif found.valid_until_ns <= now_ns:
            raise PageError(
                f"the agent has not written {self._followed.path} for a while", "see whether it still runs"
            )
        elif found.valid_until_ns - now_ns > MAX_VALIDITY_NS or found.max_items < 1:
            raise PageError(
                f"the window in {self._followed.path} was not made on this host's clock", "restart the agent"
            )
        else:
            self._current = Window(found.max_wait_us, found.max_items, found.valid_until_ns)
            self._until_ns = found.valid_until_ns
            self.trouble = ""

    def _use_default(self, trouble: str, until_ns: int) -> None:
        """The default, for `trouble`, until `until_ns` or until the page changes."""
        self._current, self._until_ns = self._default, until_ns
        if trouble != self.trouble:
            self.trouble = trouble
            _log.warning("the default batch window holds: %s", trouble)


def _checked(default: Window) -> Window:
    """The default as a consumer gets it: one that holds no item would never be closed."""
    max_wait_us, max_items = operator.index(default.max_wait_us), operator.index(default.max_items)
    if max_wait_us < 0 or max_items < 1:
        raise ValueError(f"a window of {max_wait_us} us and {max_items} items: no batch can be formed by it")
    return Window(max_wait_us, max_items)
