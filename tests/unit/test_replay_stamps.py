"""Stamps that switches put into frames."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.replay.capture import Packet
from agent.replay.stamps import FORMATS, Stamp, find_format
from tests.unit.captures import NS_PER_S, START_NS, exablaze, metamako, udp

_TCPDUMP = Path(__file__).resolve().parents[3] / "shared" / "data" / "tcpdump"


def packet(data: bytes, local_ns: int = START_NS, *, cut: bool = False) -> Packet:
    """A captured frame."""
    return Packet(1, local_ns, 0, data, cut)


def found(packets: list[Packet]) -> tuple[str, list[Stamp | None]] | None:
    """The format that was found, and what it reads."""
    form = find_format(packets)
    return None if form is None else (form.name, [form.read(each) for each in packets])


@pytest.mark.parametrize(("make", "name"), [(metamako, "metamako"), (exablaze, "exablaze")])
@given(
    ns=st.integers(-(10**14), 10**14), device=st.integers(0, 255), port=st.integers(0, 255), fcs=st.booleans()
)
def test_trailers_are_recognised_and_exact(
    make: Callable[..., bytes], name: str, ns: int, device: int, port: int, fcs: bool
) -> None:
    """To the nanosecond, with device and port, also where the capture kept the FCS."""
    data = make(START_NS + ns, device, port) + (b"\x12\x34\x56\x78" if fcs else b"")
    assert found([packet(data)] * 3) == (name, [Stamp(START_NS + ns, device << 8 | port)] * 3)


def test_what_has_no_trailer_has_no_stamp() -> None:
    """Plain frames, padding, a frame that the capture cut, a clock weeks off: none of it passes."""
    for data in (udp(), udp(0) + bytes(18), metamako(START_NS + 30 * 86_400 * NS_PER_S), b"", b"\x08"):
        assert found([packet(data)]) is None
    assert found([packet(metamako(START_NS), cut=True)]) is None


def test_unstamped_frames_in_between_do_not_matter() -> None:
    """A capture port has traffic of its own; eight stamped frames are enough to tell the format."""
    name, stamps = found([packet(udp())] * 90 + [packet(metamako(START_NS))] * 8) or ("", [])
    assert name == "metamako"
    assert stamps == [None] * 90 + [Stamp(START_NS, 0x0703)] * 8


def test_a_trailer_behind_vlan_tags_is_found() -> None:
    """Two tags move the network layer."""
    frame = metamako(START_NS)
    tagged = frame[:12] + b"\x88\xa8\x00\x01\x81\x00\x00\x02" + frame[12:]
    assert found([packet(tagged)]) == ("metamako", [Stamp(START_NS, 0x0703)])


@pytest.mark.skipif(not _TCPDUMP.exists(), reason="the captures are not beside this checkout")
def test_arista_headers_are_as_tcpdump_decodes_them() -> None:
    """16 real frames, TAI and UTC, 64 and 48 bits: the nanoseconds that tcpdump prints, and its seconds for 64."""
    printed = re.findall(
        r"Timescale (TAI|UTC).*?Format (\d\d)-bit.*?Timestamp ([\d:. -]+\d)",
        (_TCPDUMP / "arista_ether-ev.out").read_text(),
    )
    data, at, packets = (_TCPDUMP / "arista_ether.pcap").read_bytes(), 24, []
    while at < len(data):
        seconds, micros, length, _ = struct.unpack_from("<IIII", data, at)
        packets.append(packet(data[at + 16 : at + 16 + length], seconds * NS_PER_S + micros * 1000))
        at += 16 + length
    name, stamps = found(packets) or ("", [])
    assert name == "arista7280"
    form = next(f for f in FORMATS if f.name == name)
    assert len(printed) == len(stamps) == 16
    for (scale, bits, text), stamp, each in zip(printed, stamps, packets, strict=True):
        assert stamp is not None
        assert form.clock(stamp.key) == f"arista7280 {scale.lower()}"
        assert f"{stamp.hw_ns % NS_PER_S:09}" == text[-9:]
        # tcpdump prints the 16 bits as they are; ours are those of the capture's day.
        seconds = int(text.split(".")[0]) if bits == "48" else None
        assert seconds is None or stamp.hw_ns // NS_PER_S & 0xFFFF == seconds
        assert abs(stamp.hw_ns - each.local_ns) < 60 * NS_PER_S
