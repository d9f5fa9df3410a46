"""What can be set on a host: the kinds of settings, how each is read, written and compared.

A setting is named by (kind, target) and its value is bytes, exactly as the kernel printed them, so that putting
one back gives the very same bytes. The journal stores these, and `agent restore` finds the kind by its name.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agent.host.masks import CpuMask
from agent.host.napi import read_thread
from agent.host.paths import read_text


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing that has a value."""

    kind: str
    target: str
    """For `file` its absolute path; for other kinds what their class says."""
    namespaced: bool
    """It is visible only in the network namespace of its interface."""


class SettingKind(Protocol):
    """How settings of one kind are read and written. Both raise `OSError`; ENOENT and ESRCH mean that it is gone."""

    def read(self, target: str) -> bytes:
        """The value now."""

    def write(self, target: str, value: bytes) -> None:
        """Set it."""

    def same(self, a: bytes, b: bytes) -> bool:
        """Whether two values mean the same to the kernel, though they may be spelt differently. Raises nothing."""

    def belongs(self, target: str, ifname: str, ifindex: int) -> bool:
        """Whether an agent on this interface may have set it, by its name alone."""


class FileSetting:
    """A file in procfs or sysfs that holds one value."""

    def read(self, target: str) -> bytes:
        """The whole content, up to 64 KiB (a mask of 1,152 CPUs has 324 characters)."""
        fd = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, 65536)
        finally:
            os.close(fd)

    def write(self, target: str, value: bytes) -> None:
        """In one system call: the kernel takes each write as a whole value (truncating means something to trees of
        plain files only)."""
        fd = os.open(target, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(fd, value)
        finally:
            os.close(fd)

    def same(self, a: bytes, b: bytes) -> bool:
        """Equal but for surrounding blanks, or the same CPU mask with other padding."""
        return a.strip() == b.strip() or _same_mask(a, b)

    def belongs(self, target: str, ifname: str, ifindex: int) -> bool:
        """A file is the interface's own by where it lies, which the journal looks at."""
        return True


class ThreadAffinitySetting:
    """The CPUs that a thread may run on, as a mask; the target is `NAME:TID:START_TICKS`.

    Name and start time tell the thread from a later one with the same number.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc

    @staticmethod
    def target(name: str, tid: int, start_ticks: int) -> str:
        """Name a thread."""
        return f"{name}:{tid}:{start_ticks}"

    def read(self, target: str) -> bytes:
        """The mask that `/proc/TID/status` shows: also with CPUs in it that are offline now."""
        _, mask = self._find(target)
        return mask.format_mask(1).encode() + b"\n"

    def write(self, target: str, value: bytes) -> None:
        """By `sched_setaffinity`."""
        tid, _ = self._find(target)
        os.sched_setaffinity(tid, CpuMask.parse_mask(value))

    def same(self, a: bytes, b: bytes) -> bool:
        """The same set of CPUs."""
        return a == b or _same_mask(a, b)

    def belongs(self, target: str, ifname: str, ifindex: int) -> bool:
        """One of the kernel's polling threads of the interface."""
        return target.startswith(f"napi/{ifname}-")

    def _find(self, target: str) -> tuple[int, CpuMask]:
        name, tid, start_ticks = target.rsplit(":", 2)
        directory = self._proc / str(int(tid))
        thread = read_thread(directory)
        if thread is None or thread[0] != int(start_ticks) or read_text(directory / "comm") != name:
            raise ProcessLookupError(errno.ESRCH, "the thread is gone", target)
        return int(tid), thread[1]


class ConsumerAffinitySetting(ThreadAffinitySetting):
    """The same of a thread of a consumer that the user named (`--pin-consumer`)."""

    def belongs(self, target: str, ifname: str, ifindex: int) -> bool:
        """Any program may be a consumer; its name and start time tell its threads from all later ones."""
        return True


_KINDS: dict[str, SettingKind] = {
    "file": FileSetting(),
    "thread-affinity": ThreadAffinitySetting(),
    "consumer-affinity": ConsumerAffinitySetting(),
}


def register_kind(name: str, kind: SettingKind) -> None:
    """Teach the journal another kind of setting; what is registered must be so in every process that restores."""
    _KINDS[name] = kind


def kind_of(name: str) -> SettingKind:
    """The kind with this name. Raises `KeyError` for one that this version does not know."""
    return _KINDS[name]


def is_gone(error: OSError) -> bool:
    """The object does not exist any more: its interface or thread vanished."""
    return error.errno in (errno.ENOENT, errno.ESRCH, errno.ENODEV, errno.ENXIO)


def _same_mask(a: bytes, b: bytes) -> bool:
    mask = _mask(a)
    return mask is not None and mask == _mask(b)


def _mask(value: bytes) -> CpuMask | None:
    try:
        return CpuMask.parse_mask(value)
    except (ValueError, UnicodeDecodeError):
        return None
