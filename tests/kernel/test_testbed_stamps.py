"""What the testbed puts on the wire: trailers whose time is the simulated PHC's, exactly."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

import pytest

from tools.testbed import Testbed
from tools.testbed.receivers import XskReceiver
from tools.testbed.testbed import PORT

from .conftest import MakeTestbed

pytestmark = pytest.mark.kernel

ETH_P_ALL = 3
HEADERS = 14 + 20 + 8
TX_MONO = HEADERS + 16
TRAILER = struct.Struct("!IIIBHB")


def captured(bed: Testbed, send: Callable[[], None], count: int) -> list[bytes]:
    """The frames that arrive at the capture interface while `send` runs in the sending namespace."""

    def listen() -> socket.socket:
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        sock.bind((bed.cap_if, ETH_P_ALL))
        sock.settimeout(2)
        return sock

    with bed.cap.call(listen) as sock:
        bed.gen.call(send)
        frames: list[bytes] = []
        while len(frames) < count:
            frame, address = sock.recvfrom(4096)
            if address[2] != socket.PACKET_OUTGOING:  # answers of the capture host: no such port
                frames.append(frame)
        return frames


def send_udp(bed: Testbed, port: int, payload: bytes, count: int = 1) -> Callable[[], None]:
    """A function that sends the same datagram some times."""

    def send() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for _ in range(count):
                sock.sendto(payload, (bed.pair.right_ip, port))

    return send


def test_trailer_holds_the_true_time_of_transmission(testbed: MakeTestbed) -> None:
    """The trailer's time is the truth's PHC time at the transmit moment in the payload, to the nanosecond."""
    bed = testbed(device_id=0x1234, port_id=9, jump_ns=1_000_000, jump_at_s=0.0)
    frames = captured(bed, send_udp(bed, PORT + 2, bytes(64), count=50), 50)
    truth = bed.phc.truth()
    for frame in frames:
        assert len(frame) == HEADERS + 64 + TRAILER.size
        fcs, seconds, nanoseconds, flags, device, port = TRAILER.unpack(frame[-TRAILER.size :])
        (tx_mono_ns,) = struct.unpack_from("=Q", frame, TX_MONO)
        assert seconds * 1_000_000_000 + nanoseconds == truth.phc_ns(tx_mono_ns)
        assert (fcs, flags, device, port) == (0, 0, 0x1234, 9)


def test_short_frame_is_padded_before_the_trailer(testbed: MakeTestbed) -> None:
    """A frame below the Ethernet minimum gets its padding first, as on a wire, and the trailer behind it."""
    bed = testbed()
    (frame,) = captured(bed, send_udp(bed, PORT, b"x"), 1)
    assert len(frame) == 60 + TRAILER.size
    assert frame[HEADERS : HEADERS + 1] == b"x"
    assert not any(frame[HEADERS + 1 : 60])
    assert TRAILER.unpack(frame[60:])[4] == bed.device_id


def test_other_traffic_gets_no_trailer(testbed: MakeTestbed) -> None:
    """A datagram to a port outside the test flows passes unchanged."""
    bed = testbed(flows=4)
    (frame,) = captured(bed, send_udp(bed, PORT + 4, bytes(64)), 1)
    assert len(frame) == HEADERS + 64
    assert bed.counters()["stamped"] == 0


def test_each_flow_has_its_queue(testbed: MakeTestbed) -> None:
    """Flows are spread over all receive queues, the same way in each run."""
    bed = testbed(queues=4, flows=8)
    with XskReceiver(bed.cap, bed.cap_if, queues=4) as receiver:
        for flow in range(8):
            bed.gen.call(send_udp(bed, PORT + flow, bytes(64), count=flow + 1))
        assert receiver.stop().by_queue == [1 + 5, 2 + 6, 3 + 7, 4 + 8]
