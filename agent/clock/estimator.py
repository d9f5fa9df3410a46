"""Two-sided samples (PHC reads, recordings) to offset, drift and verdicts, one sample at a time.

Live and replayed samples take this same way. A sample may come without a stamp, with an old one, or with one
that does not fit; its verdict is final at the latest three samples later.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import sqrt
from typing import Literal, NamedTuple

from agent.clock.forecast import Forecast, Mixture
from agent.clock.gate import Gate
from agent.clock.growth import Lasting, growth_in
from agent.clock.jumps import (
    CUSUM_CLIP,
    CUSUM_LIMIT,
    CUSUM_SPAN,
    GATE_SIGMAS,
    LOOK_AHEAD,
    Shape,
    TagKind,
    growth_of,
    matches_wrap,
    name_bounce,
    name_step,
    onset_of,
    shape_of,
    weighted_mean,
)
from agent.clock.readdelay import ReadDelay, ReadNoise
from agent.clock.silence import Silences
from agent.clock.track import P99_SIGMAS, Suspect, Track, TrackState

State = Literal["init", "tracking", "relative", "holdover", "software", "invalid"]

# Stamps below this (1975) come from a clock that nobody has set: it counts from 1970 or from its power-on.
EPOCH_UNSET_BELOW_NS = 5 * 365 * 86_400 * 1_000_000_000
# Without a read delay: a hardware stamp against a good local stamp.
_DEFAULT_NOISE_NS = 30.0
# Huber's limit for two-sided noise, in sqrt(S).
_HUBER = 2.5
# A sample this many sqrt(S) off tells by the next one whether this clock moves or its stamps are bad.
_FAR_SIGMAS = 3.0
# Fewer samples than this, or a drift known worse than this, and the clock is still being found.
_INIT_SAMPLES = 4
_INIT_DRIFT_SIGMA_PPB = 20_000.0
# Silence of this length, or of this many usual intervals, is holdover.
_HOLDOVER_AFTER_NS = 1_000_000_000
_HOLDOVER_INTERVALS = 4.0
# Residuals that lean to one side over about so many samples by so many sigmas: what a filter in step with its clock
# shows once in years.
_LEAN_SPAN = 10
_LEAN_LIMIT = 5.5
# When they do, the drift changed within so many samples.
_LEAN_WINDOW = 24
# Where so many normalised residuals don't add up to so much, nothing grows.
_HINT_SPAN = 4
_HINT_OF = range(1, _HINT_SPAN + 1)
_HINT = 4.0
# Whether a changed drift lasts is looked at after so many times the span that it took to show, and so many samples.
_PATIENCE = 4
_PATIENCE_SAMPLES = 16.0
# So many samples in a row that fit nothing: the clock is elsewhere, or its noise is another.
_LOST_AFTER = 128
# So many of them are remembered, in case the next ones agree with them.
_LEFT_OUT = 16
# A read whose own delay adds no more than this many times the common variance is quiet.
_QUIET_PARTS = 16.0
_SOFTWARE_AFTER = 3
MAX_HOLDOVER_NS = 1_800_000_000_000


class Sample(NamedTuple):
    """One comparison of the local clock with the hardware clock.

    `hw_ns` is None when there was no stamp (0 means the same). `seq` and `hw_seq`, if both are given, say which
    packet the sample is of and which the stamp was taken for. `var` overrides the variance from the delay.
    """

    local_ns: int
    hw_ns: int | None
    read_delay_ns: int | None = None
    seq: int | None = None
    hw_seq: int | None = None
    var: float | None = None


# Not frozen: one is made of every sample, and a frozen one takes four times as long.
@dataclass(slots=True)
class Verdict:
    """What became of sample `index`: its tag, if any, and the weight that it had in the estimate (0..1).

    `size_ns` as in `Tag`. `estimate` is (offset in ns, sigma in ns) right after a sample that counted, else None.
    """

    index: int
    local_ns: int
    kind: TagKind | None
    size_ns: int
    cause: str
    weight: float
    estimate: tuple[int, float] | None = None


class _Accepted(NamedTuple):
    """A sample in the estimate whose verdict may still change: it could be the first after a small step."""

    sample: Suspect
    normalised: float
    before: TrackState
    verdict: Verdict
    wide: float


class Estimator:
    """Offset and drift of a hardware clock against an unsteered local clock, with verdicts.

    With `local_is_realtime` the time scale of the hardware clock is told too. `steps` counts re-anchorings of
    the offset, `resets` those of the drift; `accepted` samples are in the estimate.
    """

    def __init__(
        self, *, tai_utc_s: int = 0, local_is_realtime: bool = False, mixture: Mixture | None = None
    ) -> None:
        self.track = Track(mixture)
        self.tai_utc_s = tai_utc_s
        self._local_is_realtime = local_is_realtime
        self._reads = ReadDelay()
        self._silences = Silences()
        self._gate = Gate()
        self._held: list[Suspect] = []
        self._held_from: TrackState | None = None
        self._left_out: deque[Suspect] = deque(maxlen=_LEFT_OUT)
        self._recent: list[_Accepted] = []
        self._far: tuple[int, int] | None = None
        self._lean = 0.0
        self._lasting = Lasting()
        self._past: deque[_Accepted] = deque(maxlen=_LEAN_WINDOW)
        self._rejected = 0
        self._last_hw_ns: int | None = None
        self._interval_ns = 0.0
        self._last_local_ns = 0
        self._missing_in_a_row = 0
        self.accepted_ns: int | None = None
        self.sample_noise_ns = float("inf")
        self.count = 0
        self.accepted = 0
        self.steps = 0
        self.resets = 0
        self.epoch_unset = False
        self.timescale: Literal["tai", "utc", "unset", "unknown"] = "unknown"

    def update(self, sample: Sample) -> list[Verdict]:
        """Take one sample, local times increasing; return the verdicts that have become final.

        A verdict is returned once per sample, in any order, at most three samples late.
        """
        index = self.count
        self.count += 1
        if self._last_local_ns and sample.local_ns > self._last_local_ns:
            span = float(sample.local_ns - self._last_local_ns)
            self._interval_ns += (span - self._interval_ns) / min(self.count - 1, 16)
        self._last_local_ns = sample.local_ns
        return self._look_at(index, sample) + self._judge_overdue(index)

    def flush(self) -> list[Verdict]:
        """Return the verdicts of what is still held: there will be no more samples."""
        out = self._settle()
        while self._held:
            out += self._judge()
        return out

    def state(self, local_ns: int) -> State:
        """Return the state at `local_ns`."""
        if self.accepted_ns is None:
            return "software" if self._missing_in_a_row >= _SOFTWARE_AFTER else "init"
        silence = local_ns - self.accepted_ns
        if silence > MAX_HOLDOVER_NS:
            return "invalid"
        if silence > max(_HOLDOVER_AFTER_NS, _HOLDOVER_INTERVALS * self._interval_ns):
            return "holdover"
        if self.accepted < _INIT_SAMPLES or sqrt(self.drift()[1]) > _INIT_DRIFT_SIGMA_PPB:
            return "init"
        return "tracking"

    def drift(self) -> tuple[float, float]:
        """Return (drift in ppb, local against hardware, its variance) at the last sample."""
        return self.track.drift()

    def offset_at(self, local_ns: int) -> tuple[int, float]:
        """Return (offset in ns, sigma in ns) predicted for `local_ns`, not before the last sample."""
        return self.track.offset_at(local_ns)

    def forecast(self, local_ns: int) -> Forecast | None:
        """Return what is expected after `local_ns`, not before the last sample; None before the first one.

        While suspects are held, they may be a step: the forecast starts from there if that is the likelier, and its
        p99 has room for both.
        """
        if self.accepted_ns is None:
            return None
        forecast = self.track.forecast(local_ns)
        return forecast.moved(self._likely_step_ns(), self.suspected_ns) if self._held else forecast

    def _likely_step_ns(self) -> int:
        """Return by how much the clock has probably stepped at the first suspect, 0 if they are probably bad."""
        held = self._held
        last = held[-1].residual_ns
        if not self._gate.believes_steps or (len(held) == 1 and matches_wrap(last, 0.0)):
            return 0
        return last

    def _sigmas(self, samples: list[Suspect]) -> list[float]:
        """Return the noise of each sample in ns, by what is known now."""
        scale = self.track.noise.scale
        return [sqrt(s.nominal_var * scale + s.extra_var) for s in samples]

    @property
    def last_ns(self) -> int:
        """The local time of the last sample, whatever became of it; 0 before the first one."""
        return self._last_local_ns

    @property
    def suspected_ns(self) -> int:
        """How far off the estimate is if what is held now turns out to be the clock."""
        return max((abs(s.residual_ns) for s in self._held), default=0)

    @property
    def read_delay_floor_ns(self) -> int:
        """The fastest read of late."""
        return self._reads.fastest_ns

    def bound_ns(self, sigma_ns: float, state: State) -> float:
        """Return the bound for an estimate of this sigma in this state: half the fastest read may be asymmetry."""
        return self.bound_sigmas(state) * sigma_ns + self.read_delay_floor_ns / 2.0

    def bound_sigmas(self, state: State) -> float:
        """Return how many sigmas a bound has: p99, and in holdover 99.9 % by how earlier ones ended."""
        return self._silences.sigmas if state == "holdover" else P99_SIGMAS

    def _look_at(self, index: int, sample: Sample) -> list[Verdict]:
        hw_ns = sample.hw_ns
        if not hw_ns:
            self._missing_in_a_row += 1
            return [Verdict(index, sample.local_ns, "missing", 0, "no hardware stamp", 0.0)]
        self._missing_in_a_row = 0
        stale = self._staleness(sample, hw_ns)
        self._last_hw_ns = hw_ns
        if stale:
            return [Verdict(index, sample.local_ns, "stale", 0, stale, 0.0)]
        self.epoch_unset = hw_ns < EPOCH_UNSET_BELOW_NS
        self._learn_timescale(sample.local_ns, hw_ns)
        return self._take(index, sample, hw_ns)

    def _staleness(self, sample: Sample, hw_ns: int) -> str:
        if sample.seq is not None and sample.hw_seq is not None and sample.seq != sample.hw_seq:
            return f"the stamp belongs to packet {sample.hw_seq}, not to {sample.seq}"
        if hw_ns == self._last_hw_ns:
            return "the same hardware stamp again"
        return ""

    def _learn_timescale(self, local_ns: int, hw_ns: int) -> None:
        if self.epoch_unset:
            self.timescale = "unset"
        elif self._local_is_realtime:
            self.timescale = timescale_of(hw_ns - local_ns, self.tai_utc_s)

    def _noise_of(self, sample: Sample) -> ReadNoise:
        delay = sample.read_delay_ns
        if delay is None:
            return ReadNoise(0.0, _DEFAULT_NOISE_NS**2 if sample.var is None else sample.var, 0.0, 0.0)
        noise = self._reads.noise(delay)
        return noise if sample.var is None else ReadNoise(0.0, sample.var, 0.0, 0.0)

    def _take(self, index: int, sample: Sample, hw_ns: int) -> list[Verdict]:
        noise = self._noise_of(sample)
        nominal, extra = noise.nominal_var, noise.extra_var
        offset_ns = sample.local_ns - hw_ns - round(noise.bias_ns)
        track = self.track
        self.sample_noise_ns = sqrt(nominal * track.noise.scale + extra)
        if self.accepted_ns is None or sample.local_ns - self.accepted_ns > MAX_HOLDOVER_NS:
            track.start(sample.local_ns, offset_ns, nominal + extra)
            self.steps += 1
            self.accepted_ns, self.accepted = sample.local_ns, 1
            self._recent.clear()
            self._start_over()
            return [self._verdict(index, sample.local_ns, 1.0)]
        was_silent = self.state(sample.local_ns) == "holdover"
        before = track.save()
        track.advance(sample.local_ns)
        residual, spread_var = track.residual(offset_ns, nominal, extra)
        spread = sqrt(spread_var)
        delay = sample.read_delay_ns or 0
        suspect = Suspect(index, sample.local_ns, offset_ns, residual, spread, nominal, extra, delay)
        if abs(residual) > self._gate.sigmas(track.noise.triples) * spread or self._stands_with_held(suspect):
            if not self._held:
                self._held_from = before
            self._held.append(suspect)
            return self._settle() + self._judge_early()
        out = self._returned()
        if was_silent:
            self._silences.ended(residual, spread_var, self.sample_noise_ns**2)
        self._look_back(residual)
        self._reads.learn(noise.half_excess_ns, residual + noise.bias_ns, spread_var - extra)
        verdict = self._verdict(index, sample.local_ns, self._accept(suspect))
        wide = self._gate.wide
        self._gate.saw(abs(residual) / spread)
        if abs(residual) > _FAR_SIGMAS * spread and verdict.estimate is not None:
            self._far = residual, verdict.estimate[0] - (offset_ns - residual)
        normalised = residual / (spread * self._gate.wide)
        accepted = _Accepted(suspect, normalised, before, verdict, wide)
        self._past.append(accepted)
        if self._lasting.is_due(sample.local_ns):
            lasted = self._lasting.outcome(sample.local_ns, track.unsteered(sample.local_ns)[0])
            self._gate.outlasted(lasted=lasted)
        if self._leans(normalised) or self._grows():
            out += self._settle()
            self._follow_drift()
            return [*out, verdict]
        self._recent.append(accepted)
        if len(self._recent) < CUSUM_SPAN:
            return out
        if self._small_step():
            return out + self._judge_small()
        return [*out, self._recent.pop(0).verdict]

    def _stands_with_held(self, s: Suspect) -> bool:
        """Return whether a sample within the gate is closer to the suspects before it than to the prediction."""
        if not self._held:
            return False
        sizes = [h.residual_ns for h in self._held]
        return abs(s.residual_ns - sum(sizes) // len(sizes)) < abs(s.residual_ns)

    def _look_back(self, residual: int) -> None:
        """Learn whether the last sample, if it stood far off, stood where this one does."""
        if self._far is not None:
            size, correction = self._far
            self._far = None
            self._gate.looked_back(stayed=(residual + correction) * size > size * size // 2)

    def _accept(self, s: Suspect) -> float:
        self.accepted_ns = s.local_ns
        self.accepted += 1
        if self._gate.believes_moves and abs(s.residual_ns) > _HUBER * s.spread_ns:
            self.track.admit(abs(s.residual_ns))
        return self.track.accept(s.offset_ns, s.nominal_var, s.extra_var, _HUBER, _HUBER)

    def _settle(self) -> list[Verdict]:
        """Return the verdicts that were kept in case of a small step: none has shown."""
        out = [a.verdict for a in self._recent]
        self._recent.clear()
        return out

    def _verdict(self, index: int, local_ns: int, weight: float) -> Verdict:
        estimate = self.track.offset_at(local_ns)
        if self.epoch_unset:
            cause = "the hardware clock counts from 1970: drift is usable, offset is not"
            return Verdict(index, local_ns, "epoch_unset", 0, cause, weight, estimate)
        return Verdict(index, local_ns, None, 0, "", weight, estimate)

    def _returned(self) -> list[Verdict]:
        """Judge held samples after which a fitting one came: they were bounces."""
        out = []
        tell = self._gate.tells_bounces
        alone = len(self._held) == 1 and not self._rejected
        for s in self._held:
            half_delay = s.read_delay_ns / 2.0
            tolerance = max(4.0 * sqrt(s.nominal_var * self.track.noise.scale), half_delay)
            kind, cause = name_bounce(-s.residual_ns, tolerance)
            if (tell and abs(s.residual_ns) > half_delay) or kind == "wrap":
                out.append(Verdict(s.index, s.local_ns, kind, -s.residual_ns, cause, 0.0))
            else:
                out.append(self._outlier(s, 0.0))
            if alone:
                self._gate.saw(abs(s.residual_ns) / s.spread_ns)
            else:
                self._gate.saw_bad(abs(s.residual_ns))
        if self._held or self._rejected:
            self._gate.judged(stayed=False)
        self._held.clear()
        self._rejected = 0
        self._left_out.clear()
        return out

    def _judge_overdue(self, index: int) -> list[Verdict]:
        """Keep the promise of three samples also when the ones between had no stamp."""
        out = []
        while self._recent and index - self._recent[0].sample.index >= LOOK_AHEAD:
            out.append(self._recent.pop(0).verdict)
        while self._held and index - self._held[0].index >= LOOK_AHEAD:
            out += self._judge()
        return out

    def _judge(self) -> list[Verdict]:
        """Judge held samples that did not return, the first of which is due: a jump, or the first is an outlier."""
        held, held_from = self._held, self._held_from
        strict = self._gate.bad_stamps_usual
        if held_from is None or len(held) < (3 if strict else 2):
            return self._noise()
        track = self.track
        times = [track.seconds(s.local_ns) for s in held]
        sigmas = self._sigmas(held)
        slack = 3.0 * sqrt(track.drift()[1]) * (times[-1] - times[0])
        residuals = [s.residual_ns for s in held]
        shape, slope = shape_of(times, residuals, sigmas, slack_ns=slack, strict=strict)
        if shape == "erratic" or (len(held) <= 2 and shape != "step"):
            return self._noise()
        if strict and self._gate.expects_returns and not self._agree(held, shape, slack):
            return self._noise()
        self._held = []
        self._gate.judged(stayed=True)
        self._rejected = 0
        self._left_out.clear()
        grown = self._growth(held) if shape == "step" and self._believes_growth() else []
        self._start_over()
        if grown:
            return grown
        onset = held[0]
        track.restore(held_from)
        track.advance(onset.local_ns)
        if shape == "ramp":
            return self._change_frequency([], held, slope, onset.residual_ns)
        size = -onset.residual_ns
        if shape == "step":
            size -= round(weighted_mean([float(r - residuals[0]) for r in residuals], sigmas))
        half_delay = min(s.read_delay_ns for s in held) / 2.0
        kind, cause = name_step(size, max(4.0 * min(sigmas), half_delay), self.tai_utc_s)
        track.step(-size)
        if self._lasting.stepped():
            self._gate.outlasted(lasted=False)
        self.steps += 1
        if shape == "step_and_ramp":
            track.release_drift(slope, 0.0)
        return self._replay(held, None if abs(size) <= half_delay - min(sigmas) else kind, size, cause)

    def _agree(self, held: list[Suspect], shape: Shape, slack_ns: float) -> bool:
        """Return whether as many suspects make that shape as bad stamps, where they are usual, don't by chance.

        Those that were left out just before count too.
        """
        sigmas = self._sigmas(held)
        count = self._gate.needed_alike(GATE_SIGMAS * max(sigmas) + slack_ns, 1 if shape == "step" else 2)
        if count <= len(held):
            return True
        samples = [*self._left_out, *held][-count:]
        if len(samples) < count:
            return False
        times = [self.track.seconds(s.local_ns) for s in samples]
        found, _ = shape_of(
            times, [s.residual_ns for s in samples], self._sigmas(samples), slack_ns=slack_ns, strict=True
        )
        return found == "step" or (shape != "step" and found != "erratic")

    def _judge_early(self) -> list[Verdict]:
        """Judge three suspects before they are due if they grow from nothing: each sample of waiting is far off."""
        held = self._held
        if len(held) < LOOK_AHEAD or self._gate.bad_stamps_usual or not self._believes_growth():
            return []
        out = self._growth(held)
        if out:
            self._held = []
            self._gate.judged(stayed=True)
            self._rejected = 0
            self._left_out.clear()
            self._start_over()
        return out

    def _growth(self, held: list[Suspect]) -> list[Verdict]:
        """Return the verdicts on what stands off if it has grown, unsuspected, before it was held; none if it stepped.

        Then the track goes back to where the growth began.
        """
        past, held_from = list(self._past), self._held_from
        if not past or held_from is None or not self._quiet(held):
            return []
        track = self.track
        here = track.save()
        led, times, sizes = self._residuals_of(past, held)
        samples = led + held
        growth = growth_of(times, sizes, self._sigmas(samples), track.time_s, len(led))
        if growth is None:
            track.restore(here)
            return []
        rate, onset = growth
        first = sum(t <= onset for t in times[: len(led)])
        if first < len(led):
            self._gate.wide = past[first].wide
        track.restore(past[first].before if first < len(led) else held_from)
        track.advance(samples[first].local_ns)
        return self._change_frequency(led[first:], held, rate, round(rate * (times[first] - onset)))

    def _change_frequency(
        self, led: list[Suspect], held: list[Suspect], rate_ppb: float, residual_ns: int
    ) -> list[Verdict]:
        """Take a frequency step; `led` were in the estimate before, as if nothing was."""
        self.resets += 1
        cause = f"rate of the hardware clock changed by about {-rate_ppb:+.0f} ppb"
        onset_ns = [*led, *held][0].local_ns
        _, drift_ppb = self.track.unsteered(onset_ns)
        self.track.release_drift(rate_ppb, residual_ns)
        self._replay(led, None, 0, "")
        out = self._replay(held, "freq_step", -held[-1].residual_ns, cause)
        self._watch(onset_ns, drift_ppb, rate_ppb)
        return out

    def _noise(self) -> list[Verdict]:
        """Judge the first of the suspects, which neither returned nor begins a jump.

        It is left out, as queueing that no read delay shows, and those after it may yet agree. But where the clock is
        known to go such ways and not to return, or nothing has fitted for long, all are followed.
        """
        self._rejected += 1
        self._gate.saw_bad(abs(self._held[0].residual_ns))
        follows = self._gate.believes_moves and not self._gate.expects_returns
        if self._held_from is None or (not follows and self._rejected < _LOST_AFTER):
            first = self._held.pop(0)
            self._left_out.append(first)
            return [self._outlier(first, 0.0)]
        held, self._held = self._held, []
        self._rejected = 0
        self._left_out.clear()
        self._start_over()
        track = self.track
        track.restore(self._held_from)
        track.advance(held[0].local_ns)
        track.admit(max(abs(s.residual_ns) for s in held))
        out = []
        for s in held:
            track.advance(s.local_ns)
            out.append(self._outlier(s, self._accept(s)))
        return out

    def _replay(self, held: list[Suspect], kind: TagKind | None, size: int, cause: str) -> list[Verdict]:
        """Feed judged samples to the re-anchored track; the first carries the tag."""
        out = []
        for s in held:
            self.track.advance(s.local_ns)
            weight = self._accept(s)
            if s is held[0] and kind is not None:
                estimate = self.track.offset_at(s.local_ns)
                out.append(Verdict(s.index, s.local_ns, kind, size, cause, weight, estimate))
            else:
                out.append(self._verdict(s.index, s.local_ns, weight))
        return out

    def _small_step(self) -> bool:
        if self.accepted < 4 * CUSUM_SPAN:
            return False
        total = sum(max(-CUSUM_CLIP, min(CUSUM_CLIP, a.normalised)) for a in self._recent)
        return abs(total) >= CUSUM_LIMIT

    def _judge_small(self) -> list[Verdict]:
        """Judge four accepted samples that all stood to one side: go back and take them as a step.

        Unless they grow from nothing: then it is the drift that moves. A step that the reads' delay could hide is
        nobody's: the offset follows it without a word.
        """
        believed = self._believes_growth()
        if believed and len(self._past) >= 2 * CUSUM_SPAN and self._quiet([a.sample for a in self._recent]):
            samples, times, sizes = self._residuals_of(list(self._past), [])
            first = len(samples) - CUSUM_SPAN
            since = self.track.time_s
            if growth_of(times, sizes, self._sigmas(samples), since, first) is not None:
                out = self._settle()
                self._follow_drift()
                return out
        track = self.track
        recent, self._recent = self._recent, []
        samples = [a.sample for a in recent]
        track.restore(recent[0].before)
        since = track.time_s
        # Residuals of later ones were taken after the earlier had pulled: measure all from before the first.
        sizes = []
        for s in samples:
            theta, _ = track.offset_at(s.local_ns)
            sizes.append(s.offset_ns - theta)
        times = [track.seconds(s.local_ns) for s in samples]
        track.advance(samples[0].local_ns)
        self._start_over()
        size = -round(sum(sizes) / len(sizes))
        grown = growth_of(times, sizes, self._sigmas(samples), since) is not None
        if grown and believed:
            track.release_drift(sizes[-1] / (times[-1] - since), sizes[0])
            return self._replay(samples, None, 0, "")
        noise = max(s.nominal_var for s in samples) * track.noise.scale
        kind, cause = name_step(size, 4.0 * sqrt(noise), self.tai_utc_s)
        track.step(-size)
        if self._lasting.stepped():
            self._gate.outlasted(lasted=False)
        self.steps += 1
        hidden = abs(size) <= min(s.read_delay_ns for s in samples) / 2.0
        return self._replay(samples, None if hidden else kind, size, cause)

    def _leans(self, normalised: float) -> bool:
        """Notice residuals that lean to one side for longer than four samples: the drift has changed a little."""
        keep = 1.0 - 1.0 / _LEAN_SPAN
        self._lean = keep * self._lean + max(-CUSUM_CLIP, min(CUSUM_CLIP, normalised))
        leans = abs(self._lean) >= _LEAN_LIMIT / sqrt(1.0 - keep * keep)
        return leans and len(self._past) == _LEAN_WINDOW

    def _grows(self) -> bool:
        """Notice residuals that grow from nothing, where such growth lasts: the drift has changed by more."""
        past = self._past
        if len(past) <= _HINT_SPAN or abs(sum(past[-i].normalised for i in _HINT_OF)) < _HINT:
            return False
        # What grows has widened the gate already.
        limit = self._gate.sigmas(self.track.noise.triples) / self._gate.wide * past[0].wide
        growth = growth_in([a.sample for a in past], limit)
        if growth is None:
            return False
        rate_ppb, onset_ns = growth
        self._watch(onset_ns, self.track.unsteered(past[-1].sample.local_ns)[1], rate_ppb)
        return self._believes_growth()

    def _believes_growth(self) -> bool:
        """Return whether what grows is taken for the drift: not where somebody brings the offset back."""
        return self._gate.believes_growth and self.track.is_free

    def _watch(self, onset_ns: int, drift_ppb: float, rate_ppb: float) -> None:
        """Look again later whether the drift has changed for good."""
        now_ns = self._last_local_ns
        wait_ns = max(_PATIENCE * (now_ns - onset_ns), round(_PATIENCE_SAMPLES * self._interval_ns))
        offset_ns, _ = self.track.unsteered(now_ns)
        self._lasting.watch(now_ns, wait_ns, offset_ns, drift_ppb, rate_ppb)

    def _follow_drift(self) -> None:
        """Go back to where the drift probably changed, and learn it anew from there."""
        past = list(self._past)
        self._start_over()
        track = self.track
        samples, times, sizes = self._residuals_of(past, [])
        _, rate, onset = onset_of(times, sizes, self._sigmas(samples), [track.time_s, *times[:-1]])
        first = sum(t <= onset for t in times)
        # What stood off since then was no noise.
        self._gate.wide = past[first].wide
        track.restore(past[first].before)
        track.advance(samples[first].local_ns)
        track.release_drift(rate, round(rate * (times[first] - onset)))
        self._replay(samples[first:], None, 0, "")

    def _quiet(self, samples: list[Suspect]) -> bool:
        """Return whether no read waited: what waited by itself may look like any line."""
        scale = self.track.noise.scale
        return all(s.extra_var <= _QUIET_PARTS * s.nominal_var * scale for s in samples)

    def _residuals_of(
        self, past: list[_Accepted], held: list[Suspect]
    ) -> tuple[list[Suspect], list[float], list[int]]:
        """Return the past samples; times in s, and ns off a forecast from before the first, of them and those held.

        The track is left there.
        """
        track = self.track
        track.restore(past[0].before)
        led = [a.sample for a in past]
        sizes = [s.offset_ns - track.offset_at(s.local_ns)[0] for s in led + held]
        return led, [track.seconds(s.local_ns) for s in led + held], sizes

    def _start_over(self) -> None:
        """Forget the samples that small changes are found in: what they were predicted from is no more."""
        self._past.clear()
        self._lean = 0.0

    def _outlier(self, s: Suspect, weight: float) -> Verdict:
        cause = "fits neither a jump nor the noise"
        estimate = self.track.offset_at(s.local_ns) if weight else None
        return Verdict(s.index, s.local_ns, "outlier", -s.residual_ns, cause, weight, estimate)


def timescale_of(ahead_ns: int, tai_utc_s: int) -> Literal["tai", "utc", "unknown"]:
    """Return the scale of a clock that is `ahead_ns` of CLOCK_REALTIME (UTC).

    TAI has been 35 to 37 s ahead since 2012; `tai_utc_s` adds the kernel's own figure, if it has one.
    """
    near = 500_000_000
    if abs(ahead_ns) <= near:
        return "utc"
    known = {35, 36, 37, tai_utc_s} - {0}
    return "tai" if any(abs(ahead_ns - s * 1_000_000_000) <= near for s in known) else "unknown"
