"""Exactness: every window that the kernel produced reached user space, or was counted as lost there."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from agent.capture import Capture
from agent.ffi.records import WindowArray
from agent.options import RunOptions
from tools.bench.capturing import capture_on
from tools.bench.figure import Effort, Figure
from tools.testbed import Testbed

_RATE_PPS = 40_000
_TICK_S = 0.1
# Rings of 4 KiB hold 19 records.
_CASES = (("exact", 1_000_000, 256), ("exact, small rings", 100_000, 4))


@dataclass(frozen=True, slots=True)
class Balance:
    """What became of the windows of a capture that has ended."""

    produced: int
    drained: int
    lost: int
    missing: int
    """Sequence numbers below `produced` that were not among the drained records, over all CPUs."""
    doubled: int
    """Records that came twice or out of order."""

    @property
    def error(self) -> int:
        """0 if produced = drained + lost, the gaps in the sequence numbers are the losses, and nothing came twice."""
        return abs(self.produced - self.drained - self.lost) + abs(self.missing - self.lost) + self.doubled


class Seen:
    """Counts drained records, and checks the order of their sequence numbers."""

    def __init__(self) -> None:
        self.records = 0
        self.doubled = 0
        self._last: dict[int, int] = {}

    def add(self, windows: WindowArray) -> None:
        """Take in what one drain gave; the array may be reused afterwards."""
        self.records += len(windows)
        for cpu in np.unique(windows["cpu"]).tolist():
            seq = windows["seq"][windows["cpu"] == cpu].astype(np.int64)
            steps = np.diff(seq, prepend=self._last.get(cpu, -1))
            self.doubled += int((steps < 1).sum())
            self._last[cpu] = int(seq[-1])


def balance(capture: Capture, seconds: float) -> Balance:
    """Drain for a while as the agent does, detach, and draw up the balance."""
    seen = Seen()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(_TICK_S)
        capture.flush_overdue(time.monotonic_ns())
        seen.add(capture.drain())
    seen.add(capture.detach())
    counters = capture.counters()
    return Balance(
        produced=counters["produced"],
        drained=capture.drained,
        lost=counters["lost"],
        missing=counters["produced"] - seen.records,
        doubled=seen.doubled + abs(seen.records - capture.drained),
    )


def run(bed: Testbed, window_ns: int, ring_kib: int, seconds: float) -> Balance:
    """A capture with rings of a given size, under the testbed's traffic."""
    options = RunOptions(
        interfaces=(bed.cap_if,), window_ns=window_ns, ring_kib=ring_kib, hook="xdp", stamp="trailer"
    )
    with capture_on(bed.cap, options) as capture:
        return balance(capture, seconds)


def measure(effort: Effort) -> list[Figure]:
    """Windows unaccounted for, with the usual rings and with rings that overflow."""
    seconds = 1.0 if effort.quick else 5.0
    figures = []
    with Testbed(rate_pps=_RATE_PPS) as bed:
        bed.start_traffic()
        for name, window_ns, ring_kib in _CASES:
            found = run(bed, window_ns, ring_kib, seconds)
            figures.append(
                Figure(
                    name=name,
                    what=f"windows unaccounted for, rings of {ring_kib} KiB",
                    value=found.error,
                    unit="windows",
                    target=0,
                    direction="exactly",
                    spread=None,
                    samples=found.produced,
                    detail={
                        "produced": found.produced,
                        "drained": found.drained,
                        "lost": found.lost,
                        "how": f"{_RATE_PPS} packets/s on 4 queues, windows of {window_ns // 1000} us, drained every "
                        f"{_TICK_S * 1000:.0f} ms; gaps in the records' sequence numbers compared with the kernel's "
                        "count of losses",
                    },
                )
            )
    return figures
