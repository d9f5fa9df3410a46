"""One interface's interrupts: which may be moved, who else is on them, and how its queues are polled."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from agent.doctor.check import Context, Finding, NotChecked, Table
from agent.host.masks import CpuMask
from agent.host.napi import napi_threads
from agent.host.paths import read_int, read_text

if TYPE_CHECKING:
    from agent.host.coalescing import Coalescing

# From here on coalescing is more than what serving an interrupt takes.
_LONG_WAIT_US = 10
# irq_can_set_affinity_usr() decides the file's mode since 6.12; before, only debugfs tells.
_WRITE_BITS = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def movable(context: Context) -> Finding:
    """Interrupts that the kernel manages itself: their affinity is not for user space to set."""
    numbers = _irqs(context)
    managed = [number for number in numbers if _is_managed(context, number)]
    if not managed:
        return Finding("ok", f"IRQ {_listed(numbers)}: none is known to be managed by the kernel")
    return Finding(
        "info",
        f"IRQ {_listed(managed)} managed by the kernel{'' if len(managed) == len(numbers) else ' (others are not)'}",
        "the driver spread them over the CPUs at its start; writing their affinity fails with EPERM (EIO before 6.12)",
        "the agent leaves them and uses RPS or threaded NAPI; the number of queues decides the spread "
        "(`ethtool -L`)",
    )


def sharing(context: Context) -> Finding:
    """Interrupts that serve another device, port or function too."""
    interface = context.interface
    shared = [number for number in _irqs(context) if context.host.irqs[number].shared]
    device = context.paths.net(interface.name) / "device"
    functions = read_int(device / "sriov_numvfs") or 0
    parts = [f"{number} ({', '.join(context.host.irqs[number].actions)})" for number in shared]
    if shared:
        return Finding(
            "info",
            f"IRQ {', '.join(parts)} shared",
            "moving it would move other devices' work: a shared interrupt is never moved",
            "use another slot, or more vectors (`ethtool -L`, the driver's parameters)",
        )
    if (device / "physfn").exists():
        return Finding(
            "info",
            f"a virtual function of {(device / 'physfn').resolve().name}; its interrupts are its own",
            "the wire, the PHC and the stamping filter are the physical function's: others share them",
        )
    if functions:
        return Finding(
            "info",
            f"{functions} virtual functions are on; none of their interrupts is this interface's",
            "they share the wire and the PCI link with it: their traffic delays its packets, unseen",
        )
    return Finding("ok", "no other device, port or virtual function is on them")


def placement(context: Context) -> Finding:
    """Which CPUs serve the interrupts now, against the isolated CPUs and each other."""
    topology = context.host.topology
    serves: dict[int, list[int]] = {}
    for number in _irqs(context):
        text = read_text(context.paths.irq(number) / "effective_affinity_list") or read_text(
            context.paths.irq(number) / "smp_affinity_list"
        )
        mask = CpuMask.parse_list(text or "")
        if len(mask) == 1:
            serves.setdefault(next(iter(mask)), []).append(number)
    if not serves:
        raise NotChecked("no interrupt is bound to a single CPU")
    found = "; ".join(f"CPU {cpu}: {_listed(serves[cpu])}" for cpu in sorted(serves))
    kept_free = CpuMask.of(serves) & (topology.isolated | topology.nohz_full)
    if kept_free:
        return Finding(
            "warn",
            found,
            f"CPUs {kept_free} are isolated or nohz_full: each interrupt there disturbs what they are kept free for",
            "give the interrupts other CPUs (`agent run` does, where it finds a gain), or boot with irqaffinity=",
        )
    crowded = max(len(numbers) for numbers in serves.values())
    if crowded > 1 and crowded > -(-len(_irqs(context)) // max(1, len(topology.usable))):
        return Finding(
            "info",
            found,
            f"one CPU serves {crowded} of them while others serve none",
            "`agent plan` says what another place would gain",
        )
    return Finding("ok", found)


def polling(context: Context) -> Finding:
    """Threaded NAPI and where its threads run; deferral of interrupts, as busy polling wants it."""
    interface = context.interface
    directory = context.paths.net(interface.name)
    defer, flush_ns = read_int(directory / "napi_defer_hard_irqs"), read_int(directory / "gro_flush_timeout")
    found = "polled in softirq"
    if interface.threaded:
        threads = napi_threads(context.paths, interface.name)
        where = ", ".join(f"{thread.name} on {thread.affinity}" for thread in threads)
        found = f"threaded NAPI: {where or 'its threads are not to be seen'}"
    if defer and flush_ns:
        return Finding(
            "info",
            f"{found}; interrupts deferred {defer} times by {flush_ns} ns",
            "a packet that comes between two polls waits up to that long, unless an application busy-polls",
            f"`echo 0 > /sys/class/net/{interface.name}/napi_defer_hard_irqs`, unless busy polling is used",
        )
    if interface.threaded:
        return Finding(
            "info",
            found,
            "the threads' CPUs decide where packets are processed, the interrupts' affinity does not",
            "`agent run` moves these threads (actuator napi)",
        )
    return Finding("ok", found)


def coalescing(context: Context) -> Finding:
    """How long the NIC collects packets before it interrupts."""
    context.need_live()
    from agent.host.coalescing import read_coalescing

    name = context.interface.name
    now = read_coalescing(name)
    if now is None:
        raise NotChecked(f"{context.interface.driver} has no coalescing to tell")
    return coalescing_finding(name, now)


def coalescing_finding(ifname: str, now: Coalescing) -> Finding:
    """What an interface's coalescing adds to the delay of packets."""
    if now.adaptive_rx:
        return Finding(
            "info",
            str(now),
            "the driver changes the time that packets wait with their rate: delay after the stamp has steps that no "
            "other load explains",
            f"`agent run --allow coalesce` tries a short one, and keeps it only if it helps; or `ethtool -C {ifname} "
            "adaptive-rx off rx-usecs N`, and see whether the rate of interrupts follows: some drivers accept it "
            "without effect",
        )
    if (now.rx_usecs or 0) > _LONG_WAIT_US:
        return Finding(
            "info",
            str(now),
            f"a packet may wait {now.rx_usecs} µs for its interrupt, after its hardware stamp was taken",
            f"`agent run --allow coalesce` tries less, and keeps it only if it helps; or `ethtool -C {ifname} rx-usecs "
            "N`, and see whether the rate of interrupts follows (telemetry frame `irq`)",
        )
    return Finding("ok", str(now))


def _irqs(context: Context) -> list[int]:
    numbers = sorted({queue.irq for queue in context.interface.queues if queue.irq is not None})
    if not numbers:
        raise NotChecked("the interface has no interrupts of its own")
    return numbers


def _is_managed(context: Context, number: int) -> bool:
    affinity = context.paths.irq(number) / "smp_affinity"
    told = read_text(context.paths.sys / f"kernel/debug/irq/irqs/{number}") or ""
    if "IRQD_AFFINITY_MANAGED" in told:
        return True
    return affinity.exists() and not affinity.stat().st_mode & _WRITE_BITS


def _listed(numbers: list[int]) -> str:
    return CpuMask.of(numbers).format_list()


CHECKS: Table = (
    ("managed interrupts", movable),
    ("shared interrupts", sharing),
    ("interrupts' CPUs", placement),
    ("coalescing", coalescing),
    ("polling", polling),
)
