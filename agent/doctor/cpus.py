"""The CPUs: who else moves work between them, and what makes them slow to wake up."""

from __future__ import annotations

import re

from agent.doctor.check import Context, Finding, NotChecked, Table
from agent.doctor.processes import named, running
from agent.host.cpus import read_cpus
from agent.host.paths import read_int, read_text

_SLOW_WAKE_US = 50
_SLOW_GOVERNORS = frozenset({"ondemand", "conservative", "powersave"})
# With these drivers `powersave` is a hint to the hardware, not the lowest frequency.
_HARDWARE_SCALED = frozenset({"intel_pstate", "amd-pstate-epp"})


def topology(context: Context) -> Finding:
    """CPUs, those kept free, and those that are not running."""
    cpus = read_cpus(context.paths)
    parts = [f"{len(cpus.online)} online (of {len(cpus.possible)} possible)"]
    if cpus.isolated:
        parts.append(f"isolated {cpus.isolated.format_list()}")
    if cpus.nohz_full:
        parts.append(f"nohz_full {cpus.nohz_full.format_list()}")
    if cpus.isolated or cpus.nohz_full:
        return Finding(
            "info", "; ".join(parts), "the agent gives no work to these CPUs that they don't have already"
        )
    if len(cpus.online) == 1:
        return Finding(
            "warn", parts[0], "there is no other CPU to move work to: the agent can measure, but hardly help"
        )
    return Finding("ok", parts[0])


def irqbalance(context: Context) -> Finding:
    """The other program that moves interrupts."""
    found = running(context.paths, ("irqbalance",))
    if not found:
        return Finding("ok", "irqbalance does not run")
    return Finding(
        "warn",
        f"{named(found)} runs",
        "it rewrites IRQ affinities every 10 s; the agent holds off from an IRQ that somebody else moves",
        "`systemctl stop irqbalance`, or ban the capture NIC's IRQs (IRQBALANCE_ARGS=--banirq=N), or `--deny irq`",
    )


def governor(context: Context) -> Finding:
    """Frequency scaling: a CPU that waits at its lowest frequency serves the first packets slowly."""
    governors: dict[str, int] = {}
    drivers = set()
    for policy in sorted((context.paths.cpu / "cpufreq").glob("policy*")):
        name = read_text(policy / "scaling_governor")
        if name:
            governors[name] = governors.get(name, 0) + 1
            drivers.add(read_text(policy / "scaling_driver") or "")
    if not governors:
        return Finding("ok", "frequency scaling is not visible here (a virtual machine, or switched off)")
    found = ", ".join(f"{name} ({policies} policies)" for name, policies in governors.items())
    slow = _SLOW_GOVERNORS & set(governors)
    if slow and not (slow == {"powersave"} and drivers <= _HARDWARE_SCALED):
        return Finding(
            "warn",
            found,
            "after idle times packets are served at a low frequency: delay and its spread grow",
            "`cpupower frequency-set -g performance` on capture hosts",
        )
    return Finding("ok", found)


def idle_states(context: Context) -> Finding:
    """How long the deepest enabled idle state takes to leave."""
    slowest, name = 0, ""
    states = list(context.paths.cpu.glob("cpu[0-9]*/cpuidle/state[0-9]*"))
    if not states:
        return Finding("ok", "idle states are not visible here (a virtual machine, or idle=poll)")
    for state in states:
        latency_us = read_int(state / "latency") or 0
        if read_int(state / "disable") != 1 and latency_us > slowest:
            slowest, name = latency_us, read_text(state / "name") or state.name
    if slowest < _SLOW_WAKE_US:
        return Finding("ok", f"the deepest is left in {slowest} µs")
    return Finding(
        "info",
        f"{name} takes {slowest} µs to leave",
        "a packet that wakes a CPU from it is late by that much",
        "`cpupower idle-set -D 20` on capture hosts, or hold /dev/cpu_dma_latency open",
    )


def softnet(context: Context) -> Finding:
    """Packets that the kernel dropped, and softirqs that ran out of budget, since boot."""
    text = read_text(context.paths.proc / "net/softnet_stat")
    if text is None:
        raise NotChecked("/proc/net/softnet_stat cannot be read")
    rows = [
        [int(word, 16) for word in line.split()]
        for line in text.splitlines()
        if re.match(r"[0-9a-f ]+$", line)
    ]
    dropped, squeezed = sum(row[1] for row in rows), sum(row[2] for row in rows)
    if dropped:
        return Finding(
            "warn",
            f"{dropped} packets dropped and {squeezed} times out of budget since boot",
            "a CPU's backlog queue overflowed: RPS targets or softirq work were too many for it",
            "raise net.core.netdev_max_backlog; `agent run` shows on which CPU it happens",
        )
    return Finding("ok", f"no drops since boot, {squeezed} times out of budget")


CHECKS: Table = (
    ("topology", topology),
    ("irqbalance", irqbalance),
    ("frequency", governor),
    ("idle states", idle_states),
    ("softnet", softnet),
)
