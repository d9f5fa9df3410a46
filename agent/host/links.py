"""Links, queues and NAPIs of a network namespace as netlink tells them; `netlink.query_links` fills them in."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Link:
    """One link of this network namespace, as rtnetlink lists it."""

    name: str
    ifindex: int
    kind: str
    """`veth`, `bond`, `vlan`, …; empty for a physical device."""
    mtu: int
    master: int | None
    lower: int | None
    """Interface index that IFLA_LINK names: a VLAN's parent, a veth's peer."""
    lower_is_foreign: bool
    """IFLA_LINK counts in another namespace."""
    rx_queues: int
    tx_queues: int
    driver: str
    """As the driver names itself; empty where it does not, and where `kind` says what it is."""


@dataclass(frozen=True, slots=True)
class Napi:
    """One NAPI instance. `irq` and `thread_pid` are None where there is none, or the driver does not tell."""

    id: int
    ifindex: int
    irq: int | None
    thread_pid: int | None


@dataclass(frozen=True, slots=True)
class LinkTable:
    """One snapshot of this namespace."""

    links: dict[str, Link] = field(default_factory=dict)
    queue_napi: dict[tuple[int, str, int], int] = field(default_factory=dict)
    """(ifindex, "rx" | "tx", queue) → NAPI id; drivers that do not say so are missing here."""
    napis: dict[int, Napi] = field(default_factory=dict)
    xdp_features: dict[int, frozenset[str]] = field(default_factory=dict)
    """By ifindex; an interface is missing where the kernel cannot say (before 6.3)."""
    rx_metadata: dict[int, frozenset[str]] = field(default_factory=dict)

    def by_index(self, ifindex: int) -> Link | None:
        """The link with this index; None where there is none."""
        return next((link for link in self.links.values() if link.ifindex == ifindex), None)
