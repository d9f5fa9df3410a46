"""One clock's offset as the filters see it: an integer base and a float close to it."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from agent.clock.forecast import MAX_OFFSET_NS, Forecast, Mixture
from agent.clock.kalman import DriftBank, NoiseScale, SampleNoise, robust_variance
from agent.clock.steering import KnownSteering

# The float part is folded into the base when it grows beyond this, so that it never loses a nanosecond.
_FOLD_NS = 1e7


@dataclass(frozen=True, slots=True)
class Suspect:
    """A sample that did not fit its prediction, kept until the next ones tell why."""

    index: int
    local_ns: int
    offset_ns: int
    residual_ns: int
    spread_ns: float
    nominal_var: float
    extra_var: float
    read_delay_ns: int


@dataclass(frozen=True, slots=True)
class TrackState:
    """A snapshot of a track."""

    base_ns: int
    local_ns: int
    time_s: float
    bank: Any
    experts: Any


class Track:
    """Offset (local - hardware) and drift against an unsteered local clock, exact to the nanosecond.

    Offsets come and go as integers; inside, the filters see floats relative to a base, known steering taken out.
    """

    __slots__ = ("_base_ns", "_jumped", "_local_ns", "_steering", "_time0_ns", "bank", "mixture", "noise")

    def __init__(self, mixture: Mixture | None = None) -> None:
        self.bank = DriftBank()
        self.mixture = Mixture() if mixture is None else mixture
        self.noise = NoiseScale()
        self._steering = KnownSteering()
        self._base_ns = 0
        self._time0_ns = 0
        self._local_ns = 0
        self._jumped = True

    def start(self, local_ns: int, offset_ns: int, var: float) -> None:
        """Begin anew with this sample."""
        self._time0_ns = self._local_ns = local_ns
        self._base_ns = offset_ns - self._steering.phase_ns(local_ns)
        self.noise = NoiseScale()
        self.noise.add(0.0, 0.0, var)
        self.bank.start(0.0, 0.0, var)
        self.mixture.start()
        self.mixture.learn(self.bank, 0.0)
        self._jumped = True

    def seconds(self, local_ns: int) -> float:
        """Return local time as the bank's seconds."""
        return (local_ns - self._time0_ns) * 1e-9

    def advance(self, local_ns: int) -> None:
        """Predict up to `local_ns`."""
        self._local_ns = max(self._local_ns, local_ns)
        self.bank.advance(self.seconds(local_ns))
        theta, _ = self.bank.forecast(0.0)
        if abs(theta) > _FOLD_NS:
            whole = round(theta)
            self.bank.shift(-whole)
            self.mixture.shift(-whole)
            self._base_ns = _possible(self._base_ns + whole)
            self.noise.forget_neighbours()

    def residual(self, offset_ns: int, nominal_var: float, extra_var: float) -> tuple[int, float]:
        """Return (measured - predicted offset in ns, its variance S) of a sample at the bank's time."""
        theta, _ = self.bank.forecast(0.0)
        spread_var = self.bank.innovation_var(self.noise.noise(nominal_var, extra_var))
        return self._relative_ns(offset_ns) - round(theta), spread_var

    def accept(
        self, offset_ns: int, nominal_var: float, extra_var: float, above: float, below: float
    ) -> float:
        """Correct by a sample at the bank's time; return its weight, 1 for one that counts in full.

        `nominal_var` is scaled by the noise seen, `extra_var` is not; `above` and `below` are the robust
        limits of `robust_variance`.
        """
        measured = float(self._relative_ns(offset_ns))
        noise = self.noise.noise(nominal_var, extra_var)
        theta, _ = self.bank.forecast(0.0)
        spread_var = self.bank.innovation_var(noise)
        used = robust_variance(measured - theta, spread_var, noise.var, above, below)
        self.mixture.score(self.bank.time_s, measured, used)
        limit = (above if measured > theta else below) ** 2 * spread_var
        self.bank.update(
            measured,
            SampleNoise(noise.seen, extra_var + used - noise.var, noise.white_share, noise.walk_share),
            min(1.0, limit / max((measured - theta) ** 2, limit)),
        )
        innovation = 0.0 if self._jumped else measured - theta
        self.mixture.observe(self.bank.time_s, innovation, sqrt(spread_var), noise.var / used, self._jumped)
        self._jumped = False
        self.mixture.learn(self.bank, measured)
        self.noise.add(self.bank.time_s, measured, nominal_var, extra_var)
        return noise.var / used

    def step(self, by_ns: int) -> None:
        """Move the offset by a jump and forget how well it was known; the drift stays.

        What was predicted, and what the experts know, moves with it.
        """
        self._base_ns += by_ns
        self._jumped = True
        self.bank.release_offset()
        self.noise.forget_neighbours()

    def admit(self, size_ns: float) -> None:
        """Admit that the offset is off by about `size_ns`, nobody knows why."""
        self.bank.release_drift(0.0, size_ns * size_ns)
        self.noise.forget_neighbours()

    def admit_drift(self, drift_ppb: float, size_ns: float) -> None:
        """Admit that the drift is off by about `drift_ppb` and the offset by `size_ns`."""
        self.bank.release_drift(drift_ppb * drift_ppb, size_ns * size_ns)

    def release_drift(self, slope_ppb: float, residual_ns: float) -> None:
        """Admit a frequency step of about `slope_ppb` that already moved the offset by `residual_ns`."""
        self.bank.release_drift(slope_ppb * slope_ppb, residual_ns * residual_ns)
        self.mixture.release_drift()
        self._jumped = True
        self.noise.forget_neighbours()

    def steer(self, drift_ppb: float, start_ns: int, end_ns: int) -> None:
        """Add a known change of drift, dialled in at some time between the two."""
        self.bank.release_drift(0.0, self._steering.dial_between(start_ns, end_ns, drift_ppb))

    def drift(self) -> tuple[float, float]:
        """Return (drift in ppb, its variance) at the bank's time."""
        drift_ppb, var = self.bank.drift()
        return drift_ppb + self._steering.rate_ppb, var

    def offset_at(self, local_ns: int) -> tuple[int, float]:
        """Return (offset in ns, sigma in ns) of the bank for `local_ns`, at or after its time."""
        horizon = max(self.seconds(local_ns) - self.bank.time_s, 0.0)
        theta, var = self.bank.forecast(horizon)
        return _possible(self._base_ns + self._steering.phase_ns(local_ns) + round(theta)), sqrt(var)

    def forecast(self, local_ns: int) -> Forecast:
        """Return what is expected after `local_ns`, at or after the bank's time."""
        steering = self._steering
        now_ns, rate_ppb = self._base_ns + steering.phase_ns(local_ns), steering.rate_ppb
        base_ns = np.array([now_ns + round(h * rate_ppb) for h in self.mixture.horizons_s], dtype=np.int64)
        return self.mixture.forecast(self.bank, self.seconds(local_ns), base_ns)

    def save(self) -> TrackState:
        """Return what `restore` needs."""
        return TrackState(
            self._base_ns, self._local_ns, self.bank.time_s, self.bank.save(), self.mixture.save()
        )

    def restore(self, state: TrackState) -> None:
        """Return to a saved state."""
        self.bank.restore(state.bank)
        self.mixture.restore(state.experts, state.time_s, float(self._base_ns - state.base_ns))
        self._base_ns, self._local_ns = state.base_ns, state.local_ns
        self.noise.forget_neighbours()

    def _relative_ns(self, offset_ns: int) -> int:
        """Return an offset at the bank's time as the filters see it: without steering, from the base."""
        return offset_ns - self._steering.phase_ns(self._local_ns) - self._base_ns


def _possible(offset_ns: int) -> int:
    """The offset, no further than two clocks can be apart: a rate that no clock has leads there within seconds."""
    return max(-MAX_OFFSET_NS, min(offset_ns, MAX_OFFSET_NS))
