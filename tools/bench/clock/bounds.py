"""Whether bounds hold, and how wide they are for it: p99 of predictions, pooled per class of oscillators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tools.bench.clock.evaluation import Outlook, Result
from tools.bench.clock.oscillator import Floats
from tools.bench.clock.predictions import HORIZONS_S
from tools.bench.clock.session import Session
from tools.bench.figure import Figure, Spread

LEAST_PREDICTIONS = 1600
_COVERAGE_PERCENT, _TOLERANCE_PERCENT = 99.0, 0.5
_WIDTH = 1.5
_Z95 = 1.96


def measure(session: Session) -> list[Figure]:
    """Coverage and width per class: the horizon that is furthest off, all of them in the detail."""
    figures = []
    for oscillator_class in sorted({r.oscillator_class for r in session.synthetic}):
        figures += _of_class(oscillator_class, session.synthetic)
    return figures


def _of_class(oscillator_class: str, results: list[Result]) -> list[Figure]:
    coverage: dict[str, float] = {}
    width: dict[str, float] = {}
    counts: dict[str, int] = {}
    for column, horizon in enumerate(HORIZONS_S):
        pooled = pool([r.outlooks[column] for r in results if r.oscillator_class == oscillator_class])
        key = f"{horizon:g}s"
        inside = float(np.mean(np.abs(pooled.error_ns) <= pooled.p99_ns))
        coverage[key], counts[key] = 100 * inside, len(pooled.error_ns)
        width[key] = width_over_told(pooled, inside)
    worst = max(coverage, key=lambda key: abs(coverage[key] - _COVERAGE_PERCENT))
    widest = max(width, key=lambda key: width[key])
    detail = {
        "worst": worst,
        "coverage_percent": coverage,
        "predictions": counts,
        "wide_enough_a_sample": all(n >= LEAST_PREDICTIONS for n in counts.values()),
        "selection": "predictions of a horizon whose spans don't overlap",
    }
    low, high = wilson_percent(coverage[worst], counts[worst])
    away = [abs(low - _COVERAGE_PERCENT), abs(high - _COVERAGE_PERCENT)]
    holds = low <= _COVERAGE_PERCENT <= high
    return [
        Figure(
            f"coverage-{oscillator_class}",
            f"p99 coverage's distance from {_COVERAGE_PERCENT:g} %, the worst horizon",
            abs(coverage[worst] - _COVERAGE_PERCENT),
            "points",
            _TOLERANCE_PERCENT,
            "at most",
            Spread(0.0 if holds else min(away), max(away), "95 % Wilson interval of the coverage"),
            counts[worst],
            detail,
        ),
        Figure(
            f"width-{oscillator_class}",
            "median width of p99 bounds over that of the told filter's at the same coverage, the worst horizon",
            width[widest],
            "",
            _WIDTH,
            "at most",
            None,
            counts[widest],
            {"worst": widest, "per_horizon": width},
        ),
    ]


def pool(outlooks: Sequence[Outlook]) -> Outlook:
    """All of them as one."""
    return Outlook(
        np.concatenate([o.error_ns for o in outlooks]),
        np.concatenate([o.p99_ns for o in outlooks]),
        np.concatenate([o.told_error_ns for o in outlooks]),
        np.concatenate([o.told_deviation_ns for o in outlooks]),
    )


def width_over_told(pooled: Outlook, coverage: float) -> float:
    """Median bound over the limit's, whose deviations are scaled so that as many of its own errors are covered."""
    scale = float(np.quantile(np.abs(pooled.told_error_ns) / pooled.told_deviation_ns, coverage))
    return float(np.median(pooled.p99_ns) / (scale * np.median(pooled.told_deviation_ns)))


def wilson_percent(percent: float, count: int) -> tuple[float, float]:
    """95 % interval of a share seen in `count` trials, all in percent (Wilson 1927)."""
    p, z2 = percent / 100, _Z95**2
    middle = (p + z2 / (2 * count)) / (1 + z2 / count)
    half = _Z95 / (1 + z2 / count) * np.sqrt(p * (1 - p) / count + z2 / (4 * count**2))
    bounds: Floats = 100 * np.array([middle - half, middle + half])
    return float(bounds[0]), float(bounds[1])
