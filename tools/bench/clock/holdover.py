"""Ten minutes without a stamp, many times over: whether the bound still holds the truth, and how wide it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tools.bench.clock import product
from tools.bench.clock.bounds import pool, width_over_told, wilson_percent
from tools.bench.clock.evaluation import Outlook
from tools.bench.clock.oscillator import OCXO, TCXO
from tools.bench.clock.recipe import Bursts, Reading, Recipe, draw
from tools.bench.clock.session import Session
from tools.bench.clock.told import run_told
from tools.bench.clock.traces import Trace
from tools.bench.figure import Figure, Spread

SEEN_S, SILENT_S = 120, 600
_CYCLE_S = SEEN_S + SILENT_S
_EPISODES = 101
"""Of one trace; the first only warms up."""
_CHUNKS = 15
"""Traces per class, every second one with queued reads."""


def measure(session: Session) -> list[Figure]:
    """Coverage and width of the bound after 600 s of holdover."""
    chunks = session.effort.repeat(_CHUNKS, 1)
    jobs = [(oscillator.name, seed) for oscillator in (TCXO, OCXO) for seed in range(chunks)]
    outlooks = session.map("holdover", episodes, jobs)
    pooled = pool(outlooks)
    covered = np.abs(pooled.error_ns) <= pooled.p99_ns
    percent, count = 100 * float(covered.mean()), len(covered)
    per_class = {
        name: 100 * float(np.mean(np.abs(part.error_ns) <= part.p99_ns))
        for name in ("tcxo", "ocxo")
        for part in [pool([o for (n, _), o in zip(jobs, outlooks, strict=True) if n == name])]
    }
    widths = {
        name: width_over_told(part, float(covered.mean()))
        for name in ("tcxo", "ocxo")
        for part in [pool([o for (n, _), o in zip(jobs, outlooks, strict=True) if n == name])]
    }
    how = f"{SEEN_S} s of samples at 1 Hz, then {SILENT_S} s of none"
    return [
        Figure(
            "holdover-coverage",
            f"share of episodes whose truth is within the bound after {SILENT_S} s",
            percent,
            "%",
            99.9,
            "at least",
            Spread(*wilson_percent(percent, count), "95 % Wilson interval"),
            count,
            {"how": how, "per_class_percent": per_class, "outside": int(np.count_nonzero(~covered))},
        ),
        Figure(
            "holdover-width",
            "median width of that bound over the told filter's at the same coverage, the wider class",
            max(widths.values()),
            "",
            1.5,
            "at most",
            None,
            count,
            {"how": how, "per_class": widths},
        ),
    ]


def episodes(job: tuple[str, int]) -> Outlook:
    """Error and bound at the end of each silence of one trace; `job` is (class, seed)."""
    name, seed = job
    trace = _trace(name, seed)
    ends = np.flatnonzero(trace.hw_ns == 0)[1:]
    ran = product.run(trace.samples(), trace.base_ns)
    told, deviation, _ = run_told(trace, (0.001,))
    truth = trace.offset_ns(trace.time_s)
    offset = np.array([(ran.reports[i].offset_ns or 0) - trace.base_ns for i in ends], dtype=np.float64)
    bound = np.array([ran.reports[i].bound_ns for i in ends])
    return Outlook(offset - truth[ends], bound, told[ends, 0] - truth[ends], deviation[ends, 0])


def _trace(name: str, seed: int) -> Trace:
    """Cycles of samples and silence; the last second of each silence brings a sample without a stamp."""
    oscillator = {"tcxo": TCXO, "ocxo": OCXO}[name]
    duration_s = float(_EPISODES * _CYCLE_S)
    gaps = tuple((float(c + SEEN_S), float(c + _CYCLE_S - 1)) for c in range(0, int(duration_s), _CYCLE_S))
    reading = Reading(bursts=Bursts("any")) if seed % 2 else Reading()
    trace = draw(Recipe(f"{name}-holdover", oscillator, 1, duration_s, reading, gaps_s=gaps), 1000 + seed)
    silent = np.round(trace.time_s) % _CYCLE_S == _CYCLE_S - 1
    return replace(trace, hw_ns=np.where(silent, 0, trace.hw_ns))
