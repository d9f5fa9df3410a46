"""The detector as a service, a process of its own: packets in, frames put together, batches inferred.

It is the same on all sides; a static one is told its window, and looks at a directory where no agent is. At SIGTERM it
writes, for each frame that was inferred, its number, when it was captured and when its batch was done (int64[n, 3]).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import time
from pathlib import Path
from types import FrameType

import numpy as np

from agent.batch import Batcher, BatcherFullError, FrameAssembler, Window
from tools.bench.ingest.model import Detector
from tools.bench.ingest.wire import HEAD, PORT

_SO_RCVBUFFORCE = 33
_WARM_UP = (1, 1, 2, 4, 8, 16, 1)
Captured = tuple[int, int, bytes]
"""Number, capture (ns), content."""


class _EndError(Exception):
    """SIGTERM came."""


def _end(number: int, frame: FrameType | None) -> None:
    raise _EndError


def main() -> None:
    """Serve until SIGTERM."""
    args = _parse()
    os.sched_setaffinity(0, {args.cpu})
    detector = Detector(args.model, tuple(args.shape))
    size = int(np.prod(args.shape))
    for items in _WARM_UP:
        detector.run([bytes(size)] * items)
    done: list[tuple[int, int, int]] = []

    def infer(batch: list[Captured]) -> None:
        detector.run([content for _, _, content in batch])
        now_ns = time.monotonic_ns()
        done.extend((number, captured_ns, now_ns) for number, captured_ns, _ in batch)

    batcher: Batcher[Captured, None] = Batcher(
        infer, default=Window(*args.window), capacity=args.waiting, state_dir=args.state_dir
    )
    signal.signal(signal.SIGTERM, _end)
    full = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver, batcher:
        if args.rcvbuf_kib:
            receiver.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, args.rcvbuf_kib << 10)
        receiver.bind(("0.0.0.0", PORT))
        print(json.dumps({"ready": True}), flush=True)
        with contextlib.suppress(_EndError):
            full = _receive(receiver, batcher)
    np.save(args.out, np.array(done, dtype=np.int64).reshape(-1, 3))
    print(json.dumps({"inferred": len(done), "turned_away": full, "cpu_s": time.process_time()}))


def _receive(receiver: socket.socket, batcher: Batcher[Captured, None]) -> int:
    frames = FrameAssembler(max_frames=32)
    packet = bytearray(1 << 16)
    full = 0
    try:
        while True:
            length = receiver.recv_into(packet)
            number, index, count, captured_ns = HEAD.unpack_from(packet)
            frame = frames.add(number, index, count, bytes(packet[HEAD.size : length]))
            if frame is None:
                continue
            try:
                batcher.submit((number, captured_ns, frame.data), arrival_ns=frame.last_arrival_ns)
            except BatcherFullError:
                full += 1
    except _EndError:
        return full


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--shape", type=int, nargs=3, required=True)
    parser.add_argument("--window", type=int, nargs=2, required=True, metavar=("WAIT_US", "ITEMS"))
    parser.add_argument("--waiting", type=int, required=True)
    parser.add_argument("--rcvbuf-kib", type=int, default=0)
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--cpu", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
