"""Time stamps that switches put into frames, as a capture shows them.

| format | where | what |
| --- | --- | --- |
| metamako (Arista 7130) | last 16 bytes | FCS u32, seconds u32, nanoseconds u32, flags u8, device u16, port u8 |
| exablaze (Cisco Nexus 3550) | last 16 bytes | FCS u32, device u8, port u8, seconds u32, 2^-40 s u40, u8 |
| arista7280 | ether type 0xD28B | subtype u16 = 1, scale u8, format u8, seconds u32 or u16, nanoseconds u32 |

All big endian. A trailer is looked for behind the end that the network layer gives, as in `bpf/trailer.h`, and also
before a frame check sequence that the capture kept.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agent.replay.capture import Packet

_NS_PER_S = 1_000_000_000
_FCS_BYTES = 4
_TRAILER_BYTES = 16
_VLAN_TYPES = (0x8100, 0x88A8)
_IPV4, _IPV6, _ARP, _ARISTA = 0x0800, 0x86DD, 0x0806, 0xD28B
_IPV6_HEAD_BYTES, _ARP_BYTES = 40, 28
_LENGTH_BELOW = 0x0600
# An unknown trailer passes for a known one if its seconds are this near to the capture's.
_PLAUSIBLE_S = 7 * 86_400


class Stamp(NamedTuple):
    """Hardware time, and the clock it is of."""

    hw_ns: int
    key: int


@dataclass(frozen=True, slots=True)
class StampFormat:
    """One way to find a stamp in a frame; `read` returns None where there is none. `clock` names a key's clock."""

    name: str
    title: str
    read: Callable[[Packet], Stamp | None]
    clock: Callable[[int], str]


def find_format(packets: Sequence[Packet]) -> StampFormat | None:
    """Return the format that fits these frames best: at least half of them, or eight, within a week of the capture."""
    found = [(sum(_plausible(form, packet) for packet in packets), form) for form in FORMATS]
    fitting, best = max(found, key=lambda pair: pair[0])
    return best if fitting and (fitting >= _ENOUGH or 2 * fitting >= len(packets)) else None


_ENOUGH = 8


def _plausible(form: StampFormat, packet: Packet) -> bool:
    stamp = form.read(packet)
    return stamp is not None and abs(stamp.hw_ns - packet.local_ns) <= _PLAUSIBLE_S * _NS_PER_S


def _ether_type(data: bytes) -> tuple[int, int]:
    """Return (ether type behind at most two VLAN tags, where its payload begins)."""
    at = 12
    for _ in range(3):
        if len(data) < at + 2:
            return 0, len(data)
        kind = data[at] << 8 | data[at + 1]
        at += 2
        if kind not in _VLAN_TYPES:
            return kind, at
        at += 2
    return 0, len(data)


def _network_end(data: bytes) -> int:
    """Return where the network layer says that the frame ends; the end of its header for a protocol not known."""
    kind, at = _ether_type(data)
    if kind == _IPV4 and len(data) >= at + 4:
        return at + (data[at + 2] << 8 | data[at + 3])
    if kind == _IPV6 and len(data) >= at + 6:
        return at + _IPV6_HEAD_BYTES + (data[at + 4] << 8 | data[at + 5])
    if kind == _ARP:
        return at + _ARP_BYTES
    return at + kind if kind < _LENGTH_BELOW else at


def _trailer(packet: Packet, fcs_bytes: int) -> bytes | None:
    data = packet.data
    begin = len(data) - fcs_bytes - _TRAILER_BYTES
    if packet.cut or begin < _network_end(data):
        return None
    return data[begin : begin + _TRAILER_BYTES]


_METAMAKO = struct.Struct(">IIIBHB")


def _metamako(fcs_bytes: int) -> Callable[[Packet], Stamp | None]:
    def read(packet: Packet) -> Stamp | None:
        trailer = _trailer(packet, fcs_bytes)
        if trailer is None:
            return None
        _, seconds, nanoseconds, _, device, port = _METAMAKO.unpack(trailer)
        if not seconds or nanoseconds >= _NS_PER_S:
            return None
        return Stamp(seconds * _NS_PER_S + nanoseconds, device << 8 | port)

    return read


def _exablaze(fcs_bytes: int) -> Callable[[Packet], Stamp | None]:
    def read(packet: Packet) -> Stamp | None:
        trailer = _trailer(packet, fcs_bytes)
        if trailer is None:
            return None
        seconds = int.from_bytes(trailer[6:10])
        if not seconds:
            return None
        nanoseconds = int.from_bytes(trailer[10:15]) * _NS_PER_S >> 40
        return Stamp(seconds * _NS_PER_S + nanoseconds, trailer[4] << 8 | trailer[5])

    return read


def _arista(packet: Packet) -> Stamp | None:
    data = packet.data
    kind, at = _ether_type(data)
    if kind != _ARISTA or len(data) < at + 12:
        return None
    subtype, scale, form = data[at] << 8 | data[at + 1], data[at + 2], data[at + 3] >> 4
    if subtype != 1 or scale > 1:
        return None
    if form == 1:
        seconds, nanoseconds = struct.unpack_from(">II", data, at + 4)
    elif form == 2:
        low, nanoseconds = struct.unpack_from(">HI", data, at + 4)
        # Its upper bits are the capture's: the nearest time that ends in these 16.
        near = packet.local_ns // _NS_PER_S
        seconds = near + ((low - near + 0x8000) & 0xFFFF) - 0x8000
    else:
        return None
    return Stamp(seconds * _NS_PER_S + nanoseconds, scale) if nanoseconds < _NS_PER_S else None


def _device_and_port(key: int) -> str:
    return f"trailer {key >> 8}:{key & 0xFF}"


def _scale(key: int) -> str:
    return f"arista7280 {'utc' if key else 'tai'}"


_METAMAKO_TITLE = "Arista 7130 (Metamako) trailer"
_EXABLAZE_TITLE = "Cisco Nexus 3550 (Exablaze) trailer"

FORMATS = (
    StampFormat("metamako", _METAMAKO_TITLE, _metamako(0), _device_and_port),
    StampFormat("exablaze", _EXABLAZE_TITLE, _exablaze(0), _device_and_port),
    StampFormat("arista7280", "Arista 7280 header (0xD28B)", _arista, _scale),
    StampFormat("metamako", _METAMAKO_TITLE, _metamako(_FCS_BYTES), _device_and_port),
    StampFormat("exablaze", _EXABLAZE_TITLE, _exablaze(_FCS_BYTES), _device_and_port),
)
