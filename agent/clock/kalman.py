"""Offset and drift of one clock against an unsteered one: a bank of two-state Kalman filters.

Every member of the bank is the textbook filter for a clock with white frequency noise and a
random walk of frequency (Galleani & Tavella 2003); they differ in how strong that walk is. Their
mixture, weighted by how well each predicted the recent samples, is the adaptive Q: a quiet
oscillator is averaged for long, a wandering one followed fast, and nobody has to say which it is.

Plain floats: a 2x2 filter in closed form costs less than one numpy call per step.
Time is in seconds and offset in ns since a base that the caller keeps as integers, so drift is in
ns/s = ppb.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, sqrt

# Random walk of frequency, ppb per sqrt(second): from a good TCXO to one in a draught.
WALKS_PPB = (1.0, 6.0, 20.0, 60.0)
# White frequency noise, ns per sqrt(second): 1e-9 at 1 s.
_WHITE_NS = 1.0
# Nobody knows the drift before the second sample; crystals are within 100 ppm.
_INITIAL_DRIFT_VAR = 1e5**2
# "Nothing is known": larger than any offset that an int64 can hold, small enough to square no further.
_FORGOTTEN_VAR = 1e30
# How many samples the choice of walk remembers.
_WEIGHT_MEMORY = 300.0
# No member is ever ruled out by more than this: a walk shows late, and the bound has to be right before.
_LEAST_WEIGHT = 0.04
# A squared normalised residual counts no more than this against a member: one outlier says nothing about Q.
_SURPRISE_CAP = 9.0


@dataclass(slots=True)
class _Member:
    """One filter of the bank: [theta, drift] and the upper half of its covariance."""

    walk_var: float
    theta: float = 0.0
    drift: float = 0.0
    p00: float = 0.0
    p01: float = 0.0
    p11: float = _INITIAL_DRIFT_VAR
    score: float = 0.0

    def copy(self) -> _Member:
        return _Member(self.walk_var, self.theta, self.drift, self.p00, self.p01, self.p11, self.score)


@dataclass(frozen=True, slots=True)
class Estimate:
    """The mixture's state: offset in ns from the caller's base, drift in ppb, their variances."""

    theta_ns: float
    drift_ppb: float
    theta_var: float
    drift_var: float


@dataclass(frozen=True, slots=True)
class BankState:
    """A snapshot to return to, when samples already taken turn out to be the start of a jump."""

    time_s: float
    members: tuple[_Member, ...]


class DriftBank:
    """A bank of offset/drift filters that are mixed by their own predictive likelihood."""

    __slots__ = ("_members", "_weights", "started", "time_s")

    def __init__(self, walks_ppb: tuple[float, ...] = WALKS_PPB) -> None:
        self._members = [_Member(walk * walk) for walk in walks_ppb]
        self._weights = [1.0 / len(walks_ppb)] * len(walks_ppb)
        self.time_s = 0.0
        self.started = False

    def start(self, time_s: float, theta_ns: float, var: float) -> None:
        """Take the first offset; the drift is unknown within 100 ppm."""
        self.time_s = time_s
        self.started = True
        for m in self._members:
            m.theta, m.drift, m.score = theta_ns, 0.0, 0.0
            m.p00, m.p01, m.p11 = var, 0.0, _INITIAL_DRIFT_VAR
        self._weights = [1.0 / len(self._members)] * len(self._members)

    def advance(self, time_s: float) -> None:
        """Propagate every member to `time_s`; a time in the past changes nothing."""
        dt = time_s - self.time_s
        if dt <= 0.0:
            return
        self.time_s = time_s
        white = _WHITE_NS * _WHITE_NS * dt
        for m in self._members:
            walk = m.walk_var * dt
            m.theta += m.drift * dt
            m.p00 += dt * (2.0 * m.p01 + dt * (m.p11 + walk / 3.0)) + white
            m.p01 += dt * (m.p11 + 0.5 * walk)
            m.p11 += walk

    @property
    def rough_theta_ns(self) -> float:
        """One member's offset: near enough to see whether the caller's base is still close."""
        return self._members[0].theta

    def forecast(self, horizon_s: float) -> tuple[float, float]:
        """Return (offset in ns, its variance) `horizon_s` after the bank's time, noise of the way included."""
        mean = 0.0
        square = 0.0
        first = self._members[0].theta
        for weight, m in zip(self._weights, self._members, strict=True):
            at = m.theta - first + m.drift * horizon_s
            walk = m.walk_var * horizon_s
            var = m.p00 + horizon_s * (2.0 * m.p01 + horizon_s * (m.p11 + walk / 3.0) + _WHITE_NS * _WHITE_NS)
            mean += weight * at
            square += weight * (var + at * at)
        return first + mean, max(square - mean * mean, 0.0)

    @property
    def drift_ppb(self) -> float:
        """The drift of `estimate`, alone: it is asked for far more often than the rest."""
        first = self._members[0].drift
        drift = 0.0
        for weight, m in zip(self._weights, self._members, strict=True):
            drift += weight * (m.drift - first)
        return first + drift

    def estimate(self) -> Estimate:
        """Return the mixture's state at the bank's time; variances include the members' disagreement."""
        first = self._members[0]
        theta = drift = theta_sq = drift_sq = 0.0
        for weight, m in zip(self._weights, self._members, strict=True):
            d_theta, d_drift = m.theta - first.theta, m.drift - first.drift
            theta += weight * d_theta
            drift += weight * d_drift
            theta_sq += weight * (m.p00 + d_theta * d_theta)
            drift_sq += weight * (m.p11 + d_drift * d_drift)
        return Estimate(
            first.theta + theta,
            first.drift + drift,
            max(theta_sq - theta * theta, 0.0),
            max(drift_sq - drift * drift, 0.0),
        )

    def update(self, offset_ns: float, var: float) -> None:
        """Correct every member by a measured offset and re-weight the bank.

        `var` is the sample's variance as it shall count: robust weighting enlarges it before.
        """
        keep = 1.0 - 1.0 / _WEIGHT_MEMORY
        best = -1e300
        for m in self._members:
            s = m.p00 + var
            r = offset_ns - m.theta
            k0 = m.p00 / s
            k1 = m.p01 / s
            m.theta += k0 * r
            m.drift += k1 * r
            m.p11 -= k1 * m.p01
            # var / s is 1 - k0 without the cancellation when the offset was forgotten.
            m.p01 *= var / s
            m.p00 *= var / s
            m.score = keep * m.score - 0.5 * (log(s) + min(r * r / s, _SURPRISE_CAP))
            best = max(best, m.score)
        weights = [exp(max(m.score - best, -30.0)) for m in self._members]
        share = (1.0 - _LEAST_WEIGHT * len(weights)) / sum(weights)
        self._weights = [_LEAST_WEIGHT + share * w for w in weights]
        for m in self._members:
            m.score -= best

    def release_offset(self) -> None:
        """Forget the offset but keep the drift: a phase jump leaves the oscillator as it was."""
        for m in self._members:
            m.p00, m.p01 = _FORGOTTEN_VAR, 0.0

    def release_drift(self, drift_var: float, offset_var: float) -> None:
        """Admit a drift changed by about sqrt(`drift_var`) ppb, some time ago: hence `offset_var` in ns^2."""
        for m in self._members:
            m.p00 += offset_var
            m.p11 += drift_var

    def limit_drift(self, var: float) -> None:
        """Say that the drift is known to +- sqrt(`var`) ppb already."""
        for m in self._members:
            m.p11 = min(m.p11, var)

    def shift(self, by_ns: float) -> None:
        """Move all offsets: the caller changes its base."""
        for m in self._members:
            m.theta += by_ns

    def steer(self, drift_ppb: float, delay_s: float = 0.0) -> None:
        """Add a known change of frequency that was dialled in `delay_s` before the bank's time."""
        for m in self._members:
            m.drift += drift_ppb
            m.theta += drift_ppb * delay_s

    def save(self) -> BankState:
        """Return a copy to restore later."""
        return BankState(self.time_s, tuple(m.copy() for m in self._members))

    def restore(self, state: BankState) -> None:
        """Return to a saved state; the members' weights stay as they are now."""
        self.time_s = state.time_s
        self._members = [m.copy() for m in state.members]


class NoiseScale:
    """How much noisier the samples are than they were said to be, from three in a row.

    The middle one against the line through its neighbours: offset and drift cancel, so this needs no
    filter and is not fooled by one that lags. Clipped at 3 sigma, so bursts do not count as noise.
    """

    __slots__ = ("_count", "_first", "_second", "scale")

    _MEMORY = 100.0
    _MIN, _MAX = 0.02, 1e6

    def __init__(self) -> None:
        self.scale = 1.0
        self._count = 3.0
        self._first: tuple[float, float, float] | None = None
        self._second: tuple[float, float, float] | None = None

    def add(self, time_s: float, offset_ns: float, var: float) -> None:
        """Take one accepted sample; `var` is its nominal variance."""
        a, b, c = self._first, self._second, (time_s, offset_ns, var)
        self._first, self._second = b, c
        if a is None or b is None or time_s <= a[0]:
            return
        part = (b[0] - a[0]) / (time_s - a[0])
        error = b[1] - (1.0 - part) * a[1] - part * offset_ns
        expected = b[2] + (1.0 - part) ** 2 * a[2] + part * part * var
        self._count = min(self._count + 1.0, self._MEMORY)
        ratio = min(error * error / expected, 9.0 * self.scale)
        self.scale += (ratio - self.scale) / self._count
        self.scale = min(max(self.scale, self._MIN), self._MAX)

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
