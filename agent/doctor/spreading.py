"""How packets get from the wire into queues: ring sizes, what the rings dropped, and how RSS spreads flows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agent.doctor.check import Context, Finding, NotChecked, Table
from agent.host.masks import CpuMask
from agent.host.paths import read_int

if TYPE_CHECKING:
    from agent.ffi.ethtool import Rss

_DROP_COUNTERS = ("rx_dropped", "rx_missed_errors", "rx_fifo_errors", "rx_over_errors")
# What drivers call packets that found no descriptor or buffer: rx_no_buffer_count, rx_out_of_buffer, …
_RING_DROPS = re.compile(
    r"(no_?buf|out_of_buf|no_dma|no_?desc|alloc_(?:rx_)?(?:page|buff)_fail|rx_?(?:queue_)?\d*_?drops?$|discards?|"
    r"missed|overrun|fifo)",
    re.IGNORECASE,
)
_ADDRESSES = frozenset({"source address", "destination address"})


def drops(context: Context) -> Finding:
    """Packets that the device dropped since it came up, by the standard counters and by the driver's own."""
    interface = context.interface
    statistics = context.paths.net(interface.name) / "statistics"
    counted = {name: read_int(statistics / name) for name in _DROP_COUNTERS}
    if all(value is None for value in counted.values()):
        raise NotChecked(f"{statistics} cannot be read")
    lost = {name: value for name, value in counted.items() if value} | _driver_drops(context)
    if lost:
        return Finding(
            "warn",
            ", ".join(f"{name} {value}" for name, value in lost.items()),
            "packets were lost before any program saw them (or were not for this host: rx_dropped counts those too)",
            f"larger rings (`ethtool -G {interface.name} rx N`); `agent run` shows when it happens",
        )
    return Finding("ok", "none")


def ring_sizes(context: Context) -> Finding:
    """The receive rings: how many packets may arrive before the CPU takes the first."""
    context.need_live()
    from agent.ffi.ethtool import ring_sizes as read_ring_sizes

    sizes = read_ring_sizes(context.interface.name)
    if sizes is None:
        raise NotChecked(f"{context.interface.driver} has no ring sizes to tell")
    return ring_finding(context.interface.name, sizes.rx, sizes.rx_max)


def ring_finding(ifname: str, size: int, most: int) -> Finding:
    """What a receive ring of `size` descriptors of at most `most` means."""
    if size * 2 > most:
        return Finding("ok", f"{size} descriptors a receive ring (at most {most})")
    return Finding(
        "info",
        f"{size} descriptors a receive ring, of at most {most}",
        "a burst that is longer than the ring, while the CPU is busy, is lost; a longer ring costs cache, not delay",
        f"`ethtool -G {ifname} rx {most}` on hosts that see bursts (it resets the ring)",
    )


def rss(context: Context) -> Finding:
    """The indirection table and the hash: which queues get packets, and whether a flow's directions share one."""
    context.need_live()
    from agent.ffi import ethtool

    name = context.interface.name
    spread = ethtool.rss(name)
    if spread is None:
        raise NotChecked(f"{context.interface.driver} shows no RSS table")
    return rss_finding(name, spread, len(context.interface.queues), ethtool.udp_hash_fields(name))


def rss_finding(ifname: str, spread: Rss, rx_queues: int, udp_fields: tuple[str, ...] | None) -> Finding:
    """What an RSS configuration means for a capture on `rx_queues` queues."""
    symmetry = {True: "symmetric", False: "not symmetric", None: "symmetric or not cannot be told"}[
        spread.symmetric
    ]
    found = f"{spread.function or 'unknown hash'}, {symmetry}"
    if spread.table:
        found += f"; {len(spread.table)} entries over queues {_ranges(spread.queues)}"
    idle = set(range(rx_queues)) - set(spread.queues) if spread.table else set()
    why, remedy = [], []
    if idle:
        why.append(f"queues {_ranges(tuple(sorted(idle)))} get no hashed packet")
        remedy.append(f"`ethtool -X {ifname} equal {rx_queues}`, if that is not meant so")
    if udp_fields is not None and set(udp_fields) == _ADDRESSES:
        why.append("of UDP the addresses alone are hashed: all flows between two hosts are in one queue")
        remedy.append(f"`ethtool -N {ifname} rx-flow-hash udp4 sdfn`")
    if spread.symmetric is False and rx_queues > 1:
        why.append("the two directions of a flow come in by different queues: order between them is lost")
        remedy.append(
            f"if that matters: `ethtool -X {ifname} hkey 6d:5a:6d:5a…` (or `xfrm symmetric-xor` from 6.8)"
        )
    if why and rx_queues > 1:
        return Finding(
            "info", found, "; ".join(why), "; ".join(remedy) + "; the agent never changes RSS unasked"
        )
    return Finding("ok", found)


def _driver_drops(context: Context) -> dict[str, int]:
    if not context.paths.is_live:
        return {}
    from agent.ffi.ethtool import driver_counters

    counters = driver_counters(context.interface.name)
    return {name: value for name, value in counters.items() if value and is_ring_drop(name)}


def is_ring_drop(name: str) -> bool:
    """Whether a driver's counter of this name counts received packets that found no room."""
    return "tx" not in name.lower() and "xdp" not in name.lower() and _RING_DROPS.search(name) is not None


def _ranges(numbers: tuple[int, ...]) -> str:
    return CpuMask.of(numbers).format_list()


CHECKS: Table = (
    ("drops", drops),
    ("rings", ring_sizes),
    ("RSS", rss),
)
