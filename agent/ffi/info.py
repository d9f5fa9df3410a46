"""What the kernel knows about loaded programs and maps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from agent.ffi import _native
from agent.ffi.failures import call_error

_ffi, _lib = _native.ffi, _native.lib

_PROG_TYPES = {
    _lib.BPF_PROG_TYPE_SCHED_CLS: "sched_cls",
    _lib.BPF_PROG_TYPE_XDP: "xdp",
    _lib.BPF_PROG_TYPE_RAW_TRACEPOINT: "raw_tracepoint",
    _lib.BPF_PROG_TYPE_EXT: "ext",
}


@dataclass(frozen=True, slots=True)
class ProgInfo:
    """A loaded program. `run_time_ns` and `run_cnt` only grow while run-time statistics are enabled."""

    id: int
    name: str  # the kernel keeps 15 characters
    type: str
    tag: str
    verified_insns: int  # instructions the verifier walked; 0 before 5.16
    xlated_len: int  # bytes
    jited_len: int  # bytes; 0: interpreted
    load_time_ns: int  # CLOCK_BOOTTIME
    run_time_ns: int
    run_cnt: int
    recursion_misses: int
    map_ids: tuple[int, ...]
    ifindex: int  # not 0: offloaded to this device (being bound to one is not shown)


@dataclass(frozen=True, slots=True)
class MapInfo:
    """A loaded map."""

    id: int
    name: str
    type: int
    key_size: int
    value_size: int
    max_entries: int
    flags: int


@contextmanager
def prog_by_id(prog_id: int) -> Iterator[int]:
    """An fd of the program for as long as the block runs. AgentError if it is gone."""
    fd = _lib.bpf_prog_get_fd_by_id(prog_id)
    if fd < 0:
        raise call_error(f"open BPF program {prog_id}", fd)
    try:
        yield fd
    finally:
        os.close(fd)


def _object_info(fd: int, info: Any) -> None:
    length = _ffi.new("uint32_t *", _ffi.sizeof(info[0]))
    err = _lib.bpf_obj_get_info_by_fd(fd, info, length)
    if err:
        raise call_error(f"read what the kernel knows of BPF fd {fd}", err)


def prog_info(fd: int) -> ProgInfo:
    """What the kernel knows of the program with this fd (`prog_by_id` gives one for an id)."""
    info = _ffi.new("struct bpf_prog_info *")
    _object_info(fd, info)
    n_maps = info.nr_map_ids
    ids = _ffi.new("uint32_t[]", max(n_maps, 1))
    info = _ffi.new("struct bpf_prog_info *")
    info.nr_map_ids = n_maps
    info.map_ids = int(_ffi.cast("uintptr_t", ids))
    _object_info(fd, info)
    return ProgInfo(
        id=info.id,
        name=_ffi.string(info.name).decode(),
        type=_PROG_TYPES.get(info.type, f"type {info.type}"),
        tag=bytes(info.tag).hex(),
        verified_insns=info.verified_insns,
        xlated_len=info.xlated_prog_len,
        jited_len=info.jited_prog_len,
        load_time_ns=info.load_time,
        run_time_ns=info.run_time_ns,
        run_cnt=info.run_cnt,
        recursion_misses=info.recursion_misses,
        map_ids=tuple(ids[0 : min(n_maps, info.nr_map_ids)]),
        ifindex=info.ifindex,
    )


def map_info(fd: int) -> MapInfo:
    """What the kernel knows of the map with this fd."""
    info = _ffi.new("struct bpf_map_info *")
    _object_info(fd, info)
    return MapInfo(
        id=info.id,
        name=_ffi.string(info.name).decode(),
        type=info.type,
        key_size=info.key_size,
        value_size=info.value_size,
        max_entries=info.max_entries,
        flags=info.map_flags,
    )


def map_info_by_id(map_id: int) -> MapInfo:
    """What the kernel knows of a map by its id. AgentError if it is gone."""
    fd = _lib.bpf_map_get_fd_by_id(map_id)
    if fd < 0:
        raise call_error(f"open BPF map {map_id}", fd)
    try:
        return map_info(fd)
    finally:
        os.close(fd)


@contextmanager
def enable_bpf_stats() -> Iterator[None]:
    """Makes the kernel count `run_time_ns` and `run_cnt` of every program while the block runs (5.8)."""
    fd = _lib.bpf_enable_stats(_lib.BPF_STATS_RUN_TIME)
    if fd < 0:
        raise call_error("enable BPF run-time statistics", fd)
    try:
        yield
    finally:
        os.close(fd)
