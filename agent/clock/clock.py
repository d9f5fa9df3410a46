"""One hardware clock, live: what was observed in, a report with bound, tags and the kernel's model out."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from agent.clock.anchor import against_raw, anchor_of
from agent.clock.envelope import Envelope
from agent.clock.estimator import (
    EPOCH_UNSET_BELOW_NS,
    MAX_HOLDOVER_NS,
    Estimator,
    Sample,
    State,
    Verdict,
    timescale_of,
)
from agent.clock.jumps import Tag
from agent.clock.model import ClockModel, next_model
from agent.clock.monoraw import MonoRaw
from agent.clock.silence import Silences
from agent.clock.track import P99_SIGMAS, Prediction, Track
from agent.clock.windows import Windows

if TYPE_CHECKING:
    from agent.ffi.clocks import ClockPairs, Steering
    from agent.ffi.phc import PhcBurst

# What a path adds at the least, where nobody said: veth and fast NICs stay below, coalescing may not.
ASSUMED_BASE_DELAY_NS = 20_000
# The kernel stops using a model this long after the last tick.
MODEL_VALIDITY_NS = 2_000_000_000
_MODEL_SLEW_S = 0.5
# The model of an envelope lies this many sigmas of its noise below it, so that delays below 0 are rare.
_BELOW_ENVELOPE_SIGMAS = 2.0
_HOLDOVER_AFTER_NS = 1_000_000_000
_HOLDOVER_INTERVALS = 4.0
_SOFTWARE_AFTER_NS = 1_000_000_000
_INIT_SPAN_NS = 200_000_000
_INIT_DRIFT_SIGMA_PPB = 20_000.0
# What envelope and anchors see within this of each other is one jump.
_SAME_JUMP_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ClockReport:
    """One clock at `mono_ns`.

    `offset_ns` is mono - hw; with state "relative" it is the envelope's, so the hardware clock is ahead of it by
    the unknown base delay, which `bound_ns` (p99; in holdover 99.9 %) includes. Drifts are d(local - hw)/dt.
    `kernel_drift_ppb` is the median of the ladder's figures with the longest baseline among this tick's records.
    `reason` says why the state is holdover, software or invalid.
    """

    key: int
    state: State
    mono_ns: int
    offset_ns: int
    sigma_ns: float
    bound_ns: float
    drift_mono_ppb: float
    drift_raw_ppb: float
    drift_sigma_ppb: float
    drift_bound_ppb: float
    tags: tuple[Tag, ...]
    model: ClockModel | None
    predictions: tuple[Prediction, ...]
    samples: int
    timescale: str
    reason: str
    kernel_drift_ppb: float | None
    kernel_drift_baseline_ns: int


class Clock:
    """Offset and drift of one hardware clock, from PHC reads, packet windows, or both.

    A "phc" clock is anchored by reads of /dev/ptp and falls back to its envelope while there are none; a
    "trailer" clock has its envelope only. `base_delay_ns` is the least delay of its path, if the user knows.
    """

    def __init__(self, key: int, kind: Literal["phc", "trailer"], base_delay_ns: int | None = None) -> None:
        self.key = key
        self.kind = kind
        self.base_delay_ns = base_delay_ns
        self._monoraw = MonoRaw()
        self._anchors = Estimator()
        self._windows = Windows()
        self._envelope = Envelope(self._windows, self._monoraw, MAX_HOLDOVER_NS)
        self._model: ClockModel | None = None
        self._steps = self._resets = 0
        self._tags: list[Tag] = []
        self._episodes: set[str] = set()
        self._anchored = False
        self._anchor_mono_ns = 0
        self._anchor_jumps: deque[int] = deque(maxlen=8)
        self._undecided: list[Tag] = []

    @property
    def base_delay_limit_ns(self) -> int:
        """The most that the least delay of its path is taken to be."""
        return ASSUMED_BASE_DELAY_NS if self.base_delay_ns is None else self.base_delay_ns

    # Observations.

    def observe_windows(self, windows: npt.NDArray[np.void], pairs: ClockPairs) -> None:
        """Take closed windows (`WINDOW_DTYPE[n]`) of this clock; they are kept until the tick."""
        if len(windows) == 0:
            return
        if not self._monoraw.mono_ns:
            self._monoraw.observe(pairs, None)
        self._windows.add(windows)

    def observe_anchor(self, burst: PhcBurst, pairs: ClockPairs) -> None:
        """Take one burst of PHC reads; one against realtime needs `pairs` from before and from after it."""
        if not self._monoraw.mono_ns:
            self._monoraw.observe(pairs, None)
        drift = self._anchors.drift()[0] if self._anchored else 0.0
        if burst.local_clock == "realtime":
            drift = _against_mono(drift, self._monoraw.rate_ppb)
        anchor = anchor_of(burst, drift)
        if anchor is None:
            self._once("missing", self._monoraw.mono_ns, "the PHC answered no read")
            return
        if anchor.local_clock == "realtime":
            anchor = against_raw(anchor, pairs)
            if anchor is None:
                cause = "CLOCK_REALTIME was set while the PHC was read against it"
                self._tags.append(Tag("outlier", pairs.best_moment.mono_ns, 0, cause))
                return
        raw_ns = anchor.local_ns
        mono_ns = raw_ns + self._monoraw.mono_ns - self._monoraw.raw_ns
        if not anchor.consistent:
            cause = "reads of one burst contradict each other: the PHC or the local clock was stepped"
            self._tags.append(Tag("outlier", mono_ns, 0, cause))
            return
        self._episodes.discard("missing")
        self._anchored = True
        self._anchor_mono_ns = mono_ns
        sample = Sample(raw_ns, raw_ns - anchor.offset_ns, anchor.read_delay_ns, var=anchor.var)
        self._collect(self._anchors.update(sample))

    def observe_samples(self, samples: list[Sample]) -> list[Verdict]:
        """Take two-sided samples whose local clock is raw, as a replay does; return the final verdicts."""
        self._anchored = True
        out: list[Verdict] = []
        for sample in samples:
            out += self._anchors.update(sample)
        return out

    def path_changed(self, mono_ns: int, cause: str) -> None:
        """Tell that a setting on the packets' way was changed: the envelope may shift, the clock does not."""
        self._envelope.path_changed(mono_ns, cause)

    def steer_phc(self, change_ppb: float, pairs: ClockPairs) -> None:
        """Tell that the PHC's own dialled frequency was changed by `change_ppb` between the last tick and `pairs`."""
        now_ns = int(pairs.raw_ns[0])
        for track in (self._anchors.track, self._envelope.track):
            track.steer(-change_ppb, self._monoraw.raw_ns or now_ns, now_ns)

    # The tick.

    def tick(self, pairs: ClockPairs, steering: Steering) -> ClockReport:
        """Bring everything up to now; `pairs` are read after the windows were drained."""
        self._monoraw.observe(pairs, steering)
        mono_ns, raw_ns = self._monoraw.mono_ns, self._monoraw.raw_ns
        best = pairs.best_moment
        realtime_ns = best.realtime_ns
        tai_utc_s = round((best.tai_ns - realtime_ns) * 1e-9)
        self._anchors.tai_utc_s = self._envelope.tai_utc_s = tai_utc_s
        slew = self._monoraw.rate_ppb
        envelope = self._envelope
        drift = envelope.track.drift()[0] if envelope.accepted_mono_ns is not None else 0.0
        found = envelope.process(mono_ns, _against_mono(drift, slew))
        by_anchors = self._anchors.state(raw_ns) if self._anchored else None
        self._collect_envelope(found, by_anchors == "tracking")

        state, reason, anchored = self._state(mono_ns, by_anchors)
        if anchored:
            self._watch_stamps(mono_ns)
        kernel = self._windows.ladder_drift()
        usable = self._anchored if anchored else envelope.accepted_mono_ns is not None
        if not usable:
            return self._empty_report(state, reason, mono_ns, kernel)
        track = self._anchors.track if anchored else envelope.track
        drift_raw, drift_var = track.drift()
        offset_raw, sigma = track.offset_at(raw_ns)
        offset_ns = offset_raw + self._monoraw.ahead_ns(mono_ns)
        drift_mono = _against_mono(drift_raw, slew)
        drift_sigma = sqrt(drift_var)
        hw_ns = mono_ns - offset_ns
        if hw_ns < EPOCH_UNSET_BELOW_NS:
            self._once(
                "epoch_unset", mono_ns, "the hardware clock counts from 1970: drift is usable, offset is not"
            )
            timescale = "unset"
        else:
            self._episodes.discard("epoch_unset")
            timescale = timescale_of(hw_ns - realtime_ns, tai_utc_s)
        unknown = self._unknown_ns(anchored)
        # Silences are learnt from by the anchors; the envelope's are as unsure as any first one.
        sigmas = self._anchors.bound_sigmas(state) if anchored else _envelope_sigmas(state)
        model = None
        if state != "invalid":
            model = self._next_model(mono_ns, hw_ns, drift_mono, 0.0 if anchored else self._below_ns())
        self._model = model
        tags, self._tags = tuple(self._tags), []
        return ClockReport(
            self.key,
            state,
            mono_ns,
            offset_ns,
            sigma,
            sigmas * sigma + unknown,
            drift_mono,
            drift_raw,
            drift_sigma,
            P99_SIGMAS * drift_sigma,
            tags,
            model,
            self._predict(track, raw_ns, mono_ns, unknown),
            self._anchors.accepted if anchored else envelope.used,
            timescale,
            reason,
            *kernel,
        )

    def _state(self, mono_ns: int, by_anchors: State | None) -> tuple[State, str, bool]:
        """Return (state, its reason, whether the anchors, if there are any, give the estimate and not the envelope)."""
        if by_anchors is not None:
            if by_anchors in ("tracking", "init"):
                return by_anchors, "", True
            relative, why = self._envelope_state(mono_ns)
            if relative == "relative":
                return relative, "no PHC reads: following the packets' envelope", False
            return by_anchors, f"no usable PHC read; {why}" if why else "no usable PHC read", True
        return (*self._envelope_state(mono_ns), False)

    def _envelope_state(self, mono_ns: int) -> tuple[State, str]:
        envelope = self._envelope
        if envelope.accepted_mono_ns is None:
            first_ns = self._windows.first_packet_ns
            if first_ns is not None and mono_ns - first_ns > _SOFTWARE_AFTER_NS:
                cause = "packets carry no hardware stamp"
                self._once("missing", mono_ns, cause)
                return "software", cause
            return "init", ""
        silence = mono_ns - envelope.accepted_mono_ns
        if silence > MAX_HOLDOVER_NS:
            return "invalid", f"no usable stamp for {silence // 1_000_000_000} s"
        if silence > max(_HOLDOVER_AFTER_NS, _HOLDOVER_INTERVALS * envelope.interval_ns):
            return "holdover", self._silence_reason(mono_ns)
        self._episodes.discard("missing")
        young = envelope.accepted_mono_ns - envelope.started_mono_ns < _INIT_SPAN_NS
        if young or sqrt(envelope.track.drift()[1]) > _INIT_DRIFT_SIGMA_PPB:
            return "init", ""
        return "relative", ""

    def _watch_stamps(self, mono_ns: int) -> None:
        """Tag that packets come without their stamps, however well the PHC itself is read."""
        seen = self._windows.native
        last_ns = seen.stamped_ns or seen.first_open_ns
        if seen.unstamped_ns - last_ns <= _SOFTWARE_AFTER_NS:
            self._episodes.discard("unstamped")
        elif "unstamped" not in self._episodes:
            self._episodes.add("unstamped")
            since = " any more" if seen.stamped_ns else ""
            self._tags.append(Tag("missing", mono_ns, 0, f"packets carry no hardware stamp{since}"))

    def _silence_reason(self, mono_ns: int) -> str:
        if self._envelope.stale:
            return "hardware stamps repeat"
        if mono_ns - self._windows.native.stamped_ns <= _HOLDOVER_AFTER_NS:
            return "every packet is queued above the envelope"
        if self._windows.native.missing:
            self._once("missing", mono_ns, "packets carry no hardware stamp any more")
            return "packets carry no hardware stamp any more"
        return "no packets"

    def _empty_report(
        self, state: State, reason: str, mono_ns: int, kernel: tuple[float | None, int]
    ) -> ClockReport:
        tags, self._tags = tuple(self._tags), []
        unbounded = float("inf")
        return ClockReport(
            self.key, state, mono_ns, 0, unbounded, unbounded, 0.0, 0.0, unbounded, unbounded, tags, None, (), 0,
            "unknown", reason, *kernel,
        )  # fmt: skip

    def _unknown_ns(self, anchored: bool) -> float:
        """Return what no averaging tells: read asymmetry, or the path's base delay and the least queueing.

        Anchors are against raw, so that mono's own read adds its asymmetry; the envelope is against mono.
        While a jump is suspected but not yet judged, it may be one.
        """
        if anchored:
            reads = self._anchors.read_delay_floor_ns / 2.0 + self._monoraw.asymmetry_ns
            return reads + self._anchors.suspected_ns
        return self.base_delay_limit_ns + sqrt(self._envelope.noise_var) + self._envelope.suspected_ns

    def _predict(self, track: Track, raw_ns: int, mono_ns: int, unknown: float) -> tuple[Prediction, ...]:
        relation = self._monoraw
        ahead_ns, slew_ppb, sigma_ppb = relation.ahead_ns(mono_ns), relation.rate_ppb, relation.rate_sigma_ppb
        return track.predict(raw_ns, ahead_ns, slew_ppb, sigma_ppb, unknown)

    def _below_ns(self) -> float:
        """Return how far below the envelope the kernel's model lies."""
        return _BELOW_ENVELOPE_SIGMAS * sqrt(self._envelope.noise_var)

    def _next_model(self, mono_ns: int, hw_ns: int, drift_mono_ppb: float, below_ns: float) -> ClockModel:
        steps = self._anchors.steps + self._envelope.steps
        resets = self._anchors.resets + self._envelope.resets
        step = steps != self._steps or self._model is None
        new_epoch = self._model is not None and (step or resets != self._resets)
        self._steps, self._resets = steps, resets
        return next_model(
            self._model,
            mono_ns,
            hw_ns + round(below_ns),
            drift_mono_ppb,
            step=step,
            new_epoch=new_epoch,
            slew_s=_MODEL_SLEW_S,
            validity_ns=MODEL_VALIDITY_NS,
        )

    # Tags.

    def _once(self, kind: Literal["missing", "epoch_unset", "stale"], mono_ns: int, cause: str) -> None:
        """Tag the start of an episode, not every packet of it."""
        if kind not in self._episodes:
            self._episodes.add(kind)
            self._tags.append(Tag(kind, mono_ns, 0, cause))

    def _collect(self, verdicts: list[Verdict]) -> None:
        for v in verdicts:
            mono_ns = v.local_ns + self._monoraw.mono_ns - self._monoraw.raw_ns
            if v.kind in ("missing", "epoch_unset", "stale"):
                self._once(v.kind, mono_ns, v.cause)
                continue
            self._episodes.discard("stale")
            if v.kind not in (None, "outlier"):
                self._anchor_jumps.append(mono_ns)
            if v.kind is not None:
                self._tags.append(Tag(v.kind, mono_ns, v.size_ns, v.cause))

    def _collect_envelope(self, tags: list[Tag], anchors_track: bool) -> None:
        """Take the envelope's tags; what the anchors did not see was the path, not the clock.

        The anchors come less often: their verdict is waited for.
        """
        self._undecided += tags
        if not anchors_track:
            self._tags += self._undecided
            self._undecided = []
            return
        if self._anchors.suspected_ns:
            return
        waiting = []
        for tag in self._undecided:
            if any(abs(at - tag.mono_ns) < _SAME_JUMP_NS for at in self._anchor_jumps):
                continue
            if self._anchor_mono_ns <= tag.mono_ns:
                waiting.append(tag)
            elif tag.kind in ("phase_step", "path_change"):
                size = tag.size_ns if tag.kind == "path_change" else -tag.size_ns
                cause = "the envelope moved, the PHC did not"
                self._tags.append(Tag("path_change", tag.mono_ns, size, cause))
            elif tag.kind in ("stale", "wrap") and "stale" not in self._episodes:
                cause = f"{tag.cause}: of the packets' stamps, the PHC itself reads well"
                self._tags.append(Tag(tag.kind, tag.mono_ns, tag.size_ns, cause))
        self._undecided = waiting


def _envelope_sigmas(state: State) -> float:
    return Silences().sigmas if state == "holdover" else P99_SIGMAS


def _against_mono(drift_raw_ppb: float, slew_ppb: float) -> float:
    """Return d(mono - hw)/dmono from d(raw - hw)/draw and d(mono - raw)/draw, all in ppb."""
    return (drift_raw_ppb + slew_ppb) / (1.0 + slew_ppb * 1e-9)
