"""Which hook and which stamp an interface gets, decided from facts and said with reasons."""

from __future__ import annotations

from dataclasses import dataclass

from agent.errors import ConflictError, UnsupportedError
from agent.host.model import Interface
from agent.options import RunOptions
from agent.phcrate import MAX_RATE_ERROR_PPB, phc_rate_error_ppb

# Drivers that swap an XDP program in without resetting rings or the link. Every other driver may drop packets
# for milliseconds to seconds on attach and detach: `_RESETS` says what those do whose source was read.
_SWAPS_WITHOUT_RESET = {
    "veth": "no reset; while a program is attached the pair has no GSO (TCP through it fell from 18 to 6 Gbit/s)",
    "tun": "no reset",
}
_DOWN_AND_UP = "the interface goes down and up again, the link with it"
_RESETS = {
    "igb": _DOWN_AND_UP,
    "igc": _DOWN_AND_UP + "; some versions lost RX stamping with it",
    "ixgbe": "the device is reset, the link with it",
    "i40e": "the physical function is reset and all its rings are rebuilt",
    "ice": "the interface's rings go down and are rebuilt",
    "mlx5_core": "all channels are closed and opened again",
    "bnxt_en": "the device is closed and opened again",
    "ena": "all queues are destroyed and created again; XDP takes at most half of the queues",
    "virtio_net": "all queues pause, receive offloads are switched off, and a transmit queue a CPU is needed",
    "stmmac": _DOWN_AND_UP,
}


@dataclass(frozen=True, slots=True)
class AttachCost:
    """What attaching native XDP does to a driver's traffic."""

    resets: bool
    what: str


def attach_cost(driver: str) -> AttachCost:
    """The cost of attaching and detaching native XDP; a driver that is not known is taken to reset its rings."""
    if driver in _SWAPS_WITHOUT_RESET:
        return AttachCost(False, _SWAPS_WITHOUT_RESET[driver])
    return AttachCost(True, _RESETS.get(driver, "not known: most drivers reset their rings, some the link"))


@dataclass(frozen=True, slots=True)
class HookFacts:
    """What the choice depends on, for one interface."""

    ifname: str
    driver: str
    native_xdp: bool | None
    """The driver announces XDP_FEATURE basic; None where the kernel cannot say (before 6.3)."""
    xdp_rx_timestamp: bool
    """`xdp-rx-metadata-features` names the timestamp kfunc."""
    phc_index: int | None
    rx_filter_on: bool
    """The driver stamps received packets now (hwtstamp RX filter is not NONE)."""
    xdp_owner: str | None
    """Who holds the XDP slot, in words; None where it is free."""
    xdp_owner_redirects: bool
    phc_rate_error_ppb: float | None
    """How fast the PHC runs; None where there is none, or where it cannot be read."""

    @property
    def phc_fault(self) -> str | None:
        """Why the PHC is no time source, in words; None where nothing speaks against it."""
        error = self.phc_rate_error_ppb
        if error is None or abs(error) <= MAX_RATE_ERROR_PPB:
            return None
        return (
            f"/dev/ptp{self.phc_index} runs {abs(error) / 1e7:.2g} % {'fast' if error > 0 else 'slow'}, "
            "which no oscillator does: refused as a time source"
        )


@dataclass(frozen=True, slots=True)
class HookChoice:
    """The hook that owns the windows, the stamp source, and why."""

    hook: str
    """`xdp`, `xdp-generic` or `tc`."""
    stamp: str
    """`xdp`, `skb`, `trailer` or `none`."""
    stamp_probed: bool
    """The stamp was chosen without proof: give it up for `none` when packets come without it."""
    reasons: tuple[str, ...]


def choose(facts: HookFacts, options: RunOptions) -> HookChoice:
    """The hook and stamp for an interface.

    Raises `ConflictError` where XDP was asked for by name and another program holds the slot, and
    `UnsupportedError` where the driver cannot do what was asked for by name, or its PHC keeps no time.
    """
    reasons: list[str] = []
    stamp, probed = _stamp(facts, options, reasons)
    hook = _hook(facts, options, stamp, reasons)
    if stamp == "xdp" and hook != "xdp":
        raise UnsupportedError(
            f"--stamp xdp on {facts.ifname} needs native XDP: {reasons[-1]}",
            "use --stamp skb with --hook tc, or free the XDP slot / give --allow-reset",
        )
    return HookChoice(hook, stamp, probed, tuple(reasons))


def _stamp(facts: HookFacts, options: RunOptions, reasons: list[str]) -> tuple[str, bool]:
    fault = facts.phc_fault
    if options.stamp != "auto":
        if fault is not None and options.stamp in ("skb", "xdp"):
            raise UnsupportedError(
                f"--stamp {options.stamp} on {facts.ifname}: {fault}",
                "use --stamp trailer or --stamp none here, or a NIC whose clock can be trusted",
            )
        if options.stamp == "xdp" and facts.native_xdp is None:
            raise UnsupportedError(
                f"--stamp xdp on {facts.ifname}: this kernel hands XDP programs no stamps, which came with Linux 6.3",
                "use --stamp skb: the same stamps, at tc",
            )
        reasons.append(f"stamp {options.stamp}: asked for")
        return options.stamp, False
    if facts.phc_index is not None and facts.xdp_rx_timestamp:
        # Seen on 6.18: when the interface of a large device-bound program is removed, the kernel follows a pointer
        # from before the verifier moved the program, and dies holding its network lock.
        reasons.append(
            "stamp xdp is offered, but never chosen unasked: removing the interface may crash the kernel"
        )
    if fault is None and facts.rx_filter_on and options.hook in ("auto", "tc"):
        reasons.append("stamp skb: the driver stamps received packets now")
        return "skb", False
    why = "no PHC" if facts.phc_index is None else "RX stamping is off and is not switched on unasked"
    why = fault or why
    reasons.append(f"stamp trailer: {why}; looking for capture-switch trailers, else software only")
    return "trailer", True


def _hook(facts: HookFacts, options: RunOptions, stamp: str, reasons: list[str]) -> str:
    if stamp == "skb":
        reasons.append("hook tc: the skb stamp is visible at tc ingress only")
        return "tc"
    if options.rewrite_timestamps is not None:
        reasons.append("hook tc: receive timestamps are rewritten there, by each packet's own stamp")
        return "tc"
    if options.hook == "tc":
        reasons.append("hook tc: asked for")
        return "tc"
    if facts.xdp_owner is not None:
        if options.hook != "auto":
            raise ConflictError(
                f"the XDP slot of {facts.ifname} is taken by {facts.xdp_owner}",
                "use --hook tc (we never replace somebody else's program), or detach it yourself",
            )
        reasons.append(f"hook tc: the XDP slot is taken by {facts.xdp_owner}")
        if facts.xdp_owner_redirects:
            reasons.append(
                f"{facts.xdp_owner} redirects packets: those never reach tc and are counted as unseen (NIC rx - seen)"
            )
        return "tc"
    if options.hook == "xdp-generic":
        reasons.append("hook xdp-generic: asked for; it runs after GRO and RPS and linearises every packet")
        return "xdp-generic"
    if options.hook == "xdp":
        if facts.native_xdp is False:
            raise UnsupportedError(
                f"{facts.driver} ({facts.ifname}) has no native XDP",
                "use --hook tc, or --hook xdp-generic for a test",
            )
        reasons.append("hook xdp: asked for")
        return "xdp"
    if facts.native_xdp is False:
        reasons.append(f"hook tc: {facts.driver} has no native XDP")
        return "tc"
    if facts.driver in _SWAPS_WITHOUT_RESET or options.allow_reset:
        reasons.append(
            f"hook xdp: native, {facts.driver} swaps programs without a reset"
            if not options.allow_reset
            else "hook xdp: native, --allow-reset given"
        )
        return "xdp"
    reasons.append(
        f"hook tc: attaching XDP may reset {facts.driver}'s rings or link; --allow-reset permits it"
    )
    return "tc"


def read_facts(interface: Interface) -> HookFacts:
    """The facts of an interface that is there, in the calling thread's network namespace."""
    from agent.ffi.attach import xdp_owner
    from agent.ffi.hwtstamp import hwtstamp_config, ts_info

    owner = xdp_owner(interface.ifindex)
    phc_index = ts_info(interface.name).phc_index
    stamping = hwtstamp_config(interface.name)
    return HookFacts(
        ifname=interface.name,
        driver=interface.driver,
        native_xdp=None if interface.xdp_features is None else "basic" in interface.xdp_features,
        xdp_rx_timestamp="timestamp" in (interface.rx_metadata or ()),
        phc_index=phc_index if phc_index >= 0 else None,
        rx_filter_on=stamping is not None and stamping.rx_on,
        xdp_owner=None if owner is None else str(owner),
        xdp_owner_redirects=owner is not None and owner.redirects,
        phc_rate_error_ppb=phc_rate_error_ppb(interface.ifindex) if phc_index >= 0 else None,
    )
