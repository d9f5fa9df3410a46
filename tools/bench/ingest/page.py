"""What reading the shared page costs a consumer."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from agent.batch import BatchWindow
from agent.batch.layout import PublishedWindow
from agent.batch.publisher import PagePublisher
from tools.bench.figure import Effort, Figure, min_to_max

_READS_A_WINDOW = 200


def measure(effort: Effort) -> Figure:
    """p99 of `BatchWindow.read`, while the agent's side publishes a new window every 200 reads, as at 1000 reads/s."""
    p99s = []
    clock = time.perf_counter_ns
    with (
        tempfile.TemporaryDirectory(prefix="ingest-") as directory,
        PagePublisher(Path(directory), "default") as publisher,
    ):
        window = BatchWindow(state_dir=Path(directory))
        for _ in range(effort.repeat(20, 3)):
            took_ns = []
            for number in range(100):
                now_ns = time.monotonic_ns()
                publisher.publish_window(PublishedWindow(now_ns, now_ns + 10**9, number, 16))
                for _ in range(_READS_A_WINDOW):
                    before = clock()
                    window.read()
                    took_ns.append(clock() - before)
            p99s.append(float(np.percentile(took_ns, 99)) / 1e3)
    return Figure(
        "page-read", "reading the batch window, p99, the clock reads around it included",
        float(np.median(p99s)), "us", 1.0, "at most", min_to_max(p99s), len(p99s),
        {"reads": 100 * _READS_A_WINDOW, "reads_a_window": _READS_A_WINDOW},
    )  # fmt: skip
