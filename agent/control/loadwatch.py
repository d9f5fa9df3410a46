"""Notices within some tens of milliseconds that a load moved, from glances that cost next to nothing.

A glance is two vectors that only grow: each CPU's time in softirqs and interrupts, and the delays' histogram. The load
is *suspected* to have moved when a CPU's share differs from what it was lately, or when many more packets than one in
a hundred are above what p99 was; when the next glance says so too, it *moved*. The span between the two glances then
is the first that shows nothing but the new load.
"""

from __future__ import annotations

import math
from enum import Enum

import numpy as np
import numpy.typing as npt

from agent.ffi.records import HIST_BUCKETS

_LOAD_TAU_S = 1.0
_DELAY_TAU_S = 2.0
_SPREAD_TAU_S = 10.0
# With some hundred softirqs in a glance a share strays by a tenth; a load in bursts strays by more, and has not moved.
_SHARE_STEP = 0.25
_SPREADS = 4.0
_SLOW_SHARE = 0.1
_SLOW_PACKETS = 20
_MIN_REFERENCE = 500.0


class Motion(Enum):
    """What a glance says of the load."""

    STEADY = 0
    SUSPECTED = 1
    MOVED = 2


class LoadWatch:
    """Compares glances with what was usual lately."""

    def __init__(self) -> None:
        self._mono_ns = 0
        self._busy_ns: npt.NDArray[np.int64] | None = None
        self._counts: npt.NDArray[np.uint32] | None = None
        self._share: npt.NDArray[np.float64] | None = None
        self._spread: npt.NDArray[np.float64] | float = 0.0
        self._delays = np.zeros(HIST_BUCKETS)
        self._suspected = False

    def look(self, mono_ns: int, busy_ns: npt.NDArray[np.int64], counts: npt.NDArray[np.uint32]) -> Motion:
        """Take in a glance: `busy_ns[CPU]` in softirqs and interrupts, `counts[HIST_BUCKETS]` of delays, so far."""
        span_ns = mono_ns - self._mono_ns
        before_ns, before = self._busy_ns, self._counts
        self._mono_ns, self._busy_ns, self._counts = mono_ns, busy_ns, counts
        if before_ns is None or before is None or span_ns <= 0:
            return Motion.STEADY
        share = (busy_ns - before_ns) / span_ns
        grown = (counts - before).astype(np.float64)
        strays = self._strays(share, span_ns)
        if strays or self._slower(grown):
            if self._suspected:
                self._share, self._delays, self._suspected = share, grown, False
                return Motion.MOVED
            self._suspected = True
            return Motion.SUSPECTED
        self._suspected = False
        keep = math.exp(-span_ns / 1e9 / _LOAD_TAU_S)
        self._share = share if self._share is None else keep * self._share + (1 - keep) * share
        self._delays = math.exp(-span_ns / 1e9 / _DELAY_TAU_S) * self._delays + grown
        return Motion.STEADY

    def rebase(self) -> None:
        """Settings were changed: where packets are processed now shows in the shares, and is no load that moved."""
        self._share, self._suspected = None, False
        self._mono_ns, self._busy_ns, self._counts = 0, None, None

    def _strays(self, share: npt.NDArray[np.float64], span_ns: int) -> bool:
        """Whether a share is off by more than it usually is; how much that is, is learnt from all glances."""
        if self._share is None:
            return False
        off = np.abs(share - self._share)
        strays = bool(np.any(off > np.maximum(_SHARE_STEP, _SPREADS * self._spread)))
        keep = math.exp(-span_ns / 1e9 / _SPREAD_TAU_S)
        self._spread = keep * self._spread + (1 - keep) * off
        return strays

    def _slower(self, grown: npt.NDArray[np.float64]) -> bool:
        total = self._delays.sum()
        if total < _MIN_REFERENCE:
            return False
        p99 = int(np.searchsorted(np.cumsum(self._delays), 0.99 * total))
        above = float(grown[p99 + 1 :].sum())
        return above >= max(_SLOW_PACKETS, _SLOW_SHARE * float(grown.sum()))
