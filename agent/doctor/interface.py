"""What one interface offers: queues, XDP and tc and who owns them, stamps, counters."""

from __future__ import annotations

from agent.doctor.check import Context, Finding, NotChecked, Table
from agent.host.masks import CpuMask
from agent.host.paths import read_text

# A page, less XDP's headroom and the shared info behind the packet: what fits without fragments (x86, arm64).
_SINGLE_BUFFER_MTU = 3498
_FILTERS = {0: "none", 1: "all packets", 12: "PTPv2 event packets"}


def link(context: Context) -> Finding:
    """Whether packets can arrive at all."""
    interface = context.interface
    directory = context.paths.net(interface.name)
    state = read_text(directory / "operstate") or "unknown"
    flags = int(read_text(directory / "flags") or "0x0", 16)
    what = f"{interface.driver}, MTU {interface.mtu}, {state}"
    if interface.peer:
        what += f", peer {interface.peer}"
    if not flags & 1:
        return Finding(
            "warn",
            f"{what}: administratively down",
            "no packets arrive",
            f"`ip link set {interface.name} up`",
        )
    if state not in ("up", "unknown"):
        return Finding(
            "warn", f"{what}: no carrier", "no packets arrive", "check the cable, or the other end"
        )
    return Finding("ok", what)


def queues(context: Context) -> Finding:
    """Receive queues, and what serves them."""
    interface = context.interface
    irqs = [queue.irq for queue in interface.queues if queue.irq is not None]
    served = f"{len(set(irqs))} interrupts ({interface.irq_source})" if irqs else "no interrupts of its own"
    what = f"{len(interface.queues)} receive and {interface.tx_queues} transmit queues, {served}"
    if interface.numa_node is not None:
        what += f", NUMA node {interface.numa_node}"
    if len(interface.queues) == 1:
        return Finding(
            "info",
            what,
            "all packets are polled by one CPU; only RPS (and NAPI threads) can spread or move the work",
            f"`ethtool -L {interface.name} combined N`, if the device has more",
        )
    return Finding("ok", what)


def steering(context: Context) -> Finding:
    """RPS and XPS as they are set now."""
    interface = context.interface
    directory = context.paths.net(interface.name) / "queues"
    rps = {
        queue.index: _mask(read_text(directory / f"rx-{queue.index}/rps_cpus")) for queue in interface.queues
    }
    # A one-queue device lists xps_cpus, but it reads ENOENT.
    xps = {
        index: _mask(read_text(directory / f"tx-{index}/xps_cpus")) for index in range(interface.tx_queues)
    }
    if all(mask is None for mask in rps.values()):
        raise NotChecked("this kernel has no RPS (CONFIG_RPS)")
    found = [
        f"{name} {_set_masks(masks) or 'off'}"
        for name, masks in (("RPS", rps), ("XPS", xps))
        if any(mask is not None for mask in masks.values())
    ]
    return Finding("ok" if not any(rps.values()) else "info", ", ".join(found))


def xdp(context: Context) -> Finding:
    """Native XDP, and who has the slot."""
    interface = context.interface
    context.need_live()
    from agent.ffi.attach import xdp_owner

    owner = xdp_owner(interface.ifindex)
    if owner is not None:
        return Finding(
            "warn" if owner.redirects else "info",
            f"the XDP slot is taken by {owner}",
            "it redirects: packets that it takes are unseen at tc, and are counted as such"
            if owner.redirects
            else "it is never replaced: the agent sees packets at tc ingress, behind it",
            "detach it yourself if the agent is to use XDP",
        )
    features = interface.xdp_features
    if features is None:
        return Finding(
            "info", "the slot is free; before 6.3 the kernel cannot say whether the driver has native XDP"
        )
    if "basic" not in features:
        return Finding(
            "info",
            f"{interface.driver} has no native XDP",
            "the agent uses tc ingress, which sees all packets too",
        )
    return Finding("ok", f"native ({', '.join(sorted(features))}), the slot is free")


def attach_cost(context: Context) -> Finding:
    """What attaching XDP does to traffic on this driver; detaching does it again."""
    from agent.hooks import attach_cost as cost_of

    interface = context.interface
    if interface.xdp_features is not None and "basic" not in interface.xdp_features:
        return Finding("ok", "nothing: XDP is not attached, tc programs come and go unnoticed")
    cost = cost_of(interface.driver)
    if cost.resets:
        return Finding(
            "info",
            f"{interface.driver}: {cost.what}",
            "packets are lost for milliseconds to seconds at the start and at the end of a run, and some drivers "
            "lose their stamping filter with it",
            "nothing to do: --hook auto takes tc here; --allow-reset permits XDP",
        )
    return Finding("ok", f"{interface.driver}: {cost.what}")


def jumbo(context: Context) -> Finding:
    """An MTU that takes XDP with fragments, which not every driver has."""
    interface = context.interface
    if interface.mtu <= _SINGLE_BUFFER_MTU:
        return Finding("ok", f"MTU {interface.mtu} fits into one buffer")
    if interface.xdp_features is not None and "basic" not in interface.xdp_features:
        return Finding("ok", f"MTU {interface.mtu}, no matter at tc ingress")
    if interface.xdp_features is None:
        raise NotChecked("this kernel does not tell whether the driver takes XDP with fragments (before 6.3)")
    if "rx-sg" in interface.xdp_features:
        return Finding("ok", f"MTU {interface.mtu}: the driver takes XDP with fragments")
    return Finding(
        "info",
        f"MTU {interface.mtu}, and {interface.driver} does not announce XDP with fragments",
        "attaching XDP is refused, most often with a bare EINVAL; --hook auto then uses tc",
        f"`ip link set {interface.name} mtu {_SINGLE_BUFFER_MTU}` if XDP is wanted",
    )


def tc(context: Context) -> Finding:
    """Programs and filters of others at tc ingress and egress: they keep running."""
    interface = context.interface
    context.need_root()
    names = [*_tcx(interface.ifindex), *_filters(interface.ifindex)]
    if names:
        return Finding(
            "info", "in use: " + ", ".join(names), "the agent attaches beside them and never removes them"
        )
    return Finding("ok", "free")


def stamps(context: Context) -> Finding:
    """Where hardware stamps can come from here."""
    interface = context.interface
    context.need_live()
    from agent.ffi.hwtstamp import hwtstamp_config, ts_info

    info, config = ts_info(interface.name), hwtstamp_config(interface.name)
    sources = []
    if "timestamp" in (interface.rx_metadata or ()):
        sources.append("xdp (metadata of the driver)")
    if config is not None and config.rx_on:
        sources.append(f"skb (filter now: {_FILTERS.get(config.rx_filter, f'number {config.rx_filter}')})")
    elif info.rx_hardware:
        sources.append("skb (stamping is off now; --stamp skb switches it on and back)")
    sources.append("trailer (if a capture switch appends stamps)")
    what = "possible: " + ", ".join(sources)
    if info.phc_index < 0:
        return Finding(
            "info",
            f"{what}; no PHC",
            "without /dev/ptp there is no anchor: offsets are known up to the path's base delay",
            "give --base-delay-ns if you know it",
        )
    if not info.rx_all and info.rx_hardware:
        return Finding(
            "info",
            f"{what}; /dev/ptp{info.phc_index}; the driver says that it stamps only some packets",
            "windows of other packets have no stamp; some drivers stamp more than they say",
            "`agent run --observe --stamp skb` shows what really comes",
        )
    return Finding("ok", f"{what}; /dev/ptp{info.phc_index}")


def choice(context: Context) -> Finding:
    """What `agent run` would take, and why."""
    interface = context.interface
    context.need_live()
    from agent.hooks import choose, read_facts
    from agent.options import RunOptions

    facts = read_facts(interface)
    reasons = "; ".join(choose(facts, RunOptions(interfaces=(interface.name,))).reasons)
    if facts.phc_fault is not None:
        return Finding(
            "warn",
            reasons,
            "every offset, drift and delay would be of that clock; --stamp skb and --stamp xdp are refused",
            "use a capture switch's trailers, or a NIC whose clock can be trusted",
        )
    return Finding("ok", reasons)


def _mask(text: str | None) -> CpuMask | None:
    return None if text is None else CpuMask.parse_mask(text)


def _set_masks(masks: dict[int, CpuMask | None]) -> str:
    return " ".join(f"q{index}:{mask.format_list()}" for index, mask in masks.items() if mask)


def _tcx(ifindex: int) -> list[str]:
    from agent.errors import AgentError, UnsupportedError
    from agent.ffi.attach import tcx_programs
    from agent.ffi.info import prog_by_id, prog_info

    found = []
    for direction in ("ingress", "egress"):
        try:
            ids = tcx_programs(ifindex, direction)
        except UnsupportedError:
            return []
        for prog_id in ids:
            try:
                with prog_by_id(prog_id) as fd:
                    name = prog_info(fd).name
            except AgentError:  # detached meanwhile
                continue
            found.append(f"TCX {direction} {name} (id {prog_id})")
    return found


def _filters(ifindex: int) -> list[str]:
    from pyroute2 import IPRoute

    found = []
    with IPRoute() as netlink:
        for parent, direction in ((0xFFFFFFF2, "ingress"), (0xFFFFFFF3, "egress")):
            for item in netlink.get_filters(index=ifindex, parent=parent):
                options = item.get_attr("TCA_OPTIONS")
                name = (
                    options.get_attr("TCA_BPF_NAME")
                    if options is not None and hasattr(options, "get_attr")
                    else None
                )
                text = f"{direction} filter {item.get_attr('TCA_KIND')}{f' {name}' if name else ''}"
                if text not in found:
                    found.append(text)
    return found


CHECKS: Table = (
    ("link", link),
    ("queues", queues),
    ("RPS and XPS", steering),
    ("XDP", xdp),
    ("cost of attaching XDP", attach_cost),
    ("jumbo frames", jumbo),
    ("tc", tc),
    ("stamps", stamps),
    ("agent run takes", choice),
)
