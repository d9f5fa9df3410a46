"""Captures and stamped frames, made byte by byte from the formats' descriptions."""

from __future__ import annotations

import struct

NS_PER_S = 1_000_000_000
START_NS = 1_790_000_000 * NS_PER_S

Timed = tuple[int, bytes]


def udp(payload: int = 26) -> bytes:
    """An Ethernet frame of 14 + 20 + 8 + `payload` bytes."""
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 28 + payload, 0, 0, 64, 17, 0, b"\x0a\0\0\1", b"\x0a\0\0\2")
    return bytes(12) + b"\x08\x00" + ip + struct.pack(">HHHH", 9, 9, 8 + payload, 0) + bytes(payload)


def metamako(hw_ns: int, device: int = 7, port: int = 3) -> bytes:
    """A frame with an Arista 7130 trailer."""
    return udp() + struct.pack(">IIIBHB", 0xDEADBEEF, hw_ns // NS_PER_S, hw_ns % NS_PER_S, 1, device, port)


def exablaze(hw_ns: int, device: int = 7, port: int = 3) -> bytes:
    """A frame with a Cisco Nexus 3550 trailer; the fraction is rounded up, so that whole ns come back."""
    fraction = -(-((hw_ns % NS_PER_S) << 40) // NS_PER_S)
    head = struct.pack(">IBBI", 0xDEADBEEF, device, port, hw_ns // NS_PER_S)
    return udp() + head + fraction.to_bytes(5) + b"\0"


def pcap(packets: list[Timed], *, order: str = "<", magic: int = 0xA1B23C4D, link_type: int = 1) -> bytes:
    """A nanosecond pcap."""
    out = struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 262_144, link_type)
    for local_ns, data in packets:
        head = (local_ns // NS_PER_S, local_ns % NS_PER_S, len(data), len(data))
        out += struct.pack(order + "IIII", *head) + data
    return out


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    """A pcapng block."""
    body += bytes(-len(body) % 4)
    length = len(body) + 12
    return struct.pack(order + "II", kind, length) + body + struct.pack(order + "I", length)


def section(order: str = "<") -> bytes:
    """A pcapng section's header."""
    return block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1), order)


def interface(resolution: int | None = 9, order: str = "<", link_type: int = 1) -> bytes:
    """A pcapng interface with its time resolution."""
    options = b"" if resolution is None else struct.pack(order + "HHB3x", 9, 1, resolution)
    return block(1, struct.pack(order + "HHI", link_type, 0, 0) + options + bytes(4), order)


def enhanced(ticks: int, data: bytes, order: str = "<", index: int = 0) -> bytes:
    """A pcapng packet."""
    head = struct.pack(order + "IIIII", index, ticks >> 32, ticks & 0xFFFFFFFF, len(data), len(data))
    return block(6, head + data, order)
