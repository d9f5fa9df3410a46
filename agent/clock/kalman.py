"""Offset and drift of one clock against an unsteered one: a bank of Kalman filters.

Every member of the bank is the textbook filter for one model of a clock (Galleani & Tavella 2003): white frequency
noise and a random walk of frequency, some of them with aging or with a wander that returns to a line, each of another
strength. Their mixture, weighted by how well each predicted the samples so far (Magill 1965), is the
adaptive Q: a quiet oscillator is averaged for long, a wandering one followed fast, and nobody has to say which.

The arithmetic is `agent/ffi/clockcore.c`. Time is in seconds and offset in ns since a base that the caller
keeps as integers, so drift is in ns/s = ppb.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import log, sqrt
from typing import Any, NamedTuple

from agent.ffi import _native

_ffi, _lib = _native.ffi, _native.lib

# Nobody knows the drift before the second sample; crystals are within 100 ppm.
_INITIAL_DRIFT_VAR = 1e5**2
# How many samples the members' weights remember.
_WEIGHT_MEMORY = 10_000.0
# The prior over a walk's strength: between flat in its logarithm (0), which is too sure of quiet clocks before a walk
# has shown, and flat in itself (1); measured by the coverage of bounds in the first minutes.
_WALK_SLOPE = 0.7
_AGING_SLOPE = 0.3
_ALL = _lib.AGENT_BANK_ALL


@dataclass(frozen=True, slots=True)
class Member:
    """One model of a clock.

    `white_ns` is white frequency noise in ns per sqrt(second), `walk_ppb` random-walk frequency noise in ppb per
    sqrt(second). With `aging_ppb_s`, the drift's rate walks too, in ppb/s per sqrt(second); with `wander_ns`,
    the offset wanders besides, in ns per sqrt(second), and returns within `return_s`. A `locked` clock has no drift:
    somebody disciplines it. `share` is the part of the prior.
    """

    white_ns: float
    walk_ppb: float
    aging_ppb_s: float = 0.0
    wander_ns: float = 0.0
    return_s: float = 0.0
    locked: bool = False
    share: float = 1.0

    @property
    def family(self) -> int:
        """The number of its family, in the order that a bank wants."""
        if self.wander_ns:
            return int(_lib.AGENT_FAMILY_RETURNING)
        if self.aging_ppb_s:
            return int(_lib.AGENT_FAMILY_AGING)
        return int(_lib.AGENT_FAMILY_LOCKED if self.locked else _lib.AGENT_FAMILY_FREE)


def _decades(low: float, high: float, per_decade: int = 2) -> list[float]:
    """Return powers of 10 ** (1 / per_decade) from `low` to `high`."""
    steps = round(log(high / low) / log(10.0) * per_decade)
    return [low * 10.0 ** (i / per_decade) for i in range(steps + 1)]


def _grid() -> tuple[Member, ...]:
    """Return the members for a clock of which nothing is known: OCXO to a TCXO in a draught, free or locked.

    Half a decade between neighbours costs a filter in between some percent of error at most.
    """
    free = [Member(w, r, share=r**_WALK_SLOPE) for w, r in product(_decades(0.01, 1e3), _decades(1e-3, 3e2))]
    locked = [Member(w, 0.0, locked=True) for w in _decades(1.0, 3e3)]
    aging = [
        Member(w, r, aging_ppb_s=a, share=a**_AGING_SLOPE)
        for w, r, a in product((0.01, 0.3, 10.0), (0.001, 0.03, 1.0), _decades(1e-6, 1.0, 1))
    ]
    returning = [
        Member(0.01, 1e-3, wander_ns=x, return_s=t, locked=is_locked)
        for t, x, is_locked in product((5.0, 20.0, 80.0, 300.0), _decades(10.0, 3e3), (False, True))
    ]
    families = ((0.97, free), (0.01, locked), (0.01, aging), (0.01, returning))
    shared = [
        [replace(m, share=part * m.share / sum(n.share for n in family)) for m in family]
        for part, family in families
    ]
    free, locked, aging, returning = shared
    return (*free, *locked, *aging, *returning)


MEMBERS = _grid()


@dataclass(frozen=True, slots=True)
class Estimate:
    """The mixture's state: offset in ns from the caller's base, drift in ppb, their variances."""

    theta_ns: float
    drift_ppb: float
    theta_var: float
    drift_var: float


class SampleNoise(NamedTuple):
    """A sample's variance in ns^2: `seen` as NoiseScale measures it, and `extra` that is this sample's own.

    `white_share` (seconds) and `walk_share` (seconds^3) say how much of a member's own noise is in `seen`. A tuple,
    since some are made of every sample and a frozen class takes four times as long.
    """

    seen: float
    extra: float = 0.0
    white_share: float = 0.0
    walk_share: float = 0.0

    @property
    def var(self) -> float:
        """All of it, as if none were the oscillator's."""
        return self.seen + self.extra


def _rows(members: tuple[Member, ...]) -> Any:
    rows = _ffi.new("struct agent_member[]", len(members))
    total = sum(m.share for m in members)
    for row, m in zip(rows, members, strict=True):
        row.family = m.family
        third = m.aging_ppb_s or m.wander_ns
        row.white_var, row.walk_var, row.third_var = m.white_ns**2, m.walk_ppb**2, third**2
        row.tau_s = m.return_s
        row.drift_var = 0.0 if m.locked else _INITIAL_DRIFT_VAR
        row.log_prior = log(m.share / total)
    return rows


class DriftBank:
    """A bank of offset/drift filters that are mixed by their own predictive likelihood.

    `members` are in the order of their families, `time_s` is the time that the state is of. A sample's way asks
    several times for the offset now and for S: they are kept while nothing changes.
    """

    __slots__ = ("_moments", "_now", "_spread", "members", "native", "started", "time_s")

    def __init__(self, members: tuple[Member, ...] = MEMBERS) -> None:
        self.members = members
        self.native = _ffi.gc(
            _lib.agent_bank_new(_rows(members), len(members), _WEIGHT_MEMORY), _lib.agent_bank_free
        )
        if self.native == _ffi.NULL:
            raise MemoryError("no memory for a bank of clock filters")
        self._moments = _ffi.new("struct agent_moments[]", _lib.AGENT_BANK_GROUPS)
        self.started = False
        self.time_s = 0.0
        self._now: tuple[float, float] | None = None
        self._spread: tuple[SampleNoise, float] | None = None

    def start(self, time_s: float, theta_ns: float, var: float) -> None:
        """Take the first offset; the drift is unknown within 100 ppm."""
        self.started = True
        self.time_s = time_s
        self._changed()
        _lib.agent_bank_start(self.native, time_s, theta_ns, var)

    def advance(self, time_s: float) -> None:
        """Propagate every member to `time_s`; a time in the past changes nothing."""
        if time_s <= self.time_s:
            return
        self.time_s = time_s
        self._changed()
        _lib.agent_bank_advance(self.native, time_s)

    def forecast(self, horizon_s: float) -> tuple[float, float]:
        """Return (offset in ns, its variance) `horizon_s` after the bank's time, noise of the way included."""
        if horizon_s == 0.0 and self._now is not None:
            return self._now
        _lib.agent_bank_forecast(self.native, horizon_s, self._moments)
        m = self._moments[_ALL]
        out = m.mean, m.var
        if horizon_s == 0.0:
            self._now = out
        return out

    def innovation_var(self, noise: SampleNoise) -> float:
        """Return the variance of a sample's difference from `forecast(0)`: S."""
        if self._spread is not None and self._spread[0] == noise:
            return self._spread[1]
        var: float = _lib.agent_bank_innovation(
            self.native, noise.seen, noise.extra, noise.white_share, noise.walk_share
        ).var
        self._spread = noise, var
        return var

    @property
    def drift_ppb(self) -> float:
        """The drift of `estimate`."""
        return self.drift()[0]

    def drift(self) -> tuple[float, float]:
        """Return (drift in ppb, its variance)."""
        _lib.agent_bank_drift(self.native, self._moments)
        m = self._moments[_ALL]
        return m.mean, m.var

    def estimate(self) -> Estimate:
        """Return the mixture's state at the bank's time; variances include the members' disagreement."""
        theta, theta_var = self.forecast(0.0)
        drift, drift_var = self.drift()
        return Estimate(theta, drift, theta_var, drift_var)

    def update(self, offset_ns: float, noise: SampleNoise, evidence: float = 1.0) -> None:
        """Correct every member by a measured offset and re-weight the bank.

        `noise` is the sample's as it shall count: robust weighting enlarges `extra` before, and lessens `evidence`,
        how much the sample says about the members.
        """
        self._changed()
        _lib.agent_bank_update(
            self.native,
            offset_ns,
            noise.seen,
            noise.extra,
            noise.white_share,
            noise.walk_share,
            evidence,
        )

    def weights(self) -> list[float]:
        """Return the members' weights, in their order."""
        out = _ffi.new("double[]", len(self.members))
        _lib.agent_bank_weights(self.native, out)
        return list(out)

    def release_offset(self) -> None:
        """Forget the offset but keep the drift: a phase jump leaves the oscillator as it was."""
        self._changed()
        _lib.agent_bank_forget_offset(self.native)

    def release_drift(self, drift_var: float, offset_var: float) -> None:
        """Admit a drift changed by about sqrt(`drift_var`) ppb, some time ago: hence `offset_var` in ns^2."""
        self._changed()
        _lib.agent_bank_admit(self.native, offset_var, drift_var)

    def limit_drift(self, var: float) -> None:
        """Say that the drift is known to +- sqrt(`var`) ppb already."""
        self._changed()
        _lib.agent_bank_limit_drift(self.native, var)

    def shift(self, by_ns: float) -> None:
        """Move all offsets: the caller changes its base."""
        self._changed()
        _lib.agent_bank_shift(self.native, by_ns)

    def save(self) -> Any:
        """Return a copy to restore later, when samples already taken turn out to be the start of a jump."""
        state = _lib.agent_bank_save(self.native)
        if state == _ffi.NULL:
            raise MemoryError("no memory for the state of a bank of clock filters")
        return _ffi.gc(state, _lib.agent_bank_state_free)

    def restore(self, state: Any) -> None:
        """Return to a saved state, weights included: what came since was a jump, and no evidence of noise."""
        self._changed()
        _lib.agent_bank_restore(self.native, state)
        self.time_s = _lib.agent_bank_time(self.native)

    def _changed(self) -> None:
        self._now = self._spread = None


class NoiseScale:
    """How much noisier the samples are than they were said to be, from three in a row.

    The middle one against the line through its neighbours: offset and drift cancel, so this needs no
    filter and is not fooled by one that lags. Clipped at 3 sigma, so bursts do not count as noise. What the oscillator
    itself wanders from one sample to the next is in the figure too: `white_share` and `walk_share` say how much.
    """

    __slots__ = ("_count", "_first", "_second", "scale", "walk_share", "white_share")

    _MEMORY = 200.0
    _MIN, _MAX = 1e-3, 1e6

    def __init__(self) -> None:
        self.scale = 1.0
        self.white_share = self.walk_share = 0.0
        self._count = 3.0
        self._first: tuple[float, float, float, float] | None = None
        self._second: tuple[float, float, float, float] | None = None

    @property
    def triples(self) -> float:
        """Of how many samples the figure is, up to its memory."""
        return self._count - 3.0

    def noise(self, nominal_var: float, extra_var: float) -> SampleNoise:
        """Return the noise of a sample whose `nominal_var` scales with what was seen, `extra_var` not."""
        return SampleNoise(nominal_var * self.scale, extra_var, self.white_share, self.walk_share)

    def add(self, time_s: float, offset_ns: float, nominal_var: float, extra_var: float = 0.0) -> None:
        """Take one accepted sample; its noise is as in `noise`.

        Where `extra_var` prevails, three samples tell how right that is, not how large the rest: they count little.
        """
        a, b, c = self._first, self._second, (time_s, offset_ns, nominal_var, extra_var)
        self._first, self._second = b, c
        if a is None or b is None or time_s <= a[0]:
            return
        span = time_s - a[0]
        part = (b[0] - a[0]) / span
        error = b[1] - (1.0 - part) * a[1] - part * offset_ns
        before, after = (1.0 - part) ** 2, part * part
        nominal = before * a[2] + b[2] + after * nominal_var
        expected = nominal + (before * a[3] + b[3] + after * extra_var) / self.scale
        weight = (nominal / expected) ** 2
        self._count = min(self._count + weight, self._MEMORY)
        ratio = min(error * error / expected, 9.0 * self.scale)
        step = weight / self._count
        self.scale += (ratio - self.scale) * step
        self.scale = min(max(self.scale, self._MIN), self._MAX)
        # The bridge between the neighbours has variance white * p(1-p) T, and walk * (p(1-p))^2 T^3 / 3.
        bridge = part * (1.0 - part)
        gain = before + 1.0 + after
        self.white_share += (bridge * span / gain - self.white_share) * step
        self.walk_share += (bridge * bridge * span**3 / (3.0 * gain) - self.walk_share) * step

    def forget_neighbours(self) -> None:
        """Start a new triple: the next sample does not continue the line of the last."""
        self._first = self._second = None


def robust_variance(residual: float, spread_var: float, var: float, above: float, below: float) -> float:
    """Return `var` enlarged so that a residual beyond its limit pulls no harder than one at the limit.

    Huber's rule, by the innovation: `spread_var` is S, `above` and `below` the limits in sqrt(S) for
    positive and negative residuals. One-sided noise gets a small `above`: the lower envelope is followed.
    """
    limit = (above if residual > 0.0 else below) * sqrt(spread_var)
    size = abs(residual)
    if size <= limit:
        return var
    # The pull is P r / (P + R'): equal to that of the limit when P + R' = S r / limit.
    return var + spread_var * (size / limit - 1.0)
