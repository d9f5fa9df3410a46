"""On which NUMA node a process's memory is (set_mempolicy(2), migrate_pages(2)); libnuma is not needed for it."""

from __future__ import annotations

import errno
from typing import Any

from agent.errors import UnsupportedError
from agent.ffi import _native
from agent.ffi.failures import call_error

_ffi, _lib = _native.ffi, _native.lib

_LONG_BITS = 8 * _ffi.sizeof("unsigned long")
_NODES_MAX = 1024


def bind_memory(node: int) -> None:
    """Take this process's memory from one node from now on; children and what they `exec` inherit it.

    The policy is the calling thread's and that of those it starts: call it before any other is started. Raises
    `UnsupportedError` where there is no such node or the kernel has no NUMA.
    """
    mask, bits = _mask([node])
    if _lib.syscall(
        _lib.SYS_set_mempolicy, _ffi.cast("int", _lib.MPOL_BIND), mask, _ffi.cast("unsigned long", bits)
    ):
        code = _ffi.errno
        if code in (errno.EINVAL, errno.ENOSYS):
            raise UnsupportedError(
                f"memory cannot be bound to NUMA node {node}: there is no such node with memory here",
                "`cat /sys/devices/system/node/has_memory` lists those that have; cpuset.mems may exclude it",
            )
        raise call_error(f"bind memory to NUMA node {node}", code)


def bound_nodes() -> tuple[int, ...]:
    """The nodes that the calling thread's memory is bound to; empty where it is bound to none."""
    mode, (mask, bits) = _ffi.new("int *"), _mask([])
    if _lib.syscall(
        _lib.SYS_get_mempolicy,
        mode,
        mask,
        _ffi.cast("unsigned long", bits),
        _ffi.NULL,
        _ffi.cast("unsigned long", 0),
    ):
        raise call_error("read the memory policy", _ffi.errno)
    if mode[0] != _lib.MPOL_BIND:
        return ()
    return tuple(node for node in range(_NODES_MAX) if mask[node // _LONG_BITS] >> node % _LONG_BITS & 1)


def migrate_own_memory(nodes: list[int], node: int) -> int:
    """Move what this process has on `nodes` to a node; returns how many pages stayed where they were."""
    others = [other for other in nodes if other != node]
    if not others:
        return 0
    (old, bits), (new, _) = _mask(others), _mask([node])
    stayed = int(
        _lib.syscall(_lib.SYS_migrate_pages, _ffi.cast("int", 0), _ffi.cast("unsigned long", bits), old, new)
    )
    if stayed < 0:
        raise call_error(f"move memory to NUMA node {node}", _ffi.errno)
    return stayed


def _mask(nodes: list[int]) -> tuple[Any, int]:
    """(a mask of nodes, its size as these calls want it: one more than its bits)."""
    mask = _ffi.new("unsigned long[]", _NODES_MAX // _LONG_BITS)
    for node in nodes:
        mask[node // _LONG_BITS] |= 1 << node % _LONG_BITS
    return mask, _NODES_MAX + 1
