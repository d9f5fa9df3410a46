"""One trace, everything on it: the clock, the baselines and the limit, reduced to what the figures need."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tools.bench.clock import catalog, product, recordings
from tools.bench.clock.oscillator import Floats
from tools.bench.clock.predictions import HORIZONS_S, Measurements, of_trace, rmse, run_baselines
from tools.bench.clock.told import run_told

_MOST_PER_TRACE = 4000
"""Non-overlapping predictions of one horizon that are kept of one trace, evenly spread."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """Predictions that don't overlap: the clock's errors and bounds, the limit's errors and deviations."""

    error_ns: Floats
    p99_ns: Floats
    told_error_ns: Floats
    told_deviation_ns: Floats


@dataclass(frozen=True, slots=True)
class Result:
    """One trace. RMSE in ns, float64[horizons]."""

    name: str
    oscillator_class: str
    samples: int
    clock_rmse: Floats
    baseline_rmse: dict[str, Floats]
    expert_rmse: dict[str, Floats]
    told_rmse: Floats | None
    outlooks: list[Outlook] = field(default_factory=list)
    """One per horizon."""
    false_tags: list[tuple[int, str]] | None = None
    """Jump tags on a stationary trace; None where something jumped."""

    def best_baseline(self) -> Floats:
        """The least RMSE of any baseline at each horizon; NaN where none was scored."""
        best: Floats = np.min(list(self.baseline_rmse.values()), axis=0)
        return best


def evaluate(name: str) -> Result:
    """Run everything over the named synthetic trace."""
    trace = catalog.trace(name)
    series = of_trace(trace)
    ran = product.run(trace.samples(), trace.base_ns, trace.steering_per_sample())
    told, deviation, _ = run_told(trace, HORIZONS_S)
    outlooks = [
        _outlook(
            series, column, ran.predicted_ns[:, column], ran.p99_ns[:, column], told[:, column], deviation
        )
        for column in range(len(HORIZONS_S))
    ]
    return Result(
        name,
        trace.oscillator_class,
        len(trace),
        rmse(ran.predicted_ns, series.target_ns),
        {name: rmse(predicted, series.target_ns) for name, predicted in run_baselines(series).items()},
        expert_rmse(ran, series),
        rmse(told, series.target_ns),
        outlooks,
        ran.tags() if trace.stationary else None,
    )


def evaluate_recording(name: str) -> Result:
    """Run the clock and the baselines over the named recording: what was measured later is the truth."""
    recording = recordings.load(name)
    series = recording.series
    ran = product.run(recording.samples, recording.base_ns)
    return Result(
        name,
        "recording",
        len(series.time_s),
        rmse(ran.predicted_ns, series.target_ns),
        {name: rmse(predicted, series.target_ns) for name, predicted in run_baselines(series).items()},
        expert_rmse(ran, series),
        None,
    )


def evaluate_steered(name: str) -> Floats:
    """RMSE (ns, per horizon) of the clock alone over one trace of a steered pair."""
    trace = catalog.trace(name)
    ran = product.run(trace.samples(), trace.base_ns, trace.steering_per_sample())
    return rmse(ran.predicted_ns, of_trace(trace).target_ns)


def expert_rmse(ran: product.Run, series: Measurements) -> dict[str, Floats]:
    """RMSE of each expert alone, where all could tell: else one that joins late would be scored on an easier part."""
    told = np.isfinite(ran.expert_ns).all(axis=2)
    target = np.where(told, series.target_ns, np.nan)
    result = {name: rmse(ran.expert_ns[:, :, e], target) for e, name in enumerate(ran.experts)}
    return result | {"mixture": rmse(ran.predicted_ns, target)}


def _outlook(
    series: Measurements, column: int, predicted: Floats, p99: Floats, told: Floats, deviation: Floats
) -> Outlook:
    target = series.target_ns[:, column]
    usable = np.flatnonzero(np.isfinite(target) & np.isfinite(predicted))
    kept = usable[apart(series.time_s[usable], HORIZONS_S[column])]
    if len(kept) > _MOST_PER_TRACE:
        kept = kept[np.linspace(0, len(kept) - 1, _MOST_PER_TRACE).astype(int)]
    return Outlook(
        predicted[kept] - target[kept], p99[kept], told[kept] - target[kept], deviation[kept, column]
    )


def apart(time_s: Floats, span_s: float) -> NDArray[np.int64]:
    """Places in the ascending `time_s` that are at least `span_s` apart, from the first on."""
    places = []
    place = 0
    while place < len(time_s):
        places.append(place)
        # A ns less: times are whole ns, their float differences are not.
        after = np.searchsorted(time_s, time_s[place] + span_s - 1e-9)
        place = max(int(after), place + 1)
    return np.array(places, dtype=np.int64)
