"""The host as the controller sees it: interfaces down to their queues, and the interrupts and CPUs that serve them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.errors import UsageError
from agent.host.cpus import CpuTopology, read_cpus
from agent.host.interrupts import Interrupts, parse_interrupts
from agent.host.irqnames import QueueIrqs, queue_irqs
from agent.host.links import Link, LinkTable
from agent.host.napi import NapiThread, is_threaded, napi_threads
from agent.host.paths import HostPaths, read_int, read_text


@dataclass(frozen=True, slots=True)
class Queue:
    """One receive queue. What nobody tells (a virtual device has no IRQ) is None."""

    index: int
    napi_id: int | None
    irq: int | None
    thread: NapiThread | None


@dataclass(frozen=True, slots=True)
class Interface:
    """One interface that holds queues of its own, or one that stands for others (bond, VLAN): see `leaves`."""

    name: str
    ifindex: int
    kind: str
    """`veth`, `bond`, `vlan`, …; empty for a physical device."""
    driver: str
    mtu: int
    numa_node: int | None
    queues: tuple[Queue, ...]
    tx_queues: int
    leaves: tuple[str, ...]
    """The interfaces that the packets really come in by: itself, unless it is a bond, VLAN or the like."""
    threaded: bool
    peer: str | None
    """The other end of a veth pair: a name, or `ifindex N in another namespace`."""
    irq_source: str
    """Where queue → IRQ is from: `netdev`, `names`, or `none` where the device has no interrupts."""
    xdp_features: frozenset[str] | None
    """None where the kernel cannot say (before 6.3)."""
    rx_metadata: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class Irq:
    """One interrupt of a watched interface."""

    number: int
    actions: tuple[str, ...]
    shared: bool
    """It serves other devices, ports or virtual functions too: it is never moved."""
    queues: tuple[tuple[str, int], ...]
    """(interface, receive queue) that it serves; several where the driver shares vectors."""


@dataclass(frozen=True, slots=True)
class Host:
    """A snapshot. `interfaces` holds what was asked for and the leaves below it, by name."""

    paths: HostPaths
    topology: CpuTopology
    interfaces: dict[str, Interface]
    irqs: dict[int, Irq]

    def leaves(self) -> tuple[Interface, ...]:
        """The interfaces with queues of their own, each once."""
        names = dict.fromkeys(name for interface in self.interfaces.values() for name in interface.leaves)
        return tuple(self.interfaces[name] for name in names)


def read_host(paths: HostPaths, ifnames: Sequence[str], links: LinkTable | None = None) -> Host:
    """Read the host for these interfaces.

    `links` is netlink's view (`query_links()`); without it, sysfs and procfs alone are read, as for a fixture tree.
    Raises `UsageError` for an interface that is not there.
    """
    table = links or LinkTable()
    interrupts = _Interrupts(paths)
    interfaces: dict[str, Interface] = {}
    pending = list(ifnames)
    while pending:
        name = pending.pop(0)  # in the order asked for
        if name in interfaces:
            continue
        interface = _read_interface(paths, name, table, interrupts)
        interfaces[name] = interface
        pending.extend(interface.leaves)
    return Host(paths, read_cpus(paths), interfaces, _read_irqs(paths, interfaces, interrupts))


class _Interrupts:
    """`/proc/interrupts`, read at the first need: a host of virtual devices never pays for it."""

    def __init__(self, paths: HostPaths) -> None:
        self._path = paths.proc / "interrupts"
        self._table: Interrupts | None = None

    def table(self) -> Interrupts:
        if self._table is None:
            self._table = parse_interrupts(self._path.read_bytes())
        return self._table

    def names(self, numbers: Iterable[int]) -> list[tuple[int, str]]:
        known = self.table().by_number
        return [(number, name) for number in numbers if number in known for name in known[number].actions]

    def all_names(self) -> list[tuple[int, str]]:
        return [(number, name) for number, irq in self.table().by_number.items() for name in irq.actions]

    def actions(self, number: int) -> tuple[str, ...]:
        irq = self.table().by_number.get(number)
        return irq.actions if irq else ()


def _read_interface(paths: HostPaths, name: str, table: LinkTable, interrupts: _Interrupts) -> Interface:
    directory = paths.net(name)
    link = table.links.get(name)
    ifindex = link.ifindex if link else read_int(directory / "ifindex")
    if ifindex is None:
        existing = sorted(table.links) or sorted(_names_in(paths.sys / "class/net"))
        raise UsageError(
            f"no such interface {name!r}",
            f"interfaces here: {', '.join(existing)}"
            if existing
            else "this network namespace has no interfaces",
        )
    leaves = _leaves(paths, name)
    threaded = bool(is_threaded(paths, name))
    rx_indexes = _queue_indexes(directory, "rx")
    napi_ids = _napi_ids(table, ifindex, rx_indexes)
    irqs, source = _queue_irqs(paths, name, ifindex, rx_indexes, table, interrupts)
    threads = {thread.napi_id: thread for thread in napi_threads(paths, name)} if threaded else {}
    if threads and not napi_ids and len(threads) == len(rx_indexes):
        # Drivers that do not link queues to NAPIs (veth) still add one NAPI a queue, in order.
        napi_ids = dict(zip(rx_indexes, sorted(threads), strict=True))
    kind = link.kind if link else _kind(directory)
    return Interface(
        name=name,
        ifindex=ifindex,
        kind=kind,
        # A device without a bus (an out-of-tree driver's) has no link to its driver in sysfs.
        driver=_driver(directory) or (link.driver if link else "") or kind or "unknown",
        mtu=link.mtu if link else read_int(directory / "mtu") or 0,
        numa_node=_numa_node(directory),
        queues=tuple(
            Queue(index, napi_ids.get(index), irqs.get(index), threads.get(napi_ids.get(index, -1)))
            for index in rx_indexes
        ),
        tx_queues=len(_queue_indexes(directory, "tx")),
        leaves=leaves,
        threaded=threaded,
        peer=_peer(link, table),
        irq_source=source,
        xdp_features=table.xdp_features.get(ifindex),
        rx_metadata=table.rx_metadata.get(ifindex),
    )


def _leaves(paths: HostPaths, name: str) -> tuple[str, ...]:
    """Follow the `lower_*` links that the kernel keeps for bonds, VLANs, bridges and macvlans."""
    found: list[str] = []
    seen: set[str] = set()
    pending = [name]
    while pending:
        current = pending.pop(0)
        if current in seen:
            continue
        seen.add(current)
        lower = sorted(
            entry.removeprefix("lower_")
            for entry in _names_in(paths.net(current))
            if entry.startswith("lower_")
        )
        if lower:
            pending.extend(lower)
        else:
            found.append(current)
    return tuple(found)


def _queue_indexes(directory: Path, direction: str) -> list[int]:
    prefix = f"{direction}-"
    names = _names_in(directory / "queues")
    return sorted(int(name[3:]) for name in names if name.startswith(prefix) and name[3:].isdigit())


def _napi_ids(table: LinkTable, ifindex: int, rx_indexes: list[int]) -> dict[int, int]:
    linked = {
        index: table.queue_napi[ifindex, "rx", index]
        for index in rx_indexes
        if (ifindex, "rx", index) in table.queue_napi
    }
    if linked:
        return linked
    napis = sorted(napi.id for napi in table.napis.values() if napi.ifindex == ifindex)
    return dict(zip(rx_indexes, napis, strict=True)) if len(napis) == len(rx_indexes) else {}


def _queue_irqs(
    paths: HostPaths,
    name: str,
    ifindex: int,
    rx_indexes: list[int],
    table: LinkTable,
    interrupts: _Interrupts,
) -> tuple[dict[int, int], str]:
    linked = {}
    for index in rx_indexes:
        napi = table.napis.get(table.queue_napi.get((ifindex, "rx", index), -1))
        if napi is not None and napi.irq is not None:
            linked[index] = napi.irq
    if len(linked) == len(rx_indexes) and linked:
        return linked, "netdev"
    if not (paths.net(name) / "device").exists():
        return linked, "netdev" if linked else "none"
    named = _irqs_by_name(paths, name, len(rx_indexes), interrupts).rx
    merged = {index: irq for index, irq in (named | linked).items() if index in rx_indexes}
    return merged, ("names" if named else "netdev") if merged else "none"


def _irqs_by_name(paths: HostPaths, name: str, rx_queues: int, interrupts: _Interrupts) -> QueueIrqs:
    own = _device_irqs(paths, name)
    if own:
        named = _of_bus_device(paths, name, interrupts.names(own))
        by_device = queue_irqs(named, name, rx_queues, is_device_irq=True)
        by_name = queue_irqs(named, name, rx_queues, is_device_irq=False)
        # Two ports on one PCI function list each other's vectors: those that carry our name come first.
        return by_name if by_name.rx else by_device
    return queue_irqs(interrupts.all_names(), name, rx_queues, is_device_irq=False)


def _of_bus_device(paths: HostPaths, name: str, named: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """The vectors whose names end with this very device (`@aux:mlx5_core.sf.4`); all of them where none does.

    A card lists those of its scalable functions among its own.
    """
    device = (paths.net(name) / "device").resolve().name
    own = [(number, vector) for number, vector in named if vector.partition("@")[2].endswith(f":{device}")]
    return own or named


def _device_irqs(paths: HostPaths, name: str) -> list[int]:
    """The message-signalled interrupts of the device, or of the bus device above it (virtio, auxiliary bus)."""
    device = paths.net(name) / "device"
    if not device.exists():
        return []
    current = device.resolve()
    for directory in (current, *current.parents[:2]):
        numbers = sorted(int(entry) for entry in _names_in(directory / "msi_irqs") if entry.isdigit())
        if numbers:
            return numbers
    legacy = read_int(device / "irq")
    return [legacy] if legacy else []


def _read_irqs(paths: HostPaths, interfaces: dict[str, Interface], interrupts: _Interrupts) -> dict[int, Irq]:
    serves: dict[int, list[tuple[str, int]]] = {}
    for interface in interfaces.values():
        for queue in interface.queues:
            if queue.irq is not None:
                serves.setdefault(queue.irq, []).append((interface.name, queue.index))
    irqs = {}
    for number, queues in serves.items():
        actions = interrupts.actions(number)
        names = {name for name, _ in queues}
        shared = len(actions) > 1 or len(names) > 1 or _serves_sibling_port(paths, names, actions)
        irqs[number] = Irq(number, actions, shared, tuple(queues))
    return irqs


def _serves_sibling_port(paths: HostPaths, names: set[str], actions: Sequence[str]) -> bool:
    """A vector that carries no port's name, on a device with several ports (mlx4), serves them all."""
    for name in names:
        if any(re.search(rf"\b{re.escape(name)}\b", action) for action in actions):
            continue
        device = paths.net(name) / "device"
        ports = _names_in(device / "net")
        if len(ports) > 1:
            return True
    return False


def _peer(link: Link | None, table: LinkTable) -> str | None:
    if link is None or link.kind != "veth" or link.lower is None:
        return None
    other = None if link.lower_is_foreign else table.by_index(link.lower)
    return other.name if other else f"ifindex {link.lower} in another namespace"


def _driver(directory: Path) -> str:
    driver = directory / "device/driver"
    return driver.resolve().name if driver.exists() else ""


def _kind(directory: Path) -> str:
    for line in (read_text(directory / "uevent") or "").splitlines():
        if line.startswith("DEVTYPE="):
            return line.removeprefix("DEVTYPE=")
    return ""


def _numa_node(directory: Path) -> int | None:
    device = directory / "device"
    if not device.exists():
        return None
    current = device.resolve()
    for candidate in (current, *current.parents[:2]):
        node = read_int(candidate / "numa_node")
        if node is not None:
            return node if node >= 0 else None
    return None


def _names_in(directory: Path) -> list[str]:
    try:
        return [entry.name for entry in directory.iterdir()]
    except OSError:
        return []
