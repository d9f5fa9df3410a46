"""Whether a PHC keeps time at all: its rate is looked at before anything is built on it.

Some devices announce a PHC and stamps for all packets and have neither of use: QEMU's e1000e runs 1.5 % fast.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Protocol

from agent.errors import AgentError
from agent.ffi.phc import Phc, PhcBurst

MAX_RATE_ERROR_PPB = 1_000_000
"""Ten times what the worst crystals are off by: a PHC beyond it is no time source."""
# A step of either clock spoils one span between bursts; a wrong rate shows in all of them.
_BURSTS = 4
_READS = 3
_PAUSE_S = 0.025


class ReadablePhc(Protocol):
    """What is needed of a PHC."""

    def read_burst(self, n: int) -> PhcBurst:
        """Read it `n` times."""

    def frequency_ppb(self) -> float:
        """The frequency dialled into it."""


def phc_rate_error_ppb(ifindex: int) -> float | None:
    """As `rate_error_ppb`, of an interface's PHC; None where it cannot be opened or read. Takes 75 ms."""
    try:
        with Phc(ifindex) as phc:
            return rate_error_ppb(phc)
    except AgentError:  # whoever reads it later says so, with the cause
        return None


def rate_error_ppb(phc: ReadablePhc, pause: Callable[[float], None] = time.sleep) -> float:
    """How much faster than the local clock the PHC runs for certain, what is dialled into it taken out.

    Of several spans the one that is least off counts, less what its reads leave open: 0.0 where that is all of it.
    Raises what reading raises.
    """
    reads = [_fastest(phc.read_burst(_READS))]
    for _ in range(_BURSTS - 1):
        pause(_PAUSE_S)
        reads.append(_fastest(phc.read_burst(_READS)))
    try:
        dialled_ppb = phc.frequency_ppb()
    except AgentError:  # a device that was opened for reading only: then nothing is known of it
        dialled_ppb = 0.0
    return min((_certain_ppb(a, b, dialled_ppb) for a, b in pairwise(reads)), key=abs)


def _fastest(burst: PhcBurst) -> tuple[int, int, int]:
    """(local, phc, read delay) of the read that took least."""
    delays = burst.t2_ns - burst.t1_ns
    i = int(delays.argmin())
    delay = int(delays[i])
    return int(burst.t1_ns[i]) + delay // 2, int(burst.phc_ns[i]), delay


def _certain_ppb(before: tuple[int, int, int], after: tuple[int, int, int], dialled_ppb: float) -> float:
    span_ns = max(1, after[0] - before[0])
    error_ppb = (after[1] - before[1] - span_ns) / span_ns * 1e9 - dialled_ppb
    open_ppb = (before[2] + after[2]) / 2 / span_ns * 1e9
    return max(0.0, abs(error_ppb) - open_ppb) * (1.0 if error_ppb > 0 else -1.0)
