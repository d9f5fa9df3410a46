"""Packets of a pcap or pcapng file with their exact time, one at a time.

Read here and not by a library: dpkt, the small one, gives times as floats or `Decimal`s, ends silently within a cut
record, and knows neither offsets nor bad nanoseconds; scapy dissects what needs no dissecting. What is needed of the
formats is two headers and four blocks (draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng).

A capture with microseconds is refused. What rounding took away is gone, and it isn't noise that averages out: the
envelope looks for the lowest local - hardware, so it would find the stamps that lost most, near 1 µs, and call that the
clock.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from agent.errors import PartialError, UsageError

_ETHERNET = 1
_LINK_TYPES = {
    113: "Linux cooked (an `any` capture)",
    276: "Linux cooked v2 (an `any` capture)",
    101: "raw IP",
    0: "BSD loopback",
}
_NS_PER_S = 1_000_000_000
# libpcap's own limits: a longer length is damage, and must not become an allocation.
_MAX_PACKET_BYTES = 262_144
_MAX_BLOCK_BYTES = 16 << 20
_MAX_INTERFACES = 4096
# Times of this size, and predictions of them, are far inside 64 bits.
_MAX_NS = 1 << 62

_MICROSECONDS = 0xA1B2C3D4
_NANOSECONDS = 0xA1B23C4D
_SECTION, _INTERFACE, _OBSOLETE, _SIMPLE, _ENHANCED = 0x0A0D0D0A, 1, 2, 3, 6
_BYTE_ORDER = 0x1A2B3C4D
_OPTION_END, _OPTION_RESOLUTION, _OPTION_TIME_OFFSET = 0, 9, 14
_DEFAULT_RESOLUTION = 6

PCAP_MARKS = tuple(
    struct.pack(order + "I", magic) for order in "<>" for magic in (_MICROSECONDS, _NANOSECONDS)
)
PCAPNG_MARK = struct.pack("<I", _SECTION)

_RECAPTURE = (
    "capture again with nanoseconds: `tcpdump --time-stamp-precision=nano` or `dumpcap` on such an interface"
)


class Packet(NamedTuple):
    """One packet: its number in the file from 1 on, when it was captured, by which of the file's interfaces."""

    number: int
    local_ns: int
    interface: int
    data: bytes
    cut: bool
    """The capture's snap length cut it."""


class DamagedCaptureError(PartialError):
    """The capture breaks off or turns into something else; the packets before that were given."""


def read_packets(file: BinaryIO, name: str) -> Iterator[Packet]:
    """The packets of an open capture.

    Raises `UsageError` for a capture that can't be used, `DamagedCaptureError` behind the last whole packet.
    """
    head = file.read(4)
    if head == PCAPNG_MARK:
        return _Pcapng(file, name).packets()
    return _pcap_packets(_Reader(file, name), head)


class _Reader:
    """Reads exactly as much as is asked for, and knows where it is."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self.name = name
        self.at = 4  # the mark is read already
        self.packets = 0

    def take(self, n: int, what: str) -> bytes:
        data = self._file.read(n)
        if len(data) < n:
            raise self.damaged(f"the file ends within {what}", self.at + len(data))
        self.at += n
        return data

    def ended(self, n: int, what: str) -> bytes | None:
        """The next `n` bytes; None where the file ends before them."""
        data = self._file.read(n)
        if not data:
            return None
        if len(data) < n:
            raise self.damaged(f"the file ends within {what}", self.at + len(data))
        self.at += n
        return data

    def damaged(self, found: str, at: int | None = None) -> DamagedCaptureError:
        return DamagedCaptureError(
            f"{self.name}, packet {self.packets + 1} (byte {self.at if at is None else at}): {found}",
            f"the {self.packets} packets before it are good; the capture was stopped hard, or the copy is not complete",
        )

    def refused(self, what: str, remedy: str) -> UsageError:
        return UsageError(f"{self.name}, packet {self.packets + 1}: {what}", remedy)


def _check_link_type(reader: _Reader, link_type: int) -> None:
    if link_type != _ETHERNET:
        known = _LINK_TYPES.get(link_type, "something else")
        raise reader.refused(
            f"the link type is {link_type}, {known}, not Ethernet: stamps of switches are in Ethernet frames",
            "capture on the interface itself: `tcpdump -i eth1 …`",
        )


def _pcap_packets(reader: _Reader, mark: bytes) -> Iterator[Packet]:
    order = "<" if mark in (PCAP_MARKS[0], PCAP_MARKS[1]) else ">"
    *_, link_type = struct.unpack(order + "HHiIII", reader.take(20, "the file's header"))
    if struct.unpack(order + "I", mark)[0] == _MICROSECONDS:
        raise reader.refused("the capture's times are in microseconds", _RECAPTURE)
    _check_link_type(reader, link_type & 0x0FFF_FFFF)
    record = struct.Struct(order + "IIII")
    while (head := reader.ended(record.size, "a packet's header")) is not None:
        seconds, nanoseconds, length, wire_length = record.unpack(head)
        if nanoseconds >= _NS_PER_S:
            raise reader.damaged(f"{nanoseconds} nanoseconds in a second", reader.at - record.size + 4)
        if length > _MAX_PACKET_BYTES:
            raise reader.damaged(f"a packet of {length} bytes", reader.at - record.size + 8)
        data = reader.take(length, "a packet")
        reader.packets += 1
        yield Packet(reader.packets, seconds * _NS_PER_S + nanoseconds, 0, data, length < wire_length)


@dataclass(frozen=True, slots=True)
class _Interface:
    """How an interface of a pcapng section tells time: ticks of 10^-decimals s, or of 2^-bits s; offset in s."""

    decimals: int
    bits: int
    offset_s: int

    @property
    def has_nanoseconds(self) -> bool:
        return self.bits >= 30 or self.decimals >= 9

    def nanoseconds(self, ticks: int) -> int:
        if self.bits:
            return (ticks * _NS_PER_S >> self.bits) + self.offset_s * _NS_PER_S
        per_ns: int = 10 ** (self.decimals - 9)
        return ticks // per_ns + self.offset_s * _NS_PER_S


class _Pcapng:
    """Sections, each with its byte order and its interfaces."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._reader = _Reader(file, name)
        self._order = "<"
        self._interfaces: list[_Interface] = []

    def packets(self) -> Iterator[Packet]:
        self._section()
        while (head := self._reader.ended(4, "a block's type")) is not None:
            if head == PCAPNG_MARK:
                self._section()
                continue
            (kind,) = struct.unpack(self._order + "I", head)
            body = self._body()
            if kind == _INTERFACE:
                self._interface(body)
            elif kind == _ENHANCED:
                yield self._packet(body)
            elif kind == _SIMPLE:
                raise self._reader.refused(
                    "it has no time (a simple packet block)", "write enhanced packet blocks"
                )
            elif kind == _OBSOLETE:
                raise self._reader.refused(
                    "it is in an obsolete packet block", "write it anew: `editcap -F nsecpcap IN OUT`"
                )

    def _section(self) -> None:
        """A section's header; its byte order comes before its length can be read."""
        reader = self._reader
        start = reader.take(8, "a section's header")
        orders = [order for order in "<>" if struct.unpack_from(order + "I", start, 4)[0] == _BYTE_ORDER]
        if not orders:
            raise reader.damaged("a section without its byte order")
        self._order = orders[0]
        self._rest(struct.unpack_from(self._order + "I", start)[0], 12)
        self._interfaces = []

    def _body(self) -> bytes:
        (length,) = struct.unpack(self._order + "I", self._reader.take(4, "a block's length"))
        return self._rest(length, 8)

    def _rest(self, length: int, taken: int) -> bytes:
        """What is left of a block of which `taken` bytes were read, without the length that ends it."""
        reader = self._reader
        if length % 4 or not taken + 4 <= length <= _MAX_BLOCK_BYTES:
            raise reader.damaged(f"a block of {length} bytes")
        body = reader.take(length - taken, "a block")
        if struct.unpack(self._order + "I", body[-4:])[0] != length:
            raise reader.damaged("a block that ends by another length than it begins with")
        return body[:-4]

    def _interface(self, body: bytes) -> None:
        if len(body) < 8:
            raise self._reader.damaged("an interface without its link type")
        (link_type,) = struct.unpack_from(self._order + "H", body)
        _check_link_type(self._reader, link_type)
        decimals, bits, offset_s = _DEFAULT_RESOLUTION, 0, 0
        for code, value in self._options(body[8:]):
            if code == _OPTION_RESOLUTION and len(value) == 1:
                decimals, bits = (0, value[0] & 0x7F) if value[0] & 0x80 else (value[0], 0)
            elif code == _OPTION_TIME_OFFSET and len(value) == 8:
                (offset_s,) = struct.unpack(self._order + "q", value)
        if len(self._interfaces) == _MAX_INTERFACES:
            raise self._reader.damaged(f"an interface more than {_MAX_INTERFACES}")
        self._interfaces.append(_Interface(decimals, bits, offset_s))

    def _options(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        at = 0
        while at + 4 <= len(data):
            code, length = struct.unpack_from(self._order + "HH", data, at)
            if code == _OPTION_END:
                return
            yield code, data[at + 4 : at + 4 + length]
            at += 4 + (length + 3) // 4 * 4

    def _packet(self, body: bytes) -> Packet:
        reader = self._reader
        if len(body) < 20:
            raise reader.damaged(f"a packet block of {len(body)} bytes")
        index, high, low, length, wire_length = struct.unpack_from(self._order + "IIIII", body)
        if index >= len(self._interfaces) or length > len(body) - 20:
            raise reader.damaged(f"a packet of {length} bytes on interface {index}")
        interface = self._interfaces[index]
        if not interface.has_nanoseconds:
            raise reader.refused("the capture's times are coarser than nanoseconds", _RECAPTURE)
        local_ns = interface.nanoseconds(high << 32 | low)
        if not 0 <= local_ns <= _MAX_NS:
            raise reader.damaged(f"a time of {local_ns // _NS_PER_S} s since 1970")
        reader.packets += 1
        return Packet(reader.packets, local_ns, index, body[20 : 20 + length], length < wire_length)
