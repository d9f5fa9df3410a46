"""Every predictor over a trace, and how far off each was."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tools.bench.clock.baselines import Predictor, baselines
from tools.bench.clock.oscillator import Floats
from tools.bench.clock.traces import Trace

HORIZONS_S = (0.001, 0.01, 0.1, 1.0, 10.0, 60.0)
WARM_UP_S = 60.0
"""Predictions made before this aren't scored: all start from nothing."""
VERDICT_SAMPLES = 4
"""Nor those of the sample that jumped and of the three after it: a verdict on a jump may take that long."""


@dataclass(frozen=True, slots=True)
class Measurements:
    """A series to predict, and what its predictions are compared with.

    `offset_ns` is NaN where nothing was measured; `target_ns` has a column per horizon, NaN where a prediction
    isn't scored.
    """

    name: str
    time_s: Floats
    offset_ns: Floats
    delay_ns: Floats
    target_ns: Floats
    interval_s: float

    def first(self, count: int) -> Measurements:
        """The first `count` of them."""
        return Measurements(
            self.name,
            self.time_s[:count],
            self.offset_ns[:count],
            self.delay_ns[:count],
            self.target_ns[:count],
            self.interval_s,
        )


def of_trace(trace: Trace) -> Measurements:
    """What is scored on a synthetic trace: against its truth, where a prediction was possible at all."""
    scored = scored_samples(trace)
    targets = [np.where(scored, trace.target_ns(horizon), np.nan) for horizon in HORIZONS_S]
    return Measurements(
        trace.name,
        trace.time_s,
        trace.measured_ns(),
        trace.read_delay_ns.astype(np.float64),
        np.column_stack(targets),
        float(np.median(np.diff(trace.time_s))),
    )


def scored_samples(trace: Trace) -> NDArray[np.bool_]:
    """Samples with a stamp, after the warm-up and after the verdict on a jump."""
    scored: NDArray[np.bool_] = (trace.time_s >= WARM_UP_S) & (trace.hw_ns != 0)
    for first in np.searchsorted(trace.time_s, trace.jump_times_s):
        scored[first : first + VERDICT_SAMPLES] = False
    return scored


def run_baselines(series: Measurements) -> dict[str, Floats]:
    """Predictions (n, horizons) in ns of each baseline, by its name."""
    predictors = baselines(series.interval_s)
    result = {p.name: np.full(series.target_ns.shape, np.nan) for p in predictors}
    for i, (time_s, offset_ns, delay_ns) in enumerate(
        zip(series.time_s.tolist(), series.offset_ns.tolist(), series.delay_ns.tolist(), strict=True)
    ):
        if np.isfinite(offset_ns):
            for predictor in predictors:
                predictor.observe(time_s, offset_ns, delay_ns)
                result[predictor.name][i] = _predict(predictor)
    return result


def _predict(predictor: Predictor) -> list[float]:
    return [predictor.predict(horizon) for horizon in HORIZONS_S]


def rmse(predicted_ns: Floats, target_ns: Floats) -> Floats:
    """Root mean square error in ns per horizon, over what is scored; NaN where nothing is."""
    error = predicted_ns - target_ns
    scored = np.isfinite(error)
    total = np.where(scored, error, 0.0)
    count = scored.sum(axis=0)
    with np.errstate(invalid="ignore"):
        result: Floats = np.sqrt((total**2).sum(axis=0) / np.where(count, count, np.nan))
    return result
