"""Quantiles of delay histograms, with intervals that hold although packets queue in bursts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agent.ffi.records import hist_edges_ns, hist_quantile

_Z = 1.96
_RESAMPLES = 200
# Delays within a burst are alike, so a tick's packets count for fewer than they are. With few ticks the bootstrap
# cannot see that; the ranks are then spread as if only every fourth packet were independent.
_DESIGN_EFFECT = 4.0
_LOWER_NS = hist_edges_ns()[:-1].astype(np.float64)
_UPPER_NS = np.append(_LOWER_NS[1:], _LOWER_NS[-1])


@dataclass(frozen=True, slots=True)
class Figures:
    """Delay over a span of time; the intervals cover the quantile with about 95 %. NaN for no packets."""

    n: int
    p50_ns: float
    p50_low_ns: float
    p50_high_ns: float
    p99_ns: float
    p99_low_ns: float
    p99_high_ns: float

    @property
    def noise(self) -> float:
        """Half the width of p99's interval, as a share of p99."""
        if not self.n or self.p99_ns <= 0:
            return 1.0
        return (self.p99_high_ns - self.p99_low_ns) / (2 * self.p99_ns)


NO_FIGURES = Figures(0, *[float("nan")] * 6)


def figures(ticks: npt.NDArray[np.int64] | npt.NDArray[np.float64], seed: int = 1) -> Figures:
    """Quantiles of the histogram that `ticks[T, HIST_BUCKETS]` sum up to, with their intervals.

    Each interval is the union of two: by order statistics (the ranks n·p ± 1.96 √(deff·n·p·(1−p)), rounded outwards to
    bucket edges; Wilks 1941, with a design effect), and by a bootstrap over whole ticks, which sees what the first
    cannot: that neighbouring packets share their fate.
    """
    counts = ticks.astype(np.float64)
    total = counts.sum(axis=0)
    n = round(float(total.sum()))
    if n == 0:
        return NO_FIGURES
    p50, p99 = (float(value) for value in hist_quantile(total, [0.5, 0.99]))
    bounds = []
    resampled = _bootstrap(counts, seed) if len(counts) > 1 else None
    for q, point in ((0.5, p50), (0.99, p99)):
        low, high = _rank_interval(total, q)
        if resampled is not None:
            # Not np.nanquantile, which takes longer than all else here. NaN, of a draw without packets, sorts last.
            drawn = np.sort(hist_quantile(resampled, q))
            last = int(np.count_nonzero(~np.isnan(drawn))) - 1
            low = min(low, float(drawn[round(0.025 * last)]))
            high = max(high, float(drawn[round(0.975 * last)]))
        bounds.append((min(low, point), max(high, point)))
    return Figures(n, p50, *bounds[0], p99, *bounds[1])


def _rank_interval(total: npt.NDArray[np.float64], q: float) -> tuple[float, float]:
    cumulative = np.cumsum(total)
    n = cumulative[-1]
    spread = _Z * np.sqrt(_DESIGN_EFFECT * n * q * (1 - q))
    low_rank, high_rank = max(n * q - spread, 0.0), min(n * q + spread, n)
    low = int(np.searchsorted(cumulative, low_rank, side="right"))
    high = int(np.searchsorted(cumulative, high_rank, side="left"))
    last = len(total) - 1
    return float(_LOWER_NS[min(low, last)]), float(_UPPER_NS[min(high, last)])


def _bootstrap(counts: npt.NDArray[np.float64], seed: int) -> npt.NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    draws = rng.multinomial(len(counts), np.full(len(counts), 1 / len(counts)), size=_RESAMPLES)
    return np.asarray(draws @ counts)
