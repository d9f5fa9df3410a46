"""The page as a consumer has it: mapped read-only, and not believed before it has been looked at."""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path

from agent.batch.layout import HEADER, MAGIC, PAGE_SIZE, PAGE_VERSION, PageError, Section, unpack_copy

# A writer needs microseconds for a copy: a reader that meets it once doesn't meet it again.
_ATTEMPTS = 3
# Without a page, and with one that nobody writes any more, a new one is looked for this often.
LOOK_NS = 250_000_000
_NO_PAGE = memoryview(bytes(PAGE_SIZE)).cast("I")


class Page:
    """A mapped page, until nobody refers to it any more.

    `words` is the page as u32[], for the sequence numbers; `writer_pid` is the process that made it.
    """

    def __init__(self, path: Path, owner_uid: int) -> None:
        """Map the page at `path`, which has to be a file of `owner_uid` that nobody else can write.

        Raises `PageError`, with what is wrong with it.
        """
        self.path = path
        fd = _open(path)
        try:
            found = os.fstat(fd)
            _require_owners(path, found, owner_uid)
            self._map = mmap.mmap(fd, PAGE_SIZE, access=mmap.ACCESS_READ)
        finally:
            os.close(fd)
        self._identity = (found.st_dev, found.st_ino)
        self.words = memoryview(self._map).cast("I")
        self._require_header(owner_uid)

    def body(self, section: Section) -> tuple[int, bytes]:
        """A section's sequence number and the body of its present copy. Raises `PageError` if it is torn."""
        for _ in range(_ATTEMPTS):
            seq = self.words[section.seq_index]
            start = section.copies_at[seq & 1]
            body = unpack_copy(section, seq, self._map[start : start + section.size])
            if body is not None:
                return seq, body
        raise PageError(f"the {section.name} in {self.path} is torn: its checksum is wrong", _RESTART)

    def is_replaced(self) -> bool:
        """Whether another file, or none, is at its path now."""
        try:
            found = self.path.stat(follow_symlinks=False)
        except OSError:
            return True
        return (found.st_dev, found.st_ino) != self._identity

    def _require_header(self, owner_uid: int) -> None:
        magic, version, size, uid, self.writer_pid, _ = HEADER.unpack_from(self._map)
        if magic != MAGIC:
            raise PageError(f"{self.path} is no page of this program: it begins with {magic!r}", _RESTART)
        if version != PAGE_VERSION or size != PAGE_SIZE:
            raise PageError(
                f"{self.path} has version {version} of the page, {size} bytes; this consumer knows version "
                f"{PAGE_VERSION} of {PAGE_SIZE} bytes",
                "install the same version of this package for the agent and for its consumers",
            )
        if uid != owner_uid:
            raise PageError(f"{self.path} says that user {uid} wrote it, not user {owner_uid}", _RESTART)


class FollowedPage:
    """The page at a path, through the lives of the agents that write it one after the other."""

    def __init__(self, path: Path, owner_uid: int) -> None:
        """`path` and `owner_uid` as in `Page`; nothing is opened yet."""
        self.path = path
        self._owner_uid = owner_uid
        self._page: Page | None = None
        self.words = _NO_PAGE
        """The present page as u32[]; zeros while there is none."""
        self.look_ns = 0
        """Not before then is another page looked for."""
        # Not the exception itself: its traceback would keep all that its callers had.
        self._missing = ("nobody has looked yet", "")

    def look(self, now_ns: int, in_trouble: bool) -> Page:
        """The page. Where there is none, or it is `in_trouble` and has been replaced, the one that is there now.

        Raises `PageError`.
        """
        page = self._page
        if now_ns >= self.look_ns and (page is None or in_trouble):
            self.look_ns = now_ns + LOOK_NS
            if page is None or page.is_replaced():
                self.drop()
                page = self._page = self._map()
        if page is None:
            raise PageError(*self._missing)
        return page

    def _map(self) -> Page | None:
        try:
            page = Page(self.path, self._owner_uid)
        except PageError as error:
            self._missing = (error.what, error.remedy)
            return None
        self.words = page.words
        return page

    def drop(self) -> None:
        """Let go of the page."""
        self._page = None
        self.words = _NO_PAGE


_RESTART = "restart the agent: it writes a new page"


def _open(path: Path) -> int:
    try:
        # O_NONBLOCK: opening a FIFO that somebody put there would hang.
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise PageError(f"there is no page {path}", "start the agent with --batch") from error
    except OSError as error:
        raise PageError(
            f"the page {path} cannot be opened: {error.strerror}", "see who put it there"
        ) from error


def _require_owners(path: Path, found: os.stat_result, owner_uid: int) -> None:
    """Raise `PageError` unless the file is a whole page that nobody but `owner_uid` can have written."""
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISREG(found.st_mode):
        raise PageError(f"{path} is no regular file", "see who put it there")
    if found.st_uid != owner_uid:
        raise PageError(
            f"{path} belongs to user {found.st_uid}, not to user {owner_uid}, who runs the agent",
            "see who put it there, or name the agent's user",
        )
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PageError(
            f"{path} can be written by others than its owner (mode {mode:04o})",
            "see who changed it, and restart the agent",
        )
    if found.st_size != PAGE_SIZE:
        raise PageError(f"{path} has {found.st_size} bytes, not {PAGE_SIZE}: it is truncated", _RESTART)
