"""Drains the per-CPU perf rings into one numpy array: one C call, no Python object per record.

The rings are never waited on: wake-ups come only when one is half full (for who polls `fds`), since a wake-up per
record costs more than the record.
"""

from __future__ import annotations

import errno
import mmap
from collections.abc import Iterable
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from agent.errors import UnsupportedError, UsageError
from agent.ffi import _native
from agent.ffi.bpf import BpfMap
from agent.ffi.failures import call_error, permission_cause
from agent.ffi.records import WINDOW_DTYPE

_ffi, _lib = _native.ffi, _native.lib


class Rings:
    """One perf ring per CPU, registered in a perf event array map at the CPU's index.

    `bytes_per_cpu` is a power of two, at least a page. CPUs that are offline are skipped: give them to `add_cpu` when
    they come up. `dtype` is the record's, WINDOW_DTYPE unless a program of its own fills the map. A context manager.
    """

    def __init__(
        self,
        events: BpfMap,
        cpus: Iterable[int],
        bytes_per_cpu: int,
        dtype: npt.DTypeLike = WINDOW_DTYPE,
    ) -> None:
        if bytes_per_cpu < mmap.PAGESIZE or bytes_per_cpu & (bytes_per_cpu - 1):
            raise UsageError(
                f"a ring of {bytes_per_cpu} bytes is not possible",
                f"choose a power of two from {mmap.PAGESIZE} on",
            )
        self.dtype = np.dtype(dtype)
        self.bytes_per_cpu = bytes_per_cpu
        self.fds: dict[int, int] = {}
        """The perf event fd of each CPU that has a ring, for poll(2)."""
        self._events = events
        self._handle: Any = _lib.agent_rings_new(self.dtype.itemsize)
        if self._handle == _ffi.NULL:
            raise MemoryError
        self._counters: Any = _lib.agent_rings_counters(self._handle)
        try:
            for cpu in cpus:
                self.add_cpu(cpu)
        except BaseException:
            self.close()
            raise

    def add_cpu(self, cpu: int) -> bool:
        """Opens a ring on a CPU and registers it; False if the CPU is offline.

        A CPU that had a ring before it went offline gets a new one; the old one stays until it is drained and the
        rings are closed, so no record is lost.
        """
        action = f"open a ring of {self.bytes_per_cpu} bytes on CPU {cpu}"
        fd = _lib.agent_rings_add(self._handle, cpu, self.bytes_per_cpu // mmap.PAGESIZE)
        if fd == -errno.ENODEV:
            return False
        if fd in (-errno.EPERM, -errno.EACCES):
            cause, remedy = permission_cause()
            raise UnsupportedError(f"cannot {action}: {cause}", remedy)
        if fd < 0:
            raise call_error(action, fd)
        self._events.update(cpu, fd.to_bytes(4, "little"))
        self.fds[cpu] = fd
        return True

    def drain(self, out: npt.NDArray[np.void]) -> int:
        """Moves records into `out` until it is full or the rings are empty; returns how many.

        `out` is a contiguous writable array [n] of the rings' dtype. What doesn't fit stays for the next call. Records
        of one CPU come in the order they were produced. Reuse `out`: fresh pages cost more than the
        copy. The GIL is released meanwhile.
        """
        if self._handle == _ffi.NULL:
            raise ValueError("the rings are closed")
        if out.dtype != self.dtype or out.ndim != 1:
            raise TypeError(f"drain needs a 1-d array of the rings' record type, not {out.dtype} {out.shape}")
        target = _ffi.from_buffer("uint8_t[]", out, require_writable=True)
        return int(_lib.agent_rings_drain(self._handle, target, len(out)))

    @property
    def cpus(self) -> tuple[int, ...]:
        """CPUs with a ring."""
        return tuple(self.fds)

    @property
    def drained(self) -> int:
        """Records given out so far."""
        return int(self._counters.drained)

    @property
    def lost_reported(self) -> int:
        """Losses that perf reported so far. It reports late or not at all: the kernel's own counter is the truth."""
        return int(self._counters.lost_reported)

    @property
    def malformed(self) -> int:
        """Samples of another size and records of unknown type, skipped so far."""
        return int(self._counters.malformed)

    def close(self) -> None:
        """Unmaps the rings, with what is still in them; the counters stay. A second call does nothing."""
        if self._handle != _ffi.NULL:
            self._counters = _ffi.new("struct agent_ring_counters *", self._counters[0])
            _lib.agent_rings_free(self._handle)
            self._handle = _ffi.NULL
            self.fds.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
