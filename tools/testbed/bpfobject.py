"""The testbed's own way to its BPF programs: libbpf by ctypes.

The product's loader isn't used: what produces the truth must not depend on what is measured against it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from agent.errors import AgentError, UnsupportedError

# enum bpf_attach_type; older headers lack the TCX ones.
XDP = 37
TCX_INGRESS = 46
TCX_EGRESS = 47


def _libbpf() -> ctypes.CDLL:
    lib = ctypes.CDLL("libbpf.so.1", use_errno=True)
    for name in ("bpf_object__open_file", "bpf_object__find_program_by_name", "bpf_object__find_map_by_name"):
        getattr(lib, name).restype = ctypes.c_void_p
    lib.bpf_object__open_file.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    lib.bpf_object__find_program_by_name.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    lib.bpf_object__find_map_by_name.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    for name in ("bpf_object__load", "bpf_program__fd", "bpf_map__fd", "bpf_object__close"):
        getattr(lib, name).argtypes = [ctypes.c_void_p]
    lib.bpf_object__close.restype = None
    lib.bpf_raw_tracepoint_open.argtypes = [ctypes.c_char_p, ctypes.c_int]
    lib.bpf_link_create.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
    return lib


class TestbedObject:
    """A loaded BPF object file. Raises `AgentError` when the kernel refuses it."""

    __test__ = False  # for pytest: no test class

    def __init__(self, path: Path) -> None:
        self._lib = _libbpf()
        self._links: list[int] = []
        self._object = self._lib.bpf_object__open_file(os.fsencode(path), None)
        if not self._object:
            raise AgentError(
                f"{path}: {os.strerror(ctypes.get_errno())}", "build it: make build/bpf/testbed.bpf.o"
            )
        if self._lib.bpf_object__load(self._object) != 0:
            code = ctypes.get_errno()
            self._lib.bpf_object__close(self._object)
            raise AgentError(
                f"{path}: the kernel refused it: {os.strerror(code)}", "libbpf's log is on stderr"
            )

    def attach(self, program: str, ifindex: int, attach_type: int) -> None:
        """Attach by a link that lasts until `close()`; call it in the interface's network namespace."""
        found = self._lib.bpf_object__find_program_by_name(self._object, program.encode())
        link = self._lib.bpf_link_create(self._lib.bpf_program__fd(found), ifindex, attach_type, None)
        if link < 0:
            raise AgentError(f"attach {program} to interface {ifindex}: {os.strerror(ctypes.get_errno())}")
        self._links.append(link)

    def attach_tracepoint(self, program: str, tracepoint: str) -> None:
        """Attach a raw tracepoint program until `close()`. `UnsupportedError`: the kernel has none."""
        found = self._lib.bpf_object__find_program_by_name(self._object, program.encode())
        link = self._lib.bpf_raw_tracepoint_open(tracepoint.encode(), self._lib.bpf_program__fd(found))
        if link < 0:
            raise UnsupportedError(
                f"{program} at the tracepoint {tracepoint}: {os.strerror(-link)}", "use a newer kernel"
            )
        self._links.append(link)

    def map(self, name: str, dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
        """The first value of a mmapable array map, as a writable structured array of shape (1,)."""
        found = self._lib.bpf_object__find_map_by_name(self._object, name.encode())
        area = mmap.mmap(self._lib.bpf_map__fd(found), mmap.PAGESIZE)
        return np.frombuffer(area, dtype=dtype, count=1)

    def close(self) -> None:
        """Detach and unload."""
        for link in self._links:
            os.close(link)
        self._links.clear()
        if self._object:
            self._lib.bpf_object__close(self._object)
            self._object = None
