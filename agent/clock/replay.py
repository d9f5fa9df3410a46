"""A recording through the clock, offline: the estimator that runs live, one report per sample."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from agent.clock.estimator import Estimator, Sample, State, Verdict
from agent.clock.forecast import HORIZONS_S, STANDARD_EXPERTS, Forecast, Mixture, Recurrent
from agent.clock.jumps import TagKind


@dataclass(frozen=True, slots=True)
class SampleReport:
    """One sample and what the clock made of it.

    `offset_ns` (local - hardware) and `sigma_ns` are the estimate at the sample, it included if it counted, None and
    infinite before the first one; `bound_ns` is the p99 bound, half the fastest read's delay included;
    `noise_ns` is the standard deviation of the sample's own noise, as far as averaging could tell it;
    `drift_ppb` is d(local - hardware)/dt. `tag`, `cause` and `weight` are the final verdict. `horizons` was
    made at this sample from what was known then, None before the first stamp.
    """

    index: int
    local_ns: int
    offset_ns: int | None
    drift_ppb: float | None
    sigma_ns: float
    bound_ns: float
    noise_ns: float
    state: State
    tag: TagKind | None
    cause: str
    weight: float
    horizons: Forecast | None


@dataclass(slots=True)
class _Waiting:
    """What was known when a sample came; its verdict is still open."""

    local_ns: int
    offset: tuple[int, float] | None
    drift_ppb: float | None
    bound_extra_ns: float
    noise_ns: float
    state: State
    horizons: Forecast | None
    verdict: Verdict | None = None


class ClockReplay:
    """Samples in, one report per sample out, in their order, each as soon as its verdict is final.

    A report comes at most three samples late. `experts` and `recurrent` are the `Mixture`'s. `tai_utc_s` is TAI - UTC
    if it was known. Raises what `Mixture` does.
    """

    def __init__(
        self,
        *,
        horizons_s: tuple[float, ...] = HORIZONS_S,
        experts: tuple[str, ...] = STANDARD_EXPERTS,
        recurrent: Recurrent | None = None,
        tai_utc_s: int = 0,
        local_is_realtime: bool = False,
    ) -> None:
        self._mixture = Mixture(horizons_s, experts, recurrent)
        self._estimator = Estimator(
            tai_utc_s=tai_utc_s, local_is_realtime=local_is_realtime, mixture=self._mixture
        )
        self._waiting: deque[_Waiting] = deque()
        self._first = 0

    @property
    def experts(self) -> tuple[str, ...]:
        """The experts that take part, as the columns of a `Forecast`."""
        return self._mixture.experts

    @property
    def horizons_s(self) -> tuple[float, ...]:
        """The horizons, as the rows of a `Forecast`."""
        return self._mixture.horizons_s

    @property
    def timescale(self) -> str:
        """The time scale of the hardware clock: "tai", "utc", "unset" or "unknown"."""
        return self._estimator.timescale

    def steer(self, change_ppb: float) -> None:
        """Tell a known change of d(local - hardware)/dt that was dialled in right after the last sample."""
        estimator = self._estimator
        estimator.track.steer(change_ppb, estimator.last_ns, estimator.last_ns)

    def feed(self, sample: Sample) -> list[SampleReport]:
        """Take one sample, local times increasing; return the reports that have become final."""
        estimator = self._estimator
        verdicts = estimator.update(sample)
        known = estimator.accepted_ns is not None
        self._waiting.append(
            _Waiting(
                sample.local_ns,
                estimator.offset_at(sample.local_ns) if known else None,
                estimator.drift()[0] if known else None,
                estimator.suspected_ns,
                estimator.sample_noise_ns,
                estimator.state(sample.local_ns),
                estimator.forecast(sample.local_ns),
            )
        )
        return self._settle(verdicts)

    def finish(self) -> list[SampleReport]:
        """Return the reports that were still open: there are no more samples."""
        return self._settle(self._estimator.flush())

    def _settle(self, verdicts: list[Verdict]) -> list[SampleReport]:
        for v in verdicts:
            self._waiting[v.index - self._first].verdict = v
        out = []
        while self._waiting and self._waiting[0].verdict is not None:
            out.append(self._report(self._waiting.popleft()))
            self._first += 1
        return out

    def _report(self, w: _Waiting) -> SampleReport:
        v = w.verdict
        assert v is not None
        offset = w.offset if v.estimate is None else v.estimate
        sigma = float("inf") if offset is None else offset[1]
        suspected = w.bound_extra_ns if v.estimate is None else 0.0
        return SampleReport(
            v.index,
            w.local_ns,
            None if offset is None else offset[0],
            w.drift_ppb,
            sigma,
            self._estimator.bound_ns(sigma, w.state) + suspected,
            w.noise_ns,
            w.state,
            v.kind,
            v.cause,
            v.weight,
            w.horizons,
        )
