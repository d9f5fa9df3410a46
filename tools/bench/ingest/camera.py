"""The camera, a process of its own: sends frames when they are due, whatever becomes of them.

Prints, at the end, how many frames it sent and how late it was.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import time
from pathlib import Path

import numpy as np

from tools.bench.ingest.wire import HEAD, PORT


def main() -> None:
    """Send the frames whose times (ns of CLOCK_MONOTONIC, int64) are in a file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--to", required=True)
    parser.add_argument("--due", type=Path, required=True)
    parser.add_argument("--frame-bytes", type=int, required=True)
    parser.add_argument("--packet-bytes", type=int, required=True)
    parser.add_argument("--cpu", type=int, required=True)
    args = parser.parse_args()
    os.sched_setaffinity(0, {args.cpu})
    due_ns = np.load(args.due).tolist()
    content = np.random.default_rng(1).bytes(args.frame_bytes)
    parts = [content[at : at + args.packet_bytes] for at in range(0, len(content), args.packet_bytes)]
    late_ns = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        sender.connect((args.to, PORT))
        for number, due in enumerate(due_ns):
            left_ns = due - time.monotonic_ns()
            if left_ns > 0:
                time.sleep(left_ns / 1e9)
            captured_ns = time.monotonic_ns()
            late_ns.append(captured_ns - due)
            for index, part in enumerate(parts):
                sender.send(HEAD.pack(number, index, len(parts), captured_ns) + part)
    print(json.dumps({"sent": len(due_ns), "late_p99_ns": float(np.percentile(late_ns, 99))}))


if __name__ == "__main__":
    main()
