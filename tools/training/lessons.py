"""What the LSTM would see and should say at each sample of a trace: the trace goes through the clock that runs live."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from agent.clock.estimator import Estimator
from agent.clock.forecast import EXPERTS, HORIZONS_S, Mixture
from agent.clock.lstm import FEATURES, INPUTS, Inputs, knot_parts
from tools.bench.clock.oscillator import Floats
from tools.bench.clock.predictions import VERDICT_SAMPLES
from tools.bench.clock.traces import Trace

TARGET_CLIP = 4.0
"""In sigmas of the bank's forecast: where a jump lies within the horizon they may be millions."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """One trace, T samples that the clock took."""

    inputs: Floats
    """float64[T, INPUTS]"""
    targets: Floats
    """float64[T, H]: (truth - the bank's forecast) / its sigma; NaN where there is nothing to say."""
    parts: Floats
    """float64[T, H, knots]: what the readout's knots count for each horizon."""
    disturbed: npt.NDArray[np.bool_]
    """bool[T, H]: a jump lies within the horizon, or the sample is one that jumped, or one of the three after it."""


@dataclass(frozen=True, slots=True)
class _Seen:
    count: int
    row: tuple[float, ...]
    before: _Seen | None


class _Recorder:
    """In the LSTM's place: keeps what it would see, says nothing. A restored state takes back what came after.

    What was seen is a chain, each sample with what was before it: the clock goes back to a state, and returns to the
    one that it came from.
    """

    def __init__(self) -> None:
        self._seen: _Seen | None = None
        self.inputs = Inputs()
        self._no_features = np.zeros(FEATURES)

    def start(self) -> None:
        self._seen = None
        self.inputs = Inputs()

    def observe(
        self, time_s: float, innovation_ns: float, sigma_ns: float, weight: float, jump: bool
    ) -> None:
        row = self.inputs.take(time_s, innovation_ns, sigma_ns, weight, jump)
        self._seen = _Seen(self.count + 1, row, self._seen)

    def features(self) -> Floats:
        return self._no_features

    def predict(self, horizons_s: tuple[float, ...]) -> Floats:
        return np.zeros(len(horizons_s))

    def save(self) -> Any:
        return self._seen, self.inputs.save()

    def restore(self, state: Any) -> None:
        self._seen, inputs = state
        self.inputs.restore(inputs)

    @property
    def count(self) -> int:
        """How many samples were seen."""
        return self._seen.count if self._seen else 0

    def rows(self) -> Floats:
        """What was seen of each, float64[T, inputs]."""
        rows, seen = [], self._seen
        while seen is not None:
            rows.append(seen.row)
            seen = seen.before
        return np.array(rows[::-1])


def lesson(trace: Trace) -> Lesson:
    """Run the trace through the clock and note what the LSTM would see and what would have been right."""
    recorder = _Recorder()
    estimator = Estimator(mixture=Mixture(HORIZONS_S, EXPERTS, recorder))
    count = len(trace)
    rows = np.full(count, -1)
    forecasts, sigmas = np.full((2, count, len(HORIZONS_S)), np.nan)
    intervals = np.zeros(count)
    spans_ns = [round(h * 1e9) for h in HORIZONS_S]
    for i, sample in enumerate(trace.samples()):
        before = recorder.count
        estimator.update(sample)
        if recorder.count == before or not recorder.inputs.interval_s:
            continue
        rows[i] = recorder.count - 1
        # What was noted of samples that were taken back was noted for nothing.
        rows[:i][rows[:i] >= rows[i]] = -1
        intervals[i] = recorder.inputs.interval_s
        for h, span_ns in enumerate(spans_ns):
            offset_ns, sigmas[i, h] = estimator.offset_at(sample.local_ns + span_ns)
            forecasts[i, h] = offset_ns - trace.base_ns
    noted = np.flatnonzero(rows >= 0)
    inputs = recorder.rows()
    shape = (len(inputs), len(HORIZONS_S))
    targets, parts = np.full(shape, np.nan), np.zeros((*shape, knot_parts(np.ones(1)).shape[-1]))
    disturbed = np.zeros(shape, dtype=bool)
    truth = np.column_stack([_truth(trace, h) for h in HORIZONS_S])
    off = (truth - forecasts)[noted] / sigmas[noted]
    targets[rows[noted]] = np.clip(off, -TARGET_CLIP, TARGET_CLIP)
    parts[rows[noted]] = knot_parts(np.array(HORIZONS_S) / intervals[noted, None])
    disturbed[rows[noted]] = _disturbed(trace)[noted]
    assert inputs.shape[1] == len(INPUTS)
    return Lesson(inputs, targets, parts, disturbed)


def _truth(trace: Trace, horizon_s: float) -> Floats:
    """The true offset a horizon after each sample, jumps included; NaN beyond the trace's end."""
    then = trace.time_s + horizon_s
    return np.where(then > trace.duration_s, np.nan, trace.offset_ns(then))


def _disturbed(trace: Trace) -> npt.NDArray[np.bool_]:
    jumps = trace.jump_times_s
    before = np.searchsorted(jumps, trace.time_s, side="right")
    spans = np.array(HORIZONS_S)
    crossed: npt.NDArray[np.bool_] = (
        np.searchsorted(jumps, trace.time_s[:, None] + spans, side="right") > before[:, None]
    )
    for first in np.searchsorted(trace.time_s, jumps):
        crossed[first : first + VERDICT_SAMPLES] = True
    return crossed
