"""The agent's side of the reports: who may report, what each is given, and what of it is believed.

A consumer is anybody's process. What it writes is checked value by value, it can neither hold up the agent nor make its
memory shorter, and its reports count for one page only.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from agent.batch import reports
from agent.batch.layout import socket_path
from agent.errors import UnsupportedError

MAX_CONSUMERS = 2048
# Reports of longer ago, or longer batches, tell nothing about the next one.
_MEMORY_NS = 10_000_000_000
_MAX_ITEMS = 1 << 16
# Nobody handles more batches than this in a tick; and no sum of a few such counts leaves telemetry's 64 bits.
_MAX_FRESH = 1 << 24
_BACKLOG = 1024
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_PEER = struct.Struct("iII")
_U32 = 0xFFFFFFFF
_BATCH_DTYPE = np.dtype(
    {
        "names": ["start_ns", "end_ns", "items", "pending", "number", "arrivals"],
        "formats": ["<i8", "<i8", "<u4", "<u4", "<u4", "<u4"],
    }
)
assert _BATCH_DTYPE.itemsize == reports.BATCH.size

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Reported:
    """What one consumer told since the poll before: its batches in their order, and the arrivals of their items.

    All int64[batches] but `arrivals_ns`, int64[items] in ascending order; ns of CLOCK_MONOTONIC. `latency_ns`,
    int64[items], is how long after its arrival an item's batch was done; empty where arrivals are missing.
    """

    consumer: int
    """Numbers the consumers of a page in the order in which they came."""
    start_ns: IntArray
    end_ns: IntArray
    items: IntArray
    pending: IntArray
    arrivals_ns: IntArray
    latency_ns: IntArray


class _Consumer:
    """One that was granted memory."""

    def __init__(self, number: int, connection: socket.socket, memory: mmap.mmap) -> None:
        self.number = number
        self.connection = connection
        self._count = memoryview(memory)[reports.COUNT_AT : reports.COUNT_AT + 8].cast("Q")
        self._batches = np.frombuffer(memory, _BATCH_DTYPE, reports.BATCHES, reports.BATCHES_AT)
        self._arrivals = np.frombuffer(memory, "<i8", reports.ARRIVALS, reports.ARRIVALS_AT)
        self._batches_read = 0
        self._arrivals_read = 0
        self.missed = 0
        self.refused = 0

    def read(self, clock: Callable[[], int]) -> Reported | None:
        """What it reported since the call before, as far as it can be true; None for nothing."""
        written = self._count[0]
        # Only now: what was counted by then is not of the future.
        now_ns = clock()
        if written == self._batches_read:
            return None
        fresh = written - self._batches_read
        if not 0 < fresh <= _MAX_FRESH:
            # Nobody unwrites a batch, or handles so many: begin again from here.
            self._batches_read = written
            self.refused += 1
            return None
        first = max(self._batches_read, written - reports.BATCHES)
        self.missed += first - self._batches_read
        self._batches_read = written
        numbers = np.array([number & _U32 for number in range(first, written)], dtype=np.int64)
        rows = self._batches[numbers % reports.BATCHES]
        start_ns, end_ns = rows["start_ns"], rows["end_ns"]
        items = rows["items"].astype(np.int64)
        good = (
            (rows["number"] == numbers)
            & (start_ns < end_ns)
            & (start_ns >= now_ns - _MEMORY_NS)
            & (end_ns <= now_ns)
            & (items >= 1)
            & (items <= _MAX_ITEMS)
        )
        arrivals_ns, whole = self._read_arrivals(int(rows["arrivals"][-1]), now_ns)
        self.refused += int(np.count_nonzero(~good))
        latency_ns = np.zeros(0, dtype=np.int64)
        if whole and good.all() and int(items.sum()) == len(arrivals_ns):
            latency_ns = np.repeat(end_ns, items) - arrivals_ns
            if (latency_ns < 0).any():
                latency_ns = latency_ns[:0]
        return Reported(
            consumer=self.number,
            start_ns=start_ns[good],
            end_ns=end_ns[good],
            items=items[good],
            pending=rows["pending"][good].astype(np.int64),
            arrivals_ns=np.sort(arrivals_ns),
            latency_ns=latency_ns,
        )

    def _read_arrivals(self, end: int, now_ns: int) -> tuple[IntArray, bool]:
        """The arrivals up to number `end` (of 32 bits), and whether they are all that there were."""
        fresh = (end - self._arrivals_read) & _U32
        whole = fresh <= reports.ARRIVALS
        numbers = np.arange(end - min(fresh, reports.ARRIVALS), end)
        self._arrivals_read = end
        arrivals_ns = self._arrivals[numbers % reports.ARRIVALS]
        good = (arrivals_ns >= now_ns - _MEMORY_NS) & (arrivals_ns <= now_ns)
        return arrivals_ns[good], whole and bool(good.all())


class ConsumerServer:
    """The socket of one page, and its consumers. Never blocks; `poll` it once a tick. A context manager."""

    def __init__(
        self,
        state_dir: Path,
        page: str,
        uids: Iterable[int],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`uids` are the users whose reports are taken. Only the writer of a page may make its server.

        Raises `UnsupportedError` if the socket cannot be made.
        """
        self.path = socket_path(state_dir, page)
        self._uids = frozenset(uids)
        self._clock = clock
        self._consumers: dict[int, _Consumer] = {}
        self._count = 0
        self._missed = self._refused = 0
        self._turned_away: set[str] = set()
        self._notes: list[str] = []
        self._poller = select.epoll()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            self.path.unlink(missing_ok=True)  # a killed agent's
            self._listener.bind(str(self.path))
            # Anybody may ask; who may report is decided by the peer's credentials.
            self.path.chmod(0o666)
            self._listener.listen(_BACKLOG)
        except OSError as error:
            self._listener.close()
            self._poller.close()
            raise UnsupportedError(
                f"the socket {self.path} cannot be made: {error.strerror or error}", "check --state-dir"
            ) from error

    def __len__(self) -> int:
        """How many consumers there are."""
        return len(self._consumers)

    @property
    def missed(self) -> int:
        """Batches that were overwritten before they were read."""
        return self._missed + sum(consumer.missed for consumer in self._consumers.values())

    @property
    def refused(self) -> int:
        """Batches that cannot have been as they were reported."""
        return self._refused + sum(consumer.refused for consumer in self._consumers.values())

    def poll(self) -> list[Reported]:
        """Let consumers in and out; returns what those that reported something told."""
        for fd, _ in self._poller.poll(0):
            # A consumer has nothing to send: it has gone, or it isn't one.
            self._drop(fd)
        self._accept()
        reads = (consumer.read(self._clock) for consumer in self._consumers.values())
        return [told for told in reads if told is not None]

    def take_notes(self) -> list[str]:
        """What was noticed since the call before, for people."""
        notes, self._notes = self._notes, []
        return notes

    def close(self) -> None:
        """Let all consumers go, and remove the socket."""
        for fd in list(self._consumers):
            self._drop(fd)
        self._listener.close()
        self._poller.close()
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        for _ in range(_BACKLOG):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # No descriptor or memory left: those who wait are let in later.
                self._note(f"{self.path}: no consumer can be let in: {error.strerror}")
                return
            self._admit(connection)

    def _admit(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        pid, uid, _ = _PEER.unpack(credentials)
        refusal = ""
        if uid not in self._uids:
            refusal = f"user {uid} may not report on {self.path}: start the agent with --batch-user"
        elif len(self._consumers) >= MAX_CONSUMERS:
            refusal = f"{self.path} has {MAX_CONSUMERS} consumers already"
        try:
            if refusal:
                self._note(f"process {pid} was turned away: {refusal}", refusal)
                connection.send(refusal.encode()[: reports.MAX_ANSWER])
                connection.close()
            else:
                self._grant(connection)
        except OSError as error:
            connection.close()
            # It left while it was being let in, which is its own business; or we have no memory for it.
            if not isinstance(error, BrokenPipeError):
                self._note(f"{self.path}: a consumer was not let in: {error.strerror}")

    def _grant(self, connection: socket.socket) -> None:
        fd = os.memfd_create("agent-reports", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, reports.SIZE)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            memory = mmap.mmap(fd, reports.SIZE)
            reports.HEADER.pack_into(memory, 0, reports.MAGIC, reports.REPORTS_VERSION, reports.SIZE)
            socket.send_fds(connection, [reports.GRANTED], [fd])
        finally:
            os.close(fd)
        self._poller.register(connection, select.EPOLLIN | select.EPOLLRDHUP)
        self._consumers[connection.fileno()] = _Consumer(self._count, connection, memory)
        self._count += 1

    def _drop(self, fd: int) -> None:
        consumer = self._consumers.pop(fd)
        self._missed += consumer.missed
        self._refused += consumer.refused
        with contextlib.suppress(OSError):
            self._poller.unregister(fd)
        consumer.connection.close()

    def _note(self, text: str, key: str = "") -> None:
        """Note it, of each kind once."""
        if (key or text) not in self._turned_away:
            self._turned_away.add(key or text)
            self._notes.append(text)
