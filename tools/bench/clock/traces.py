"""Traces of known truth: what a clock read, what it was at any time, and what happened to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from agent.clock.estimator import Sample
from tools.bench.clock.oscillator import Floats, Oscillator

Integers = NDArray[np.int64]
EventKind = Literal["phase_step", "freq_step", "load", "ramp"]

LOCAL_START_NS = 10_000_000_000_000
"""CLOCK_MONOTONIC_RAW at the first instant of a trace: some hours after boot."""
HW_START_NS = 1_700_000_000_000_000_000
"""PHC (TAI) at the first instant of a trace."""
THERMAL_S = 200.0
"""How long a board takes to 63 % of a new temperature under a step of load."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to the clock at `time_s` and that no estimator could have known before.

    `size` is in ns for a phase_step of the offset, in ppb for a freq_step, in ppb/s for the rate at which a
    `load` (decaying, THERMAL_S) or a `ramp` (lasting) sets the frequency off.
    """

    time_s: float
    kind: EventKind
    size: float

    def offset_ns(self, time_s: Floats) -> Floats:
        """What it adds to the offset at each of `time_s`."""
        since = np.maximum(time_s - self.time_s, 0.0)
        if self.kind == "phase_step":
            return np.where(time_s >= self.time_s, self.size, 0.0)
        if self.kind == "freq_step":
            return self.size * since
        if self.kind == "ramp":
            return self.size * since**2 / 2
        return self.size * THERMAL_S * (since + THERMAL_S * np.expm1(-since / THERMAL_S))

    def drift_ppb(self, time_s: Floats) -> Floats:
        """What it adds to the drift at each of `time_s`."""
        since = np.maximum(time_s - self.time_s, 0.0)
        if self.kind == "phase_step":
            return np.zeros_like(time_s)
        if self.kind == "freq_step":
            return np.where(time_s >= self.time_s, self.size, 0.0)
        if self.kind == "ramp":
            return self.size * since
        return -self.size * THERMAL_S * np.expm1(-since / THERMAL_S)


@dataclass(frozen=True, slots=True)
class Steering:
    """Known inputs: at each of `time_s` the drift was changed by `change_ppb`, on purpose."""

    time_s: Floats
    change_ppb: Floats

    def offset_ns(self, time_s: Floats) -> Floats:
        """What it has added to the offset by each of `time_s`."""
        edges = np.concatenate(([0.0], self.time_s))
        rates = np.concatenate(([0.0], np.cumsum(self.change_ppb)))
        phase = np.concatenate(([0.0], np.cumsum(rates[:-1] * np.diff(edges))))
        index = np.searchsorted(edges, time_s, side="right") - 1
        result: Floats = phase[index] + rates[index] * (time_s - edges[index])
        return result

    def drift_ppb(self, time_s: Floats) -> Floats:
        """What is dialled in at each of `time_s` (a change at that very time included)."""
        rates = np.concatenate(([0.0], np.cumsum(self.change_ppb)))
        result: Floats = rates[np.searchsorted(self.time_s, time_s, side="right")]
        return result


NOT_STEERED = Steering(np.empty(0), np.empty(0))


@dataclass(frozen=True, slots=True)
class Trace:
    """Samples and their truth. Times are seconds from the first instant; offset = local - PHC.

    `hw_ns` is 0 where there was no stamp, `read_delay_ns` 0 where it isn't known. `variance_ns2` is the true
    variance of each sample's error, given its read delay and whether it was queued. `truth` is the offset beyond
    `base_ns`, in ns, of the oscillators alone; `offset_ns` adds events and steering.
    """

    name: str
    oscillator: Oscillator
    time_s: Floats
    local_ns: Integers
    hw_ns: Integers
    read_delay_ns: Integers
    variance_ns2: Floats
    truth: Callable[[Floats], Floats]
    truth_drift: Callable[[Floats], Floats]
    duration_s: float
    events: tuple[Event, ...] = ()
    steering: Steering = NOT_STEERED
    base_ns: int = LOCAL_START_NS - HW_START_NS

    def __len__(self) -> int:
        return len(self.local_ns)

    @property
    def oscillator_class(self) -> str:
        """The class that coverage is pooled over."""
        return self.oscillator.name

    @property
    def jump_times_s(self) -> Floats:
        """When phase or frequency stepped."""
        kinds = ("phase_step", "freq_step")
        return np.array([event.time_s for event in self.events if event.kind in kinds])

    @property
    def stationary(self) -> bool:
        """Whether nothing ever jumped: every jump tag on it is false."""
        return len(self.jump_times_s) == 0

    def measured_ns(self) -> Floats:
        """Measured offset beyond `base_ns`; NaN where there was no stamp."""
        offsets = (self.local_ns - self.hw_ns - self.base_ns).astype(np.float64)
        return np.where(self.hw_ns == 0, np.nan, offsets)

    def offset_ns(self, time_s: Floats) -> Floats:
        """True offset beyond `base_ns` at each of `time_s`."""
        total = self.truth(time_s) + self.steering.offset_ns(time_s)
        for event in self.events:
            total = total + event.offset_ns(time_s)
        return total

    def drift_ppb(self, time_s: Floats) -> Floats:
        """True drift at each of `time_s`, steering included, without white FM."""
        total = self.truth_drift(time_s) + self.steering.drift_ppb(time_s)
        for event in self.events:
            total = total + event.drift_ppb(time_s)
        return total

    def target_ns(self, horizon_s: float) -> Floats:
        """What a prediction made at each sample, `horizon_s` ahead, is compared with (beyond `base_ns`).

        Steering that is dialled in later is an input that nobody could know: the truth goes on with what was dialled
        in before the sample was read; what a servo makes of that very sample is later. NaN where the horizon ends
        after the trace, and where a jump lies within it.
        """
        then = self.time_s + horizon_s
        steered = np.cumsum(self.steering_per_sample())
        later = self.steering.offset_ns(then) - self.steering.offset_ns(self.time_s) - steered * horizon_s
        target = self.offset_ns(then) - later
        jumps = self.jump_times_s
        crossed = np.searchsorted(jumps, then, side="right") > np.searchsorted(
            jumps, self.time_s, side="right"
        )
        result: Floats = np.where((then > self.duration_s) | crossed, np.nan, target)
        return result

    def samples(self) -> list[Sample]:
        """The samples as the clock takes them."""
        columns = zip(self.local_ns.tolist(), self.hw_ns.tolist(), self.read_delay_ns.tolist(), strict=True)
        return [Sample(local, hw or None, delay or None) for local, hw, delay in columns]

    def steering_per_sample(self) -> Floats:
        """Change of drift (ppb) dialled in after the sample before and not after this one, for each sample."""
        changes = np.zeros(len(self))
        index = np.searchsorted(self.time_s, self.steering.time_s, side="left")
        inside = index < len(self)
        # A change at the very time of a sample acts after it was read: the next sample is the first to show it.
        at_sample = np.zeros(len(index), dtype=bool)
        at_sample[inside] = self.time_s[index[inside]] == self.steering.time_s[inside]
        index = index + at_sample
        inside = index < len(self)
        np.add.at(changes, index[inside], self.steering.change_ppb[inside])
        return changes
