"""Interrupt coalescing of received packets, read and set through ethtool netlink.

Netlink sets just what is given, and answers just what the driver has, which the older ioctl cannot. pyroute2 has no
class for these two messages; they are declared here by the numbers of include/uapi/linux/ethtool_netlink.h.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass
from typing import Any

from pyroute2.netlink import NLA_F_NESTED, NLM_F_ACK, NLM_F_REQUEST, NetlinkError, genlmsg, nla
from pyroute2.netlink.generic import GenericNetlinkSocket

_GET, _SET = 19, 20
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL)


@dataclass(frozen=True, slots=True)
class Coalescing:
    """How long received packets wait for an interrupt that serves several; None for what the driver does not have."""

    rx_usecs: int | None
    rx_frames: int | None
    adaptive_rx: bool | None
    """The driver chooses both by itself."""

    def __str__(self) -> str:
        adaptive = None if self.adaptive_rx is None else "on" if self.adaptive_rx else "off"
        named = {"rx-usecs": self.rx_usecs, "rx-frames": self.rx_frames, "adaptive-rx": adaptive}
        return " ".join(f"{name} {value}" for name, value in named.items() if value is not None)

    @classmethod
    def parse(cls, text: str) -> Coalescing:
        """From what `str` gives. Raises `ValueError` for anything else."""
        words = text.split()
        given = dict(zip(words[::2], words[1::2], strict=True))
        adaptive = given.pop("adaptive-rx", None)
        usecs, frames = given.pop("rx-usecs", None), given.pop("rx-frames", None)
        if given or adaptive not in (None, "on", "off"):
            raise ValueError(f"{text!r} is no coalescing")
        return cls(
            None if usecs is None else int(usecs),
            None if frames is None else int(frames),
            None if adaptive is None else adaptive == "on",
        )


class _Header(nla):  # type: ignore[misc]
    nla_flags = NLA_F_NESTED
    nla_map = (
        ("ETHTOOL_A_HEADER_UNSPEC", "none"),
        ("ETHTOOL_A_HEADER_DEV_INDEX", "uint32"),
        ("ETHTOOL_A_HEADER_DEV_NAME", "asciiz"),
        ("ETHTOOL_A_HEADER_FLAGS", "uint32"),
    )


class _Message(genlmsg):  # type: ignore[misc]
    """Attributes keep their numbers; 1 is the header, 2 rx-usecs, 3 rx-frames, 11 adaptive-rx."""

    prefix = "COALESCE_"
    nla_map = (
        ("COALESCE_0", "none"),
        ("COALESCE_1", "devheader"),
        *((f"COALESCE_{number}", "cdata") for number in range(2, 40)),
    )
    devheader = _Header


def read_coalescing(ifname: str) -> Coalescing | None:
    """What is set now; None where the driver has no coalescing. Raises `OSError` when the interface is gone."""
    try:
        (reply,) = _ask(ifname, _GET, NLM_F_REQUEST, {})
    except NetlinkError as error:
        if error.code in _UNSUPPORTED:
            return None
        raise OSError(error.code, str(error)) from error
    found = {name: value for name, value in reply["attrs"] if name != "COALESCE_1"}
    usecs, frames, adaptive = (found.get(f"COALESCE_{number}") for number in (2, 3, 11))
    now = Coalescing(
        None if usecs is None else struct.unpack("=I", usecs)[0],
        None if frames is None else struct.unpack("=I", frames)[0],
        None if adaptive is None else bool(adaptive[0]),
    )
    return now if now != Coalescing(None, None, None) else None


def write_coalescing(ifname: str, wanted: Coalescing) -> None:
    """Set what is not None. Raises `OSError`: EOPNOTSUPP, EINVAL or ERANGE where the driver refuses."""
    given: dict[str, bytes] = {}
    if wanted.rx_usecs is not None:
        given["COALESCE_2"] = struct.pack("=I", wanted.rx_usecs)
    if wanted.rx_frames is not None:
        given["COALESCE_3"] = struct.pack("=I", wanted.rx_frames)
    if wanted.adaptive_rx is not None:
        given["COALESCE_11"] = struct.pack("=B", wanted.adaptive_rx)
    try:
        _ask(ifname, _SET, NLM_F_REQUEST | NLM_F_ACK, given)
    except NetlinkError as error:
        raise OSError(error.code, str(error)) from error


def _ask(ifname: str, command: int, flags: int, given: dict[str, bytes]) -> list[Any]:
    request = _Message()
    request["cmd"] = command
    request["version"] = 1
    header = {"attrs": [("ETHTOOL_A_HEADER_DEV_NAME", ifname)]}
    request["attrs"] = [("COALESCE_1", header), *given.items()]
    with GenericNetlinkSocket() as socket:
        socket.bind("ethtool", _Message)
        return list(socket.nlm_request(request, msg_type=socket.prid, msg_flags=flags))
