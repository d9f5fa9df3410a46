"""The shared page, byte by byte: what the agent publishes and consumers read without a system call.

One page of 4096 bytes, little endian:

    0     header: magic, version, size, uid and pid of the writer, name
    64    u32: sequence number of the batch window, then its two copies at 128 and 192
    256   u32: sequence number of the clock models, then their two copies at 320 and 1792

A writer fills copy[(seq + 1) & 1], then stores seq + 1. A copy carries its own sequence number and a CRC that begins
with it, so that a reader notices a torn copy whatever order the processor made the stores visible in.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from agent.errors import AgentError

MAGIC = b"agentbw\0"
PAGE_VERSION = 1
PAGE_SIZE = 4096
STATE_DIR = Path("/run/agent")
DEFAULT_PAGE = "default"
MAX_CLOCKS = 16
# No agent vouches further ahead: what claims to was written by another clock.
MAX_VALIDITY_NS = 60_000_000_000

HEADER = struct.Struct("<8sIIII32s")
_PAGE_NAME = re.compile(r"[a-z0-9_][a-z0-9_-]{0,30}")

_HEAD = struct.Struct("<II")  # sequence number, CRC
_WINDOW = struct.Struct("<qqII")
_CLOCKS = struct.Struct("<qII")
_CLOCK = struct.Struct("<16sIIqqqqqqQIBBBx")
_KINDS = ("phc", "trailer")
_TIMESCALES = ("unknown", "unset", "tai", "utc")


class PageError(AgentError):
    """A page, or a copy in it, that must not be believed."""


class Window(NamedTuple):
    """How a consumer is to form its next batch.

    It is closed `max_wait_us` after its first item arrived, or as soon as it holds `max_items`. An agent's window
    holds until `valid_until_ns` of CLOCK_MONOTONIC; 0 in a consumer's own default, which holds when no agent's does.
    """

    max_wait_us: int
    max_items: int
    valid_until_ns: int = 0


class PublishedWindow(NamedTuple):
    """A window as it is on the page. `valid_until_ns` = 0: the agent has none to give."""

    published_ns: int
    valid_until_ns: int
    max_wait_us: int
    max_items: int


class PublishedClock(NamedTuple):
    """A hardware clock by CLOCK_MONOTONIC: phc0 + D + ((D * adj) >> shift), D = mono - mono0.

    It is off by at most `bound_ns` (p99) at `at_mono_ns`, and by `growth_ppb` more for each ns away from there.
    """

    ifname: str
    key: int
    epoch: int
    """Grows with every jump of the clock."""
    mono0_ns: int
    phc0_ns: int
    adj: int
    valid_until_ns: int
    since_ns: int
    """Nothing is known of earlier instants: the clock has jumped since, or was not watched yet."""
    at_mono_ns: int
    bound_ns: int
    growth_ppb: int
    shift: int
    kind: str
    """`phc` or `trailer`."""
    timescale: str
    """What it counts: `tai`, `utc`, `unset` (from 1970) or `unknown`."""


class Section(NamedTuple):
    """One of the page's two records, each with two copies."""

    name: str
    seq_at: int
    copies_at: tuple[int, int]
    size: int
    """Of a copy, its head included."""

    @property
    def seq_index(self) -> int:
        """Where its sequence number is in the page as u32[]."""
        return self.seq_at // 4


WINDOW = Section("batch window", 64, (128, 192), _HEAD.size + _WINDOW.size)
CLOCKS = Section("clock models", 256, (320, 1792), _HEAD.size + _CLOCKS.size + MAX_CLOCKS * _CLOCK.size)


def page_path(state_dir: Path, name: str) -> Path:
    """Where a named page is. Raises `ValueError` for what is no name of a page."""
    if _PAGE_NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} is no name of a page: a-z, 0-9, _ and -, at most 31 characters")
    return state_dir / ("batch" if name == DEFAULT_PAGE else f"batch-{name}")


def page_names(state_dir: Path) -> list[str]:
    """The names of the pages in a directory, in order; none if there is no such directory. Raises `OSError`."""
    found = []
    for path in sorted(state_dir.iterdir()) if state_dir.exists() else ():
        name = DEFAULT_PAGE if path.name == "batch" else path.name.removeprefix("batch-")
        if _PAGE_NAME.fullmatch(name) is not None and page_path(state_dir, name) == path:
            found.append(name)
    return found


def socket_path(state_dir: Path, name: str) -> Path:
    """Where consumers of a named page get the memory that they report in."""
    path = page_path(state_dir, name)
    return path.with_name(path.name + ".sock")


def pack_copy(seq: int, body: bytes) -> bytes:
    """A copy with its head."""
    return _HEAD.pack(seq, zlib.crc32(body, seq)) + body


def unpack_copy(section: Section, seq: int, copy: bytes) -> bytes | None:
    """The body of copy number `seq`, or None if it is torn or another one."""
    found_seq, crc = _HEAD.unpack_from(copy)
    body = copy[_HEAD.size :]
    return body if found_seq == seq and len(copy) == section.size and zlib.crc32(body, seq) == crc else None


def pack_window(window: PublishedWindow) -> bytes:
    """The body of a window's copy."""
    return _WINDOW.pack(*window)


def unpack_window(body: bytes) -> PublishedWindow:
    """The window in a copy's body."""
    return PublishedWindow(*_WINDOW.unpack(body))


def pack_clocks(published_ns: int, clocks: Sequence[PublishedClock]) -> bytes:
    """The body of the clocks' copy; those beyond MAX_CLOCKS are left out."""
    rows = clocks[:MAX_CLOCKS]
    body = _CLOCKS.pack(published_ns, len(rows), 0)
    for clock in rows:
        kind, timescale = _KINDS.index(clock.kind), _TIMESCALES.index(clock.timescale)
        body += _CLOCK.pack(clock.ifname.encode(), *clock[1:-2], kind, timescale)
    return body.ljust(CLOCKS.size - _HEAD.size, b"\0")


def unpack_clocks(body: bytes) -> list[PublishedClock]:
    """The clocks in a copy's body."""
    _, n, _ = _CLOCKS.unpack_from(body)
    clocks = []
    for row in range(min(n, MAX_CLOCKS)):
        fields = _CLOCK.unpack_from(body, _CLOCKS.size + row * _CLOCK.size)
        ifname = fields[0].rstrip(b"\0").decode(errors="replace")
        kind, timescale = _KINDS[fields[-2]], _TIMESCALES[fields[-1]]
        clocks.append(PublishedClock._make((ifname, *fields[1:-2], kind, timescale)))
    return clocks
