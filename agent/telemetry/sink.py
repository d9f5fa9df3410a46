"""Where frames leave the process: a bounded queue and a thread that writes, so that no reader can hold up the loop."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import socket
import stat
import threading
import time
from collections import deque
from dataclasses import dataclass

from agent.errors import UnsupportedError, UsageError
from agent.telemetry.schema import SinkHealth

DEFAULT_MAX_BYTES = 8 << 20

# POLLOUT on a pipe means that one buffer (a page) is free: a write of at most this never blocks, even though the
# descriptor is blocking. O_NONBLOCK would be set for everybody who shares the pipe or the terminal.
_PIPE_CHUNK = min(select.PIPE_BUF, 4096)
_FILE_CHUNK = 256 << 10
# A full disk or quota may pass.
_TRANSIENT = (errno.ENOSPC, errno.EDQUOT, errno.ENOBUFS, errno.ENOMEM)
_RETRY_S = 0.5
_JOIN_MARGIN_S = 0.2
_READER_GONE = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.ESHUTDOWN)


@dataclass(slots=True)
class _Queued:
    data: bytes
    keep: bool


class Sink:
    """A byte stream of whole frames to a pipe, file, socket or terminal.

    `put` never blocks. When the queue is over its size, the oldest frames are dropped whole and counted; a frame of
    which some bytes are out is finished first, so that the reader's stream is never torn. Nobody else may write to
    the descriptor meanwhile. It stays the caller's, to be closed after `close`.
    """

    def __init__(self, fd: int, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        """Start the writer. Raises `UsageError` if `fd` cannot be written to, `UnsupportedError` without a thread."""
        self._fd = fd
        self._max_bytes = max_bytes
        try:
            mode = os.fstat(fd).st_mode
            if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
                raise OSError(errno.EBADF, "it is open for reading only")
        except OSError as error:
            raise UsageError(
                f"cannot write telemetry to file descriptor {fd}: {error.strerror}",
                "give it a pipe or a file",
            ) from error
        self._is_file = stat.S_ISREG(mode) or stat.S_ISBLK(mode)
        self._socket = socket.socket(fileno=os.dup(fd)) if stat.S_ISSOCK(mode) else None
        self._lock = threading.Lock()
        self._queue: deque[_Queued] = deque()
        self._queued_bytes = 0
        self._unsent = 0  # bytes of the frame being written
        self._written_frames = self._written_bytes = 0
        self._dropped_frames = self._dropped_bytes = 0
        self._closed_reason: str | None = None
        self._trouble: str | None = None
        self._cut = False
        self._deadline: float | None = None
        self._closing = threading.Event()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # A daemon: should the kernel block a write after all, the process can still end.
        self._thread = threading.Thread(target=self._run, name="telemetry-sink", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise UnsupportedError(
                "no thread can be started for the telemetry",
                "raise the limit of processes or memory (`ulimit -u`, `ulimit -v`, the unit's TasksMax=, MemoryMax=)",
            ) from error

    def put(self, frame: bytes, *, keep: bool = False) -> None:
        """Queue a frame; `keep` exempts it from being dropped for newer ones (the hello frame)."""
        with self._lock:
            if self._closed_reason is not None or (len(frame) > self._max_bytes and not keep):
                self._count_drop(frame)
                return
            # A writer that is busy looks into the queue again before it waits.
            idle = not self._queue and not self._unsent
            self._queue.append(_Queued(frame, keep))
            self._queued_bytes += len(frame)
            self._drop_oldest()
        if idle:
            os.eventfd_write(self._wake, 1)

    @property
    def closed_reason(self) -> str | None:
        """Why nothing can be written any more, such as a reader that died; None while the sink works."""
        return self._closed_reason

    @property
    def trouble(self) -> str | None:
        """What keeps the writer waiting at the moment (a full disk); None if nothing does."""
        return self._trouble

    def health(self) -> SinkHealth:
        """The counts so far, as the health frame carries them."""
        with self._lock:
            return {
                "written_frames": self._written_frames,
                "written_bytes": self._written_bytes,
                "dropped_frames": self._dropped_frames,
                "dropped_bytes": self._dropped_bytes,
                "queued_bytes": self._queued_bytes + self._unsent,
            }

    def close(self, timeout_s: float = 1.0) -> bool:
        """Write what is queued, for at most `timeout_s`; return whether everything got out.

        What did not is counted as dropped. A second call does nothing.
        """
        with self._lock:
            if self._deadline is None:
                self._deadline = time.monotonic() + timeout_s
                self._closing.set()
                os.eventfd_write(self._wake, 1)
        self._thread.join(timeout_s + _JOIN_MARGIN_S)
        if self._thread.is_alive():
            self._end("the writer is blocked")
        elif self._wake >= 0:
            os.close(self._wake)
            self._wake = -1
        return not self._cut

    # ---- in the writer thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        # Signals belong to the main thread, whose waiting they have to interrupt; a dead reader shows as EPIPE.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(self._fd, 0)
        try:
            reason = self._serve(poll)
        except OSError as error:
            gone = error.errno in _READER_GONE
            reason = "the reader closed the stream" if gone else os.strerror(error.errno or 0)
        finally:
            if self._socket is not None:
                self._socket.close()
        self._end(reason)

    def _serve(self, poll: select.poll) -> str:
        """Write frames until closed; return why it ended. Raises `OSError` as writing does."""
        rest = memoryview(b"")
        while True:
            if not rest:
                rest = memoryview(self._next_frame())
            if not rest and self._deadline is not None:
                return "closed"
            wait_s = None if self._deadline is None else self._deadline - time.monotonic()
            if wait_s is not None and wait_s <= 0:
                return "closed before the reader took everything"
            if not self._wait(poll, wait_s, want_room=bool(rest)):
                continue
            try:
                done = self._write(rest)
            except OSError as error:
                if error.errno not in _TRANSIENT:
                    raise
                self._trouble = os.strerror(error.errno)
                if wait_s is not None:
                    return f"closed while waiting: {self._trouble}"
                self._closing.wait(_RETRY_S)
                continue
            self._trouble = None
            rest = rest[done:]
            with self._lock:
                self._unsent = len(rest)
                self._written_bytes += done
                self._written_frames += not rest

    def _wait(self, poll: select.poll, wait_s: float | None, *, want_room: bool) -> bool:
        """Whether the descriptor takes a chunk now; returns early for a new frame. Raises EPIPE for a dead reader."""
        poll.modify(self._fd, select.POLLOUT if want_room else 0)
        room = False
        for fd, event in poll.poll(None if wait_s is None else max(0.0, wait_s) * 1000):
            if fd == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
            elif event & (select.POLLERR | select.POLLHUP | select.POLLNVAL):
                raise OSError(errno.EPIPE if event & ~select.POLLNVAL else errno.EBADF, "")
            else:
                room = bool(event & select.POLLOUT)
        return room

    def _write(self, data: memoryview) -> int:
        if self._socket is not None:
            try:
                return self._socket.send(data[:_FILE_CHUNK], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return 0
        try:
            return os.write(self._fd, data[: _FILE_CHUNK if self._is_file else _PIPE_CHUNK])
        except BlockingIOError:  # whoever gave us the descriptor made it non-blocking
            return 0

    def _next_frame(self) -> bytes:
        with self._lock:
            if not self._queue:
                return b""
            frame = self._queue.popleft().data
            self._queued_bytes -= len(frame)
            self._unsent = len(frame)
            return frame

    def _end(self, reason: str) -> None:
        with self._lock:
            if self._closed_reason is not None:
                return
            self._closed_reason = reason
            self._cut = bool(self._queue or self._unsent)
            if self._unsent:
                self._dropped_frames += 1
                self._dropped_bytes += self._unsent
                self._unsent = 0
            while self._queue:
                self._count_drop(self._queue.popleft().data)
            self._queued_bytes = 0

    # ---- under the lock --------------------------------------------------------------------------------------

    def _drop_oldest(self) -> None:
        index = 0
        while self._queued_bytes + self._unsent > self._max_bytes and index < len(self._queue):
            if self._queue[index].keep:
                index += 1
                continue
            frame = self._queue[index].data
            del self._queue[index]
            self._queued_bytes -= len(frame)
            self._count_drop(frame)

    def _count_drop(self, frame: bytes) -> None:
        self._dropped_frames += 1
        self._dropped_bytes += len(frame)
