"""Single parts of the clock's core, as the tests drive them: what runs in one call of `Track` otherwise."""

from __future__ import annotations

from typing import Any, NamedTuple

from agent.clock.forecast import Forecast, Mixture
from agent.clock.kalman import MEMBERS, DriftBank, Member
from agent.ffi import _native

ffi, lib = _native.ffi, _native.lib


class Noise(NamedTuple):
    """A sample's variance in ns^2: `seen` as measured, `extra` its own; shares as in `struct agent_noise`."""

    seen: float
    extra: float = 0.0
    white_share: float = 0.0
    walk_share: float = 0.0


class Bank(DriftBank):
    """The bank on its own, times in s and offsets in ns from a common base."""

    def __init__(self, members: tuple[Member, ...] = MEMBERS) -> None:
        super().__init__(members)
        self._count = len(members)
        self._moments = ffi.new("struct agent_moments[]", lib.AGENT_BANK_GROUPS)

    def start(self, time_s: float, theta_ns: float, var: float) -> None:
        """Take the first offset."""
        lib.agent_bank_start(self.native, time_s, theta_ns, var)

    def advance(self, time_s: float) -> None:
        """Propagate every member."""
        lib.agent_bank_advance(self.native, time_s)

    def forecast(self, horizon_s: float) -> tuple[float, float]:
        """Return (offset in ns, its variance) at a horizon."""
        lib.agent_bank_forecast(self.native, horizon_s, self._moments)
        return self._all()

    def drift(self) -> tuple[float, float]:
        """Return (drift in ppb, its variance)."""
        lib.agent_bank_drift(self.native, self._moments)
        return self._all()

    def _all(self) -> tuple[float, float]:
        m = self._moments[lib.AGENT_BANK_ALL]
        return m.mean, m.var

    def innovation_var(self, noise: Noise) -> float:
        """Return S."""
        var: float = lib.agent_bank_innovation(self.native, *noise).var
        return var

    def update(self, offset_ns: float, noise: Noise, evidence: float = 1.0) -> None:
        """Correct by a measured offset."""
        lib.agent_bank_update(self.native, offset_ns, *noise, evidence)

    def weights(self) -> list[float]:
        """Return the members' weights."""
        out = ffi.new("double[]", self._count)
        lib.agent_bank_weights(self.native, out)
        return list(out)


def score(mixture: Mixture, time_s: float, offset_ns: float, var: float) -> None:
    """Score what is due by an accepted sample."""
    interval_s = mixture.tracks.interval_s
    lib.agent_mixture_score(mixture.native, time_s, offset_ns, var, interval_s, mixture.readout)


def learn(mixture: Mixture, bank: DriftBank, offset_ns: float) -> None:
    """Learn from a sample that the bank has taken, and keep what is to be scored."""
    lib.agent_tracks_add(mixture.tracks, lib.agent_bank_time(bank.native), offset_ns)
    lib.agent_mixture_keep(mixture.native, bank.native, mixture.tracks, mixture.readout)


def begin(mixture: Mixture) -> None:
    """Begin anew."""
    mixture.start()
    lib.agent_tracks_start(mixture.tracks)
    lib.agent_mixture_start(mixture.native)
    if mixture.is_recurrent:
        lib.agent_readout_start(mixture.readout)


def forecast(mixture: Mixture, bank: DriftBank, time_s: float) -> Forecast:
    """Return what is expected after `time_s`, offsets in ns from the common base."""
    track = new_track(mixture, bank)
    lib.agent_track_forecast(track, round(time_s * 1e9), mixture.out, mixture.out_ns)
    return mixture.told()


def new_track(mixture: Mixture, bank: DriftBank) -> Any:
    """Return an `agent_track` of these parts, whose base and time begin at 0."""
    track = ffi.new("struct agent_track *")
    track.bank, track.experts, track.mixture = bank.native, mixture.tracks, mixture.native
    track.readout = mixture.readout
    return track


class Steering:
    """Known steering on its own."""

    def __init__(self) -> None:
        self._native = ffi.new("struct agent_steering *")

    @property
    def rate_ppb(self) -> float:
        """What is dialled in now."""
        rate_ppb: float = lib.agent_steering_rate(self._native)
        return rate_ppb

    def dial(self, local_ns: int, change_ppb: float) -> None:
        """Add a change of drift."""
        lib.agent_steering_dial(self._native, local_ns, change_ppb)

    def dial_between(self, start_ns: int, end_ns: int, change_ppb: float) -> float:
        """Add a change made between the two; return the variance of its phase."""
        var: float = lib.agent_steering_dial_between(self._native, start_ns, end_ns, change_ppb)
        return var

    def phase_ns(self, local_ns: int) -> int:
        """Return what it has added to the offset."""
        phase_ns: int = lib.agent_steering_phase(self._native, local_ns)
        return phase_ns
