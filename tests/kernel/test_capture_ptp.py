"""Which frames the capture programs take for PTP messages, at both hooks; and a jump whose cause one of them is."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from agent.ffi.records import PTP_ANNOUNCES
from tests.kernel.agent_run import AgentRun
from tests.kernel.capture_bench import CaptureBench, frame, trailer
from tests.kernel.conftest import MakeTestbed
from tests.unit.telemetry_frames import announce
from tools.testbed import Testbed

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and BPF"),
]

_SECOND = 0xECE555FFFE000001
_VLAN, _QINQ = 0x8100, 0x88A8
_MULTICAST = bytes.fromhex("011b19000000 020000000001")
_GENERAL, _EVENT = 320, 319
_HW_NS = 1_700_000_000 * 10**9


def ethernet(ethertype: int, body: bytes, tags: tuple[int, ...] = (), behind: bytes = b"") -> bytes:
    """A frame to PTP's multicast address, padded as on the wire."""
    head = _MULTICAST + b"".join(struct.pack(">HH", tag, 5) for tag in tags)
    return (head + struct.pack(">H", ethertype) + body).ljust(60, b"\0") + behind


def ipv4(
    message: bytes, port: int = _GENERAL, *, protocol: int = 17, first: int = 0x45, fragment: int = 0
) -> bytes:
    """A UDP datagram over IPv4."""
    udp = struct.pack(">HHHH", port, port, 8 + len(message), 0) + message
    addresses = socket.inet_aton("10.77.0.1") + socket.inet_aton("224.0.1.129")
    return struct.pack(">BBHHHBBH", first, 0, 20 + len(udp), 0, fragment, 1, protocol, 0) + addresses + udp


def ipv6(message: bytes, port: int = _GENERAL) -> bytes:
    """A UDP datagram over IPv6."""
    udp = struct.pack(">HHHH", port, port, 8 + len(message), 0) + message
    return struct.pack(">IHBB", 6 << 28, len(udp), 17, 1) + bytes(32) + udp


MESSAGE = announce()
SYNC = b"\x00" + MESSAGE[1:44]
ANNOUNCES = {
    "Ethernet": ethernet(0x88F7, MESSAGE),
    "Ethernet in a VLAN": ethernet(0x88F7, MESSAGE, (_VLAN,)),
    "Ethernet in QinQ": ethernet(0x88F7, MESSAGE, (_QINQ, _VLAN)),
    "IPv4": ethernet(0x0800, ipv4(MESSAGE)),
    "IPv4 in a VLAN": ethernet(0x0800, ipv4(MESSAGE), (_VLAN,)),
    "IPv4 in QinQ": ethernet(0x0800, ipv4(MESSAGE), (_QINQ, _VLAN)),
    "IPv6": ethernet(0x86DD, ipv6(MESSAGE)),
    "IPv6 in a VLAN": ethernet(0x86DD, ipv6(MESSAGE), (_VLAN,)),
    "with a capture switch's trailer": ethernet(0x0800, ipv4(MESSAGE), behind=trailer(_HW_NS)),
    "Ethernet with a trailer": ethernet(0x88F7, MESSAGE, behind=trailer(_HW_NS)),
}
NONE = {
    "another port": ethernet(0x0800, ipv4(MESSAGE, 321)),
    "TCP to port 320": ethernet(0x0800, ipv4(MESSAGE, protocol=6)),
    "a later fragment": ethernet(0x0800, ipv4(MESSAGE, fragment=100)),
    "IPv4 options": ethernet(0x0800, ipv4(MESSAGE, first=0x46)),
    "version 1": ethernet(0x88F7, MESSAGE[:1] + b"\x01" + MESSAGE[2:]),
    "a delay request": ethernet(0x88F7, b"\x01" + MESSAGE[1:]),
    "cut short": ethernet(0x0800, ipv4(MESSAGE))[:100],
    "no PTP at all": frame(),
}


@pytest.fixture(scope="module", params=[("xdp", "libbpf"), ("tc", "libbpf"), ("xdp", "bcc"), ("tc", "bcc")])
def bench(request: pytest.FixtureRequest) -> Iterator[CaptureBench]:
    """The programs at either hook, by either loader."""
    hook, loader = request.param
    with CaptureBench("trailer", hook, loader=loader) as made:
        yield made


def seen(bench: CaptureBench) -> tuple[int, int]:
    """Announces and Syncs so far."""
    ptp = bench.object.map("ptp").mmap()
    return int(ptp["n_announce"].sum()), int(ptp["n_sync"].sum())


def grown(bench: CaptureBench, packet: bytes) -> tuple[int, int]:
    """How many Announces and Syncs a packet was."""
    before = seen(bench)
    bench.run(packet)
    after = seen(bench)
    return after[0] - before[0], after[1] - before[1]


@pytest.mark.parametrize("name", ANNOUNCES)
def test_an_announce_is_kept_whole(bench: CaptureBench, name: str) -> None:
    """However it is wrapped, the 64 bytes from the PTP header on are in the map."""
    assert grown(bench, ANNOUNCES[name]) == (1, 0)
    ptp = bench.object.map("ptp").mmap()
    cpu = int(np.argmax(ptp["n_announce"]))
    newest = ptp["announce"][cpu, (int(ptp["n_announce"][cpu]) - 1) % PTP_ANNOUNCES]
    assert newest["message"].tobytes() == MESSAGE
    assert newest["mono_ns"] > 0


@pytest.mark.parametrize(
    "packet",
    [ethernet(0x88F7, SYNC), ethernet(0x0800, ipv4(SYNC, _EVENT)), ethernet(0x86DD, ipv6(SYNC, _EVENT))],
)
def test_a_sync_is_counted(bench: CaptureBench, packet: bytes) -> None:
    """By Ethernet and by UDP's event port."""
    assert grown(bench, packet) == (0, 1)


@pytest.mark.parametrize("name", NONE)
def test_what_is_no_ptp_message_is_passed_over(bench: CaptureBench, name: str) -> None:
    """Other ports, protocols and versions, and what is cut off."""
    assert grown(bench, NONE[name]) == (0, 0)


def test_packets_left_out_by_sampling_are_heard(bench: CaptureBench) -> None:
    """An Announce a second must not depend on which packets are counted."""
    bench.config["frozen"][0] = 1
    try:
        assert grown(bench, ANNOUNCES["IPv4"]) == (1, 0)
    finally:
        bench.config["frozen"][0] = 0


def test_a_jump_is_put_down_to_the_new_grandmaster(testbed: MakeTestbed, tmp_path: Path) -> None:
    """Another grandmaster is announced, and half a second later the clock steps: the tag names both of them."""
    bed: Testbed = testbed(queues=1, rate_pps=4_000)
    bed.start_traffic()

    def send(message: bytes) -> None:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as raw:
            raw.bind((bed.gen_if, 0))
            raw.send(ethernet(0x88F7, message))

    with AgentRun(bed.cap, tmp_path, "--stamp", "trailer", "--observe") as run:
        run.wait_for("clock", lambda frame: frame["state"] == "relative" and frame["samples"] > 50)
        bed.gen.call(lambda: send(announce()))
        run.wait_for("ptp", lambda frame: bool(frame["masters"]))
        bed.gen.call(lambda: send(announce(_SECOND)))
        run.wait_for("ptp", lambda frame: frame["changes"] > 0)
        bed.phc.jump(400_000)
        jumped = run.wait_for("clock", lambda frame: any(t["kind"] == "phase_step" for t in frame["tags"]))
        assert run.stop() == 0
    (tag,) = [tag for tag in jumped["tags"] if tag["kind"] == "phase_step"]
    assert "PTP grandmaster changed from 001b19.fffe.0a0b0c to ece555.fffe.000001" in tag["cause"]
    assert "grandmaster changed" in run.notes()
