"""Prediction errors of one clock, per horizon and expert: each forecast against what was measured later.

A forecast for t + h is compared with the measured offset at t + h, interpolated between the samples around it that were
accepted (not bounces or stale stamps), if those are no further apart than h. Four kinds are left out and counted:
made in state init, when nothing is known of the drift yet; made while samples were held, so at a bounce, or from a
re-anchoring's first sample until its verdict; over a re-anchoring of the offset (a phase step, say), which nobody can
know before it; into a hole of the recording.

What is measured has noise of its own: it is in every RMSE, alike for all experts, and is allowed for (p99 of the
assumed noise, root of squares) where the bound, which is one for the true offset, is held against it.

Memory is bounded whatever the file's length and rate: quantiles come from histograms, TDEV and MTIE from octaves, and
at most 4096 forecasts a horizon are under way: where samples come faster than that, forecasts are taken every h/4096.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from agent.clock.jumps import LOOK_AHEAD
from agent.replay.evenly import EvenStability
from agent.replay.octaves import FloatArray
from agent.replay.rows import Row

IntArray = npt.NDArray[np.int64]

BLOCK = 1024
_UNDER_WAY = 4096
# Samples around t + h may be this much of h apart; the forecast's own is then at most a tenth of what is compared.
_MAX_SPAN = 1.1
_REASONS = ("init", "held", "reanchored", "hole")
# p99 of a normal, for the noise of what is measured.
_P99_SIGMAS = 2.576
# Tags of samples that were held until their verdict, and then didn't count.
_HELD = frozenset(("bounce", "wrap", "outlier"))
# |error| histogram: buckets a factor 2^(1/64) wide, so that a quantile is known to 0.6 %.
_PER_OCTAVE = 64
_BUCKETS = 64 * _PER_OCTAVE


@dataclass(slots=True)
class ErrorFigures:
    """Errors of one expert, or of the mixture, at one horizon, in ns; taus in s. NaN where there are none."""

    n: int
    rmse_ns: float
    p99_ns: float
    tdev_ns: dict[float, float]
    mtie_ns: dict[float, float]


@dataclass(slots=True)
class HorizonFigures:
    """One horizon: the mixture, the experts by name, and how the mixture's p99 bound did.

    `coverage` is the share of errors within the bound, `median_bound_ns` the bound's usual width; NaN without any.
    `left_out` counts the forecasts that aren't scored, by reason: init, held, reanchored, hole.
    """

    horizon_s: float
    mixture: ErrorFigures
    coverage: float
    median_bound_ns: float
    left_out: dict[str, int]
    experts: dict[str, ErrorFigures]


class Scores:
    """The errors of a clock's forecasts at H horizons by E experts, rows fed in order."""

    def __init__(self, horizons_s: tuple[float, ...], experts: tuple[str, ...]) -> None:
        columns, n = 1 + len(experts), len(horizons_s)
        self.experts = experts
        self._horizons = [_Horizon(h, columns) for h in horizons_s]
        self._fill = 0
        self._local_ns = np.zeros(BLOCK, dtype=np.int64)
        self._measured_ns = np.zeros(BLOCK, dtype=np.int64)
        self._accepted = np.zeros(BLOCK, dtype=bool)
        self._noise_ns = np.zeros(BLOCK)
        self._piece = np.zeros(BLOCK, dtype=np.int64)
        self._made = np.zeros(BLOCK, dtype=bool)
        self._held = np.zeros(BLOCK, dtype=bool)
        self._init = np.zeros(BLOCK, dtype=bool)
        self._offset_ns = np.zeros((BLOCK, n, columns), dtype=np.int64)
        self._told = np.ones((BLOCK, n, columns), dtype=bool)
        self._p99_ns = np.zeros((BLOCK, n))
        self._truth = _Truth.none()
        self._pieces = 0
        self._since_jump = LOOK_AHEAD
        self.observer: Callable[[int, ScoredErrors], None] | None = None
        """Called with the index of a horizon and each errors of the mixture that were scored."""

    def add(self, row: Row) -> None:
        """Take the next row."""
        i, report = self._fill, row.report
        if row.reanchored:
            self._pieces += 1
            self._since_jump = 0
        self._local_ns[i] = report.local_ns
        self._piece[i] = self._pieces
        self._accepted[i] = row.measured_ns is not None
        self._measured_ns[i] = row.measured_ns or 0
        self._noise_ns[i] = report.noise_ns
        self._init[i] = report.state == "init"
        self._held[i] = self._since_jump < LOOK_AHEAD or (row.measured_ns is None and report.tag in _HELD)
        self._since_jump += 1
        forecast = report.horizons
        self._made[i] = forecast is not None
        if forecast is not None:
            self._offset_ns[i, :, 0] = forecast.offset_ns
            self._offset_ns[i, :, 1:] = forecast.expert_offset_ns
            # Weight 0: the expert had nothing to tell.
            np.greater(forecast.weights, 0.0, out=self._told[i, :, 1:])
            self._p99_ns[i] = forecast.p99_ns
        self._fill += 1
        if self._fill == BLOCK:
            self._score()

    def figures(self) -> list[HorizonFigures]:
        """Return what the rows so far came to."""
        self._score()
        return [horizon.figures(self.experts) for horizon in self._horizons]

    def _score(self) -> None:
        n, self._fill = self._fill, 0
        if n == 0:
            return
        accepted = self._accepted[:n]
        truth = self._truth.then(
            self._local_ns[:n][accepted],
            self._measured_ns[:n][accepted],
            self._noise_ns[:n][accepted],
            self._piece[:n][accepted],
        )
        self._truth = truth.last()
        made = np.flatnonzero(self._made[:n])
        for h, horizon in enumerate(self._horizons):
            chosen = made[horizon.wanted(self._local_ns[made])]
            chosen = horizon.leave_out(chosen, "init", self._init[chosen])
            chosen = horizon.leave_out(chosen, "held", self._held[chosen])
            horizon.take(
                _Forecasts(
                    self._local_ns[chosen] + horizon.span_ns,
                    self._piece[chosen],
                    self._offset_ns[chosen, h],
                    self._told[chosen, h],
                    self._p99_ns[chosen, h],
                )
            )
            scored = horizon.score(truth)
            if self.observer is not None:
                self.observer(h, scored)


@dataclass(frozen=True, slots=True)
class _Truth:
    """Accepted samples: when, the measured offset, its noise, and the piece between re-anchorings that they are of."""

    local_ns: IntArray
    offset_ns: IntArray
    noise_ns: FloatArray
    piece: IntArray

    @classmethod
    def none(cls) -> _Truth:
        empty = np.zeros(0, dtype=np.int64)
        return cls(empty, empty, np.zeros(0), empty)

    def then(self, local_ns: IntArray, offset_ns: IntArray, noise_ns: FloatArray, piece: IntArray) -> _Truth:
        return _Truth(
            np.concatenate((self.local_ns, local_ns)),
            np.concatenate((self.offset_ns, offset_ns)),
            np.concatenate((self.noise_ns, noise_ns)),
            np.concatenate((self.piece, piece)),
        )

    def last(self) -> _Truth:
        return _Truth(self.local_ns[-1:], self.offset_ns[-1:], self.noise_ns[-1:], self.piece[-1:])


@dataclass(frozen=True, slots=True)
class _Forecasts:
    """Forecasts of one horizon under way: int64[n]; [n, 1 + E] with the mixture first; float64[n]."""

    due_ns: IntArray
    piece: IntArray
    offset_ns: IntArray
    told: npt.NDArray[np.bool_]
    p99_ns: FloatArray

    def where(self, chosen: npt.NDArray[np.bool_]) -> _Forecasts:
        return _Forecasts(*(getattr(self, name)[chosen] for name in self.__slots__))

    def then(self, later: _Forecasts) -> _Forecasts:
        return _Forecasts(
            *(np.concatenate((getattr(self, name), getattr(later, name))) for name in self.__slots__)
        )


@dataclass(frozen=True, slots=True)
class ScoredErrors:
    """Errors that a block of rows decided: when they are of, int64[n]; the mixture's, float64[n].

    `p99_ns` is the bound that was forecast, `bound_ns` is it with the measured sample's own noise allowed for.
    """

    local_ns: IntArray
    error_ns: FloatArray
    p99_ns: FloatArray
    bound_ns: FloatArray


@dataclass(slots=True)
class _Horizon:
    """Sums of one horizon."""

    horizon_s: float
    columns: int
    span_ns: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    covered: int = 0
    _slot: int = -1
    _waiting: _Forecasts | None = None
    _n: IntArray = field(init=False)
    _squares: FloatArray = field(init=False)
    _errors: IntArray = field(init=False)
    _bounds: IntArray = field(init=False)
    _stability: EvenStability = field(init=False)

    def __post_init__(self) -> None:
        self.span_ns = round(self.horizon_s * 1e9)
        self._n = np.zeros(self.columns, dtype=np.int64)
        self._squares = np.zeros(self.columns)
        self._errors = np.zeros((self.columns, _BUCKETS), dtype=np.int64)
        self._bounds = np.zeros(_BUCKETS, dtype=np.int64)
        self._stability = EvenStability(self.columns)

    def wanted(self, local_ns: IntArray) -> npt.NDArray[np.bool_]:
        """Return which of the moments a forecast is taken at: the first in each 4096th of the horizon."""
        if len(local_ns) == 0:
            return np.zeros(0, dtype=bool)
        slots = local_ns // max(1, self.span_ns // _UNDER_WAY)
        first: npt.NDArray[np.bool_] = np.diff(slots, prepend=self._slot) != 0
        self._slot = int(slots[-1])
        return first

    def leave_out(self, rows: IntArray, reason: str, those: npt.NDArray[np.bool_]) -> IntArray:
        """Count the rows of which `those` is set, and return the others."""
        self.left_out[reason] += int(np.count_nonzero(those))
        return rows[~those]

    def take(self, forecasts: _Forecasts) -> None:
        """Take forecasts to be scored when their time has come."""
        self._waiting = forecasts if self._waiting is None else self._waiting.then(forecasts)

    def score(self, truth: _Truth) -> ScoredErrors:
        """Score what `truth` decides: accepted samples from the last one known before."""
        assert self._waiting is not None
        right = np.searchsorted(truth.local_ns, self._waiting.due_ns)
        decided = right < len(truth.local_ns)
        due, right = self._waiting.where(decided), right[decided]
        self._waiting = self._waiting.where(~decided)
        exact = truth.local_ns[right] == due.due_ns
        left = np.where(exact, right, np.maximum(right - 1, 0))
        span = truth.local_ns[right] - truth.local_ns[left]
        same = (truth.piece[right] == due.piece) & (truth.piece[left] == due.piece)
        near = (span <= _MAX_SPAN * self.span_ns) & (truth.local_ns[left] <= due.due_ns)
        self.left_out["reanchored"] += int(np.count_nonzero(~same))
        self.left_out["hole"] += int(np.count_nonzero(same & ~near))
        good = same & near
        due, right, left, span = due.where(good), right[good], left[good], span[good]
        share = (due.due_ns - truth.local_ns[left]) / np.maximum(span, 1)
        rise = np.rint(share * (truth.offset_ns[right] - truth.offset_ns[left])).astype(np.int64)
        measured = truth.offset_ns[left] + rise
        errors = (due.offset_ns - measured[:, None]).astype(np.float64)
        errors[~due.told] = np.nan
        noise = np.where(share > 0.5, truth.noise_ns[right], truth.noise_ns[left])
        bound = np.hypot(due.p99_ns, _P99_SIGMAS * noise)
        self._add(due, errors, bound)
        return ScoredErrors(due.due_ns, errors[:, 0], due.p99_ns, bound)

    def _add(self, due: _Forecasts, errors: FloatArray, bound: FloatArray) -> None:
        self._n += np.count_nonzero(due.told, axis=0)
        self._squares += np.nansum(errors * errors, axis=0)
        size = np.abs(errors)
        for column in range(self.columns):
            self._errors[column] += _counts(size[due.told[:, column], column])
        self._bounds += _counts(due.p99_ns)
        self.covered += int(np.count_nonzero(size[:, 0] <= bound))
        self._stability.feed(due.due_ns, errors, due.piece)

    def figures(self, experts: tuple[str, ...]) -> HorizonFigures:
        tdev, mtie = self._stability.figures()

        def column(i: int) -> ErrorFigures:
            n = int(self._n[i])
            return ErrorFigures(
                n,
                float(np.sqrt(self._squares[i] / n)) if n else float("nan"),
                _quantile(self._errors[i], 0.99),
                {tau: float(figure[i]) for tau, figure in tdev if not np.isnan(figure[i])},
                {tau: float(figure[i]) for tau, figure in mtie if not np.isnan(figure[i])},
            )

        n = int(self._n[0])
        return HorizonFigures(
            self.horizon_s,
            column(0),
            self.covered / n if n else float("nan"),
            _quantile(self._bounds, 0.5),
            {reason: self.left_out[reason] for reason in _REASONS},
            {name: column(1 + i) for i, name in enumerate(experts)},
        )


def _counts(size: FloatArray) -> IntArray:
    """Return the histogram of sizes in ns, int64[_BUCKETS]: bucket 0 is below 1 ns, the last is open."""
    with np.errstate(divide="ignore"):
        bucket = np.floor(np.log2(size) * _PER_OCTAVE) + 1.0
    chosen = np.clip(bucket, 0, _BUCKETS - 1).astype(np.int64)
    return np.bincount(chosen, minlength=_BUCKETS).astype(np.int64)


def _quantile(counts: IntArray, q: float) -> float:
    """Return a quantile of a histogram: the geometric middle of its bucket, 0 for the first; NaN for none."""
    total = int(counts.sum())
    if total == 0:
        return float("nan")
    bucket = int(np.searchsorted(np.cumsum(counts), q * total))
    return 0.0 if bucket == 0 else float(2.0 ** ((bucket - 0.5) / _PER_OCTAVE))
