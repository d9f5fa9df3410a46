"""Closed windows of one clock to offset and drift: the envelope, followed from below.

Queueing only ever adds to local - hardware, so per sub-interval the smallest pair counts. Each path (CPU,
queue) has its own base above the lowest path: one path moving is not a clock stepping. A lasting shift is a step
of the clock only if all paths that were busy shifted alike; upwards, where queueing can do the same, also
only if the envelope stays as flat and the windows as tight as before.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import sqrt
from statistics import median

import numpy as np
import numpy.typing as npt

from agent.clock.jumps import GATE_SIGMAS, Tag, TagKind, name_bounce, name_step, shape_of
from agent.clock.monoraw import MonoRaw
from agent.clock.track import Track, TrackState

WindowArray = npt.NDArray[np.void]

SUB_INTERVAL_NS = 20_000_000
# A window reaches us about its own length after it opened; sub-intervals wait this long for their windows.
_WINDOW_LAG_NS = 4_000_000
# The scatter of the lowest windows is measured up to this rank.
_SCATTER_RANK = 4
_FLOOR_NS = 20.0
# Caches, frequency scaling and the read of mono against raw move an envelope by this, however still it lies.
_UNSEEN_NS = 15.0
# A shift below this is nobody's step: the offset follows it without a word.
_LEAST_STEP_NS = 1_000
# Scatter per window before any was measured.
_INITIAL_SCATTER_NS = 2_000.0
# Robust limits in sqrt(S): positive residuals may be queueing, negative ones hardly.
_ABOVE, _BELOW = 1.5, 4.0

# Suspects are judged when this many sub-intervals agree, an upward shift over no less than this span.
_JUDGE_AFTER = 4
_WARM_UP_NS = 200_000_000
# So soon after the start nothing is known well enough to call a jump: what does not fit starts it anew.
_YOUNG_NS = 1_000_000_000
_UP_SPAN_NS = 80_000_000
_RAMP_SPAN_NS = 400_000_000
# Downward shifts that neither stay flat nor return are taken at their lowest after this many.
_DOWN_PATIENCE = 10
# Envelope lifted for this long without the shape of a clock step: whatever the path is now, it stays.
_LIFT_PATIENCE_NS = 5_000_000_000
# No packet waits this long: a stamp that old is the stamp's fault, also above the envelope.
_NOT_QUEUEING_NS = 1_000_000_000
# Flat: as many of the last five as this, within the tolerance.
_FLAT_OF, _FLAT_NEEDED = 5, 4
_TOLERANCE_SIGMAS = 4.0
_TOLERANCE_FLOOR_NS = 150.0
# Tight: the windows' spread above their lowest has grown by no more than this.
_TIGHT_FACTOR = 1.7
_TIGHT_SLACK_NS = 100.0
# What an applied change may do to the envelope, and for how long after it.
_CHANGE_MAX_NS = 100_000
_CHANGE_SPAN_NS = 1_000_000_000

# A path's base is the smallest it showed over one to two of these; it counts after so many sub-intervals.
_BASE_BLOCK_NS = 1_000_000_000
_PATH_KNOWN_AFTER = 25
_PATH_ACTIVE_NS = 500_000_000
_PATH_FORGET_NS = 60_000_000_000
# Packets of a frozen stamp span more than this of local time.
_STALE_SPAN_NS = 100_000


@dataclass(frozen=True, slots=True)
class PathMinimum:
    """The least queued pair of one path in one sub-interval: mono - hw, exact, and what stood around it.

    `scatter_ns` is the mean spacing of the lowest window minima, -1 with a single window; `spread_ns` the height
    of the median window above the lowest.
    """

    path: int
    mono_ns: int
    offset_ns: int
    windows: int
    scatter_ns: float
    spread_ns: float
    frozen: bool


@dataclass(frozen=True, slots=True)
class SubInterval:
    """All paths' minima of one sub-interval."""

    start_mono_ns: int
    minima: list[PathMinimum]


def path_key(cpu: int, queue: int) -> int:
    """Return the key of a path."""
    return cpu << 16 | queue


@dataclass(frozen=True, slots=True)
class EnvelopePairs:
    """What the envelope needs of closed windows: int64[4, n], rows as the properties name them.

    One array, since choosing and joining columns then is one call and not four.
    """

    table: npt.NDArray[np.int64]

    @classmethod
    def of(cls, windows: WindowArray) -> EnvelopePairs:
        """Return the envelope pairs of those windows that have a stamp."""
        table = np.empty((4, len(windows)), dtype=np.int64)
        envelope = windows["envelope"]
        mono, hw, path, frozen = table
        mono[:] = envelope["mono_ns"]
        hw[:] = envelope["hw_ns"]
        stamped = (windows["n_stamped"] > 0) & (hw > 0)
        np.subtract(mono, hw, out=table[1])
        path[:] = windows["cpu"]
        path <<= 16
        path |= windows["queue"]
        frozen[:] = _frozen(windows)
        pairs = cls(table)
        return pairs if stamped.all() else pairs.where(stamped)

    @property
    def mono_ns(self) -> npt.NDArray[np.int64]:
        """When the pair was seen."""
        row: npt.NDArray[np.int64] = self.table[0]
        return row

    @property
    def offset_ns(self) -> npt.NDArray[np.int64]:
        """mono - hw."""
        row: npt.NDArray[np.int64] = self.table[1]
        return row

    @property
    def path(self) -> npt.NDArray[np.int64]:
        """The window's `path_key`."""
        row: npt.NDArray[np.int64] = self.table[2]
        return row

    @property
    def frozen(self) -> npt.NDArray[np.int64]:
        """1 where the window saw one stamp only, again and again; else 0."""
        row: npt.NDArray[np.int64] = self.table[3]
        return row

    def __len__(self) -> int:
        return int(self.table.shape[1])

    def where(self, chosen: npt.NDArray[np.bool_]) -> EnvelopePairs:
        """Return the chosen pairs."""
        return EnvelopePairs(self.table[:, chosen])

    def then(self, later: EnvelopePairs) -> EnvelopePairs:
        """Return these pairs and then the others."""
        return later if len(self) == 0 else EnvelopePairs(np.concatenate((self.table, later.table), axis=1))


def collapse(pairs: EnvelopePairs, drift_mono_ppb: float, sub_ns: int = SUB_INTERVAL_NS) -> list[SubInterval]:
    """Return the sub-intervals of `pairs` (any order) in time order.

    Per path, the pair with the least mono - hw once `drift_mono_ppb` is taken out. Integers stay exact; floats
    are differences from the first pair.
    """
    if len(pairs) == 0:
        return []
    mono, offset = pairs.mono_ns, pairs.offset_ns
    first_mono, first_offset = int(mono[0]), int(offset[0])
    level = (offset - first_offset) - (mono - first_mono) * (drift_mono_ppb * 1e-9)
    sub = mono // sub_ns
    first_sub = int(sub.min())
    key = (sub - first_sub) << 32 | pairs.path
    order = np.lexsort((level, key))
    key, level = key[order], level[order]
    edges = np.concatenate(([0], np.flatnonzero(key[1:] != key[:-1]) + 1, [len(key)]))
    starts, counts = edges[:-1], edges[1:] - edges[:-1]
    lowest = level[starts]
    rank = np.minimum(counts - 1, _SCATTER_RANK)
    spacing = (level[starts + rank] - lowest) / np.maximum(rank, 1)
    spread = level[starts + counts // 2] - lowest
    frozen = pairs.frozen[order]
    rows = order[starts]
    out: list[SubInterval] = []
    last = -1
    for group, at, what, count, scatter, wide, stuck in zip(
        key[starts].tolist(),
        mono[rows].tolist(),
        offset[rows].tolist(),
        counts.tolist(),
        spacing.tolist(),
        spread.tolist(),
        np.logical_or.reduceat(frozen, starts).tolist(),
        strict=True,
    ):
        index = group >> 32
        if index != last:
            out.append(SubInterval((index + first_sub) * sub_ns, []))
            last = index
        out[-1].minima.append(
            PathMinimum(group & 0xFFFFFFFF, at, what, count, scatter if count > 1 else -1.0, wide, stuck)
        )
    return out


def rough_drift_ppb(subs: list[SubInterval]) -> float:
    """Return d(mono - hw)/dmono by Theil and Sen: the median slope between the sub-intervals' lowest pairs."""
    lowest = [min(s.minima, key=lambda m: m.offset_ns) for s in subs]
    slopes = [
        (b.offset_ns - a.offset_ns) / (b.mono_ns - a.mono_ns) * 1e9
        for i, a in enumerate(lowest)
        for b in lowest[i + 1 : i + 32]
        if b.mono_ns > a.mono_ns
    ]
    return median(slopes) if slopes else 0.0


def _frozen(windows: WindowArray) -> npt.NDArray[np.bool_]:
    """Return which windows saw one and the same stamp on packets that are apart in local time."""
    first, last = windows["first"], windows["last"]
    same: npt.NDArray[np.bool_] = (first["hw_ns"] == last["hw_ns"]) & (windows["n_stamped"] > 1)
    if not same.any():
        return same
    span = last["mono_ns"].astype(np.int64) - first["mono_ns"].astype(np.int64)
    return same & (span > _STALE_SPAN_NS)


@dataclass(slots=True)
class _Path:
    """What is known of one (CPU, queue): its base above the lowest path, its scatter, when it was seen."""

    base_ns: int
    known: bool
    last_mono_ns: int
    last_hw_ns: int
    scatter_ns: float = _INITIAL_SCATTER_NS
    noise_ns: float = 0.0
    seen: int = 0
    block_start_ns: int = 0
    block_min: int | None = None
    previous_min: int | None = None

    def learn_base(self, mono_ns: int, above_ns: int) -> None:
        """Take one sub-interval's height above the lowest path; the base is the least of one to two blocks."""
        self.seen += 1
        if mono_ns - self.block_start_ns > _BASE_BLOCK_NS:
            self.previous_min, self.block_min, self.block_start_ns = self.block_min, None, mono_ns
        self.block_min = above_ns if self.block_min is None else min(self.block_min, above_ns)
        low = self.block_min if self.previous_min is None else min(self.block_min, self.previous_min)
        if self.seen >= _PATH_KNOWN_AFTER:
            self.base_ns, self.known = max(low, 0), True

    def shift_base(self, by_ns: int) -> None:
        """The lowest path moved: everything above it is now higher by `by_ns`."""
        self.base_ns = max(self.base_ns + by_ns, 0)
        self.block_min = None if self.block_min is None else self.block_min + by_ns
        self.previous_min = None if self.previous_min is None else self.previous_min + by_ns

    def tolerance_ns(self) -> float:
        return _TOLERANCE_SIGMAS * self.noise_ns


@dataclass(frozen=True, slots=True)
class _Held:
    """A sub-interval that did not fit: its residual, and each known path's."""

    mono_ns: int
    local_ns: int
    offset_ns: int
    residual_ns: int
    var: float
    extra_var: float
    spread_ns: float
    by_path: dict[int, int]


@dataclass(slots=True)
class Counts:
    """What became of the sub-intervals and windows."""

    used: int = 0
    queued: int = 0
    late_windows: int = 0
    small_shifts: int = 0
    stale: int = 0


@dataclass(slots=True)
class _Lift:
    """An envelope that was re-anchored upwards as a path change: its return is one too."""

    mono_ns: int
    size_ns: int


@dataclass(slots=True)
class Envelope:
    """The lower envelope of mono - hw of one clock, as offset raw - hw and drift against raw.

    `accepted_mono_ns` is the time of the last sub-interval in the estimate; `steps` counts tagged jumps of the
    clock, `resets` the other re-anchorings (a path moved, the rate changed).
    """

    monoraw: MonoRaw
    max_holdover_ns: int
    tai_utc_s: int = 0
    track: Track = field(default_factory=Track)
    counts: Counts = field(default_factory=Counts)
    accepted_mono_ns: int | None = None
    started_mono_ns: int = 0
    interval_ns: float = 0.0
    steps: int = 0
    resets: int = 0
    stale: bool = False
    _paths: dict[int, _Path] = field(default_factory=dict)
    _pending: EnvelopePairs | None = None
    _done_mono_ns: int = 0
    _held: list[_Held] = field(default_factory=list)
    _held_from: TrackState | None = None
    _spread_ref: float = 0.0
    _typical_var: float = _FLOOR_NS**2
    _changes: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=16))
    _lift: _Lift | None = None

    def path_changed(self, mono_ns: int, cause: str) -> None:
        """Remember that a setting was changed: a small shift soon after is the path's, not the clock's."""
        self._changes.append((mono_ns, cause))

    def add(self, windows: WindowArray) -> None:
        """Take closed windows of this clock; those without a stamp are ignored."""
        pairs = EnvelopePairs.of(windows)
        self._pending = pairs if self._pending is None else self._pending.then(pairs)

    def process(self, now_mono_ns: int, drift_mono_ppb: float) -> list[Tag]:
        """Work through the sub-intervals that are complete at `now_mono_ns`; return what was found."""
        pending = self._pending
        if pending is None or len(pending) == 0:
            return []
        ready_until = (now_mono_ns - _WINDOW_LAG_NS) // SUB_INTERVAL_NS * SUB_INTERVAL_NS
        at = pending.mono_ns
        if self.accepted_mono_ns is None:
            # The first sub-intervals need a drift to be collapsed with: a little of everything, then all at once.
            if ready_until - int(at.min()) < _WARM_UP_NS:
                return []
            drift_mono_ppb = rough_drift_ppb(collapse(pending, 0.0))
        ready = at < ready_until
        late = at < self._done_mono_ns
        n_late = int(np.count_nonzero(late))
        if n_late:
            # The other paths of that sub-interval have been taken already; they told enough.
            self.counts.late_windows += n_late
            ready &= ~late
        self._pending = pending.where(at >= ready_until)
        tags: list[Tag] = []
        for sub in collapse(pending.where(ready), drift_mono_ppb):
            tags += self._take(sub, drift_mono_ppb)
        self._done_mono_ns = max(self._done_mono_ns, ready_until)
        return tags

    @property
    def suspected_ns(self) -> int:
        """How far off the estimate is if what is held now turns out to be the clock."""
        return max((abs(h.residual_ns) for h in self._held), default=0)

    @property
    def noise_var(self) -> float:
        """Variance of a typical sub-interval's minimum, ns^2."""
        scale: float = self.track.noise.scale
        return self._typical_var * scale + _UNSEEN_NS**2

    # One sub-interval.

    def _take(self, sub: SubInterval, drift_mono_ppb: float) -> list[Tag]:
        mono_ns = sub.start_mono_ns + SUB_INTERVAL_NS // 2
        ahead = self.monoraw.ahead_ns(mono_ns)
        local_ns = mono_ns - ahead
        levels: dict[int, int] = {}
        rate = 0.0
        spread: list[float] = []
        tags: list[Tag] = []
        stale = 0
        for m in sub.minima:
            hw_ns = m.mono_ns - m.offset_ns
            path = self._paths.get(m.path)
            if path is None:
                path = self._paths[m.path] = _Path(0, False, m.mono_ns, 0, block_start_ns=mono_ns)
            if m.frozen or hw_ns == path.last_hw_ns:
                stale += 1
                continue
            path.last_hw_ns = hw_ns
            path.last_mono_ns = m.mono_ns
            if m.scatter_ns >= 0.0:
                measured = m.scatter_ns * m.windows
                path.scatter_ns += (min(measured, 3.0 * path.scatter_ns) - path.scatter_ns) * 0.1
                spread.append(m.spread_ns)
            else:
                measured = 0.0
            levels[m.path] = m.offset_ns + round((mono_ns - m.mono_ns) * drift_mono_ppb * 1e-9) - ahead
            rate += m.windows / max(measured, path.scatter_ns, 1.0)
        if stale:
            self.counts.stale += stale
            if not levels:
                if not self.stale:
                    tags.append(Tag("stale", mono_ns, 0, "the same hardware stamp again and again"))
                self.stale = True
                return tags
        self.stale = False
        var = _FLOOR_NS**2 + 1.0 / (rate * rate)
        return tags + self._compare(mono_ns, local_ns, levels, var, median(spread) if spread else -1.0)

    def _compare(
        self, mono_ns: int, local_ns: int, levels: dict[int, int], var: float, spread: float
    ) -> list[Tag]:
        track = self.track
        if self.accepted_mono_ns is None or mono_ns - self.accepted_mono_ns > self.max_holdover_ns:
            self._start(mono_ns, local_ns, levels, var, spread)
            return []
        track.advance(local_ns)
        lowest = min(levels.values())
        extra_var = self.monoraw.uncertainty_ns(mono_ns) ** 2 + _UNSEEN_NS**2
        low_residual, spread_var = track.residual(lowest, var, extra_var)
        gate = GATE_SIGMAS * sqrt(spread_var)
        residuals, known = self._path_residuals(levels, lowest, low_residual, gate)
        residual = min(residuals[p] for p in known) if known else low_residual
        offset_ns = lowest - low_residual + residual
        if not known and -gate <= residual <= _CHANGE_MAX_NS:
            # Only paths that are new: how high they lie is not known yet, where the clock is can wait.
            self._learn_paths(mono_ns, levels, offset_ns - residual)
            return []
        by_path = {p: residuals[p] for p in known}
        held = _Held(mono_ns, local_ns, offset_ns, residual, var, extra_var, spread, by_path)
        if abs(residual) <= gate:
            tags = self._returned()
            self._accept(held)
            self._learn_paths(mono_ns, levels, offset_ns)
            return tags
        if not self._held:
            self._held_from = track.save()
        self._held.append(held)
        return self._judge(gate)

    def _start(self, mono_ns: int, local_ns: int, levels: dict[int, int], var: float, spread: float) -> None:
        lowest = min(levels.values())
        self.track.start(local_ns, lowest, var)
        self.accepted_mono_ns = self.started_mono_ns = mono_ns
        self._spread_ref = max(spread, 0.0)
        self._held.clear()
        self.steps += 1
        # Until their bases are learnt, the lowest path speaks for all.
        for path in self._paths.values():
            path.known = True

    def _path_residuals(
        self, levels: dict[int, int], lowest: int, low_residual: int, gate: float
    ) -> tuple[dict[int, int], list[int]]:
        """Return (residual of each path against its base, the paths whose base is known)."""
        residuals = {}
        known = []
        for key, level in levels.items():
            path = self._paths[key]
            height = level - lowest + low_residual
            residuals[key] = height - path.base_ns
            if path.known:
                known.append(key)
        # A path that got faster but not faster than physics allows says nothing about the clock, unless all did.
        if known and not all(residuals[k] < -gate for k in known):
            for key in known:
                path = self._paths[key]
                if residuals[key] < 0 < path.base_ns and abs(residuals[key]) > path.tolerance_ns() + gate / 2:
                    path.shift_base(max(residuals[key], -path.base_ns))
                    residuals[key] = levels[key] - lowest + low_residual - path.base_ns
        return residuals, known

    def _accept(self, h: _Held) -> None:
        self.track.accept(h.offset_ns, h.var, h.extra_var, _ABOVE, _BELOW)
        if self.accepted_mono_ns is not None:
            self.interval_ns += (h.mono_ns - self.accepted_mono_ns - self.interval_ns) / 16.0
        self.accepted_mono_ns = h.mono_ns
        self.counts.used += 1
        self._typical_var += (min(h.var, 9.0 * self._typical_var) - self._typical_var) * 0.05
        if h.spread_ns >= 0.0:
            limit = 3.0 * self._spread_ref + _TIGHT_SLACK_NS
            self._spread_ref += (min(h.spread_ns, limit) - self._spread_ref) * 0.05
        for key, residual in h.by_path.items():
            path = self._paths[key]
            apart = min(abs(residual - h.residual_ns), 3.0 * path.noise_ns + 1000.0)
            path.noise_ns += (apart - path.noise_ns) * 0.1

    def _learn_paths(self, mono_ns: int, levels: dict[int, int], offset_ns: int) -> None:
        """Learn each path's base against the lowest paths, those without one; in their absence bases stay."""
        lowest = {
            k: level for k, level in levels.items() if self._paths[k].known and not self._paths[k].base_ns
        }
        for key, level in levels.items():
            path = self._paths[key]
            others = [low for k, low in lowest.items() if k != key]
            if others:
                path.learn_base(mono_ns, level - min(others))
            elif not path.known:
                path.learn_base(mono_ns, level - offset_ns)
        if len(self._paths) > len(levels):
            gone = [k for k, p in self._paths.items() if mono_ns - p.last_mono_ns > _PATH_FORGET_NS]
            for key in gone:
                del self._paths[key]

    # Suspects.

    def _returned(self) -> list[Tag]:
        """Judge suspects after which a fitting sub-interval came: queueing, or stamps that cannot be."""
        tags = []
        young = self._held and self._held[0].mono_ns - self.started_mono_ns < _YOUNG_NS
        for h in () if young else self._held:
            if h.residual_ns < -_LEAST_STEP_NS or h.residual_ns > _NOT_QUEUEING_NS:
                kind, cause = name_bounce(-h.residual_ns, 4.0 * sqrt(h.var * self.track.noise.scale))
                tags.append(Tag(kind, h.mono_ns, -h.residual_ns, cause))
        self.counts.queued += len(self._held)
        self._held.clear()
        return tags[:1]

    def _judge(self, gate: float) -> list[Tag]:
        held = self._held
        if len(held) < _JUDGE_AFTER:
            return []
        if held[0].mono_ns - self.started_mono_ns < _YOUNG_NS:
            return self._start_anew()
        down = sum(h.residual_ns < 0 for h in held)
        sigma = sqrt(median(h.var for h in held) * self.track.noise.scale)
        tolerance = max(_TOLERANCE_SIGMAS * sigma, _TOLERANCE_FLOOR_NS)
        if held[-1].residual_ns < 0:
            return self._judge_down([h for h in held if h.residual_ns < 0], down, tolerance, gate)
        return self._judge_up(tolerance, gate)

    def _start_anew(self) -> list[Tag]:
        """Begin at the suspects: the lowest of them, so that a burst at the start is not kept as the envelope."""
        held, self._held = self._held, []
        lowest = min(held, key=lambda h: h.residual_ns)
        self.track.start(lowest.local_ns, lowest.offset_ns, lowest.var)
        self.started_mono_ns = self.accepted_mono_ns = lowest.mono_ns
        self.resets += 1
        self._feed([h for h in held if h.mono_ns > lowest.mono_ns])
        return []

    def _judge_down(self, held: list[_Held], down: int, tolerance: float, gate: float) -> list[Tag]:
        if down < _JUDGE_AFTER:
            return []
        residuals = [h.residual_ns for h in held]
        times = [self.track.seconds(h.local_ns) for h in held]
        low = min(residuals)
        shape, slope = shape_of(times, residuals, [2.0 * tolerance / GATE_SIGMAS] * len(held))
        near = [h for h in held if h.residual_ns - low <= 2.0 * tolerance]
        if shape == "ramp":
            return self._frequency_step(held, slope)
        if shape != "step" and (len(near) < 3 or near[-1].residual_ns > low + tolerance):
            if down < _DOWN_PATIENCE:
                return []
            near = [h for h in held if h.residual_ns - low <= max(2.0 * tolerance, gate)]
        return self._phase_step(near, self._all_alike(held, low, tolerance, upward=False))

    def _judge_up(self, tolerance: float, gate: float) -> list[Tag]:
        held = self._held
        recent = held[-_FLAT_OF:]
        if len(held) < _FLAT_OF or recent[-1].mono_ns - recent[0].mono_ns < _UP_SPAN_NS:
            return []
        low = min(h.residual_ns for h in recent)
        near = [h for h in recent if h.residual_ns - low <= 2.0 * tolerance]
        spread = [h.spread_ns for h in recent if h.spread_ns >= 0.0]
        tight = not spread or median(spread) <= _TIGHT_FACTOR * self._spread_ref + _TIGHT_SLACK_NS
        if len(near) >= _FLAT_NEEDED and tight and self._all_alike(recent, low, tolerance, upward=True):
            return self._phase_step(near, True)
        span = held[-1].mono_ns - held[0].mono_ns
        if tight and span >= _RAMP_SPAN_NS and self._on_a_line(tolerance):
            times = [self.track.seconds(h.local_ns) for h in held]
            residuals = [h.residual_ns for h in held]
            shape, slope = shape_of(times, residuals, [2.0 * tolerance / GATE_SIGMAS] * len(held))
            if shape == "ramp":
                return self._frequency_step(held, slope)
        if span >= _LIFT_PATIENCE_NS:
            return self._lifted(near)
        return []

    def _on_a_line(self, tolerance: float) -> bool:
        """Return whether the suspects grow along one line as closely as the envelope was flat."""
        first, last = self._held[0], self._held[-1]
        rate = (last.residual_ns - first.residual_ns) / (last.mono_ns - first.mono_ns)
        off = sum(
            abs(h.residual_ns - first.residual_ns - rate * (h.mono_ns - first.mono_ns)) > 3.0 * tolerance
            for h in self._held
        )
        return off <= len(self._held) // 10

    def _all_alike(self, held: list[_Held], low: int, tolerance: float, *, upward: bool) -> bool:
        """Return whether every path that was busy before and is precise enough to tell shifted by `low`."""
        onset = self._held[0].mono_ns
        lows: dict[int, int] = {}
        for h in held:
            for key, residual in h.by_path.items():
                lows[key] = min(residual, lows.get(key, residual))
        for key, residual in lows.items():
            path = self._paths[key]
            precise = path.tolerance_ns() + tolerance
            if precise > abs(low) / 2.0:
                continue
            if abs(residual - low) > precise + tolerance:
                return False
        if not upward or not lows:
            return bool(lows)
        # A path that was busy until the onset and fell silent cannot vouch; those still seen have to.
        return any(onset - self._paths[key].last_mono_ns < _PATH_ACTIVE_NS for key in lows)

    # Verdicts: each re-anchors and feeds the suspects that told it.

    def _phase_step(self, near: list[_Held], alike: bool) -> list[Tag]:
        onset = self._held[0].mono_ns
        size = round(median(h.residual_ns for h in near))
        tolerance = 4.0 * sqrt(near[0].var * self.track.noise.scale + near[0].extra_var)
        kind: TagKind
        change = self._change_before(onset)
        lift = self._lift
        by_path = None
        if abs(size) < _LEAST_STEP_NS:
            self.counts.small_shifts += 1
            self._reanchor(size, near)
            return []
        if lift is not None and size < 0 and -size <= lift.size_ns + tolerance:
            kind, cause, tag_size = "path_change", "the envelope came down again", size
            self._lift = None
        elif change and abs(size) <= _CHANGE_MAX_NS:
            kind, cause, tag_size = "path_change", change, size
        elif not alike and abs(size) <= _CHANGE_MAX_NS:
            kind, cause, tag_size = "path_change", "some paths moved, others did not", size
            by_path = size
        else:
            tag_size = -size
            self.steps += 1
            kind, cause = name_step(-size, tolerance, self.tai_utc_s)
            if not alike:
                cause += " (not on every path)"
        self._reanchor(size, near)
        self.resets += 1
        if by_path is not None:
            faster = {k for h in near for k, r in h.by_path.items() if r < 0}
            for key, path in self._paths.items():
                if key not in faster:
                    path.shift_base(-by_path)
        return [Tag(kind, onset, tag_size, cause)]

    def _frequency_step(self, held: list[_Held], slope_ppb: float) -> list[Tag]:
        onset = self._held[0]
        size = -held[-1].residual_ns
        assert self._held_from is not None
        self.resets += 1
        self.track.restore(self._held_from)
        self.track.advance(held[0].local_ns)
        self.track.release_drift(slope_ppb, held[0].residual_ns)
        self._feed(held)
        # Their lowest pairs were chosen, and moved to the middle, by the old rate.
        self.track.admit_drift(0.0, slope_ppb * SUB_INTERVAL_NS * 1e-9)
        cause = f"rate of the hardware clock changed by about {-slope_ppb:+.0f} ppb"
        return [Tag("freq_step", onset.mono_ns, size, cause)]

    def _lifted(self, near: list[_Held]) -> list[Tag]:
        onset = self._held[0].mono_ns
        size = round(median(h.residual_ns for h in near))
        self._reanchor(size, near)
        self.resets += 1
        self._lift = _Lift(onset, size)
        seconds = _LIFT_PATIENCE_NS // 1_000_000_000
        cause = f"envelope lifted for {seconds} s, without the shape of a clock step"
        return [Tag("path_change", onset, size, cause)]

    def _reanchor(self, size_ns: int, near: list[_Held]) -> None:
        assert self._held_from is not None
        self.track.restore(self._held_from)
        self.track.advance(near[0].local_ns)
        self.track.step(size_ns)
        self._feed(near)

    def _feed(self, held: list[_Held]) -> None:
        for h in held:
            self.track.advance(h.local_ns)
            self._accept(h)
        self._held.clear()

    def _change_before(self, onset_ns: int) -> str:
        for mono_ns, cause in reversed(self._changes):
            if -SUB_INTERVAL_NS <= onset_ns - mono_ns <= _CHANGE_SPAN_NS:
                return cause
        return ""
