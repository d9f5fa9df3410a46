"""Sleeps until a tick is due, and notices meanwhile that a load came to a CPU that serves a queue (loadwatch.h)."""

from __future__ import annotations

import enum
from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from agent.ffi import _native

_ffi, _lib = _native.ffi, _native.lib

GLANCE_NS = int(_lib.AGENT_GLANCE_NS)
"""How often the CPUs are looked at."""


class Woken(enum.Enum):
    """What a wait ended by."""

    DUE = 0
    SUSPECTED = -1
    """A load may have come: what is measured from here on should be kept apart."""
    MOVED = -2
    """It did; told once for each move."""


class LoadWatch:
    """Compares the latest two glances at the CPUs with what each is used to."""

    def __init__(self, counters: npt.NDArray[np.void] | None) -> None:
        """`counters`: struct irq_cpu by CPU id, in memory that somebody else writes; None: there are no glances."""
        count = 0 if counters is None else len(counters)
        self._counters = counters  # keeps the memory
        self._cpus = _ffi.new("struct agent_load_cpu[]", count)
        self._watch = _ffi.new("struct agent_load_watch *", {"n_cpus": count, "cpus": self._cpus})
        self._serving: frozenset[int] = frozenset()

    def wait(self, due_ns: int, signals: Collection[int]) -> Woken | int:
        """Sleep until `due_ns` (monotonic), a signal, whose number is returned, or until a glance shows something.

        The signals have to be blocked.
        """
        base, stride = self._memory()
        ended_by = int(_lib.agent_load_wait(self._watch, base, stride, list(signals), len(signals), due_ns))
        return ended_by if ended_by > 0 else Woken(ended_by)

    def look(self, mono_ns: int) -> Woken:
        """One glance."""
        return Woken(_lib.agent_load_look(self._watch, *self._memory(), mono_ns))

    def serve(self, cpus: Collection[int]) -> None:
        """These CPUs serve queues now: a load that comes to one of them matters."""
        wanted = frozenset(cpu for cpu in cpus if cpu < len(self._cpus))
        for cpu in wanted ^ self._serving:
            self._cpus[cpu].serving = cpu in wanted
        self._serving = wanted

    def settle(self, mono_ns: int) -> None:
        """What comes now is usual from now on: the agent moved work itself."""
        _lib.agent_load_settle(self._watch, mono_ns)

    @property
    def shares(self) -> npt.NDArray[np.float64]:
        """Share of each CPU's time in softirqs and interrupts over the latest two glances, float64[CPU ids].

        Where a load has just left, over the latest alone: it may have been there in a part of the one before.
        """
        return np.array([cpu.latest if cpu.latest < cpu.usual / 2 else cpu.share for cpu in self._cpus])

    def _memory(self) -> tuple[Any, int]:
        if self._counters is None:
            return _ffi.NULL, 0
        return _ffi.cast("void *", self._counters.ctypes.data), self._counters.strides[0]
