"""How consumers tell the agent what their batches took: through memory that each has of its own.

The agent makes the memory (a memfd whose size is sealed), a piece for each consumer, and hands it over its socket. So
nobody but that consumer and the agent can write it, and nobody can make it shorter under the agent's reads.

    0     header: magic, version, size
    64    u64: batches reported so far
    128   ring of 256 batches
    8320  ring of 2048 arrivals of items, i64, ns of CLOCK_MONOTONIC
"""

from __future__ import annotations

import errno
import mmap
import os
import socket
import struct
import threading
from array import array
from collections.abc import Sequence
from pathlib import Path

from agent.batch.forks import renew_in_children
from agent.batch.layout import PageError

MAGIC = b"agentrep"
REPORTS_VERSION = 1
BATCHES = 256
ARRIVALS = 2048
HEADER = struct.Struct("<8sII")
COUNT_AT = 64
BATCHES_AT = 128
BATCH = struct.Struct("<qqIIII")
"""start_ns, end_ns, items, items that still waited, number of the batch, number of arrivals with this batch's."""
ARRIVALS_AT = BATCHES_AT + BATCHES * BATCH.size
SIZE = -(-(ARRIVALS_AT + 8 * ARRIVALS) // mmap.PAGESIZE) * mmap.PAGESIZE

GRANTED = b"granted"
MAX_ANSWER = 512
_U32 = 0xFFFFFFFF
# An agent looks at its socket once a tick; one that is not there may be started later.
_ANSWER_NS = 50_000_000
_RETRY_NS = 1_000_000_000
_NEVER_NS = 1 << 63
_PEER = struct.Struct("iII")


class ReportLink:
    """One consumer's way to the agent. Never waits, and never raises because of the agent.

    Until the agent has granted memory, and while there is no agent, reports are lost; `trouble` says why.
    """

    def __init__(self, path: Path, owner_uid: int) -> None:
        """`path` is the agent's socket, `owner_uid` the user that it runs as."""
        self._path = path
        self._owner_uid = owner_uid
        self.trouble = "nothing was reported yet"
        self._forget()
        self._lock = threading.Lock()
        renew_in_children(self)

    def begin_anew(self) -> None:
        """In the child of a fork: the memory is the parent's, and the lock may be held by a thread of it."""
        self._lock = threading.Lock()
        if self._look_ns != _NEVER_NS:
            self._leave("the process was forked", 0)

    def report(self, arrivals_ns: Sequence[int], start_ns: int, end_ns: int, pending: int) -> None:
        """Tell of a batch: when its items arrived, when the handler had it, and how many items wait already.

        Raises `TypeError` for what is no whole number, `OverflowError` beyond 64 bits; so it does without an agent.
        """
        arrivals = array("q", arrivals_ns[-ARRIVALS:])
        start_ns, end_ns, pending = array("q", (start_ns, end_ns, pending))
        with self._lock:
            if end_ns >= self._look_ns:
                self._look(end_ns)
            if self._memory is not None:
                self._write(self._memory, len(arrivals_ns), arrivals, start_ns, end_ns, pending)

    def close(self) -> None:
        """Leave the agent."""
        with self._lock:
            self._leave("it was closed", _NEVER_NS)

    def _forget(self) -> None:
        self._socket: socket.socket | None = None
        self._memory: mmap.mmap | None = None
        self._count = self._arrival_ring = memoryview(b"")
        self._arrivals = 0
        self._look_ns = 0

    def _write(
        self, memory: mmap.mmap, items: int, arrivals: array[int], start_ns: int, end_ns: int, pending: int
    ) -> None:
        at = self._arrivals
        for arrival_ns in arrivals:
            self._arrival_ring[at % ARRIVALS] = arrival_ns
            at += 1
        self._arrivals = at
        number = self._count[0]
        row = BATCHES_AT + number % BATCHES * BATCH.size
        BATCH.pack_into(memory, row, start_ns, end_ns, items, pending & _U32, number & _U32, at & _U32)
        # One aligned store of 64 bits, after what it counts.
        self._count[0] = number + 1

    def _look(self, now_ns: int) -> None:
        """Go one step on: connect, take the memory, or notice that the agent has gone."""
        try:
            if self._socket is None:
                self._socket = self._connect()
            message, fds, _, _ = socket.recv_fds(self._socket, MAX_ANSWER, 1)
        except BlockingIOError:
            self._look_ns = now_ns + _ANSWER_NS
        except (OSError, PageError) as error:
            self._leave(_why(self._path, error), now_ns + _RETRY_NS)
        else:
            self._take(message, fds, now_ns)

    def _take(self, message: bytes, fds: list[int], now_ns: int) -> None:
        try:
            if not message:
                self._leave("the agent has gone", now_ns)
            elif message == GRANTED and not fds:
                self._leave("no descriptor is left for the agent's memory", now_ns + _RETRY_NS)
            elif message != GRANTED:
                self._leave(message.decode(errors="replace"), now_ns + _RETRY_NS)
            else:
                self._map(fds[0])
                self._look_ns = now_ns + _ANSWER_NS
                self.trouble = ""
        except (OSError, PageError) as error:
            self._leave(_why(self._path, error), now_ns + _RETRY_NS)
        finally:
            for fd in fds:
                os.close(fd)

    def _map(self, fd: int) -> None:
        if os.fstat(fd).st_size != SIZE:
            raise PageError(
                "the agent's memory for reports is of another size", "use the same version on both sides"
            )
        memory = mmap.mmap(fd, SIZE)
        if HEADER.unpack_from(memory) != (MAGIC, REPORTS_VERSION, SIZE):
            raise PageError(
                "the agent's memory for reports is of another version", "use the same version on both sides"
            )
        words = memoryview(memory)
        self._memory = memory
        self._count = words[COUNT_AT : COUNT_AT + 8].cast("Q")
        self._arrival_ring = words[ARRIVALS_AT : ARRIVALS_AT + 8 * ARRIVALS].cast("q")

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            connection.connect(str(self._path))
            uid = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[1]
            if uid != self._owner_uid:
                raise PageError(
                    f"user {uid} listens on {self._path}, not user {self._owner_uid}, who runs the agent",
                    "see who put it there, or name the agent's user",
                )
        except BaseException:
            connection.close()
            raise
        return connection

    def _leave(self, trouble: str, look_ns: int) -> None:
        if self._socket is not None:
            self._socket.close()
        self._forget()
        self._look_ns = look_ns
        self.trouble = trouble


def _why(path: Path, error: OSError | PageError) -> str:
    if isinstance(error, PageError):
        return error.what
    if error.errno in (errno.ENOENT, errno.ECONNREFUSED):
        return f"no agent listens on {path}"
    return f"{path}: {error.strerror or error}"
