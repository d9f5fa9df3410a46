"""The programs at the interrupt and softirq tracepoints, and what they counted since the last look.

The programs (bpf/irq.bpf.c) count in maps; each `sample` is one difference of those.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from agent.ffi.bpf import ProgramSet, attach_tracepoint, load
from agent.ffi.records import hist_quantile
from agent.host.activity import SOFTIRQ_NAMES, CpuActivity, IrqActivity, IrqRate

# So many interrupt numbers are counted one by one; those above count in their CPU's sum alone.
_LINES_MAX = 1 << 16


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One look at the counters: `cpus` by CPU id, `lines` of the interrupts that are told."""

    mono_ns: int
    cpus: npt.NDArray[np.void]
    lines: npt.NDArray[np.void]


class IrqTrace:
    """The programs at the tracepoints. A context manager: leaving it detaches them."""

    def __init__(
        self, cpu_count: int, irqs: Iterable[int], loader: Literal["auto", "libbpf", "bcc"] = "auto"
    ) -> None:
        """`cpu_count` is one more than the highest possible CPU id; `irqs` are told one by one."""
        self._irqs = [number for number in sorted(irqs) if number < _LINES_MAX]
        self._source = ProgramSet(
            "irq", map_entries={"irq_cpus": cpu_count, "irq_lines": 1 + max(self._irqs, default=0)}
        )
        self._loader: Literal["auto", "libbpf", "bcc"] = loader
        self._stack = ExitStack()
        self._maps: tuple[npt.NDArray[Any], npt.NDArray[Any]] | None = None
        self._before: Snapshot | None = None

    def start(self) -> None:
        """Load and attach. Raises `UnsupportedError` and `LoadError`, with nothing left attached."""
        with ExitStack() as stack:
            loaded = stack.enter_context(load(self._loader, self._source))
            for name, fd in loaded.programs.items():
                stack.enter_context(attach_tracepoint(fd, name))
            self._maps = loaded.map("irq_cpus").mmap(), loaded.map("irq_lines").mmap()
            self._before = None
            self._stack = stack.pop_all()

    def stop(self) -> None:
        """Detach and free; a second call does nothing. What is going on now is forgotten: `start` begins anew."""
        self._maps = None
        self._stack.close()

    def sample(self, mono_ns: int) -> IrqActivity | None:
        """What happened since the previous call; nothing in the first. None while it is stopped."""
        if self._maps is None:
            return None
        cpus, lines = self._maps
        now = Snapshot(mono_ns, cpus.copy(), lines[self._irqs])
        before, self._before = self._before, now
        if before is None or mono_ns <= before.mono_ns:
            return IrqActivity(0.0)
        return difference(before, now, self._irqs)

    @property
    def counters(self) -> npt.NDArray[np.void] | None:
        """Each CPU's counters as they grow, by CPU id (irq_cpu of bpf/records.h); None while it is stopped."""
        return None if self._maps is None else self._maps[0]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def difference(before: Snapshot, now: Snapshot, irqs: Iterable[int]) -> IrqActivity:
    """The activity between two snapshots, of which `lines` are those of `irqs`."""
    span_ns = now.mono_ns - before.mono_ns
    fired = (now.lines["count"] - before.lines["count"]).tolist()
    took_ns = (now.lines["ns"] - before.lines["ns"]).tolist()
    rates = {
        number: IrqRate(count * 1e9 / span_ns, ns / span_ns)
        for number, count, ns in zip(irqs, fired, took_ns, strict=True)
        if count
    }
    return IrqActivity(span_ns / 1e9, _cpus(before.cpus, now.cpus, span_ns), rates)


def _cpus(before: npt.NDArray[np.void], now: npt.NDArray[np.void], span_ns: int) -> dict[int, CpuActivity]:
    irqs, polls = now["irqs"] - before["irqs"], now["polls"] - before["polls"]
    softirqs = now["softirqs"] - before["softirqs"]
    ran = np.flatnonzero(softirqs.any(axis=1) | (irqs != 0) | (polls != 0))
    if not len(ran):
        return {}
    before, now = before[ran], now[ran]
    spent = (now["softirq_ns"] - before["softirq_ns"]) / span_ns
    interrupts = (now["irq_ns"] - before["irq_ns"]) / span_ns
    # u32, which wraps as the kernel's does.
    waits = hist_quantile(now["rx_wait"]["bucket"] - before["rx_wait"]["bucket"], (0.5, 0.99))
    calls = np.maximum(polls[ran], 1)
    columns = (
        ran,
        interrupts,
        spent,
        waits,
        polls[ran] * 1e9 / span_ns,
        (now["polled"] - before["polled"]) / calls,
        (now["exhausted"] - before["exhausted"]) / calls,
    )
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {
        cpu: CpuActivity(
            irq=irq,
            softirq=sum(shares),
            vectors={name: share for name, share in zip(SOFTIRQ_NAMES, shares, strict=True) if share},
            wait_p50_ns=p50,
            wait_p99_ns=p99,
            polls_per_s=polls_per_s,
            packets_per_poll=packets_per_poll,
            exhausted=exhausted,
        )
        for cpu, irq, shares, (p50, p99), polls_per_s, packets_per_poll, exhausted in rows
    }
