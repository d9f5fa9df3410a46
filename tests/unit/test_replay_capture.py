"""Reading pcap and pcapng: exact times, and what is wrong with a file by packet and byte."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import PartialError, UsageError
from agent.replay.capture import DamagedCaptureError, Packet, read_packets
from tests.unit.captures import NS_PER_S, START_NS, Timed, block, enhanced, interface, pcap, section, udp

_TCPDUMP = Path(__file__).resolve().parents[3] / "shared" / "data" / "tcpdump"

times = st.integers(0, 0xFFFF_FFFF * NS_PER_S)
packets = st.lists(st.tuples(times, st.binary(max_size=80)), max_size=12)


def read(data: bytes) -> list[Packet]:
    """All packets of a capture."""
    return list(read_packets(io.BytesIO(data), "x.pcap"))


@given(packets, st.sampled_from("<>"))
def test_pcap_times_are_exact(written: list[Timed], order: str) -> None:
    """Either byte order, any time that the format holds: beyond 2038 too."""
    assert [(p.local_ns, p.data) for p in read(pcap(written, order=order))] == written


@given(packets, st.sampled_from("<>"))
def test_pcapng_times_are_exact(written: list[Timed], order: str) -> None:
    """Nanoseconds in either byte order; blocks of unknown types are skipped."""
    parts = [section(order), block(0x0BAD, b"abc", order), interface(9, order)]
    parts += [enhanced(local_ns, data, order) for local_ns, data in written]
    assert [(p.local_ns, p.data) for p in read(b"".join(parts))] == written


def test_finer_and_binary_resolutions_and_sections() -> None:
    """10^-10 s and 2^-32 s become nanoseconds; a second section has its own byte order and interfaces."""
    data = section() + interface(10) + interface(0x80 | 32)
    data += enhanced(START_NS * 10 + 9, b"a") + enhanced((START_NS << 32) // NS_PER_S + 1, b"b", index=1)
    data += section(">") + interface(9, ">") + enhanced(START_NS + 5, b"c", ">")
    assert [(p.number, p.local_ns, p.interface) for p in read(data)] == [
        (1, START_NS, 0),
        (2, START_NS, 1),
        (3, START_NS + 5, 0),
    ]


@given(packets, st.booleans(), st.data())
def test_a_cut_capture_gives_its_whole_packets(written: list[Timed], ng: bool, data: st.DataObject) -> None:
    """Cut anywhere behind its head: the packets before the cut, then an error unless it fell between two."""
    head = section() + interface(9) if ng else pcap([])
    parts = [enhanced(t, d) if ng else pcap([(t, d)])[24:] for t, d in written]
    whole = head + b"".join(parts)
    cut = data.draw(st.integers(len(head), len(whole)))
    ends = [len(head) + sum(map(len, parts[:i])) for i in range(len(parts) + 1)]
    got: list[Timed] = []
    try:
        for packet in read_packets(io.BytesIO(whole[:cut]), "x.pcap"):
            got.append((packet.local_ns, packet.data))
    except PartialError:
        assert cut not in ends
    else:
        assert cut in ends
    assert got == written[: sum(end <= cut for end in ends[1:])]


@given(st.sampled_from((pcap([])[:4], section())), st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(head: bytes, data: bytes) -> None:
    """No content raises anything but an error for the user, or takes much memory."""
    try:
        read(head + data)
    except (UsageError, PartialError) as error:
        assert error.remedy  # noqa: PT017 - either of two kinds


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (pcap([], magic=0xA1B2C3D4), "microseconds"),
        (pcap([], link_type=113), "link type is 113, Linux cooked"),
        (section() + interface(6) + enhanced(1, b"a"), "coarser than nanoseconds"),
        (section() + interface(None) + enhanced(1, b"a"), "coarser than nanoseconds"),
        (section() + interface(9, link_type=101), "link type is 101, raw IP"),
        (section() + interface(9) + block(3, bytes(8)), "no time"),
        (section() + interface(9) + block(2, bytes(20)), "obsolete packet block"),
    ],
)
def test_what_cannot_be_used_is_refused(data: bytes, what: str) -> None:
    """Coarse times would be silently wrong; other link types have no switch's stamps."""
    with pytest.raises(UsageError, match=what) as caught:
        read(data)
    assert "packet 1" in caught.value.what
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (struct.pack("<IIII", 1, NS_PER_S, 4, 4) + b"abcd", "1000000000 nanoseconds in a second"),
        (struct.pack("<IIII", 1, 0, 1 << 30, 4), "a packet of 1073741824 bytes"),
        (struct.pack("<IIII", 1, 0, 4, 4) + b"ab", "the file ends within a packet"),
    ],
)
def test_damage_is_said_by_packet_and_byte(damage: bytes, what: str) -> None:
    """The packets before it were given; the number of the bad one and the byte are told."""
    good = pcap([(START_NS, udp())])
    with pytest.raises(DamagedCaptureError, match=what) as caught:
        read(good + damage)
    assert "packet 2 (byte " in caught.value.what
    assert "the 1 packets before it are good" in caught.value.remedy


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (section() + interface(9) + enhanced((1 << 64) - 1, b"a"), "a time of 18446744073 s"),
        (section() + interface(9) * 5000, "an interface more than 4096"),
    ],
)
def test_what_no_capture_has_is_damage(data: bytes, what: str) -> None:
    """A time that 64 bits don't hold as nanoseconds, interfaces without end."""
    with pytest.raises(DamagedCaptureError, match=what):
        read(data)


@pytest.mark.skipif(not _TCPDUMP.exists(), reason="the captures are not beside this checkout")
@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("arista_ether.pcap", "microseconds"),
        ("ptp.pcap", "microseconds"),
        ("time_2038_overflow.pcap", "microseconds"),
        ("timestamp_invalid_micro.pcap", "microseconds"),
        ("tcp-handshake-nano.pcap", "Linux cooked"),
        ("timestamp_invalid_nano.pcap", "Linux cooked"),
    ],
)
def test_captures_of_tcpdump_are_refused_by_name(name: str, what: str) -> None:
    """Each for its reason."""
    with pytest.raises(UsageError, match=what), (_TCPDUMP / name).open("rb") as file:
        list(read_packets(file, name))
