"""What netlink says about links and their queues: rtnetlink, and the `netdev` generic netlink family.

pyroute2 has no class for the `netdev` family (kernel 6.3 and later; queues and NAPIs from 6.8), so its three
dumps are declared here, by the numbers of `include/uapi/linux/netdev.h`.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterable
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink import NLM_F_DUMP, NLM_F_REQUEST, NetlinkError, genlmsg
from pyroute2.netlink.generic import GenericNetlinkSocket

from agent.errors import AgentError
from agent.ffi.ethtool import driver_name
from agent.host.links import Link, LinkTable, Napi

_CMD_DEV_GET, _CMD_QUEUE_GET, _CMD_NAPI_GET = 1, 10, 11
_QUEUE_TYPES = ("rx", "tx")
XDP_FEATURES = {
    1: "basic",
    2: "redirect",
    4: "ndo-xmit",
    8: "zerocopy",
    16: "hw-offload",
    32: "rx-sg",
    64: "ndo-xmit-sg",
}
RX_METADATA = {1: "timestamp", 2: "hash", 4: "vlan-tag"}


class _NetdevMessage(genlmsg):  # type: ignore[misc]
    """A message of the family; attributes keep their numbers, since their meaning depends on the command."""

    prefix = "NETDEV_A_"
    nla_map = tuple((f"NETDEV_A_{number}", "cdata") for number in range(24))


def query_links() -> LinkTable:
    """Everything about the calling thread's network namespace. A kernel without the family leaves those parts empty."""
    table = LinkTable()
    with IPRoute() as ipr:
        for message in ipr.get_links():
            link = _link(message)
            table.links[link.name] = link
    try:
        socket = GenericNetlinkSocket()
        socket.bind("netdev", _NetdevMessage)
    except NetlinkError as error:
        if error.code in (errno.ENOENT, errno.ENOTSUP):
            return table
        raise
    with socket:
        _fill(table, socket)
    return table


def _fill(table: LinkTable, socket: GenericNetlinkSocket) -> None:
    for attributes in _dump(socket, _CMD_DEV_GET):
        ifindex = attributes[1]
        table.xdp_features[ifindex] = _names(XDP_FEATURES, attributes.get(3, 0))
        table.rx_metadata[ifindex] = _names(RX_METADATA, attributes.get(5, 0))
    for attributes in _dump(socket, _CMD_QUEUE_GET):
        napi_id = attributes.get(4)
        if napi_id is not None:
            table.queue_napi[attributes[2], _QUEUE_TYPES[attributes[3]], attributes[1]] = napi_id
    for attributes in _dump(socket, _CMD_NAPI_GET):
        napi_id = attributes[2]
        table.napis[napi_id] = Napi(napi_id, attributes[1], attributes.get(3), attributes.get(4))


def _dump(socket: GenericNetlinkSocket, command: int) -> Iterable[dict[int, int]]:
    request = _NetdevMessage()
    request["cmd"] = command
    request["version"] = 1
    try:
        replies = list(
            socket.nlm_request(request, msg_type=socket.prid, msg_flags=NLM_F_REQUEST | NLM_F_DUMP)
        )
    except NetlinkError as error:
        # An older kernel knows the family, but not this command.
        if error.code in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOENT):
            return
        raise
    for reply in replies:
        yield {
            int(name.removeprefix("NETDEV_A_")): _number(value)
            for name, value in reply["attrs"]
            if name.startswith("NETDEV_A_") and len(value) in (4, 8)
        }


def _number(value: bytes) -> int:
    number: int = struct.unpack("=I" if len(value) == 4 else "=Q", value)[0]
    return number


def _names(bits_to_name: dict[int, str], bits: int) -> frozenset[str]:
    return frozenset(name for bit, name in bits_to_name.items() if bits & bit)


def _link(message: Any) -> Link:
    info = message.get_attr("IFLA_LINKINFO")
    # Bytes where it is not UTF-8.
    name = os.fsdecode(message.get_attr("IFLA_IFNAME"))
    kind = (info.get_attr("IFLA_INFO_KIND") if info else None) or ""
    return Link(
        name=name,
        ifindex=message["index"],
        kind=kind,
        mtu=message.get_attr("IFLA_MTU") or 0,
        master=message.get_attr("IFLA_MASTER"),
        lower=message.get_attr("IFLA_LINK"),
        lower_is_foreign=message.get_attr("IFLA_LINK_NETNSID") is not None,
        rx_queues=message.get_attr("IFLA_NUM_RX_QUEUES") or 1,
        tx_queues=message.get_attr("IFLA_NUM_TX_QUEUES") or 1,
        driver="" if kind else _driver(name),
    )


def _driver(ifname: str) -> str:
    try:
        return driver_name(ifname)
    except AgentError:  # gone since the dump
        return ""
