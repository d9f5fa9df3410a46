"""The envelope of one clock's windows to offset and drift, followed from below.

Queueing only ever adds to local - hardware, so per sub-interval the smallest pair counts. Each path (CPU,
queue) has its own base above the lowest path: one path moving is not a clock stepping. A lasting shift is a step
of the clock only if all paths that were busy shifted alike; upwards, where queueing can do the same, also
only if the envelope stays as flat and the windows as tight as before.

Sub-intervals that fit are the core's (`agent/ffi/clockenvelope.c`); here is what those mean that do not.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import sqrt
from statistics import median

from agent.clock.jumps import GATE_SIGMAS, Tag, TagKind, name_bounce, name_step, shape_of
from agent.clock.monoraw import MonoRaw
from agent.clock.track import Track, TrackState
from agent.clock.windows import SUB_INTERVAL_NS, Windows, rough_drift_ppb
from agent.ffi import _native

_ffi, _lib = _native.ffi, _native.lib

# A window reaches us about its own length after it opened; sub-intervals wait this long for their windows.
_WINDOW_LAG_NS = 4_000_000
# A shift below this is nobody's step: the offset follows it without a word.
_LEAST_STEP_NS = 1_000

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
_CHANGE_MAX_NS: int = _lib.AGENT_CHANGE_MAX_NS
_CHANGE_SPAN_NS = 1_000_000_000
_PATH_ACTIVE_NS = 500_000_000


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
    """What became of the sub-intervals and windows that are not in the estimate."""

    queued: int = 0
    late_windows: int = 0
    small_shifts: int = 0


@dataclass(slots=True)
class _Lift:
    """An envelope that was re-anchored upwards as a path change: its return is one too."""

    mono_ns: int
    size_ns: int


class Envelope:
    """The lower envelope of mono - hw of one clock, as offset raw - hw and drift against raw.

    `resets` counts re-anchorings that are no step of the clock (a path moved, the rate changed).
    """

    def __init__(self, windows: Windows, monoraw: MonoRaw, max_holdover_ns: int) -> None:
        self.track = Track()
        self.counts = Counts()
        self.tai_utc_s = 0
        self.resets = 0
        self._windows = windows
        self._monoraw = monoraw
        native = _lib.agent_envelope_new(
            self.track.native, monoraw.native, windows.native, GATE_SIGMAS, max_holdover_ns
        )
        if native == _ffi.NULL:
            raise MemoryError("no memory for the envelope of a clock")
        self._native = _ffi.gc(native, _lib.agent_envelope_free)
        self._done_mono_ns = 0
        self._held: list[_Held] = []
        self._held_from: TrackState | None = None
        self._changes: deque[tuple[int, str]] = deque(maxlen=16)
        self._lift: _Lift | None = None

    @property
    def accepted_mono_ns(self) -> int | None:
        """The time of the last sub-interval in the estimate."""
        return self._native.accepted_mono_ns if self._native.accepted else None

    @property
    def started_mono_ns(self) -> int:
        """The time of the first one since the start, or since a start anew."""
        started_ns: int = self._native.started_mono_ns
        return started_ns

    @property
    def interval_ns(self) -> float:
        """How far apart they usually are."""
        interval_ns: float = self._native.interval_ns
        return interval_ns

    @property
    def used(self) -> int:
        """How many are in the estimate."""
        used: int = self._native.used
        return used

    @property
    def steps(self) -> int:
        """How often the clock stepped, its start included."""
        steps: int = self._native.steps
        return steps

    @property
    def stale(self) -> bool:
        """Whether hardware stamps repeat."""
        return bool(self._native.stale)

    def path_changed(self, mono_ns: int, cause: str) -> None:
        """Remember that a setting was changed: a small shift soon after is the path's, not the clock's."""
        self._changes.append((mono_ns, cause))

    def process(self, now_mono_ns: int, drift_mono_ppb: float) -> list[Tag]:
        """Work through the sub-intervals that are complete at `now_mono_ns`; return what was found."""
        pending = self._windows.native
        if not pending.n_pending:
            return []
        ready_until = (now_mono_ns - _WINDOW_LAG_NS) // SUB_INTERVAL_NS * SUB_INTERVAL_NS
        if not self._native.accepted:
            # The first sub-intervals need a drift to be collapsed with: a little of everything, then all at once.
            if ready_until - _lib.agent_windows_earliest(pending) < _WARM_UP_NS:
                return []
            self._windows.collapse(0, now_mono_ns, 0.0)
            drift_mono_ppb = rough_drift_ppb(self._windows.minima())
        self._windows.collapse(self._done_mono_ns, ready_until, drift_mono_ppb)
        # What is late is lost: the other paths of that sub-interval have been taken already; they told enough.
        self.counts.late_windows += _lib.agent_windows_forget(pending, self._done_mono_ns, ready_until)
        self._done_mono_ns = max(self._done_mono_ns, ready_until)
        return self._work_through(drift_mono_ppb)

    def _work_through(self, drift_mono_ppb: float) -> list[Tag]:
        """Let the core take the sub-intervals, and decide on those that it stops at."""
        native = self._native
        native.next = 0
        tags: list[Tag] = []
        while True:
            found = _lib.agent_envelope_next(native, drift_mono_ppb, bool(self._held))
            if found == _lib.AGENT_ENVELOPE_DONE:
                return tags
            if found == _lib.AGENT_ENVELOPE_STARTED:
                self._held.clear()
            elif found == _lib.AGENT_ENVELOPE_STALE:
                cause = "the same hardware stamp again and again"
                tags.append(Tag("stale", native.now.mono_ns, 0, cause))
            elif found == _lib.AGENT_ENVELOPE_RETURNED:
                tags += self._returned()
                _lib.agent_envelope_settle(native)
            elif found == _lib.AGENT_ENVELOPE_SUSPECT:
                tags += self._suspect()
            else:
                raise MemoryError("no memory for the envelope of a clock")

    @property
    def suspected_ns(self) -> int:
        """How far off the estimate is if what is held now turns out to be the clock."""
        return max((abs(h.residual_ns) for h in self._held), default=0)

    @property
    def noise_var(self) -> float:
        """Variance of a typical sub-interval's minimum, ns^2."""
        noise_var: float = _lib.agent_envelope_noise_var(self._native)
        return noise_var

    def _tolerance_ns(self, key: int) -> float:
        """Return what a path's residuals differ from the lowest path's without meaning anything."""
        path = _lib.agent_envelope_path(self._native, key)
        return 0.0 if path == _ffi.NULL else _lib.agent_path_tolerance(path)

    def _was_active(self, key: int, mono_ns: int) -> bool:
        """Return whether a path is known that was seen shortly before `mono_ns`, or later."""
        path = _lib.agent_envelope_path(self._native, key)
        return bool(path != _ffi.NULL and mono_ns - path.last_mono_ns < _PATH_ACTIVE_NS)

    # Suspects.

    def _suspect(self) -> list[Tag]:
        """Hold the sub-interval that the core stopped at, and judge those that are held."""
        if not self._held:
            self._held_from = self.track.save()
        native = self._native
        s, heights = native.now, native.heights[0 : native.n_heights]
        by_path = {h.path: h.residual_ns for h in heights if h.known}
        self._held.append(
            _Held(s.mono_ns, s.local_ns, s.offset_ns, s.residual_ns, s.var, s.extra_var, s.spread_ns, by_path)
        )
        return self._judge(s.gate_ns)

    def _accept(self, h: _Held) -> None:
        sub_interval = _ffi.new("struct agent_sub_interval *")
        sub_interval.mono_ns, sub_interval.offset_ns = h.mono_ns, h.offset_ns
        sub_interval.residual_ns, sub_interval.spread_ns = h.residual_ns, h.spread_ns
        sub_interval.var, sub_interval.extra_var = h.var, h.extra_var
        heights = _ffi.new("struct agent_height[]", len(h.by_path))
        for height, (path, residual_ns) in zip(heights, h.by_path.items(), strict=True):
            height.path, height.known, height.residual_ns = path, True, residual_ns
        _lib.agent_envelope_accept(self._native, sub_interval, heights, len(heights))

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
        self._native.started_mono_ns = self._native.accepted_mono_ns = lowest.mono_ns
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
        tight = not spread or median(spread) <= _TIGHT_FACTOR * self._native.spread_ref_ns + _TIGHT_SLACK_NS
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
            precise = self._tolerance_ns(key) + tolerance
            if precise > abs(low) / 2.0:
                continue
            if abs(residual - low) > precise + tolerance:
                return False
        if not upward or not lows:
            return bool(lows)
        # A path that was busy until the onset and fell silent cannot vouch; those still seen have to.
        return any(self._was_active(key, onset) for key in lows)

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
            self._native.steps += 1
            kind, cause = name_step(-size, tolerance, self.tai_utc_s)
            if not alike:
                cause += " (not on every path)"
        self._reanchor(size, near)
        self.resets += 1
        if by_path is not None:
            faster = {k for h in near for k, r in h.by_path.items() if r < 0}
            for path in self._native.paths[0 : self._native.n_paths]:
                if path.key not in faster:
                    _lib.agent_path_shift_base(_ffi.addressof(path), -by_path)
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
