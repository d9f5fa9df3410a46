"""The agent's side of the pages: made whole under another name, moved into place, written once a tick."""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from agent.batch.layout import (
    CLOCKS,
    HEADER,
    MAGIC,
    PAGE_SIZE,
    PAGE_VERSION,
    WINDOW,
    PublishedClock,
    PublishedWindow,
    Section,
    pack_clocks,
    pack_copy,
    pack_window,
    page_path,
)
from agent.errors import ConflictError, UnsupportedError

_NO_WINDOW = PublishedWindow(0, 0, 0, 0)


class PagePublisher:
    """Writes one named page in the agent's state directory, and removes it at the end. A context manager.

    Of several agents, one writes a page: a lock that only the agent's user can take says which.
    """

    def __init__(self, state_dir: Path, name: str) -> None:
        """Raises `ConflictError` if another agent writes that page, `UnsupportedError` if it cannot be made."""
        self.name = name
        self.path = page_path(state_dir, name)
        try:
            self._lock = _lock(self.path)
            try:
                self._map, self._identity = self._create()
            except OSError:
                os.close(self._lock)
                raise
        except OSError as error:
            raise UnsupportedError(
                f"the page {self.path} cannot be made: {error.strerror}", "check --state-dir, and its room"
            ) from error
        self._words = memoryview(self._map).cast("I")

    def publish_window(self, window: PublishedWindow) -> None:
        """Make `window` the one that consumers read."""
        self._publish(WINDOW, pack_window(window))

    def publish_clocks(self, published_ns: int, clocks: Sequence[PublishedClock]) -> None:
        """Make `clocks`, of which at most 16 fit, those that consumers read."""
        self._publish(CLOCKS, pack_clocks(published_ns, clocks))

    def close(self) -> None:
        """Withdraw what is on the page, and remove it: consumers use their defaults from now on."""
        self.publish_window(_NO_WINDOW)
        self.publish_clocks(0, ())
        self._words.release()
        self._map.close()
        found = self.path.stat(follow_symlinks=False) if self.path.exists() else None
        if found is not None and (found.st_dev, found.st_ino) == self._identity:
            self.path.unlink()
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _publish(self, section: Section, body: bytes) -> None:
        seq = (self._words[section.seq_index] + 1) & 0xFFFFFFFF
        start = section.copies_at[seq & 1]
        self._map[start : start + section.size] = pack_copy(seq, body)
        # One aligned store of 32 bits.
        self._words[section.seq_index] = seq

    def _create(self) -> tuple[mmap.mmap, tuple[int, int]]:
        """A page with nothing to say yet, in place of what a killed agent left."""
        fd, temporary = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
        try:
            os.fchmod(fd, 0o644)
            # Not ftruncate: a page for which there is no room would end the agent by SIGBUS when it is written.
            os.posix_fallocate(fd, 0, PAGE_SIZE)
            found = os.fstat(fd)
            mapped = mmap.mmap(fd, PAGE_SIZE)
            name = self.name.encode()
            HEADER.pack_into(mapped, 0, MAGIC, PAGE_VERSION, PAGE_SIZE, found.st_uid, os.getpid(), name)
            for section, body in ((WINDOW, pack_window(_NO_WINDOW)), (CLOCKS, pack_clocks(0, ()))):
                start = section.copies_at[0]
                mapped[start : start + section.size] = pack_copy(0, body)
            Path(temporary).rename(self.path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        return mapped, (found.st_dev, found.st_ino)


def _lock(path: Path) -> int:
    """A descriptor that holds the page's lock. Not on the page itself: consumers may open and so lock that."""
    fd = os.open(
        path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise ConflictError(
            f"another agent writes the page {path}", "stop it, or give this one another page: --batch NAME"
        ) from error
    return fd
