"""The CPUs: who else moves work between them, and what makes them slow to wake up."""

from __future__ import annotations

import re
from collections import Counter

from agent.doctor.check import Context, Finding, Table
from agent.fixes import IDLE_LIMIT_US, SLOW_WAKE_US, exit_latencies_us, slow_governors
from agent.host.cpus import CpuTopology, read_cpus
from agent.host.masks import CpuMask
from agent.host.paths import HostPaths, read_int, read_text
from agent.host.processes import OTHER_OWNERS, named, running

# Cores of one kind differ by some per cent in what their firmware says.
_SLOWER = 0.8


def topology(context: Context) -> Finding:
    """CPUs, those kept free, and those that are not running."""
    cpus = read_cpus(context.paths)
    parts = [f"{len(cpus.online)} online (of {len(cpus.possible)} possible)"]
    if cpus.isolated:
        parts.append(f"isolated {cpus.isolated.format_list()}")
    if cpus.nohz_full:
        parts.append(f"nohz_full {cpus.nohz_full.format_list()}")
    parts += _kinds(context.paths, cpus)
    if cpus.isolated or cpus.nohz_full:
        return Finding(
            "info", "; ".join(parts), "the agent gives no work to these CPUs that they don't have already"
        )
    if len(cpus.online) == 1:
        return Finding(
            "warn", parts[0], "there is no other CPU to move work to: the agent can measure, but hardly help"
        )
    if all(cpu.core is None for cpu in cpus.cpus.values()):
        return Finding(
            "info",
            "; ".join([*parts, "no topology in sysfs"]),
            "which CPUs share a core or a node is not known: the agent weighs their load alone",
        )
    return Finding("ok", "; ".join(parts))


def _kinds(paths: HostPaths, cpus: CpuTopology) -> list[str]:
    """SMT, and the kinds of cores of hybrid CPUs."""
    found = []
    if read_int(paths.cpu / "smt/active"):
        found.append("SMT: two threads share a core")
    slow = read_text(paths.sys / "devices/cpu_atom/cpus")
    if slow:
        found.append(f"hybrid: {slow} are efficiency cores, which serve a queue more slowly")
    elif slower := CpuMask.of(cpu.id for cpu in cpus.cpus.values() if cpu.capacity < _SLOWER):
        found.append(f"hybrid: {slower} are slower than the others, and serve a queue more slowly")
    return found


def other_owners(context: Context) -> Finding:
    """Other programs that move interrupts or set up queues."""
    found = running(context.paths, OTHER_OWNERS)
    if not found:
        return Finding("ok", f"none of {', '.join(OTHER_OWNERS)} runs")
    if "irqbalance" not in found:
        return Finding(
            "info",
            f"{named(found)} runs",
            "it may set interrupts and queues too, at its start or when a profile changes; what somebody else changed "
            "is left alone for ten minutes",
            "take the capture NIC out of its profile (tuned: `[irq] type=irq` off), or `--deny irq,rps,xps`",
        )
    return Finding(
        "warn",
        f"{named(found)} runs{_banned(context, found['irqbalance'])}",
        "it rewrites IRQ affinities every 10 s; the agent holds off from an IRQ that somebody else moves",
        "`agent run --own` asks it to leave the capture NIC's IRQs alone; or ban them (IRQBALANCE_ARGS=--banirq=N), "
        "`systemctl stop irqbalance`, or `--deny irq`",
    )


def _banned(context: Context, pids: list[int]) -> str:
    """What irqbalance was told to leave alone, in words; empty if nothing."""
    words = " ".join(
        (read_text(context.paths.proc / f"{pid}/cmdline") or "").replace("\0", " ") for pid in pids
    )
    irqs = sorted({int(number) for number in re.findall(r"(?:--banirq[= ]|-i ?)(\d+)", words)})
    return f", told to leave IRQ {', '.join(map(str, irqs))} alone" if irqs else ""


def governor(context: Context) -> Finding:
    """Frequency scaling: a CPU that waits at its lowest frequency serves the first packets slowly."""
    policies = sorted((context.paths.cpu / "cpufreq").glob("policy*"))
    governors = Counter(name for policy in policies if (name := read_text(policy / "scaling_governor")))
    if not governors:
        return Finding("ok", "frequency scaling is not visible here (a virtual machine, or switched off)")
    found = ", ".join(f"{name} ({number} policies)" for name, number in governors.items())
    if slow_governors(context.paths):
        return Finding(
            "warn",
            found,
            "after idle times packets are served at a low frequency: delay and its spread grow",
            "`agent doctor --fix` sets `performance` until `agent restore`; for good: `cpupower frequency-set -g "
            "performance`",
        )
    return Finding("ok", found)


def idle_states(context: Context) -> Finding:
    """The idle states that are in use, and how long each takes to leave."""
    exit_us = exit_latencies_us(context.paths)
    if exit_us is None:
        return Finding("ok", "idle states are not visible here (a virtual machine, or idle=poll)")
    listed = ", ".join(f"{name} {us} µs" for name, us in sorted(exit_us.items(), key=lambda item: item[1]))
    slowest_us = max(exit_us.values(), default=0)
    if slowest_us < SLOW_WAKE_US:
        return Finding("ok", f"exit latencies: {listed or 'all are disabled'}")
    return Finding(
        "info",
        f"exit latencies: {listed}",
        f"a packet that wakes a CPU from the deepest is late by {slowest_us} µs",
        f"`agent doctor --fix` lets every `agent run` hold a limit of {IDLE_LIMIT_US} µs (/dev/cpu_dma_latency); "
        f"for good: `cpupower idle-set -D {IDLE_LIMIT_US}`",
    )


CHECKS: Table = (
    ("topology", topology),
    ("other owners", other_owners),
    ("frequency", governor),
    ("idle states", idle_states),
)
