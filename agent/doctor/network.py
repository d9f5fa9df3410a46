"""The network stack as a whole: what it dropped, how long it polls, and who took a NIC away from it."""

from __future__ import annotations

import re

from agent.doctor.check import Context, Finding, NotChecked, Table
from agent.host.paths import HostPaths, read_int, read_text
from agent.host.processes import holders, named

_USER_DRIVERS = ("vfio-pci", "uio_pci_generic", "igb_uio")
_NETWORK_CLASS = "0x02"


def softnet(context: Context) -> Finding:
    """Packets that the kernel dropped, and softirqs that ran out of budget, since boot."""
    text = read_text(context.paths.proc / "net/softnet_stat")
    if text is None:
        raise NotChecked("/proc/net/softnet_stat cannot be read")
    dropped, squeezed = {}, {}
    lines = [line.split() for line in text.splitlines() if re.match(r"[0-9a-f ]+$", line)]
    for position, words in enumerate(lines):
        # Since 5.10 the 13th column is the CPU's id: offline CPUs have no line.
        cpu = int(words[12], 16) if len(words) > 12 else position
        dropped[cpu], squeezed[cpu] = int(words[1], 16), int(words[2], 16)
    if any(dropped.values()):
        return Finding(
            "warn",
            f"{sum(dropped.values())} packets dropped ({_by_cpu(dropped)}) and {sum(squeezed.values())} times out of "
            "budget since boot",
            "a CPU's backlog queue overflowed: RPS targets or softirq work were too many for it",
            "raise net.core.netdev_max_backlog; `agent run` shows on which CPU it happens, and moves work away",
        )
    if any(squeezed.values()):
        return Finding(
            "info",
            f"no drops since boot, {sum(squeezed.values())} times out of budget ({_by_cpu(squeezed)})",
            "polling stopped with packets left, which waited for the next softirq: bursts, or too much for one CPU",
            "spread the queues (`agent run`); if bursts are wanted, raise net.core.netdev_budget and "
            "netdev_budget_usecs",
        )
    return Finding("ok", "no drops since boot, never out of budget")


def busy_polling(context: Context) -> Finding:
    """Sockets that poll the NIC themselves: the work is then done on the consumer's CPU, without interrupts."""
    sysctl = context.paths.proc / "sys/net/core"
    read_us, poll_us = read_int(sysctl / "busy_read"), read_int(sysctl / "busy_poll")
    if read_us is None or poll_us is None:
        raise NotChecked("this kernel has no busy polling (CONFIG_NET_RX_BUSY_POLL)")
    if read_us or poll_us:
        return Finding(
            "info",
            f"on for all sockets: net.core.busy_read {read_us} µs, busy_poll {poll_us} µs",
            "a waiting consumer polls its queue on its own CPU: moving the interrupt changes little while it does, and "
            "the CPU never idles",
            "pin such consumers, each to a CPU of its own on the NIC's node",
        )
    return Finding("ok", "off for sockets that don't ask for it (SO_BUSY_POLL)")


def taken_nics(context: Context) -> Finding:
    """NICs that a program drives itself (DPDK): bound to vfio or uio, they are no interface of the kernel's."""
    found = taken_from_kernel(context.paths)
    if not found:
        return Finding("ok", "no NIC is bound to vfio or uio")
    users = holders(context.paths, ("/dev/vfio/", "/dev/uio"))
    used = f"; in use by {named(users)}" if users else "; no process has it open"
    return Finding(
        "info",
        ", ".join(found) + used,
        "its packets pass by the kernel: no interface, no interrupts and no BPF hook, nothing the agent could measure",
        "to capture with the agent, give it back: `driverctl unset-override ADDRESS`, or "
        "`dpdk-devbind.py -b KERNEL_DRIVER ADDRESS`",
    )


def taken_from_kernel(paths: HostPaths) -> list[str]:
    """`NIC 0000:65:00.0 (8086:1592) is bound to vfio-pci`, for each such NIC."""
    found = []
    for driver in _USER_DRIVERS:
        for device in sorted((paths.sys / "bus/pci/drivers" / driver).glob("*:*:*.*")):
            if (read_text(device / "class") or "").startswith(_NETWORK_CLASS):
                ids = [(read_text(device / name) or "?").removeprefix("0x") for name in ("vendor", "device")]
                found.append(f"NIC {device.name} ({':'.join(ids)}) is bound to {driver}")
    return found


def _by_cpu(counts: dict[int, int]) -> str:
    worst = sorted((cpu for cpu, n in counts.items() if n), key=lambda cpu: -counts[cpu])
    shown = ", ".join(f"CPU {cpu}: {counts[cpu]}" for cpu in worst[:4])
    return shown + (f", and {len(worst) - 4} more" if len(worst) > 4 else "")


CHECKS: Table = (
    ("softnet", softnet),
    ("busy polling", busy_polling),
    ("NICs of other drivers", taken_nics),
)
