"""Which measurements there are. A module is imported only when it is asked for."""

from __future__ import annotations

import importlib
from typing import Protocol

from tools.bench.figure import Effort, Figure

MEASUREMENTS = {
    "exact": "windows produced = drained + lost, also with rings made too small",
    "packet": "cost of the XDP program per packet, over that of reading the clock",
    "drain": "records/s out of the rings, over BCC's Python perf callback",
    "cpu": "CPU beyond the per-packet cost at 1 ms windows, and memory",
    "throughput": "packets/s and TCP throughput with the agent, over empty programs or none",
    "drift": "drift error after 5 s of demo, of the controller and of the kernel",
    "kill": "SIGKILL at random moments, then `agent restore`: every setting back",
}
"""Name (the module's, in this package) -> what it measures, in the order in which they run."""


class Measurement(Protocol):
    """A module of this package."""

    def measure(self, effort: Effort) -> list[Figure]:
        """Run it; both sides of each figure in this one run."""


def measurement(name: str) -> Measurement:
    """The module that measures `name`, a key of MEASUREMENTS."""
    module: Measurement = importlib.import_module(f"tools.bench.{name}")
    return module
