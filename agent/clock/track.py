"""One clock's offset as the filters see it: an integer base and a float close to it.

The arithmetic is `agent/ffi/clocktrack.c`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from agent.clock.forecast import MAX_OFFSET_NS, Forecast, Mixture
from agent.clock.kalman import DriftBank
from agent.ffi import _native

_ffi, _lib = _native.ffi, _native.lib

# p99 of a normal, with room for Q and R being estimates themselves (measured in the unit tests).
P99_SIGMAS = 2.576 * 1.1
_PREDICTION = np.dtype(
    [("horizon_s", np.float64), ("offset_ns", np.int64), ("sigma_ns", np.float64), ("p99_ns", np.float64)]
)


# Not frozen: one is made of every sample, and a frozen one takes four times as long.
@dataclass(slots=True)
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


class Prediction(NamedTuple):
    """The offset expected `horizon_s` after a report, with present steering."""

    horizon_s: float
    offset_ns: int
    sigma_ns: float
    p99_ns: float


class TrackState(NamedTuple):
    """A snapshot of a track."""

    native: Any
    recurrent: Any


class Track:
    """Offset (local - hardware) and drift against an unsteered local clock, exact to the nanosecond.

    Offsets come and go as integers; inside, the filters see floats relative to a base, known steering taken out.
    `noise` is the core's `agent_noise`: how noisy samples are, by what was seen.
    """

    __slots__ = ("_bank", "_predictions", "_relation", "_rows", "_sample", "mixture", "native", "noise")

    def __init__(self, mixture: Mixture | None = None) -> None:
        self._bank = DriftBank()
        self.mixture = Mixture() if mixture is None else mixture
        self.native = _ffi.new("struct agent_track *")
        self.native.bank = self._bank.native
        self.native.experts = self.mixture.tracks
        self.native.mixture = self.mixture.native
        self.native.readout = self.mixture.readout
        self.noise = self.native.noise
        _lib.agent_noise_start(_ffi.addressof(self.noise))
        self._sample = _ffi.new("struct agent_sample *")
        self._relation = _ffi.new("struct agent_relation *")
        self._predictions = _ffi.new("struct agent_prediction[]", len(self.mixture.horizons_s))
        self._rows = np.frombuffer(_ffi.buffer(self._predictions), dtype=_PREDICTION)

    def start(self, local_ns: int, offset_ns: int, var: float) -> None:
        """Begin anew with this sample."""
        self.mixture.start()
        _lib.agent_track_start(self.native, local_ns, _possible(offset_ns), var)

    @property
    def time_s(self) -> float:
        """The bank's time in its seconds."""
        time_s: float = _lib.agent_bank_time(self._bank.native)
        return time_s

    def seconds(self, local_ns: int) -> float:
        """Return local time as the bank's seconds."""
        seconds: float = _lib.agent_track_seconds(self.native, local_ns)
        return seconds

    def advance(self, local_ns: int) -> None:
        """Predict up to `local_ns`."""
        _lib.agent_track_advance(self.native, local_ns)

    def residual(self, offset_ns: int, nominal_var: float, extra_var: float) -> tuple[int, float]:
        """Return (measured - predicted offset in ns, its variance S) of a sample at the bank's time."""
        found = _lib.agent_track_residual(self.native, _possible(offset_ns), nominal_var, extra_var)
        return found.residual_ns, found.var

    def accept(
        self, offset_ns: int, nominal_var: float, extra_var: float, above: float, below: float
    ) -> float:
        """Correct by a sample at the bank's time; return its weight, 1 for one that counts in full.

        `nominal_var` is scaled by the noise seen, `extra_var` is not; `above` and `below` are the robust limits in
        sqrt(S) for positive and negative residuals.
        """
        sample, native = self._sample, self.native
        sample.offset_ns = _possible(offset_ns)
        sample.nominal_var, sample.extra_var = nominal_var, extra_var
        sample.above, sample.below = above, below
        weight: float
        if not self.mixture.is_recurrent:
            weight = _lib.agent_track_accept(native, sample)
            return weight
        weight = _lib.agent_track_correct(native, sample)
        shown = native.shown
        self.mixture.observe(self.time_s, shown.innovation, shown.sigma, weight, bool(shown.jumped))
        _lib.agent_track_learn(native)
        return weight

    def step(self, by_ns: int) -> None:
        """Move the offset by a jump and forget how well it was known; the drift stays.

        What was predicted, and what the experts know, moves with it.
        """
        _lib.agent_track_step(self.native, by_ns)

    def admit(self, size_ns: float) -> None:
        """Admit that the offset is off by about `size_ns`, nobody knows why."""
        _lib.agent_track_admit(self.native, 0.0, size_ns)
        _lib.agent_noise_forget_neighbours(_ffi.addressof(self.noise))

    def admit_drift(self, drift_ppb: float, size_ns: float) -> None:
        """Admit that the drift is off by about `drift_ppb` and the offset by `size_ns`."""
        _lib.agent_track_admit(self.native, drift_ppb, size_ns)

    def release_drift(self, slope_ppb: float, residual_ns: float) -> None:
        """Admit a frequency step of about `slope_ppb` that already moved the offset by `residual_ns`."""
        _lib.agent_track_release_drift(self.native, slope_ppb, residual_ns)

    def steer(self, drift_ppb: float, start_ns: int, end_ns: int) -> None:
        """Add a known change of drift, dialled in at some time between the two."""
        _lib.agent_track_steer(self.native, drift_ppb, start_ns, end_ns)

    def drift(self) -> tuple[float, float]:
        """Return (drift in ppb, its variance) at the bank's time."""
        found = _lib.agent_track_drift(self.native)
        return found.mean, found.var

    def offset_at(self, local_ns: int) -> tuple[int, float]:
        """Return (offset in ns, sigma in ns) of the bank for `local_ns`, at or after its time."""
        found = _lib.agent_track_offset_at(self.native, local_ns)
        return found.offset_ns, found.sigma_ns

    def unsteered(self, local_ns: int) -> tuple[int, float]:
        """Return (offset in ns at `local_ns`, not before the bank's time; drift in ppb) without the known steering."""
        steering = _ffi.addressof(self.native.steering)
        phase_ns: int = _lib.agent_steering_phase(steering, local_ns)
        return self.offset_at(local_ns)[0] - phase_ns, self.drift()[0] - _lib.agent_steering_rate(steering)

    @property
    def is_free(self) -> bool:
        """Whether the drift is probably the clock's own, which nobody brings back."""
        weights = _lib.agent_bank_family_weights(self.native.bank)
        free: float = weights[_lib.AGENT_FAMILY_FREE] + weights[_lib.AGENT_FAMILY_AGING]
        return free > 0.5

    def forecast(self, local_ns: int) -> Forecast:
        """Return what is expected after `local_ns`, at or after the bank's time."""
        _lib.agent_track_forecast(self.native, local_ns, self.mixture.out, self.mixture.out_ns)
        return self.mixture.told()

    def predict(
        self, local_ns: int, ahead_ns: int, slew_ppb: float, slew_sigma_ppb: float, unknown_ns: float
    ) -> tuple[Prediction, ...]:
        """Return what is expected after `local_ns`, at or after the bank's time, of another clock - hardware.

        That clock is `ahead_ns` ahead of the local one and gains `slew_ppb`, known to +- `slew_sigma_ppb`; the bounds
        have room for `unknown_ns`, which no averaging tells.
        """
        relation = self._relation
        relation.ahead_ns, relation.slew_ppb, relation.slew_sigma_ppb = ahead_ns, slew_ppb, slew_sigma_ppb
        _lib.agent_track_predict(self.native, local_ns, relation, unknown_ns, P99_SIGMAS, self._predictions)
        return tuple(map(Prediction._make, self._rows.tolist()))

    def save(self) -> TrackState:
        """Return what `restore` needs: samples already taken may turn out to be the start of a jump."""
        state = _lib.agent_track_save(self.native)
        if state == _ffi.NULL:
            raise MemoryError("no memory for the state of a clock's filters")
        return TrackState(_ffi.gc(state, _lib.agent_track_state_free), self.mixture.save())

    def restore(self, state: TrackState) -> None:
        """Return to a saved state, the members' weights included: what came since is no evidence of noise."""
        _lib.agent_track_restore(self.native, state.native)
        self.mixture.restore(state.recurrent)


def _possible(offset_ns: int) -> int:
    """The offset, no further than two clocks can be apart: recordings hold anything."""
    return max(-MAX_OFFSET_NS, min(offset_ns, MAX_OFFSET_NS))
