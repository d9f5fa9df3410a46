"""Where each CPU's time in interrupts and softirqs went in a span, and what of it makes a queue slow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from agent.host.load import CpuLoad

SOFTIRQ_NAMES = ("hi", "timer", "net_tx", "net_rx", "block", "irq_poll", "tasklet", "sched", "hrtimer", "rcu")
"""The kernel's softirq vectors in its order (include/linux/interrupt.h)."""


@dataclass(frozen=True, slots=True)
class CpuActivity:
    """One CPU's interrupts and softirqs in a span; shares are of its time."""

    irq: float
    softirq: float
    """All vectors."""
    vectors: Mapping[str, float]
    """Vector → share, of those that ran."""
    wait_p50_ns: float
    """From when NET_RX was raised to when it began; NaN where it did not run."""
    wait_p99_ns: float
    polls_per_s: float
    """Polls of NAPIs."""
    packets_per_poll: float
    exhausted: float
    """Share of the polls that used their whole budget: more was waiting."""

    @property
    def net_rx(self) -> float:
        """Share of the time in NET_RX."""
        return self.vectors.get("net_rx", 0.0)


@dataclass(frozen=True, slots=True)
class IrqRate:
    """One interrupt."""

    per_s: float
    share: float
    """Of one CPU's time, in its handler."""


@dataclass(frozen=True, slots=True)
class IrqActivity:
    """One difference of samples; CPUs and interrupts on which nothing happened are left out."""

    seconds: float
    cpus: Mapping[int, CpuActivity] = field(default_factory=dict)
    irqs: Mapping[int, IrqRate] = field(default_factory=dict)


def traced(load: CpuLoad, activity: IrqActivity | None) -> CpuLoad:
    """The load with the shares of softirqs and interrupts that were traced, as far as they were.

    The kernel samples these by its timer (250 times a second, say): in a tenth of a second a share of 25 % then reads
    as anything from 10 to 50 %.
    """
    if activity is None or not activity.seconds:
        return load
    cpus = {}
    for cpu, share in load.cpus.items():
        seen = activity.cpus.get(cpu)
        softirq, irq = (seen.softirq, seen.irq) if seen else (0.0, 0.0)
        others = max(0.0, share.busy - share.softirq - share.irq)
        busy = min(1.0, others + softirq + irq)
        idle = max(0.0, share.idle + share.busy - busy)
        cpus[cpu] = replace(share, softirq=softirq, irq=irq, busy=busy, idle=idle)
    return replace(load, cpus=cpus)


def why_slow(activity: IrqActivity, cpus: Iterable[int], irqs: Iterable[int] = ()) -> str:
    """What on these CPUs delays packets, in words, the busiest CPU first; empty where nothing was seen of them."""
    known = [(cpu, activity.cpus[cpu]) for cpu in set(cpus) if cpu in activity.cpus]
    parts = []
    for cpu, seen in sorted(known, key=lambda item: -item[1].softirq)[:2]:
        text = f"CPU {cpu}: {seen.softirq:.0%} in softirq ({_vectors(seen)}), {seen.irq:.1%} in interrupts"
        if not math.isnan(seen.wait_p99_ns):
            text += f", NET_RX waits {seen.wait_p99_ns / 1e3:.1f} us (p99)"
        if seen.exhausted >= 0.05:
            text += f", {seen.exhausted:.0%} of polls left packets behind"
        parts.append(text)
    rates = [
        f"IRQ {number} {activity.irqs[number].per_s:.0f}/s" for number in irqs if number in activity.irqs
    ]
    return "; ".join([*parts, *rates])


def _vectors(seen: CpuActivity) -> str:
    largest = sorted(seen.vectors.items(), key=lambda item: -item[1])[:2]
    return ", ".join(f"{name} {share:.0%}" for name, share in largest) or "none"
