"""Latency over time on all sides, with the phases and the background load marked. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from agent.errors import UnsupportedError
from tools.bench.ingest.bench import Outcome
from tools.bench.ingest.scenario import Scenario

_BIN_NS = 100_000_000


def save(path: Path, scenario: Scenario, sides: dict[str, Outcome]) -> None:
    """Write the p99 of each 100 ms of each side. Raises `UnsupportedError` without matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise UnsupportedError("no picture: matplotlib is not installed", "pip install '.[plot]'") from error
    mpl.use("Agg")
    from matplotlib import pyplot

    drawing, axes = pyplot.subplots(figsize=(11, 4.5))
    for name, outcome in sides.items():
        captured = np.concatenate([phase.captured_ns for phase in outcome.phases])
        bins = captured // _BIN_NS
        latency = outcome.latency_ns / 1e6
        shown = np.unique(bins)
        p99 = [float(np.percentile(latency[bins == at], 99)) for at in shown]
        axes.semilogy(shown * _BIN_NS / 1e9, p99, label=name)
    begin = 0.0
    for phase in scenario.phases:
        if phase.load != "none":
            axes.axvspan(begin, begin + phase.seconds, color="grey", alpha=0.2)
        axes.axvline(begin, color="grey", linewidth=0.5)
        label = f" {phase.name}\n {phase.rate:.0f}/s"
        axes.text(begin, 0.98, label, transform=axes.get_xaxis_transform(), va="top", fontsize=7)
        begin += phase.seconds
    axes.set_xlabel("s (grey: background load)")
    axes.set_ylabel("p99 latency of 100 ms, ms")
    axes.legend(loc="lower right")
    drawing.tight_layout()
    drawing.savefig(path, dpi=110)
    pyplot.close(drawing)
