"""Moves the process into a network namespace, as `ip netns exec` does."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from agent.errors import UsageError
from agent.ffi import _native
from agent.ffi.failures import call_error

_ffi, _lib = _native.ffi, _native.lib

_NAMED = Path("/run/netns")


def netns_path(name_or_path: str) -> Path:
    """The file of a namespace: a path as it is, a name as iproute2 keeps it (`/run/netns/NAME`)."""
    return Path(name_or_path) if "/" in name_or_path else _NAMED / name_or_path


def enter_netns(name_or_path: str) -> tuple[str, ...]:
    """Enters a network namespace for good, with /sys showing it, in a mount namespace of its own.

    Affects the calling thread and those it starts: call it before any other is started. File systems mounted below
    /sys (bpffs, tracefs, cgroups) are bound again onto the new one; returns the mount points that could not be.
    UsageError if there is no such namespace, UnsupportedError without the privilege.
    """
    path = netns_path(name_or_path)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise UsageError(
            f"there is no network namespace {name_or_path} ({path})", "see `ip netns list`"
        ) from error
    except PermissionError as error:
        raise call_error(f"open the network namespace {path}", error.errno or 0) from error
    except (OSError, ValueError) as error:  # a loop of links, a name too long, a NUL in it
        raise UsageError(
            f"cannot open the network namespace {path}: {error}", "see `ip netns list`"
        ) from error
    try:
        if _lib.setns(fd, _lib.CLONE_NEWNET):
            if _ffi.errno == errno.EINVAL:
                raise UsageError(f"{path} is not a network namespace", "see `ip netns list`")
            raise call_error(f"enter the network namespace {path}", _ffi.errno)
    finally:
        os.close(fd)
    if _lib.unshare(_lib.CLONE_NEWNS):
        raise call_error("make a mount namespace", _ffi.errno)
    # Mounts made from here on must not reach the host.
    _mount("", "/", "none", _lib.MS_SLAVE | _lib.MS_REC)
    return _replace_sysfs()


def _mount(source: str, target: str, fstype: str, flags: int) -> None:
    if _lib.mount(source.encode(), target.encode(), fstype.encode(), flags, _ffi.NULL):
        raise call_error(f"mount {fstype} at {target}", _ffi.errno)


def _mount_points_below(root: str) -> list[str]:
    """Mount points below a directory, parents first (proc(5), mountinfo; blanks are \\040 there)."""
    points = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = line.split()[4].encode().decode("unicode_escape")
        if point.startswith(f"{root}/") and point not in points:
            points.append(point)
    return points


def _replace_sysfs() -> tuple[str, ...]:
    """Mounts the sysfs of this network namespace over /sys, and what was mounted below the old one onto it."""
    held: list[tuple[str, int]] = []
    lost: list[str] = []
    try:
        for point in _mount_points_below("/sys"):
            try:
                held.append((point, os.open(point, os.O_PATH | os.O_CLOEXEC)))
            except OSError:
                lost.append(point)
        if _lib.mount(b"sysfs", b"/sys", b"sysfs", 0, _ffi.NULL):
            if _ffi.errno == errno.EBUSY:
                return ()  # the sysfs of this very namespace is there already, with all that is mounted below it
            raise call_error("mount sysfs at /sys", _ffi.errno)
        for point, fd in held:
            source = f"/proc/self/fd/{fd}".encode()
            if _lib.mount(source, point.encode(), b"none", _lib.MS_BIND, _ffi.NULL):
                lost.append(point)
    finally:
        for _, fd in held:
            os.close(fd)
    return tuple(lost)
