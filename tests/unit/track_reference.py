"""A track and an envelope once more, in plain Python from their rules: what `agent/ffi/clocktrack.c` and
`clockwindows.c` with `clockenvelope.c` have to equal.

Offsets are Python's integers, which have no limit; the filters are `clock_reference.ReferenceBank`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import sqrt
from statistics import median

import numpy as np

from agent.ffi.records import WindowArray
from tests.unit.clock_reference import ReferenceBank

SUB_INTERVAL_NS = 20_000_000


@dataclass
class ReferenceNoise:
    """The noise of samples, by the middle one of three against the line through its neighbours."""

    scale: float = 1.0
    white_share: float = 0.0
    walk_share: float = 0.0
    count: float = 3.0
    points: list[tuple[float, float, float, float]] = field(default_factory=list)

    def add(self, time_s: float, offset: float, nominal_var: float, extra_var: float) -> None:
        """Take a sample."""
        self.points = [*self.points, (time_s, offset, nominal_var, extra_var)][-3:]
        if len(self.points) < 3 or time_s <= self.points[0][0]:
            return
        times, offsets, nominals, extras = np.array(self.points).T
        span = times[2] - times[0]
        part = (times[1] - times[0]) / span
        line = np.array([part - 1.0, 1.0, -part])
        square = line**2
        expected = square @ nominals + square @ extras / self.scale
        weight = float((square @ nominals / expected) ** 2)
        self.count = min(self.count + weight, 200.0)
        step = weight / self.count
        ratio = min(float((line @ offsets) ** 2 / expected), 9.0 * self.scale)
        self.scale = min(max(self.scale + (ratio - self.scale) * step, 1e-3), 1e6)
        bridge = part * (1.0 - part)
        self.white_share += (bridge * span / square.sum() - self.white_share) * step
        self.walk_share += (bridge**2 * span**3 / 3.0 / square.sum() - self.walk_share) * step


class ReferenceTrack:
    """Offset and drift with exact steering; its base is moved as the core's is, where the float part grows large."""

    def __init__(self, bank: ReferenceBank) -> None:
        self.bank, self.noise = bank, ReferenceNoise()
        self.dials: list[tuple[int, float]] = []
        self.base_ns = self.time0_ns = self.local_ns = 0

    def phase_ns(self, local_ns: int) -> int:
        """What known steering has added to the offset."""
        return round(sum(Fraction(ppb) * max(local_ns - at, 0) for at, ppb in self.dials) / 10**9)

    def rate_ppb(self) -> float:
        """What is dialled in now."""
        return sum(ppb for _, ppb in self.dials)

    def start(self, local_ns: int, offset_ns: int, var: float) -> None:
        """Begin anew."""
        self.time0_ns = self.local_ns = local_ns
        self.base_ns = offset_ns - self.phase_ns(local_ns)
        self.noise = ReferenceNoise()
        self.noise.add(0.0, 0.0, var, 0.0)
        self.bank.start(0.0, 0.0, var)

    def advance(self, local_ns: int) -> None:
        """Predict."""
        self.local_ns = max(self.local_ns, local_ns)
        self.bank.advance((local_ns - self.time0_ns) * 1e-9)
        theta = self._theta()
        if abs(theta) > 1e7:
            self.bank.x[:, 0] -= round(theta)
            self.base_ns += round(theta)
            self.noise.points = []

    def _theta(self) -> float:
        return float(self.bank.forecast(0.0)[0][4])

    def _relative_ns(self, offset_ns: int) -> int:
        return offset_ns - self.phase_ns(self.local_ns) - self.base_ns

    def residual(self, offset_ns: int, nominal_var: float, extra_var: float) -> tuple[int, float]:
        """Measured - predicted, and S."""
        seen = nominal_var * self.noise.scale
        shares = self.noise.white_share, self.noise.walk_share
        return self._relative_ns(offset_ns) - round(self._theta()), self.bank.innovation_var(
            seen, extra_var, *shares
        )

    def accept(
        self, offset_ns: int, nominal_var: float, extra_var: float, above: float, below: float
    ) -> float:
        """Correct by a sample whose pull is limited (Huber); return its weight."""
        measured = float(self._relative_ns(offset_ns))
        residual = measured - self._theta()
        _, spread_var = self.residual(offset_ns, nominal_var, extra_var)
        seen = nominal_var * self.noise.scale
        limit = (above if residual > 0.0 else below) * sqrt(spread_var)
        excess = max(abs(residual) / limit, 1.0)
        used = seen + extra_var + spread_var * (excess - 1.0)
        shares = self.noise.white_share, self.noise.walk_share
        self.bank.update(measured, seen, used - seen, *shares, 1.0 / excess**2)
        self.noise.add(self.bank.time_s, measured, nominal_var, extra_var)
        return (seen + extra_var) / used

    def step(self, by_ns: int) -> None:
        """Move the offset and forget how well it was known."""
        self.base_ns += by_ns
        self.bank.p[:, 0, 0], self.bank.p[:, 0, 1:], self.bank.p[:, 1:, 0] = 1e30, 0.0, 0.0
        self.noise.points = []

    def release_drift(self, slope_ppb: float, residual_ns: float) -> None:
        """Admit a frequency step."""
        self.bank.p[:, 0, 0] += residual_ns**2
        self.bank.p[:, 1, 1] += np.where(self.bank.drift_var > 0.0, slope_ppb**2, 0.0)
        self.noise.points = []

    def steer(self, drift_ppb: float, start_ns: int, end_ns: int) -> None:
        """Add known steering, dialled in at some time between the two."""
        self.dials.append(((start_ns + end_ns) // 2, drift_ppb))
        self.bank.p[:, 0, 0] += (drift_ppb * (end_ns - start_ns) * 1e-9) ** 2 / 12.0

    def offset_at(self, local_ns: int) -> tuple[int, float]:
        """The offset, and its sigma."""
        means, variances = self.bank.forecast((local_ns - self.time0_ns) * 1e-9 - self.bank.time_s)
        return self.base_ns + self.phase_ns(local_ns) + round(float(means[4])), sqrt(variances[4])

    def drift(self) -> tuple[float, float]:
        """The drift, and its variance."""
        means, variances = self.bank.drift()
        return float(means[4]) + self.rate_ppb(), float(variances[4])


# ---- windows ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReferenceMinimum:
    """The least queued pair of one path in one sub-interval."""

    start_mono_ns: int
    path: int
    mono_ns: int
    offset_ns: int
    windows: int
    scatter_ns: float
    spread_ns: float


def reference_minima(windows: WindowArray, until_ns: int, drift_mono_ppb: float) -> list[ReferenceMinimum]:
    """The minima of stamped windows from before `until_ns`: groups, each sorted by height."""
    groups: dict[tuple[int, int], list[tuple[float, int, int]]] = {}
    first: tuple[int, int] | None = None
    for w in windows:
        mono, hw = int(w["envelope"]["mono_ns"]), int(w["envelope"]["hw_ns"])
        if not w["n_stamped"] or not hw or mono >= until_ns:
            continue
        first = first or (mono, mono - hw)
        height = (mono - hw - first[1]) - (mono - first[0]) * (drift_mono_ppb * 1e-9)
        key = mono // SUB_INTERVAL_NS * SUB_INTERVAL_NS, int(w["cpu"]) << 16 | int(w["queue"])
        groups.setdefault(key, []).append((height, mono, mono - hw))
    out = []
    for (start, path), rows in sorted(groups.items()):
        rows.sort(key=lambda row: row[0])
        heights = [height - rows[0][0] for height, _, _ in rows]
        rank = min(len(rows) - 1, 4)
        scatter = heights[rank] / rank if rank else -1.0
        out.append(ReferenceMinimum(start, path, *rows[0][1:], len(rows), scatter, heights[len(rows) // 2]))
    return out


# ---- the envelope ----------------------------------------------------------------------------------------------


@dataclass
class _Path:
    """A path's height above the lowest ones: the least of one to two blocks of a second."""

    block_start_ns: int
    scatter_ns: float = 2_000.0
    noise_ns: float = 0.0
    known: bool = False
    base_ns: int = 0
    seen: int = 0
    heights: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)

    def learn(self, mono_ns: int, above_ns: int) -> None:
        """Take a height."""
        self.seen += 1
        if mono_ns - self.block_start_ns > 1_000_000_000:
            self.before, self.heights, self.block_start_ns = self.heights, [], mono_ns
        self.heights.append(above_ns)
        if self.seen >= 25:
            self.base_ns, self.known = max(min(self.heights + self.before), 0), True

    def lower(self, by_ns: int) -> None:
        """Take all that is known of its height down."""
        self.base_ns -= by_ns
        self.heights = [height - by_ns for height in self.heights]
        self.before = [height - by_ns for height in self.before]


class ReferenceEnvelope:
    """Sub-intervals of a clock that only queues, as samples of its track; mono is raw, `ahead_ns` before it."""

    def __init__(self, track: ReferenceTrack, ahead_ns: int) -> None:
        self.track, self.ahead_ns = track, ahead_ns
        self.paths: dict[int, _Path] = {}
        self.started = False
        self.suspects = 0

    def take(self, minima: list[ReferenceMinimum], drift_mono_ppb: float) -> None:
        """Take one sub-interval's minima."""
        mono_ns = minima[0].start_mono_ns + SUB_INTERVAL_NS // 2
        levels, rate = {}, 0.0
        for m in minima:
            path = self.paths.setdefault(m.path, _Path(mono_ns))
            measured = m.scatter_ns * m.windows
            path.scatter_ns += 0.1 * (min(measured, 3.0 * path.scatter_ns) - path.scatter_ns)
            rate += m.windows / max(measured, path.scatter_ns, 1.0)
            moved = round((mono_ns - m.mono_ns) * drift_mono_ppb * 1e-9)
            levels[m.path] = m.offset_ns + moved - self.ahead_ns
        self._compare(mono_ns, levels, 400.0 + rate**-2)

    def _compare(self, mono_ns: int, levels: dict[int, int], var: float) -> None:
        lowest = min(levels.values())
        local_ns = mono_ns - self.ahead_ns
        if not self.started:
            self.started = True
            for path in self.paths.values():
                path.known = True
            self.track.start(local_ns, lowest, var)
            return
        self.track.advance(local_ns)
        residual, spread_var = self.track.residual(lowest, var, 225.0)
        gate = 6.0 * sqrt(spread_var)
        predicted = lowest - residual
        heights = {k: level - predicted for k, level in levels.items() if self.paths[k].known}
        residuals = self._residuals(heights, gate)
        residual = min(residuals.values())
        if abs(residual) > gate:
            self.suspects += 1
            return
        self.track.accept(predicted + residual, var, 225.0, 1.5, 4.0)
        for key, own in residuals.items():
            path = self.paths[key]
            apart = min(abs(own - residual), 3.0 * path.noise_ns + 1_000.0)
            path.noise_ns += 0.1 * (apart - path.noise_ns)
        self._learn_bases(mono_ns, levels)

    def _residuals(self, heights: dict[int, int], gate: float) -> dict[int, int]:
        """Heights above the bases; a path that got faster, but not all did, has a lower base from now on."""
        out = {k: height - self.paths[k].base_ns for k, height in heights.items()}
        if all(residual < -gate for residual in out.values()):
            return out
        for key, residual in out.items():
            path = self.paths[key]
            if residual < 0 < path.base_ns and -residual > 4.0 * path.noise_ns + gate / 2.0:
                path.lower(min(-residual, path.base_ns))
        return {k: height - self.paths[k].base_ns for k, height in heights.items()}

    def _learn_bases(self, mono_ns: int, levels: dict[int, int]) -> None:
        flat = {k: level for k, level in levels.items() if self.paths[k].known and not self.paths[k].base_ns}
        for key, level in levels.items():
            others = [other for k, other in flat.items() if k != key]
            if others:
                self.paths[key].learn(mono_ns, level - min(others))


def median_of_longest(baselines_ns: list[int], drifts_ppb: list[int]) -> float:
    """The median of drifts whose baseline is at least nine tenths of the longest."""
    longest = max(baselines_ns)
    return median(d for b, d in zip(baselines_ns, drifts_ppb, strict=True) if b >= 0.9 * longest)
