"""The clock's arithmetic in C against the same in plain NumPy (`clock_reference.py`), to 1e-9."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt
import pytest

from agent.clock.forecast import EXPERTS, HORIZONS_S, Mixture
from agent.clock.kalman import MEMBERS, Member
from agent.clock.lstm import FEATURES, Lstm
from tests.unit.clock_core import Bank, Noise, begin, forecast, learn, lib, score
from tests.unit.clock_reference import ReferenceBank, ReferenceMixture, ReferenceTracks
from tests.unit.test_clock_lstm import drawn_weights

MEMORY, INITIAL_DRIFT_VAR = 10_000.0, 1e10
CLOSE = 1e-9
# Every family; fewer of each than a live clock has, so that the reference ends in this life.
SOME = MEMBERS[::9]
SAMPLES = 1200


@dataclass(frozen=True)
class Sample:
    """One sample of a clock, and what befell it before."""

    time_s: float
    offset: float
    noise: Noise
    evidence: float
    event: str


def samples(seed: int) -> Iterator[Sample]:
    """A wandering clock read every 0.1 s: jitter, holes, a phase step, a frequency step, bad samples, a new base."""
    rng = np.random.default_rng(seed)
    time_s, offset, drift = 0.0, 0.0, 300.0
    for i in range(SAMPLES):
        dt = 0.1 * (1.0 + rng.normal(0.0, 0.05)) + (8.0 if i % 400 == 250 else 0.0)
        drift += rng.normal(0.0, 3.0 * sqrt(dt)) + (800.0 if i == 700 else 0.0)
        event = {300: "step", 701: "freq", 900: "shift"}.get(i, "")
        offset += drift * dt + (5_000.0 if i == 300 else -40_000.0 if i == 900 else 0.0)
        time_s = round(time_s + dt, 9)
        bad = i % 97 == 50
        noise = Noise(900.0, 1e6 if bad else 0.0, 0.05, 2e-4)
        measured = offset + rng.normal(0.0, 1000.0 if bad else 30.0)
        yield Sample(time_s, measured, noise, 0.2 if bad else 1.0, event)


class Both:
    """The core and the reference, fed alike."""

    def __init__(self, members: tuple[Member, ...], experts: tuple[str, ...]) -> None:
        self.bank, self.mixture = Bank(members), Mixture(HORIZONS_S, experts, Lstm(drawn_weights()))
        self.lstm = Lstm(drawn_weights()) if "lstm" in experts else None
        self.ref_bank = ReferenceBank(members, MEMORY, INITIAL_DRIFT_VAR)
        self.ref_tracks, self.ref_mixture = ReferenceTracks(), ReferenceMixture(HORIZONS_S, experts, FEATURES)

    def start(self, s: Sample) -> None:
        """Take the first sample."""
        self.bank.start(s.time_s, s.offset, 900.0)
        begin(self.mixture)
        learn(self.mixture, self.bank, s.offset)
        self.ref_bank.start(s.time_s, s.offset, 900.0)
        self._learn(s.offset)

    def take(self, s: Sample) -> None:
        """Take a sample and what befell before it."""
        self.bank.advance(s.time_s)
        self.ref_bank.advance(s.time_s)
        if s.event == "step":
            self._forget_offset()
        elif s.event == "freq":
            self._release_drift()
        elif s.event == "shift":
            self._shift(-40_000.0)
        score(self.mixture, s.time_s, s.offset, s.noise.seen + s.noise.extra)
        self.ref_mixture.score(s.time_s, s.offset, s.noise.seen + s.noise.extra, self.ref_tracks.interval)
        self.bank.update(s.offset, s.noise, s.evidence)
        self.ref_bank.update(s.offset, *s.noise, s.evidence)
        self._observe(s)
        learn(self.mixture, self.bank, s.offset)
        self._learn(s.offset)

    def _observe(self, s: Sample) -> None:
        """Let the recurrent expert see something; what its features are is not the core's."""
        seen = (s.time_s, 0.01 * (s.offset % 3000.0), 20.0, s.evidence, s.event == "step")
        if self.lstm is not None:
            self.mixture.observe(*seen)
            self.lstm.observe(*seen)
            self.ref_mixture.features[:] = self.lstm.features()
            self.ref_mixture.expected[:] = self.lstm.predict(HORIZONS_S)

    def _learn(self, offset: float) -> None:
        self.ref_tracks.add(self.ref_bank.time_s, offset)
        self.ref_mixture.keep(self.ref_bank, self.ref_tracks)

    def _forget_offset(self) -> None:
        lib.agent_bank_forget_offset(self.bank.native)
        p = self.ref_bank.p
        p[:, 0, 0], p[:, 0, 1:], p[:, 1:, 0] = 1e30, 0.0, 0.0
        lib.agent_tracks_step(self.mixture.tracks, 700.0)
        lib.agent_mixture_step(self.mixture.native, 700.0)
        self.ref_mixture.step(self.ref_tracks, 700.0)

    def _release_drift(self) -> None:
        lib.agent_bank_admit(self.bank.native, 100.0, 640_000.0)
        lib.agent_tracks_forget(self.mixture.tracks, 1)
        lib.agent_mixture_drop(self.mixture.native, -np.inf)
        self.ref_bank.p[:, 0, 0] += 100.0
        self.ref_bank.p[:, 1, 1] += np.where(self.ref_bank.drift_var > 0.0, 640_000.0, 0.0)
        self.ref_tracks.forget(1)
        self.ref_mixture.drop(-np.inf)

    def _shift(self, by: float) -> None:
        lib.agent_bank_shift(self.bank.native, by)
        lib.agent_tracks_shift(self.mixture.tracks, by)
        lib.agent_mixture_shift(self.mixture.native, by)
        self.ref_bank.x[:, 0] += by
        self.ref_tracks.shift(by)
        self.ref_mixture.shift(by)


def close(value: float | list[float], reference: float | npt.NDArray[np.float64], scale: float) -> None:
    """Equal to 1e-9, of the value or of the scale on which such values vary."""
    np.testing.assert_allclose(np.asarray(value), reference, rtol=CLOSE, atol=CLOSE * scale)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_bank_equals_its_formulas(seed: int) -> None:
    """Offset, drift, their variances, S and all weights, after every sample."""
    both = Both(SOME, ("kalman2", "kalman3"))
    first, *rest = samples(seed)
    both.start(first)
    for s in rest:
        both.take(s)
        for horizon_s in (0.0, 1.0, 60.0):
            mean, var = both.ref_bank.forecast(horizon_s)
            offset, offset_var = both.bank.forecast(horizon_s)
            close(offset, mean[4], sqrt(var[4]))
            close(offset_var, var[4], 0.0)
        means, variances = both.ref_bank.drift()
        drift, drift_var = both.bank.drift()
        close(drift, means[4], sqrt(variances[4]))
        close(drift_var, variances[4], 0.0)
        spread_var = both.ref_bank.innovation_var(900.0, 50.0, 0.05, 2e-4)
        close(both.bank.innovation_var(Noise(900.0, 50.0, 0.05, 2e-4)), spread_var, 0.0)
        close(both.bank.weights(), both.ref_bank.weight, 1.0)


@pytest.mark.parametrize("seed", [1, 2])
def test_experts_and_mixture_equal_their_formulas(seed: int) -> None:
    """At each horizon: the mixture's offset, sigma and p99, each expert's offset and weight; every tenth sample."""
    both = Both(SOME, EXPERTS)
    first, *rest = samples(seed)
    both.start(first)
    spoke: set[str] = set()
    for i, s in enumerate(rest):
        both.take(s)
        if i % 10:
            continue
        native = forecast(both.mixture, both.bank, s.time_s)
        for h, told in enumerate(both.ref_mixture.forecast(both.ref_bank, both.ref_tracks, s.time_s)):
            # Offsets come out as whole nanoseconds.
            assert abs(int(native.offset_ns[h]) - told.offset) <= 0.5 + CLOSE * told.sigma
            close(native.sigma_ns[h], told.sigma, 0.0)
            close(native.p99_ns[h], told.p99, 0.0)
            for e, name in enumerate(EXPERTS):
                close(native.weights[h, e], told.weights.get(name, 0.0), 1.0)
                if name in told.experts:
                    spoke.add(name)
                    assert (
                        abs(int(native.expert_offset_ns[h, e]) - told.experts[name])
                        <= 0.5 + CLOSE * told.sigma
                    )
    assert spoke == set(EXPERTS)
