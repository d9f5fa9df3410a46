"""A plain socket: datagrams, received and answered in batches by a loop of one's own.

    python -m tools.examples.socket_service 9000

Each datagram is a frame; its sender gets "brightness batch arrival" back, the arrival in the NIC's hardware time where
the agent knows it.
"""

from __future__ import annotations

import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

from agent.batch import BatchWindow, Window
from agent.stamp import PhcClock

STATE_DIR = Path("/run/agent")
Frame = tuple[bytes, tuple[str, int], int]
"""Content, sender, arrival (ns of CLOCK_MONOTONIC)."""


def receive(receiver: socket.socket, until_ns: int | None) -> Frame | None:
    """The next frame, or None if none comes in time."""
    timeout_s = None if until_ns is None else max(0, until_ns - time.monotonic_ns()) / 1e9
    receiver.settimeout(timeout_s)
    try:
        content, sender = receiver.recvfrom(65_535)
    except (TimeoutError, BlockingIOError):
        return None
    return content, sender, time.monotonic_ns()


def next_batch(receiver: socket.socket, window: BatchWindow) -> list[Frame]:
    """Wait for a frame, and for those that come within the window after it."""
    first = receive(receiver, None)
    assert first is not None
    batch = [first]
    max_wait_us, max_items, _ = window.read()
    until_ns = first[2] + max_wait_us * 1_000
    while len(batch) < max_items and (frame := receive(receiver, until_ns)) is not None:
        batch.append(frame)
    return batch


def brightness(frames: list[bytes]) -> list[float]:
    """The model: mean brightness of each frame."""
    return [sum(frame) / len(frame) if frame else 0.0 for frame in frames]


def serve(port: int, state_dir: Path = STATE_DIR) -> None:
    """Answer for ever; `state_dir` is the agent's."""
    clock = PhcClock(state_dir=state_dir)
    with (
        BatchWindow(default=Window(max_wait_us=5_000, max_items=16), state_dir=state_dir) as window,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
    ):
        receiver.bind(("127.0.0.1", port))
        while True:
            batch = next_batch(receiver, window)
            start_ns = time.monotonic_ns()
            results = brightness([content for content, _, _ in batch])
            window.report([arrival_ns for _, _, arrival_ns in batch], start_ns, time.monotonic_ns())
            for result, (_, sender, arrival_ns) in zip(results, batch, strict=True):
                arrival = clock.time(arrival_ns)
                at = "unknown" if arrival is None else f"{arrival.phc_ns}±{arrival.bound_ns}"
                receiver.sendto(f"{result} {len(batch)} {at}".encode(), sender)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        serve(int(sys.argv[1]))
