"""The clock itself over a trace: what it predicted, how sure it was, and what it tagged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agent.clock.estimator import Sample
from agent.clock.forecast import STANDARD_EXPERTS, Recurrent
from agent.clock.replay import ClockReplay, SampleReport
from tools.bench.clock.oscillator import Floats
from tools.bench.clock.predictions import HORIZONS_S

JUMP_TAGS = frozenset({"phase_step", "freq_step", "tai_utc", "wrap", "bounce"})
"""Tags that say that the clock jumped: false where it never did."""


@dataclass(frozen=True, slots=True)
class Run:
    """All reports of a run over n samples; offsets in ns beyond `base_ns`, NaN where there was no prediction."""

    reports: list[SampleReport]
    predicted_ns: Floats
    """float64[n, horizons]"""
    p99_ns: Floats
    """float64[n, horizons]"""
    expert_ns: Floats
    """float64[n, horizons, experts]"""
    experts: tuple[str, ...]
    timescale: str

    def tags(self, kinds: frozenset[str] = JUMP_TAGS) -> list[tuple[int, str]]:
        """(sample, tag) of each tag of `kinds`."""
        return [(r.index, r.tag) for r in self.reports if r.tag is not None and r.tag in kinds]


def run(
    samples: Sequence[Sample],
    base_ns: int,
    steering_ppb: Floats | None = None,
    *,
    horizons_s: tuple[float, ...] = HORIZONS_S,
    experts: tuple[str, ...] = STANDARD_EXPERTS,
    recurrent: Recurrent | None = None,
    local_is_realtime: bool = False,
) -> Run:
    """Replay `samples`; `steering_ppb` is told before the sample of its index wherever it isn't 0."""
    replay = ClockReplay(
        horizons_s=horizons_s, experts=experts, recurrent=recurrent, local_is_realtime=local_is_realtime
    )
    reports: list[SampleReport] = []
    for i, sample in enumerate(samples):
        if steering_ppb is not None and steering_ppb[i]:
            replay.steer(float(steering_ppb[i]))
        reports += replay.feed(sample)
    reports += replay.finish()
    shape = (len(samples), len(horizons_s))
    predicted, p99 = np.full(shape, np.nan), np.full(shape, np.nan)
    each = np.full((*shape, len(replay.experts)), np.nan)
    for report in reports:
        forecast = report.horizons
        if forecast is None:
            continue
        # The epoch comes off in integers: a float of it would have steps of 256 ns.
        predicted[report.index] = forecast.offset_ns - base_ns
        p99[report.index] = forecast.p99_ns
        known = forecast.weights > 0
        each[report.index] = np.where(known, forecast.expert_offset_ns - base_ns, np.nan)
    return Run(reports, predicted, p99, each, replay.experts, replay.timescale)
