"""What a driver tells through the ethtool ioctl: its rings, its counters, and how it spreads packets over queues.

Only questions are asked. The structures are those of include/uapi/linux/ethtool.h.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass

from agent.ffi import _native
from agent.ffi.failures import call_error
from agent.ffi.hwtstamp import interface_ioctl

_ffi, _lib = _native.ffi, _native.lib

_GDRVINFO, _GRINGPARAM, _GSTRINGS, _GSTATS, _GRXFH, _GSSET_INFO, _GRSSH = (
    0x03,
    0x10,
    0x1B,
    0x1D,
    0x29,
    0x37,
    0x46,
)
_SS_STATS = 1
_STRING_BYTES = 32
_DRVINFO_BYTES = 196
_UDP_V4 = 2
_FIELDS = {
    1 << 4: "source address",
    1 << 5: "destination address",
    1 << 6: "source port",
    1 << 7: "destination port",
}
_HASHES = {1 << 0: "toeplitz", 1 << 1: "xor", 1 << 2: "crc32"}
# input_xfrm: the fields are combined with each other, so that both directions give the same input (6.8).
_SYMMETRIC_INPUT = 0b11
# Bits of the Toeplitz input of IPv4 TCP and UDP: each address 32, each port 16. The hash uses a window of 32 key
# bits at each bit of the input.
_WINDOW = 32


@dataclass(frozen=True, slots=True)
class RingSizes:
    """Descriptors of the receive rings: in use, and the most that the device takes."""

    rx: int
    rx_max: int


@dataclass(frozen=True, slots=True)
class Rss:
    """How packets are spread over receive queues."""

    table: tuple[int, ...]
    """The indirection table: receive queue by the hash's low bits; empty where the driver shows none."""
    key: bytes
    function: str
    """`toeplitz`, `xor`, `crc32`; empty where the driver does not tell."""
    symmetric_input: bool

    @property
    def symmetric(self) -> bool | None:
        """Whether both directions of an IPv4 flow get the same hash; None where that cannot be told."""
        if self.symmetric_input or self.function == "xor":
            return True
        if self.function == "crc32":
            return False
        return is_symmetric_key(self.key) if self.key else None

    @property
    def queues(self) -> tuple[int, ...]:
        """The queues that the table sends packets to, ascending."""
        return tuple(sorted(set(self.table)))


def is_symmetric_key(key: bytes) -> bool:
    """Whether a Toeplitz key gives both directions of an IPv4 TCP or UDP flow the same hash.

    Swapping the addresses moves each of their bits by 32, swapping the ports by 16: the key has to be the same there.
    A key of repeated 16 bits (Woo and Park, "Scalable TCP Session Monitoring with Symmetric Receive-side Scaling",
    KAIST 2012) is one, for IPv6 too.
    """
    bits = "".join(f"{byte:08b}" for byte in key)
    if len(bits) < 96 + _WINDOW - 1:
        return False
    addresses = bits[: 32 + _WINDOW - 1] == bits[32 : 64 + _WINDOW - 1]
    ports = bits[64 : 80 + _WINDOW - 1] == bits[80 : 96 + _WINDOW - 1]
    return addresses and ports


def driver_name(ifname: str) -> str:
    """The driver's name as it gives it; empty where it gives none. AgentError if the interface is gone."""
    request = struct.pack("=I", _GDRVINFO).ljust(_DRVINFO_BYTES, b"\0")
    answer = _ask(ifname, "read the driver's name", request) or request
    return answer[4 : 4 + _STRING_BYTES].partition(b"\0")[0].decode("ascii", "replace")


def ring_sizes(ifname: str) -> RingSizes | None:
    """The receive rings' sizes; None where the driver has no such setting. AgentError if the interface is gone."""
    answer = _ask(ifname, "read the ring sizes", struct.pack("=9I", _GRINGPARAM, *[0] * 8))
    if answer is None:
        return None
    words = struct.unpack("=9I", answer)
    return RingSizes(rx=words[5], rx_max=words[1])


def rss(ifname: str) -> Rss | None:
    """The indirection table, key and function; None where the driver shows none. AgentError if it is gone."""
    head = "=4I2B2xI"
    size = struct.calcsize(head)
    asked = _ask(ifname, "read the RSS table", struct.pack(head, _GRSSH, 0, 0, 0, 0, 0, 0))
    if asked is None:
        return None
    _, _, entries, key_bytes, _, _, _ = struct.unpack(head, asked)
    request = struct.pack(head, _GRSSH, 0, entries, key_bytes, 0, 0, 0) + bytes(4 * entries + key_bytes)
    answer = _ask(ifname, "read the RSS table", request)
    if answer is None:
        return None
    function, transform = answer[16], answer[17]
    table = struct.unpack_from(f"={entries}I", answer, size)
    return Rss(
        table=table,
        key=answer[size + 4 * entries :],
        function=_HASHES.get(function, ""),
        symmetric_input=bool(transform & _SYMMETRIC_INPUT),
    )


def udp_hash_fields(ifname: str) -> tuple[str, ...] | None:
    """The fields of UDP over IPv4 that are hashed; None where the driver does not tell. AgentError if it is gone."""
    answer = _ask(ifname, "read what is hashed", struct.pack("=2IQ", _GRXFH, _UDP_V4, 0) + bytes(176))
    if answer is None:
        return None
    bits = struct.unpack_from("=2IQ", answer)[2]
    return tuple(name for bit, name in _FIELDS.items() if bits & bit)


def driver_counters(ifname: str) -> dict[str, int]:
    """The driver's own counters by their names (`ethtool -S`); empty where it has none. AgentError if it is gone."""
    count = _ask(
        ifname, "count the driver's counters", struct.pack("=2IQI", _GSSET_INFO, 0, 1 << _SS_STATS, 0)
    )
    number = struct.unpack("=2IQI", count)[3] if count and struct.unpack("=2IQI", count)[2] else 0
    if not number:
        return {}
    names = _ask(
        ifname,
        "read the counters' names",
        struct.pack("=3I", _GSTRINGS, _SS_STATS, number) + bytes(_STRING_BYTES * number),
    )
    values = _ask(ifname, "read the counters", struct.pack("=2I", _GSTATS, number) + bytes(8 * number))
    if names is None or values is None:
        return {}
    texts = [names[12 + _STRING_BYTES * i : 12 + _STRING_BYTES * (i + 1)] for i in range(number)]
    labels = [text.partition(b"\0")[0].decode("ascii", "replace").strip() for text in texts]
    return dict(zip(labels, struct.unpack_from(f"={number}Q", values, 8), strict=True))


def _ask(ifname: str, action: str, request: bytes) -> bytes | None:
    """The request as the kernel filled it in; None where the driver does not answer it."""
    data = _ffi.new("uint8_t[]", len(request))
    _ffi.buffer(data)[:] = request
    code = interface_ioctl(ifname, _lib.SIOCETHTOOL, data)
    if code in (errno.EOPNOTSUPP, errno.EINVAL):
        return None
    if code:
        raise call_error(f"{action} of {ifname}", code)
    return bytes(_ffi.buffer(data))
