"""The mounts that this process sees (`/proc/self/mountinfo`, proc(5))."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from agent.doctor.check import NotChecked
from agent.host.paths import HostPaths, read_text


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount."""

    point: str
    fstype: str
    options: frozenset[str]
    """Of the mount and of its file system."""


def mounts(paths: HostPaths) -> list[Mount]:
    """All of them, in order. Raises `NotChecked` where they cannot be read."""
    text = read_text(paths.proc / "self/mountinfo")
    if text is None:
        raise NotChecked(f"{paths.proc}/self/mountinfo cannot be read")
    return [_mount(line) for line in text.splitlines() if " - " in line]


def mount_of(table: Iterable[Mount], path: str) -> Mount | None:
    """The mount that a path is on: the last one over the longest prefix."""
    found = None
    for mount in table:
        prefix = mount.point.rstrip("/") + "/"
        if (path.rstrip("/") + "/").startswith(prefix) and (
            found is None or len(mount.point) >= len(found.point)
        ):
            found = mount
    return found


def _mount(line: str) -> Mount:
    front, _, back = line.partition(" - ")
    fields, tail = front.split(), back.split()
    options = {*fields[5].split(","), *(tail[2].split(",") if len(tail) > 2 else ())}
    return Mount(fields[4].replace("\\040", " "), tail[0], frozenset(options))
