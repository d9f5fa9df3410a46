"""The pages that consumers read their batch windows from: whose they are, who writes them, who can reach them."""

from __future__ import annotations

import stat
import time
from pathlib import Path

from agent.batch.layout import CLOCKS, WINDOW, PageError, page_names, page_path, socket_path
from agent.batch.page import Page
from agent.doctor.check import Context, Finding, Table

_ROOT_UID = 0
# A running agent writes its pages at each tick.
_STALE_NS = 5_000_000_000


def pages(context: Context) -> Finding:
    """Pages that consumers refuse, and those of killed agents."""
    context.need_live()
    names = page_names(context.state_dir)
    if not names:
        return Finding("ok", f"no page in {context.state_dir}: no agent runs with --batch")
    refused: list[PageError] = []
    stale: list[str] = []
    for name in names:
        path = page_path(context.state_dir, name)
        try:
            stale += _stale(context, path)
        except PageError as error:
            refused.append(error)
    if refused:
        return Finding(
            "warn",
            "; ".join(error.what for error in refused),
            "consumers refuse such a page, and form their batches by their own defaults",
            "; ".join(dict.fromkeys(error.remedy for error in refused)),
        )
    if stale:
        return Finding(
            "info",
            "; ".join(stale),
            "its consumers use their own defaults",
            "start the agent with --batch and the page's name, which takes it over, or remove the page",
        )
    return Finding("ok", f"written by a running agent: {', '.join(names)}")


def reach(context: Context) -> Finding:
    """Whether consumers of any user get to the pages and sockets, and whether others could take them away."""
    found: list[str] = []
    remedies: list[str] = []
    names = page_names(context.state_dir)
    if not names:
        return Finding("ok", "no page that consumers would have to get to")
    for directory in (context.state_dir, *context.state_dir.absolute().parents):
        mode = directory.stat().st_mode
        if not mode & stat.S_IXOTH:
            found.append(f"other users cannot enter {directory} ({stat.filemode(mode)})")
            remedies.append(f"chmod o+x {directory}")
    mode = context.state_dir.stat().st_mode
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        found.append(f"others than root can write in {context.state_dir} ({stat.filemode(mode)})")
        remedies.append(f"chmod go-w {context.state_dir}")
    for name in names:
        for path, needed, option in (
            (page_path(context.state_dir, name), stat.S_IROTH, "o+r"),
            (socket_path(context.state_dir, name), stat.S_IROTH | stat.S_IWOTH, "o+rw"),
        ):
            if path.exists() and (mode := path.stat().st_mode) & needed != needed:
                found.append(f"other users cannot use {path} ({stat.filemode(mode)})")
                remedies.append(f"chmod {option} {path}")
    if found:
        return Finding(
            "warn",
            "; ".join(found),
            "consumers of other users than root have no window and no hardware time, or can lose them to somebody",
            "; ".join(remedies),
        )
    return Finding("ok", "consumers of every user can; whose reports are taken, --batch-user says")


def _stale(context: Context, path: Path) -> list[str]:
    """What is to be said of a page that nobody writes; nothing of one that is written. Raises `PageError`."""
    page = Page(path, _ROOT_UID)
    # The first field of both records is when they were published.
    published_ns = max(
        int.from_bytes(page.body(section)[1][:8], "little", signed=True) for section in (WINDOW, CLOCKS)
    )
    age_ns = time.monotonic_ns() - published_ns
    pid = page.writer_pid
    runs = (context.paths.proc / str(pid)).exists()
    if age_ns < _STALE_NS or (runs and published_ns == 0):
        return []
    age = f"was written {age_ns // 1_000_000_000} s ago" if published_ns else "was never written"
    return [f"{path} {age} by process {pid}, which {'does not go on' if runs else 'has gone'}"]


CHECKS: Table = (
    ("pages", pages),
    ("who gets to them", reach),
)
