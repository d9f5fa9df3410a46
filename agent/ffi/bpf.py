"""BPF objects: load programs and maps, reach the maps, run programs.

This is the face of the package for everything about BPF; links are in `attach.py`, what the kernel knows of loaded
objects in `info.py`, test runs in `testrun.py`.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from agent.errors import AgentError, UnsupportedError, UsageError
from agent.ffi import _native
from agent.ffi.attach import (
    Link,
    XdpOwner,
    attach_tcx,
    attach_tracepoint,
    attach_xdp,
    ensure_bpffs,
    tcx_programs,
    xdp_owner,
)
from agent.ffi.failures import LoadError, NativeLog, call_error, load_error
from agent.ffi.info import (
    MapInfo,
    ProgInfo,
    enable_bpf_stats,
    map_info,
    map_info_by_id,
    prog_by_id,
    prog_info,
)
from agent.ffi.programs import ProgramSet, object_path, source_path
from agent.ffi.records import MAP_DTYPES, STRUCTS
from agent.ffi.testrun import TestRun, flush_cpus, sk_buff_context, test_run, xdp_context

__all__ = [
    "BpfMap",
    "BpfObject",
    "Link",
    "LoadError",
    "MapInfo",
    "ProgInfo",
    "ProgramSet",
    "TestRun",
    "XdpOwner",
    "attach_tcx",
    "attach_tracepoint",
    "attach_xdp",
    "enable_bpf_stats",
    "ensure_bpffs",
    "flush_cpus",
    "load",
    "load_object_file",
    "map_info",
    "map_info_by_id",
    "object_path",
    "prog_by_id",
    "prog_info",
    "sk_buff_context",
    "source_path",
    "tcx_programs",
    "test_run",
    "xdp_context",
    "xdp_owner",
]

_ffi, _lib = _native.ffi, _native.lib

# Younger than Debian 12's linux/bpf.h (6.3).
BPF_F_XDP_DEV_BOUND_ONLY = 1 << 6

_BTF = Path("/sys/kernel/btf/vmlinux")


class BpfMap:
    """A map by its fd, which it owns. Arrays with BPF_F_MMAPABLE can be mapped as numpy arrays."""

    def __init__(self, name: str, fd: int) -> None:
        self.name = name
        self.fd = fd
        info = map_info(fd)
        self.type = info.type
        self.key_size = info.key_size
        self.value_size = info.value_size
        self.max_entries = info.max_entries
        self.flags = info.flags

    def mmap(self, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
        """The map's values as an array [max_entries], shared with the kernel, readable and writable.

        Without a dtype it is that of records.h by the map's name. A dtype shorter than the value gives its leading
        part (a strided view). The mapping lives as long as the array, also after close(). AgentError if the value is
        shorter than the dtype: the object and the native module are then from different builds.
        """
        if dtype is None:
            if self.name not in MAP_DTYPES:
                raise AgentError(f"map {self.name} has no record type in records.h", "name a dtype")
            dtype = MAP_DTYPES[self.name]
        item = np.dtype(dtype)
        if item.itemsize > self.value_size:
            raise AgentError(
                f"map {self.name} holds {self.value_size} byte values, but its record has {item.itemsize}: "
                "the BPF object and agent.ffi._native are from different builds",
                "run `make all`",
            )
        stride = (self.value_size + 7) & ~7  # as the kernel lays out array maps
        try:
            memory = mmap.mmap(self.fd, stride * self.max_entries)
        except OSError as error:
            raise call_error(f"map the values of BPF map {self.name}", error.errno or 0) from error
        return np.ndarray((self.max_entries,), dtype=item, buffer=memory, strides=(stride,))

    def lookup(self, index: int) -> bytes:
        """The value at an index of an array map (one CPU's in a per-CPU array is not supported)."""
        value = _ffi.new("uint8_t[]", self.value_size)
        err = _lib.bpf_map_lookup_elem(self.fd, self._key(index), value)
        if err:
            raise call_error(f"read entry {index} of BPF map {self.name}", err)
        return bytes(_ffi.buffer(value))

    def update(self, index: int, value: bytes | np.void | npt.NDArray[Any]) -> None:
        """Writes one value; UsageError if its length isn't the map's value size."""
        data = value if isinstance(value, bytes) else value.tobytes()
        if len(data) != self.value_size:
            raise UsageError(f"map {self.name} holds {self.value_size} byte values, not {len(data)}")
        err = _lib.bpf_map_update_elem(self.fd, self._key(index), _ffi.from_buffer(data), 0)
        if err:
            raise call_error(f"write entry {index} of BPF map {self.name}", err)

    def close(self) -> None:
        """Closes the fd. Arrays from mmap() stay valid."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _key(self, index: int) -> Any:
        if self.key_size != 4:
            raise UsageError(f"map {self.name} has {self.key_size} byte keys, not an array's 4")
        return _ffi.new("uint32_t *", index)


class BpfObject:
    """Loaded programs and maps by name. Whoever loaded them, they are fds from here on.

    A context manager; leaving it closes all fds, so the kernel frees what no link, pin or mapping holds.
    """

    def __init__(
        self, loader: Literal["libbpf", "bcc"], programs: Mapping[str, int], maps: Mapping[str, int]
    ):
        """Takes over all fds."""
        self.loader = loader
        self.programs = dict(programs)
        self.maps = {name: BpfMap(name, fd) for name, fd in maps.items()}

    def prog_fd(self, name: str) -> int:
        """The program's fd, which stays the object's. UsageError if it was not loaded."""
        if name not in self.programs:
            raise UsageError(
                f"no BPF program {name} was loaded (there are: {', '.join(self.programs) or 'none'})"
            )
        return self.programs[name]

    def map(self, name: str) -> BpfMap:
        """The map. UsageError if there is none of that name."""
        if name not in self.maps:
            raise UsageError(f"there is no BPF map {name} (there are: {', '.join(self.maps) or 'none'})")
        return self.maps[name]

    def close(self) -> None:
        """Closes every fd; a second call does nothing."""
        for fd in self.programs.values():
            os.close(fd)
        self.programs.clear()
        for bpf_map in self.maps.values():
            bpf_map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def load(
    loader: Literal["auto", "libbpf", "bcc"], source: ProgramSet, *, share: BpfObject | None = None
) -> BpfObject:
    """Loads programs and maps; `auto` is libbpf where the kernel has BTF, else bcc.

    With `share`, maps of the same name are those of that object instead of new ones. Raises LoadError with the
    verifier's words, UnsupportedError if the object, the kernel's BTF, BCC or a privilege is missing.
    """
    if loader == "auto":
        loader = "libbpf" if _BTF.exists() else "bcc"
    if loader == "libbpf":
        if not _BTF.exists():
            raise UnsupportedError(
                f"the prebuilt programs are not loaded: this kernel has no BTF ({_BTF} is missing)",
                "use --loader bcc (or auto, which takes it), or a kernel with CONFIG_DEBUG_INFO_BTF=y",
            )
        return load_object_file(object_path(source.name), source, share=share)
    if share is not None:
        raise UnsupportedError("BCC cannot load programs onto another object's maps", "use --loader libbpf")
    # Costs a compiler in this process (130 MB): only when asked for.
    from agent.ffi import bcc_loader

    programs, maps = bcc_loader.load_source(source_path(source.name), source)
    return BpfObject("bcc", programs, maps)


def load_object_file(path: Path, source: ProgramSet, *, share: BpfObject | None = None) -> BpfObject:
    """Loads a compiled object by libbpf; as `load`, with the object's path given."""
    with NativeLog() as log:
        handle = _lib.bpf_object__open_file(str(path).encode(), _ffi.NULL)
        if handle == _ffi.NULL:
            raise load_error(f"open the BPF object {path}", _ffi.errno, log.text)
        try:
            _check_layout(_lib.bpf_object__btf(handle), path)
            _prepare(handle, source, share.maps if share else {}, path)
            err = _lib.bpf_object__load(handle)
            if err:
                raise load_error(f"load the BPF programs of {path.name}", err, log.text)
            programs = {
                name: os.dup(_lib.bpf_program__fd(program))
                for name, program in _programs(handle)
                if _lib.bpf_program__fd(program) >= 0
            }
            maps = {name: os.dup(_lib.bpf_map__fd(bpf_map)) for name, bpf_map in _maps(handle)}
        finally:
            # The fds outlive it; libbpf's copy of the ELF file and its BTF need not.
            _lib.bpf_object__close(handle)
    return BpfObject("libbpf", programs, maps)


def _programs(handle: Any) -> list[tuple[str, Any]]:
    found = []
    program = _lib.bpf_object__next_program(handle, _ffi.NULL)
    while program != _ffi.NULL:
        found.append((_ffi.string(_lib.bpf_program__name(program)).decode(), program))
        program = _lib.bpf_object__next_program(handle, program)
    return found


def _maps(handle: Any) -> list[tuple[str, Any]]:
    found = []
    bpf_map = _lib.bpf_object__next_map(handle, _ffi.NULL)
    while bpf_map != _ffi.NULL:
        found.append((_ffi.string(_lib.bpf_map__name(bpf_map)).decode(), bpf_map))
        bpf_map = _lib.bpf_object__next_map(handle, bpf_map)
    return found


def _prepare(handle: Any, source: ProgramSet, shared: Mapping[str, BpfMap], path: Path) -> None:
    """Sets sizes, flags and what to load before bpf_object__load()."""
    programs, maps = dict(_programs(handle)), dict(_maps(handle))
    unknown = ({*source.programs, *source.device_bound} - {*programs}) | ({*source.map_entries} - {*maps})
    if unknown:
        raise UsageError(f"{path.name} has no program or map {', '.join(sorted(unknown))}", "run `make all`")
    for name, program in programs.items():
        _lib.bpf_program__set_autoload(program, not source.programs or name in source.programs)
        if name in source.device_bound:
            flags = _lib.bpf_program__flags(program) | BPF_F_XDP_DEV_BOUND_ONLY
            _lib.bpf_program__set_flags(program, flags)
            _lib.bpf_program__set_ifindex(program, source.ifindex)
    for name, bpf_map in maps.items():
        if name in shared:
            err = _lib.bpf_map__reuse_fd(bpf_map, shared[name].fd)
            if err:
                raise load_error(f"share BPF map {name}", err)
        elif name in source.map_entries:
            _lib.bpf_map__set_max_entries(bpf_map, source.map_entries[name])


def _check_layout(btf: Any, path: Path) -> None:
    """Raises AgentError if the object was compiled from another records.h than the native module."""
    if btf == _ffi.NULL:
        return
    for name, dtype in STRUCTS.items():
        size = _lib.agent_btf_struct_size(btf, name.encode())
        if size < 0:  # the programs don't use it
            continue
        fields: Mapping[str, Any] = dtype.fields or {}
        if size != dtype.itemsize or any(
            _lib.agent_btf_member_offset(btf, name.encode(), member.encode()) != where[1]
            for member, where in fields.items()
        ):
            raise AgentError(
                f"struct {name} differs between {path.name} and agent.ffi._native: one was built from an "
                "older records.h",
                "run `make all`",
            )
