"""The clock's arithmetic once more, from its formulas and in plain NumPy: what `agent/ffi/clockbank.c` and
`clockcore.c` have to equal.

Slow, and written to be read: matrices where the core has them written out, whole series where the core keeps sums.
Times are seconds, offsets ns from a common base, as in the core.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import copysign, inf, log, log1p, nan, sqrt

import numpy as np
import numpy.typing as npt

from agent.clock.kalman import Member

Floats = npt.NDArray[np.float64]

FAMILIES = ("free", "locked", "aging", "returning")


def family_of(member: Member) -> int:
    """Return the number of a member's family in FAMILIES."""
    if member.wander_ns:
        return 3
    return 2 if member.aging_ppb_s else int(member.locked)


# ---- the bank --------------------------------------------------------------------------------------------------


class ReferenceBank:
    """Kalman filters of three states (offset, drift, third), weighted by their likelihood."""

    SURPRISE_CAP = 25.0
    LOG_RANGE = 22.0
    LEAST_NOISE = 0.02

    def __init__(self, members: Sequence[Member], memory: float, initial_drift_var: float) -> None:
        n = len(members)
        self.family = np.array([family_of(m) for m in members])
        self.white = np.array([m.white_ns**2 for m in members])
        self.walk = np.array([m.walk_ppb**2 for m in members])
        self.third = np.array([(m.aging_ppb_s or m.wander_ns) ** 2 for m in members])
        self.tau = np.array([m.return_s for m in members])
        self.drift_var = np.array([0.0 if m.locked else initial_drift_var for m in members])
        total = sum(m.share for m in members)
        self.log_prior = np.array([log(m.share / total) for m in members])
        self.memory = memory
        self.time_s = 0.0
        self.x, self.p = np.zeros((n, 3)), np.zeros((n, 3, 3))
        self.score = self.weight = np.zeros(n)

    def start(self, time_s: float, theta: float, var: float) -> None:
        """Take the first offset."""
        self.time_s = time_s
        self.x[:] = [theta, 0.0, 0.0]
        self.p[:] = 0.0
        self.p[:, 0, 0] = var
        self.p[:, 1, 1] = self.drift_var
        self.p[self.family == 2, 2, 2] = 1.0
        # A wander that returns with tau has the variance q tau / 2 when left alone.
        self.p[:, 2, 2] += np.where(self.family == 3, self.third * self.tau / 2.0, 0.0)
        self.score = self.log_prior.copy()
        self._weigh()

    def _transition(self, dt: float) -> tuple[Floats, Floats]:
        """Return F and Q of each member over dt."""
        n = len(self.family)
        f, q = np.tile(np.eye(3), (n, 1, 1)), np.zeros((n, 3, 3))
        f[:, 0, 1] = dt
        q[:, 0, 0] = self.white * dt + self.walk * dt**3 / 3.0
        q[:, 0, 1] = q[:, 1, 0] = self.walk * dt**2 / 2.0
        q[:, 1, 1] = self.walk * dt
        # The third integral of white noise (aging): Galleani & Tavella 2003, (19).
        aging = self.family == 2
        f[aging, 0, 2], f[aging, 1, 2] = dt * dt / 2.0, dt
        powers = np.array([[20.0, 8.0, 6.0], [8.0, 3.0, 2.0], [6.0, 2.0, 1.0]])
        orders = np.array([[5, 4, 3], [4, 3, 2], [3, 2, 1]])
        q[aging] += self.third[aging, None, None] * dt**orders / powers
        # Ornstein-Uhlenbeck, contained in the offset.
        returning = self.family == 3
        kept = np.exp(-dt / self.tau[returning])
        f[returning, 0, 2], f[returning, 2, 2] = kept - 1.0, kept
        noise = self.third[returning] * self.tau[returning] / 2.0 * (1.0 - kept**2)
        for row, column in ((0, 0), (0, 2), (2, 0), (2, 2)):
            q[returning, row, column] += noise
        return f, q

    def advance(self, time_s: float) -> None:
        """Propagate to `time_s`."""
        dt = time_s - self.time_s
        if dt <= 0.0:
            return
        self.time_s = time_s
        f, q = self._transition(dt)
        self.x = np.einsum("nij,nj->ni", f, self.x)
        self.p = f @ self.p @ f.transpose(0, 2, 1) + q

    def forecast(self, horizon_s: float) -> tuple[Floats, Floats]:
        """Return mean and variance of the offset, of each family and of all: float64[5] each."""
        f, q = self._transition(horizon_s)
        row = f[:, 0, :]
        mean = np.einsum("nj,nj->n", row, self.x)
        var = np.einsum("ni,nij,nj->n", row, self.p, row) + q[:, 0, 0]
        return self._moments(mean, var)

    def drift(self) -> tuple[Floats, Floats]:
        """Return mean and variance of the drift, likewise."""
        return self._moments(self.x[:, 1], self.p[:, 1, 1])

    def _moments(self, mean: Floats, var: Floats) -> tuple[Floats, Floats]:
        masks = [self.family == g for g in range(4)] + [np.full(len(self.family), True)]
        means, variances = [], []
        for mask in masks:
            weight = self.weight[mask] / self.weight[mask].sum()
            middle = float(weight @ mean[mask])
            means.append(middle)
            variances.append(float(weight @ (var[mask] + (mean[mask] - middle) ** 2)))
        return np.array(means), np.array(variances)

    def own_noise(self, seen: float, white_share: float, walk_share: float) -> Floats:
        """Return each member's idea of a sample's noise."""
        wander = self.white + np.where(self.family == 3, self.third, 0.0)
        return np.maximum(seen - wander * white_share - self.walk * walk_share, self.LEAST_NOISE * seen)

    def innovation_var(self, seen: float, extra: float, white_share: float, walk_share: float) -> float:
        """Return S of all."""
        var = self.p[:, 0, 0] + self.own_noise(seen, white_share, walk_share)
        return float(self._moments(self.x[:, 0], var)[1][4]) + extra

    def update(
        self, offset: float, seen: float, extra: float, white_share: float, walk_share: float, evidence: float
    ) -> None:
        """Correct by a measured offset."""
        var = extra + self.own_noise(seen, white_share, walk_share)
        s = self.p[:, 0, 0] + var
        r = offset - self.x[:, 0]
        surprise = np.minimum(r * r / s, self.SURPRISE_CAP)
        fading = (self.score - self.log_prior) / self.memory
        self.score = self.score - fading - 0.5 * evidence * (np.log(s) + surprise)
        gain = self.p[:, :, 0] / s[:, None]
        self.x = self.x + gain * r[:, None]
        first_row = self.p[:, 0, :].copy()
        self.p = self.p - gain[:, :, None] * first_row[:, None, :]
        # 1 - K is var / s, without the cancellation.
        self.p[:, 0, :] = self.p[:, :, 0] = first_row * (var / s)[:, None]
        self._weigh()

    def _weigh(self) -> None:
        best = self.score.max()
        for g in range(4):
            own = self.score[self.family == g]
            floor = np.maximum(own, own.max() - self.LOG_RANGE)
            lift = max(best - self.LOG_RANGE - own.max(), 0.0)
            self.score[self.family == g] = floor + lift - best
        weight = np.exp(self.score)
        self.weight = weight / weight.sum()

    @property
    def family_weight(self) -> Floats:
        """The weight of each family, float64[4]."""
        return np.array([self.weight[self.family == g].sum() for g in range(4)])


# ---- the other experts -----------------------------------------------------------------------------------------


@dataclass
class _Line:
    """A least-squares line over the newest `size` points."""

    size: int
    slope: float = 0.0
    intercept: float = 0.0
    error: float = 0.0
    errors: int = 0
    fitted: bool = False


class ReferenceTracks:
    """The accepted samples, a held frequency, adaptive lines (linuxptp's linreg), an autoregression by RLS."""

    LAGS = 6
    KEEP = 0.999
    HEIGHT_SAMPLES = 512.0
    FIRST_SPREAD = 10.0
    CLIP = 4.0
    MEAN_SPANS_S = np.array([16.0, 256.0, 4096.0])

    def __init__(self) -> None:
        self.means, self.seen_s = np.zeros(3), 0.0
        self.points: deque[tuple[float, float]] = deque(maxlen=64)
        self.lines = [_Line(size) for size in (4, 8, 16, 32, 64)]
        self.held_rate = self.held_span = self.interval = self.height = self.error_var = 0.0
        self.lags: list[float] = []
        self.updates = 0
        self.coefficient = np.zeros(self.LAGS + 2)
        self.spread = np.eye(self.LAGS + 2) * self.FIRST_SPREAD

    def add(self, time_s: float, offset: float) -> None:
        """Take an accepted sample."""
        before = self.points[-1] if self.points else None
        if before is not None and time_s <= before[0]:
            return
        self.points.append((time_s, offset))
        if before is None:
            self.means[:] = offset
        else:
            dt, change = time_s - before[0], offset - before[1]
            span = self.held_span + dt
            self.means += (offset - self.means) * dt / (np.minimum(self.seen_s, self.MEAN_SPANS_S) + dt)
            self.seen_s += dt
            if self.held_span > 0.0:
                self._increment(dt, change)
            self.held_span = min(span, 4096.0)
            self.held_rate += (change / dt - self.held_rate) * dt / self.held_span
        self._fit()

    def _fit(self) -> None:
        times, offsets = np.array(self.points).T
        x, y = times - times[-1], offsets - offsets[-1]
        for line in self.lines:
            if line.size > len(x):
                break
            if line.fitted:
                expected = line.intercept + line.slope * (times[-1] - times[-2])
                error = abs(expected - offsets[-1])
                line.errors = min(line.errors + 1, 11)
                gain = 1.0 / line.errors if line.errors <= 10 else 0.02
                line.error += (error - line.error) * gain
            px, py = x[-line.size :], y[-line.size :]
            slope, at_zero = np.polyfit(px - px.mean(), py, 1)
            line.slope, line.intercept = float(slope), float(offsets[-1] + at_zero - slope * px.mean())
            line.fitted = True

    def _increment(self, dt: float, change: float) -> None:
        """Take the increment beyond the held rate, scaled to the usual interval."""
        self.interval = self.interval or dt
        usual = abs(dt - self.interval) <= 0.25 * self.interval
        self.interval += 0.05 * (dt - self.interval)
        if not usual:
            self.lags = []
            return
        increment = (change - self.held_rate * dt) * self.interval / dt
        if len(self.lags) == self.LAGS:
            self._learn(increment)
        self.lags = [increment, *self.lags][: self.LAGS]
        self.height += increment - self.height / self.HEIGHT_SAMPLES

    def _regressors(self, lags: list[float], height: float) -> Floats:
        return np.array([*lags, height, sqrt(self.error_var)])

    def _learn(self, increment: float) -> None:
        """Recursive least squares with forgetting, regressors and error in units of the usual error."""
        x = self._regressors(self.lags, self.height)
        error = increment - float(self.coefficient @ x)
        self.updates += 1
        if self.error_var <= 0.0:
            self.error_var = error * error
            return
        sigma = sqrt(self.error_var)
        if abs(error) > self.CLIP * sigma:
            error = copysign(self.CLIP * sigma, error)
        self.error_var += (error * error - self.error_var) / min(self.updates + 1, 100)
        x = x / sigma
        px = self.spread @ x
        denominator = self.KEEP + float(px @ x)
        self.coefficient = self.coefficient + px / denominator * error / sigma
        spread = (self.spread - np.outer(px, px) / denominator) / self.KEEP
        # Directions that nothing excites: their variance is limited, correlations stay.
        shrink = np.sqrt(np.minimum(1.0, self.FIRST_SPREAD / np.diag(spread)))
        self.spread = spread * np.outer(shrink, shrink)

    def shift(self, by: float) -> None:
        """Move all known points."""
        self.points = deque([(t, y + by) for t, y in self.points], maxlen=64)
        for line in self.lines:
            line.intercept += by
        self.means += by

    def forget(self, keep: int) -> None:
        """Forget all points but the newest, and the rates."""
        self.points = deque(list(self.points)[-keep:], maxlen=64)
        for line in self.lines:
            line.fitted = False
        self.held_rate = self.held_span = self.height = 0.0
        self.lags = []

    def hold(self, at_s: float) -> float:
        """The last offset, moved on at the held rate, for no longer than that has been seen."""
        if self.held_span <= 0.0:
            return nan
        time_s, offset = self.points[-1]
        if at_s - time_s > self.held_span:
            return nan
        return offset + self.held_rate * (at_s - time_s)

    def line(self, at_s: float) -> float:
        """The longest line that predicted about as well as any."""
        best: _Line | None = None
        for line in self.lines:
            if not line.fitted:
                break
            if best is None or (line.errors >= 10 and line.error < 1.05 * best.error):
                best = line
        return nan if best is None else best.intercept + best.slope * (at_s - self.points[-1][0])

    def autoregression(self, at_s: float) -> float:
        """The increments run on, step by step; the last part of a step in proportion."""
        if len(self.lags) < self.LAGS or self.updates < 64:
            return nan
        time_s, offset = self.points[-1]
        if at_s - time_s > self.held_span:
            return nan
        lags, height, gone, step = list(self.lags), self.height, 0.0, 0
        limit = self.CLIP * sqrt(self.error_var)
        span = at_s - time_s
        while step < 1024 and (step + 1) * self.interval <= span:
            u = float(self.coefficient @ self._regressors(lags, height))
            u = min(max(u, -limit), limit)
            lags = [u, *lags][: self.LAGS]
            height += u - height / self.HEIGHT_SAMPLES
            gone += u
            step += 1
        part = span / self.interval - step
        rest = part * float(self.coefficient @ self._regressors(lags, height)) if part < 1.0 else 0.0
        return offset + gone + rest + self.held_rate * span


# ---- the mixture -----------------------------------------------------------------------------------------------

VOICES = ("hold", "line", *FAMILIES, "autoregression", "reversion", "recurrent")
PRIOR = np.array([0.04, 0.04, 0.21, 0.21, 0.21, 0.21, 0.04, 0.03, 0.01])
EXPERT_OF = ("hold", "alr", "kalman2", "kalman2", "kalman3", "kalman3", "rls", "rls", "lstm")
IS_BANK = np.array([False, False, True, True, True, True, False, False, False])
NORMAL_P99 = 2.5758293035489004


@dataclass(frozen=True)
class _Kept:
    """What the recurrent expert said: its features, what the trained readout gave, in all, the bank's sigma."""

    features: Floats
    expected: float
    said: float
    sigma: float


@dataclass
class _Pending:
    """A prediction that waits for its sample."""

    made_s: float
    due_s: float
    offsets: Floats
    drift: float
    mixed: float
    var: float
    kept: _Kept | None
    origin: float
    apart: Floats
    stepped: float


class ReferenceReadout:
    """A Kalman filter of the readout's deviation from the trained one, an Ornstein-Uhlenbeck process about 0."""

    MEMORY, PRIOR_VAR, CLIP = 2000.0, 2.5e-3, 3.0

    def __init__(self, features: int) -> None:
        self.deviation, self.spread = np.zeros(features), self.PRIOR_VAR * np.eye(features)

    def say(self, features: Floats, expected: float, sigma: float) -> _Kept:
        """Return the correction, in sigmas, with what it was made of."""
        said = float(np.clip(expected + self.deviation @ features, -self.CLIP, self.CLIP))
        return _Kept(features.copy(), expected, said, sigma)

    def learn(self, kept: _Kept, miss: float, noise_var: float, in_flight: float) -> None:
        """Learn from how far off a forecast was, in sigmas."""
        stay = float(np.exp(-1.0 / (self.MEMORY * in_flight)))
        self.deviation *= stay
        self.spread = stay**2 * self.spread + (1.0 - stay**2) * self.PRIOR_VAR * np.eye(len(self.deviation))
        total = noise_var + float(kept.features @ self.spread @ kept.features)
        error = kept.said + miss - kept.expected - float(self.deviation @ kept.features)
        error = float(np.clip(error, -self.CLIP * sqrt(total), self.CLIP * sqrt(total)))
        gain = self.spread @ kept.features / total
        self.deviation += gain * error
        self.spread -= total * np.outer(gain, gain)


class ReferenceReversion:
    """What a clock gains of how far it is above its means, by recursive least squares about 0."""

    MEMORY, PRIOR_VAR, CLIP = 1000.0, 0.1, 3.0

    def __init__(self) -> None:
        self.gain, self.spread, self.error_var = np.zeros(3), self.PRIOR_VAR * np.eye(3), 0.0

    def learn(self, apart: Floats, gained: float, scored: int, in_flight: float) -> None:
        """Learn from what was gained since the clock was so far above its means."""
        error = gained - float(self.gain @ apart)
        if self.error_var <= 0.0:
            self.error_var = max(error**2, 1.0)
        seen = min(error**2, 16.0 * self.error_var)
        spans = min(1.0 + scored / in_flight, 100.0)
        self.error_var += (seen - self.error_var) / (spans * in_flight)
        sigma = sqrt(self.error_var)
        stay = float(np.exp(-1.0 / (self.MEMORY * in_flight)))
        self.gain *= stay
        self.spread = stay**2 * self.spread + (1.0 - stay**2) * self.PRIOR_VAR * np.eye(3)
        x = apart / sigma
        px = self.spread @ x
        total = in_flight + float(px @ x)
        limit = self.CLIP * sqrt(total)
        self.gain += px * float(np.clip(error / sigma, -limit, limit)) / total
        self.spread -= np.outer(px, px) / total


@dataclass(eq=False)
class _Horizon:
    span_s: float
    readout: ReferenceReadout | None = None
    reversion: ReferenceReversion = field(default_factory=ReferenceReversion)
    scored: int = 0
    pending: deque[_Pending] = field(default_factory=deque)
    last_made_s: float = -inf
    log_weight: Floats = field(default_factory=lambda: np.log(PRIOR))
    voice_ratio: Floats = field(default_factory=lambda: np.ones(len(PRIOR)))
    spans: float = 0.3
    ratio_var: float = 1.0
    ratio_count: float = 30.0
    quantile: float = NORMAL_P99


@dataclass(frozen=True)
class Told:
    """What is expected at a horizon."""

    offset: float
    sigma: float
    p99: float
    experts: dict[str, float]
    weights: dict[str, float]


class ReferenceMixture:
    """Fixed share (Herbster & Warmuth 1998) over the experts at each horizon, and calibrated bounds."""

    def __init__(self, horizons_s: Sequence[float], experts: Sequence[str], n_features: int) -> None:
        readout = "lstm" in experts
        self.horizons = [_Horizon(s, ReferenceReadout(n_features) if readout else None) for s in horizons_s]
        self.features, self.expected = np.zeros(n_features), np.zeros(len(horizons_s))
        self.enabled = np.array([name in experts for name in EXPERT_OF])
        self.stepped = 0.0

    def _voices(
        self, bank: ReferenceBank, tracks: ReferenceTracks, at_s: float
    ) -> tuple[Floats, Floats, float, float]:
        """Return the voices' offsets, the bank's families' variances, mean and variance of all the bank."""
        means, variances = bank.forecast(at_s - bank.time_s)
        offsets = [tracks.hold(at_s), tracks.line(at_s), *means[:4], tracks.autoregression(at_s), nan, nan]
        var = np.zeros(len(VOICES))
        var[IS_BANK] = variances[:4]
        return np.array(offsets), var, float(means[4]), float(variances[4])

    @staticmethod
    def _revert(h: _Horizon, tracks: ReferenceTracks, voices: tuple[Floats, Floats, float, float]) -> Floats:
        """Add the voice that knows the means at a horizon; return how far above them the newest sample is."""
        apart: Floats = tracks.points[-1][1] - tracks.means
        voices[0][-2] = tracks.points[-1][1] + float(h.reversion.gain @ apart)
        return apart

    def _read_out(self, place: int, voices: tuple[Floats, Floats, float, float]) -> _Kept | None:
        """Add the recurrent voice at a horizon; return what it said."""
        readout = self.horizons[place].readout
        if readout is None:
            return None
        kept = readout.say(self.features, float(self.expected[place]), sqrt(voices[3]))
        voices[0][-1] = voices[2] + kept.said * kept.sigma
        return kept

    def _earned(self, h: _Horizon) -> Floats:
        """Return the logarithms of the weights by the errors at a horizon, and at those that are shorter."""
        place = self.horizons.index(h)
        if not place:
            return h.log_weight
        shorter = self._earned(self.horizons[place - 1]) - np.log(PRIOR)
        earned: Floats = h.log_weight + 6.0 / (6.0 + h.spans) * shorter
        return earned

    def _mix(
        self, bank: ReferenceBank, h: _Horizon, voices: tuple[Floats, Floats, float, float]
    ) -> tuple[Floats, float, float]:
        """Return weights, offset and variance of the mixture."""
        offsets, var, mean_of_bank, var_of_bank = voices
        evidence = np.full(len(VOICES), -inf)
        told = self.enabled & np.isfinite(offsets)
        earned = self._earned(h)
        ratios, shares = h.voice_ratio[told & IS_BANK], np.maximum(bank.family_weight, 1e-9)[told[2:6]]
        credit = min(1.0, float(h.voice_ratio[told].min()) / float(shares @ ratios / shares.sum())) ** 4
        for v in np.flatnonzero(told):
            apart = offsets[v] - mean_of_bank
            opinion = -2.0 * log1p(apart**2 / (3.0 * h.ratio_var * var_of_bank))
            if IS_BANK[v]:
                opinion += log(0.02 + 0.98 * bank.family_weight[v - 2])
            evidence[v] = earned[v] + credit * opinion
        weight = np.exp(evidence - evidence.max())
        weight /= weight.sum()
        heard = weight > 0.0
        mixed = mean_of_bank + float(weight[heard] @ (offsets[heard] - mean_of_bank))
        families = heard & IS_BANK
        share = np.maximum(bank.family_weight, 1e-9) * np.exp(earned[2:6] - earned[2])
        share = share[families[2:6]]
        own = float(share @ var[families] / share.sum()) if families.any() else var_of_bank
        disagreement = float(weight[heard] @ (offsets[heard] - mixed) ** 2)
        return weight, mixed, own + disagreement

    def forecast(self, bank: ReferenceBank, tracks: ReferenceTracks, time_s: float) -> list[Told]:
        """Return a forecast per horizon from `time_s`."""
        out = []
        for place, h in enumerate(self.horizons):
            voices = self._voices(bank, tracks, time_s + h.span_s)
            self._revert(h, tracks, voices)
            self._read_out(place, voices)
            weight, offset, var = self._mix(bank, h, voices)
            weights: dict[str, float] = {}
            sums: dict[str, float] = {}
            for v, name in enumerate(EXPERT_OF):
                if weight[v] > 0.0:
                    weights[name] = weights.get(name, 0.0) + float(weight[v])
                    sums[name] = sums.get(name, 0.0) + float(weight[v] * (voices[0][v] - voices[2]))
            experts = {name: voices[2] + sums[name] / weights[name] for name in weights}
            sigma = sqrt(var * h.ratio_var)
            out.append(Told(offset, sigma, 1.12 * h.quantile * sigma, experts, weights))
        return out

    def keep(self, bank: ReferenceBank, tracks: ReferenceTracks) -> None:
        """Keep predictions, spread over each span, to score them later."""
        now_s = bank.time_s
        for place, h in enumerate(self.horizons):
            if len(h.pending) >= 64 or now_s - h.last_made_s < max(h.span_s / 60, 0.03):
                continue
            due_s = max(now_s + h.span_s, now_s + tracks.interval)
            voices = self._voices(bank, tracks, due_s)
            apart = self._revert(h, tracks, voices)
            kept = self._read_out(place, voices)
            _, mixed, var = self._mix(bank, h, voices)
            drift = float(bank.drift()[0][4])
            origin = tracks.points[-1][1]
            h.pending.append(
                _Pending(now_s, due_s, voices[0], drift, mixed, var, kept, origin, apart, self.stepped)
            )
            h.last_made_s = now_s

    def score(self, time_s: float, offset: float, var: float, interval_s: float) -> None:
        """Score what is due."""
        for h in self.horizons:
            while h.pending and h.pending[0].due_s <= time_s + interval_s / 2.0:
                p = h.pending[0]
                if time_s - p.due_s <= 0.25 * h.span_s + 2.0 * interval_s:
                    self._score(h, p, offset, p.drift * (time_s - p.due_s), var)
                h.pending.popleft()

    def _score(self, h: _Horizon, p: _Pending, measured: float, late: float, var: float) -> None:
        offset, stepped = measured - late, self.stepped - p.stepped
        error, said = offset - p.mixed, p.var + var
        in_flight = max(len(h.pending), 1)
        h.scored += 1
        h.reversion.learn(p.apart, measured - p.origin + stepped, h.scored, in_flight)
        if h.readout is not None and p.kept is not None:
            sigma = p.kept.sigma
            noise_var = in_flight * (h.ratio_var + var / sigma**2)
            h.readout.learn(p.kept, (offset - float(p.offsets[-1])) / sigma, noise_var, in_flight)
        took_part = self.enabled & np.isfinite(p.offsets)
        missed_by = (offset + stepped - p.offsets[took_part]) ** 2 / said
        if h.spans < 20.0:
            h.spans += 1.0 / in_flight
        smoothed = h.voice_ratio[took_part]
        smoothed += (np.minimum(missed_by, 16.0 * smoothed) - smoothed) / (h.spans * in_flight)
        h.voice_ratio[took_part] = smoothed
        loss = np.minimum(missed_by / (2.0 * smoothed.min()), 8.0)
        fading = (h.log_weight[took_part] - np.log(PRIOR[took_part])) / (2000.0 * in_flight)
        updated = h.log_weight[took_part] - loss / in_flight - fading
        weight = np.exp(updated - updated.max())
        shared = (1.0 - 1e-4) * weight / weight.sum() + 1e-4 * PRIOR[took_part]
        h.log_weight[took_part] = np.log(shared)
        told = (p.var / said) ** 2 / in_flight
        ratio = min(error**2 / said, 16.0 * h.ratio_var)
        if h.ratio_count < 1000.0:
            h.ratio_count += told
        h.ratio_var += (ratio - h.ratio_var) * told / h.ratio_count
        missed = abs(error) > h.quantile * sqrt(said * h.ratio_var)
        h.quantile = max(
            h.quantile + 0.05 * told * (0.99 if missed else -0.01),
            0.8 * NORMAL_P99,
        )

    def shift(self, by: float) -> None:
        """Move what is pending."""
        for h in self.horizons:
            for p in h.pending:
                p.mixed += by
                p.origin += by
                p.offsets = p.offsets + by

    def step(self, tracks: ReferenceTracks, by: float) -> None:
        """Take a step: all moves with it, but the means."""
        self.stepped += by
        tracks.means -= by

    def drop(self, since_s: float) -> None:
        """Drop what was predicted at `since_s` or later."""
        for h in self.horizons:
            while h.pending and h.pending[-1].made_s >= since_s:
                h.pending.pop()
