"""What `make bench-clock` measures, in the order in which it runs."""

from __future__ import annotations

from collections.abc import Callable

from tools.bench.clock import bounds, cases, errors, holdover, jumps, live, metrics, recorded, speed, steered
from tools.bench.clock.session import Session
from tools.bench.figure import Figure

MEASUREMENTS: dict[str, tuple[str, Callable[[Session], list[Figure]]]] = {
    "cases": ("verdicts of the shared clock cases", cases.measure),
    "metrics": ("ADEV, TDEV and MTIE against Stable32", metrics.measure),
    "tick": ("a live tick of eight clocks", live.measure_tick),
    "speed": ("samples/s of `agent replay --json`", speed.measure),
    "delay": ("delay quantiles under injected queueing", live.measure_delay),
    "recordings": ("RMSE over the best baseline on recordings", recorded.measure),
    "errors": (
        "RMSE over the best baseline, the limit and the best expert, on synthetic clocks",
        errors.measure,
    ),
    "bounds": ("coverage and width of p99 bounds", bounds.measure),
    "jumps": ("false tags, recall of injected jumps, excursion of the drift", jumps.measure),
    "steering": ("RMSE with a PI servo underneath over without", steered.measure),
    "holdover": ("coverage and width of the bound after 600 s", holdover.measure),
}
"""Name -> (what it measures, how)."""
