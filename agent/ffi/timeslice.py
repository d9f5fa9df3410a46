"""How long this process runs before the scheduler looks whether another should (sched_setattr(2))."""

from __future__ import annotations

import struct

from agent.ffi import _native

_ffi, _lib = _native.ffi, _native.lib

# struct sched_attr as of Linux 4.14 (the first that all kernels know): size, policy, flags, nice, priority, runtime,
# deadline, period, utilisation's bounds.
_SCHED_ATTR = struct.Struct("=IIQiIQQQII")
_POLICY, _RUNTIME = 1, 5
_SHORTEST_NS = 100_000
_THIS, _NO_FLAGS = _ffi.cast("int", 0), _ffi.cast("unsigned int", 0)


def ask_for_short_slices() -> bool:
    """Run in slices of 0.1 ms, the shortest that the scheduler gives; whether the kernel took it.

    A polling thread that wakes up on the CPU where this thread happens to run then waits 0.1 ms at most and not a
    default slice of some milliseconds, and this thread gets its turn sooner where others compute. It is the calling
    thread's and that of those it starts. Linux gives slices by request from 6.12 on; older ones take it and go on as
    ever. Nothing is changed where an operator chose another policy than the default one.
    """
    attr = _read()
    if attr is None or attr[_POLICY] != 0:
        return False
    wanted = (*attr[:_RUNTIME], _SHORTEST_NS, *attr[_RUNTIME + 1 :])
    packed = _ffi.from_buffer(_SCHED_ATTR.pack(*wanted))
    return not _lib.syscall(_lib.SYS_sched_setattr, _THIS, packed, _NO_FLAGS)


def slice_ns() -> int:
    """The slice of the calling thread, ns; 0 where the kernel does not tell it."""
    attr = _read()
    return 0 if attr is None else attr[_RUNTIME]


def _read() -> tuple[int, ...] | None:
    attr = bytearray(_SCHED_ATTR.size)
    size = _ffi.cast("unsigned int", len(attr))
    if _lib.syscall(
        _lib.SYS_sched_getattr, _THIS, _ffi.from_buffer(attr, require_writable=True), size, _NO_FLAGS
    ):
        return None
    return _SCHED_ATTR.unpack(attr)
