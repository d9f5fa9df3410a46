"""Rewritten receive timestamps, against the simulated switch's true clock: packets with its stamp, and without one."""

from __future__ import annotations

import socket
import struct
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from agent.errors import AgentError
from tools.bench.agentprocess import AgentProcess
from tools.bench.figure import Effort, Figure
from tools.testbed import Testbed
from tools.testbed.testbed import PORT

SO_TIMESTAMPNS = 35
PAYLOAD = struct.Struct("=IIQQ")  # tools/testbed/payload.h
_TIMESPEC = struct.Struct("@ll")
_PLAIN_PORT = 25_000
_LEARNING_S = 30.0


def measure(effort: Effort) -> list[Figure]:
    """p99 of the error of either kind of packet, beside a background load, at 12 ppm of drift."""
    packets = effort.repeat(10_000, 1_000)
    told = threading.Event()

    def on_frame(frame: dict[str, Any]) -> None:
        if frame["t"] == "health" and any("receive timestamps are tai" in note for note in frame["notes"]):
            told.set()

    with Testbed(queues=1, flows=1, rate_pps=2_000) as bed, tempfile.TemporaryDirectory() as state_dir:
        bed.start_traffic()
        bed.start_noise()
        flags = ("--stamp", "trailer", "--rewrite-timestamps", "tai")
        with AgentProcess(bed.cap, bed.cap_if, Path(state_dir), *flags, on_frame=on_frame) as agent:
            if not told.wait(_LEARNING_S):
                raise AgentError(f"the agent rewrites no timestamps: {agent.said()}")
            stamped, plain = _stamped(bed, packets), _plain(bed, packets // 4)
            if agent.stop() != 0:
                raise AgentError(f"the agent failed: {agent.said()}")
        truth = bed.phc.truth()
    sent_ns, stamps = np.array(stamped).T
    own = np.abs(stamps - truth.phc_ns(sent_ns))
    before_ns, after_ns, stamps = np.array(plain).T
    # The hook was between sending and receiving: what lies outside is error.
    outside = np.maximum(truth.phc_ns(before_ns) - stamps, stamps - truth.phc_ns(after_ns)).clip(min=0)
    return [
        _figure("receive-time-stamped", "of packets with a hardware stamp, p99 of its error", own, 1.0),
        _figure(
            "receive-time-plain", "of packets without, p99 beyond the delay up to the hook", outside, 2.0
        ),
    ]


def receive(receiver: socket.socket) -> tuple[bytes, int]:
    """A datagram and its receive timestamp, ns."""
    data, ancillary, _, _ = receiver.recvmsg(2_048, 64)
    (stamp,) = (
        content for level, kind, content in ancillary if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS)
    )
    seconds, ns = _TIMESPEC.unpack(stamp)
    return data, seconds * 10**9 + ns


def application(bed: Testbed, port: int) -> socket.socket:
    """A socket as any application has it, that asks for receive timestamps."""
    made = bed.cap.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    made.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    made.bind(("0.0.0.0", port))
    made.settimeout(10)
    return made


def _stamped(bed: Testbed, packets: int) -> list[tuple[int, int]]:
    """(when the switch stamped it by mono, receive timestamp)."""
    with application(bed, PORT) as receiver:
        got = [receive(receiver) for _ in range(packets)]
    return [(PAYLOAD.unpack_from(data)[3], stamp) for data, stamp in got]


def _plain(bed: Testbed, packets: int) -> list[tuple[int, int, int]]:
    """(mono before sending, mono after receiving, receive timestamp)."""
    found = []
    sender = bed.gen.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    with sender, application(bed, _PLAIN_PORT) as receiver:
        for _ in range(packets):
            before_ns = time.monotonic_ns()
            sender.sendto(bytes(64), (bed.pair.right_ip, _PLAIN_PORT))
            _, stamp = receive(receiver)
            found.append((before_ns, time.monotonic_ns(), stamp))
    return found


def _figure(name: str, what: str, error_ns: np.ndarray[Any, np.dtype[Any]], target_us: float) -> Figure:
    p50, p99, most = (float(value) / 1e3 for value in np.percentile(error_ns, [50, 99, 100]))
    detail = {"p50_us": p50, "max_us": most, "drift_ppb": 12_000}
    what = f"SO_TIMESTAMPNS {what}"
    return Figure(name, what, p99, "us", target_us, "at most", None, len(error_ns), detail)
