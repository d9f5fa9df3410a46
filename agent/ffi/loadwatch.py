"""Waiting for the next tick with an eye on the load: a load that moved (see loadwatch.h) ends the wait."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from agent.ffi import _native

_ffi, _lib = _native.ffi, _native.lib

_GLANCE_NS = 20_000_000


class Motion(Enum):
    """What a glance says of the load."""

    STEADY = _lib.AGENT_LOAD_STEADY
    SUSPECTED = _lib.AGENT_LOAD_SUSPECTED
    MOVED = _lib.AGENT_LOAD_MOVED


class LoadWatch:
    """Glances at the counters of CPUs and interfaces, and compares them with what was usual lately.

    Arrays are those of `BpfMap.mmap`: they are read where they are, and kept alive.
    """

    def __init__(self) -> None:
        self._watch = _ffi.gc(_lib.agent_load_watch_new(), _lib.agent_load_watch_free)
        if self._watch == _ffi.NULL:
            raise MemoryError
        self._delays: list[npt.NDArray[Any]] = []
        self._cpus: npt.NDArray[Any] = np.empty(0)

    def add_delays(self, slots: npt.NDArray[Any], hists: npt.NDArray[Any]) -> None:
        """Look at an interface's delay histograms, too: its maps `slots` and `hists`, of the same length."""
        self._delays += [slots, hists]
        _done(
            _lib.agent_load_watch_delays(
                self._watch, _pointer(slots), slots.strides[0], _pointer(hists), hists.strides[0], len(slots)
            )
        )

    def follow_cpus(self, cpus: npt.NDArray[Any] | None) -> None:
        """Look at the map `irq_cpus` of the tracepoints from now on; None: they are stopped."""
        self._cpus = np.empty(0) if cpus is None else cpus
        _done(
            _lib.agent_load_watch_cpus(
                self._watch, _pointer(self._cpus), self._cpus.strides[0], len(self._cpus)
            )
        )

    def rebase(self) -> None:
        """Settings were changed: what the CPUs do for the packets from now on is no load that moved."""
        _lib.agent_load_watch_rebase(self._watch)

    def look(self, mono_ns: int) -> Motion:
        """One glance. `MOVED` is told once; what was seen is the usual from then on."""
        return Motion(_lib.agent_load_watch_look(self._watch, mono_ns))

    def wait(self, until_ns: int, signals: Iterable[int]) -> int | Motion:
        """Wait until a mono time, for one of the signals (blocked ones), or for a load that moved, with glances.

        Returns the signal's number; `MOVED`; or `STEADY` when the time has come.
        """
        numbers = list(signals)
        found: int = _lib.agent_load_watch_wait(self._watch, until_ns, _GLANCE_NS, numbers, len(numbers))
        return found if found > 0 else Motion(-found)


def _pointer(array: npt.NDArray[Any]) -> Any:
    return _ffi.cast("const void *", array.ctypes.data)


def _done(code: int) -> None:
    if code < 0:
        raise MemoryError
