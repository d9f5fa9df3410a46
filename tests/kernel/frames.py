"""Ethernet frames made by hand, and a raw sender for them."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterable

from tools.testbed.namespace import Namespace

TRAILER_BYTES = 16
_EPOCH_NS = 1_790_000_000 * 10**9  # what the switch's clock shows when CLOCK_MONOTONIC is 0
_MACS = bytes.fromhex("024147000002 024147000001")


def udp4(payload: int = 64, port: int = 20000) -> bytes:
    """An IPv4 UDP frame."""
    udp = struct.pack("!HHHH", 20000, port, 8 + payload, 0) + bytes(payload)
    ip = struct.pack(
        "!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 1, 0, 64, 17, 0, b"\x0a\x4d\0\1", b"\x0a\x4d\0\2"
    )
    checksum = sum(struct.unpack("!10H", ip))
    checksum = (checksum & 0xFFFF) + (checksum >> 16)
    ip = ip[:10] + struct.pack("!H", ~(checksum + (checksum >> 16)) & 0xFFFF) + ip[12:]
    return _MACS + b"\x08\x00" + ip + udp


def udp6(payload: int = 64) -> bytes:
    """An IPv6 UDP frame."""
    udp = struct.pack("!HHHH", 20000, 20000, 8 + payload, 0) + bytes(payload)
    ip = struct.pack("!IHBB16s16s", 6 << 28, len(udp), 17, 64, b"\xfd" + bytes(15), b"\xfd" + bytes(15))
    return _MACS + b"\x86\xdd" + ip + udp


def arp() -> bytes:
    """An ARP request, padded to Ethernet's minimum."""
    body = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + bytes(20)
    return (_MACS + b"\x08\x06" + body).ljust(60, b"\0")


def tagged(frame: bytes, *ethertypes: int) -> bytes:
    """The frame with VLAN tags, the outer one first."""
    tags = b"".join(struct.pack("!HH", ethertype, 10 + n) for n, ethertype in enumerate(ethertypes))
    return frame[:12] + tags + frame[12:]


def trailer(port_id: int, device_id: int = 7) -> bytes:
    """A Metamako trailer with the time of now, by a clock that follows CLOCK_MONOTONIC."""
    seconds, nanoseconds = divmod(time.monotonic_ns() + _EPOCH_NS, 10**9)
    return struct.pack("!IIIBHB", 0x12345678, seconds, nanoseconds, 1, device_id, port_id)


def raw_socket(namespace: Namespace, ifname: str = "gen0") -> socket.socket:
    """A packet socket that sends whole frames out of an interface."""

    def open_it() -> socket.socket:
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        made.bind((ifname, 0))
        return made

    return namespace.call(open_it)


def send(namespace: Namespace, frames: Iterable[bytes], ifname: str = "gen0") -> int:
    """Send frames one by one from one CPU, so that veth delivers them on that CPU in order; returns how many.

    An iterator's frames are made as they are sent: their trailers tell the time of sending.
    """
    cpu = min(os.sched_getaffinity(0))

    def all_of_them() -> int:
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {cpu})
        sent = 0
        try:
            for frame in frames:
                link.send(frame)
                sent += 1
        finally:
            os.sched_setaffinity(0, before)
        return sent

    with raw_socket(namespace, ifname) as link:
        return namespace.call(all_of_them)
