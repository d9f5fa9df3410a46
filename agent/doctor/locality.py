"""Who is near whom: the NIC's NUMA node, the CPUs that serve it, and its consumers' CPUs and memory."""

from __future__ import annotations

from agent.doctor.check import Context, Finding, NotChecked, Table
from agent.host.consumers import consumer_threads, memory_by_node
from agent.host.masks import CpuMask
from agent.host.paths import read_text

# Of a consumer's memory, which is more than code and libraries that all nodes share.
_REMOTE_SHARE = 0.1


def irq_locality(context: Context) -> Finding:
    """The CPUs that serve the interface's interrupts, against the node that it is on."""
    node = _node(context)
    topology = context.host.topology
    remote: dict[int, CpuMask] = {}
    for queue in context.interface.queues:
        if queue.irq is None:
            continue
        directory = context.paths.irq(queue.irq)
        text = read_text(directory / "effective_affinity_list") or read_text(directory / "smp_affinity_list")
        far = CpuMask.of(cpu for cpu in CpuMask.parse_list(text or "") if topology.node_of(cpu) != node)
        if far:
            remote[queue.irq] = far
    if remote:
        listed = ", ".join(f"IRQ {number} on CPU {mask}" for number, mask in sorted(remote.items()))
        return Finding(
            "warn",
            f"the NIC is on node {node}, but {listed} of another node",
            "descriptors and packets cross the link between the nodes: some 100 ns a cache line, and more under load",
            f"CPUs of node {node}: {_cpus_of(context, node)}; `agent run` counts the distance in its plan",
        )
    return Finding(
        "ok", f"the NIC is on node {node}, as are the CPUs that serve it ({_cpus_of(context, node)})"
    )


def consumer_cpus(context: Context) -> Finding:
    """The CPUs that consumers' threads may run on, against the NIC's node and the CPUs that serve its interrupts."""
    _need_consumers(context)
    topology = context.host.topology
    node = context.interface.numa_node if topology.nodes > 1 else None
    serving = _serving(context)
    parts, why = [], []
    for pid in context.consumers:
        allowed = CpuMask.of(
            cpu
            for thread in consumer_threads(context.paths, [pid])
            for cpu in thread.affinity & topology.online
        )
        parts.append(f"pid {pid} on CPUs {allowed}")
        far = CpuMask.of(cpu for cpu in allowed if node is not None and topology.node_of(cpu) != node)
        if far:
            why.append(
                f"pid {pid} may run on {far}, not of the NIC's node {node}: its reads cross between the nodes"
            )
        if len(allowed) <= 2 and allowed & serving:
            why.append(
                f"pid {pid} is bound to {allowed & serving}, where packets are processed: each delays the other"
            )
    if why:
        return Finding(
            "warn",
            "; ".join(parts),
            "; ".join(why),
            "`agent run --consumer PID --pin-consumer`, or `taskset -cp`; start it by "
            f"`agent exec --numa {context.interface.name} -- CMD`",
        )
    return Finding("ok", "; ".join(parts))


def consumer_memory(context: Context) -> Finding:
    """Which nodes consumers' memory is on (`/proc/PID/numa_maps`), against the NIC's."""
    _need_consumers(context)
    node = _node(context)
    parts, far_pids = [], []
    for pid in context.consumers:
        amounts = memory_by_node(context.paths, pid)
        total = sum(amounts.values())
        shown = ", ".join(f"node {place}: {amount >> 20} MiB" for place, amount in sorted(amounts.items()))
        parts.append(f"pid {pid}: {shown or 'not told'}")
        if total and total - amounts.get(node, 0) > _REMOTE_SHARE * total:
            far_pids.append(pid)
    if far_pids:
        return Finding(
            "warn",
            "; ".join(parts),
            f"the NIC is on node {node}: packets are copied across between the nodes",
            f"start it by `agent exec --numa {context.interface.name} -- CMD`; now: "
            f"`migratepages {far_pids[0]} all {node}`",
        )
    return Finding("ok", "; ".join(parts))


def _need_consumers(context: Context) -> None:
    if not context.consumers:
        raise NotChecked("no consumer is named (--consumer PID|NAME)")


def _node(context: Context) -> int:
    """The NIC's node. Raises `NotChecked` where nothing can be near or far."""
    if context.host.topology.nodes < 2:
        raise NotChecked("this host has one NUMA node, or does not tell")
    node = context.interface.numa_node
    if node is None:
        raise NotChecked(
            "the firmware does not tell which NUMA node the NIC is on (numa_node is -1, or it is virtual)"
        )
    return node


def _serving(context: Context) -> CpuMask:
    """The CPUs that serve the interface's interrupts, each bound to one."""
    serving = CpuMask()
    for queue in context.interface.queues:
        if queue.irq is not None:
            text = read_text(context.paths.irq(queue.irq) / "effective_affinity_list")
            serving |= CpuMask.parse_list(text or "")
    return serving


def _cpus_of(context: Context, node: int) -> CpuMask:
    topology = context.host.topology
    return CpuMask.of(cpu for cpu in topology.online if topology.node_of(cpu) == node)


CHECKS: Table = (
    ("NUMA: interrupts", irq_locality),
    ("NUMA: consumer CPUs", consumer_cpus),
    ("NUMA: consumer memory", consumer_memory),
)
