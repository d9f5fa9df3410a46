"""What a recording came to, clock by clock: counts, prediction errors, stability of the offset."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import get_args

import numpy as np

from agent.clock.estimator import State
from agent.clock.jumps import TagKind
from agent.replay.evenly import EvenStability
from agent.replay.octaves import FloatArray
from agent.replay.rows import Row
from agent.replay.scores import HorizonFigures, ScoredErrors, Scores

# The line that is taken out of the offset is fitted to so many samples at the beginning, or to these at the least.
_FIT_SAMPLES = 65_536
_FIT_LEAST = 64


@dataclass(frozen=True, slots=True)
class OffsetFigures:
    """Stability of the measured offset (accepted samples, between re-anchorings), in ns; taus in s.

    `rate_ppb` is the slope that was taken out before MTIE, TDEV doesn't see it: that of the line through the
    first 65,536 accepted samples, or through those before the first re-anchoring if there are 64.
    """

    rate_ppb: float
    tdev_ns: dict[float, float]
    mtie_ns: dict[float, float]


@dataclass(frozen=True, slots=True)
class ClockSummary:
    """One clock of a recording. `accepted` rows counted in the estimate, at least in part."""

    clock: str
    rows: int
    accepted: int
    span_s: float
    timescale: str
    states: dict[str, int]
    tags: dict[str, int]
    horizons: list[HorizonFigures]
    offset: OffsetFigures


@dataclass(slots=True)
class ClockSums:
    """What is summed up of one clock while its rows pass."""

    clock: str
    horizons_s: tuple[float, ...]
    experts: tuple[str, ...]
    rows: int = 0
    accepted: int = 0
    first_ns: int = 0
    last_ns: int = 0
    states: Counter[str] = field(default_factory=Counter)
    tags: Counter[str] = field(default_factory=Counter)
    _scores: Scores = field(init=False)
    _offset: OffsetSums = field(init=False)

    def __post_init__(self) -> None:
        self._scores = Scores(self.horizons_s, self.experts)
        self._offset = OffsetSums()

    def add(self, row: Row) -> None:
        """Take the clock's next row."""
        report = row.report
        if self.rows == 0:
            self.first_ns = report.local_ns
        self.last_ns = report.local_ns
        self.rows += 1
        self.states[report.state] += 1
        if report.tag is not None:
            self.tags[report.tag] += 1
            self.tags.update(row.more_tags)
        self._scores.add(row)
        if row.measured_ns is not None:
            self.accepted += 1
            self._offset.add(report.local_ns, row.measured_ns, anew=row.reanchored)

    def observe_errors(self, observer: Callable[[int, ScoredErrors], None]) -> None:
        """Have each error of the mixture told, by the index of its horizon."""
        self._scores.observer = observer

    def summary(self, timescale: str) -> ClockSummary:
        """Return what the rows so far came to; `timescale` as the clock's replay knows it."""
        return ClockSummary(
            self.clock,
            self.rows,
            self.accepted,
            (self.last_ns - self.first_ns) * 1e-9,
            timescale,
            {state: self.states[state] for state in get_args(State)},
            {kind: self.tags[kind] for kind in get_args(TagKind)},
            self._scores.figures(),
            self._offset.figures(),
        )


class OffsetSums:
    """The measured offset less a line, onto TDEV and MTIE, in bounded memory."""

    def __init__(self) -> None:
        self._base: tuple[int, int] | None = None
        self._piece = 0
        self._waiting = array("q")
        self._rate = 0.0
        self._fitted = False
        self._stability = EvenStability(1)

    def add(self, local_ns: int, offset_ns: int, *, anew: bool) -> None:
        """Take an accepted sample; `anew` if the offset is another one from here on."""
        if anew or self._base is None:
            # Small floats: every piece counts from its own first offset.
            self._flush()
            self._base = (local_ns, offset_ns)
            self._piece += 1
        self._waiting.extend((local_ns, local_ns - self._base[0], offset_ns - self._base[1]))
        if len(self._waiting) >= 3 * _FIT_SAMPLES:
            self._flush()

    def figures(self) -> OffsetFigures:
        """Return what the samples so far came to."""
        self._flush()
        tdev, mtie = self._stability.figures()
        return OffsetFigures(
            self._rate * 1e9,
            {tau: float(x[0]) for tau, x in tdev},
            {tau: float(x[0]) for tau, x in mtie},
        )

    def _flush(self) -> None:
        if not self._waiting:
            return
        table = np.array(self._waiting, dtype=np.int64).reshape(-1, 3)
        del self._waiting[:]
        spans, offsets = table[:, 1].astype(np.float64), table[:, 2].astype(np.float64)
        if not self._fitted and len(table) > 1:
            self._rate, self._fitted = _slope(spans, offsets), len(table) >= _FIT_LEAST
        rows: FloatArray = (offsets - self._rate * spans)[:, None]
        self._stability.feed(table[:, 0], rows, np.full(len(table), self._piece))


def _slope(spans: FloatArray, offsets: FloatArray) -> float:
    centred = spans - spans.mean()
    square = float(centred @ centred)
    # Ticks of a recording may be of one moment.
    return float(centred @ (offsets - offsets.mean())) / square if square else 0.0
