"""From a recipe and a seed to a trace: the same numbers every time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import CubicHermiteSpline

from tools.bench.clock.baselines.pi import PiServo
from tools.bench.clock.oscillator import Floats, Oscillator, phase_and_frequency
from tools.bench.clock.traces import LOCAL_START_NS, NOT_STEERED, Event, Steering, Trace

_GRID_S = 1.0
"""Step of the truth between samples that are further apart than this, or irregular."""
_LONGEST_HORIZON_S = 60.0


@dataclass(frozen=True, slots=True)
class Bursts:
    """Queueing that comes in bursts of exponential length; reads in a burst wait, exponentially.

    `side` says where in the read the wait falls: "any" (uniform over both sides of the stamp), "after" the stamp
    only, or "unseen": before t1 was taken, so that no read delay shows it.
    """

    side: Literal["any", "after", "unseen"]
    mean_on_s: float = 2.0
    mean_off_s: float = 4.0
    mean_wait_ns: float = 20_000.0


@dataclass(frozen=True, slots=True)
class Reading:
    """How the clock is read: noise and delay of an undisturbed read, and what load does to it.

    `loaded_s` are spans (start, end) in which `bursts` happen; None: always.
    """

    noise_ns: float = 15.0
    delay_ns: float = 1_500.0
    jitter_ns: float = 60.0
    bursts: Bursts | None = None
    loaded_s: tuple[tuple[float, float], ...] | None = None


@dataclass(frozen=True, slots=True)
class Servo:
    """A PI servo with linuxptp's defaults that steers what is read, from its own noisy view of the offset."""

    rate_hz: float
    noise_ns: float = 20.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that a trace is drawn from. `missing` is the share of samples without a stamp."""

    name: str
    oscillator: Oscillator
    rate_hz: float
    duration_s: float
    reading: Reading = Reading()
    events: tuple[Event, ...] = ()
    irregular: bool = False
    gaps_s: tuple[tuple[float, float], ...] = ()
    missing: float = 0.0
    servo: Servo | None = None
    drift_ppb: float = 12_000.0


def draw(recipe: Recipe, seed: int) -> Trace:
    """The trace of `recipe`; another seed gives other noise, not other events."""
    random = np.random.default_rng(seed)
    clock, times, reads = (np.random.default_rng(child) for child in random.spawn(3))
    step_s = min(1 / recipe.rate_hz, _GRID_S)
    grid = np.arange(round((recipe.duration_s + _LONGEST_HORIZON_S) / step_s) + 2) * step_s
    phase, frequency = phase_and_frequency(recipe.oscillator, len(grid), step_s, clock)
    aging = recipe.oscillator.aging_ppb_per_s
    spline = CubicHermiteSpline(
        grid,
        phase + recipe.drift_ppb * grid + aging * grid**2 / 2,
        frequency + recipe.drift_ppb + aging * grid,
    )
    time_s, local_ns = _instants(recipe, times)
    error_ns, delay_ns, variance = _read(recipe.reading, time_s, reads)
    trace = Trace(
        recipe.name, recipe.oscillator, time_s, local_ns, np.zeros(len(local_ns), dtype=np.int64), delay_ns,
        variance, spline, spline.derivative(), recipe.duration_s, recipe.events,
    )  # fmt: skip
    steering = _steer(trace, recipe.servo, clock) if recipe.servo else NOT_STEERED
    # The steering of a sample's own time acts after the read, and has added nothing to its offset yet.
    offset_ns = trace.offset_ns(time_s) + steering.offset_ns(time_s) + error_ns
    hw_ns = local_ns - trace.base_ns - np.rint(offset_ns).astype(np.int64)
    if recipe.missing:
        hw_ns[times.random(len(hw_ns)) < recipe.missing] = 0
    return Trace(
        trace.name, trace.oscillator, time_s, local_ns, hw_ns, delay_ns, variance, trace.truth,
        trace.truth_drift, trace.duration_s, trace.events, steering,
    )  # fmt: skip


def _instants(recipe: Recipe, random: np.random.Generator) -> tuple[Floats, NDArray[np.int64]]:
    """When samples are taken: (seconds, local clock in ns), whole ns, without those that fall into gaps."""
    if recipe.irregular:
        # Between a fifth and nine fifths of the mean interval: a timer that fires late under load.
        spans = random.uniform(0.2, 1.8, round(recipe.duration_s * recipe.rate_hz)) / recipe.rate_hz
        seconds = np.cumsum(spans)
        seconds = seconds[seconds < recipe.duration_s]
    else:
        seconds = np.arange(round(recipe.duration_s * recipe.rate_hz)) / recipe.rate_hz
    kept = np.ones(len(seconds), dtype=bool)
    for start, end in recipe.gaps_s:
        kept &= (seconds < start) | (seconds >= end)
    since_ns = np.rint(seconds[kept] * 1e9).astype(np.int64)
    return since_ns / 1e9, since_ns + LOCAL_START_NS


def _read(
    reading: Reading, time_s: Floats, random: np.random.Generator
) -> tuple[Floats, NDArray[np.int64], Floats]:
    """Error of each read (ns), its read delay (ns), and the error's true variance given the delay (ns^2)."""
    count = len(time_s)
    jitter = random.exponential(reading.jitter_ns, count)
    error = random.normal(0.0, reading.noise_ns, count) + (random.random(count) - 0.5) * jitter
    variance = reading.noise_ns**2 + jitter**2 / 12
    delay = reading.delay_ns + jitter
    if reading.bursts is not None:
        wait = _waits(reading.bursts, reading.loaded_s, time_s, random)
        if reading.bursts.side == "any":
            error += (random.random(count) - 0.5) * wait
            variance = reading.noise_ns**2 + (jitter**2 + wait**2) / 12
            delay += wait
        elif reading.bursts.side == "after":
            error += wait / 2
            variance += (wait / 2) ** 2
            delay += wait
        else:
            error += wait
            variance += wait**2
    return error, np.rint(delay).astype(np.int64), variance


def _waits(
    bursts: Bursts,
    loaded_s: tuple[tuple[float, float], ...] | None,
    time_s: Floats,
    random: np.random.Generator,
) -> Floats:
    """How long each read waited, 0 outside bursts and outside load."""
    end = float(time_s[-1]) + 1.0
    cycles = round(2 * end / (bursts.mean_on_s + bursts.mean_off_s)) + 16
    lengths = np.column_stack(
        (random.exponential(bursts.mean_off_s, cycles), random.exponential(bursts.mean_on_s, cycles))
    )
    on = np.searchsorted(np.cumsum(lengths.ravel()), time_s, side="right") % 2 == 1
    if loaded_s is not None:
        loaded = np.zeros(len(time_s), dtype=bool)
        for start, stop in loaded_s:
            loaded |= (time_s >= start) & (time_s < stop)
        on &= loaded
    return np.where(on, random.exponential(bursts.mean_wait_ns, len(time_s)), 0.0)


def _steer(trace: Trace, servo: Servo, random: np.random.Generator) -> Steering:
    """What the servo does to the drift: it starts from the offset's own line, so that it only has to hold it."""
    interval_s = 1 / servo.rate_hz
    # Whole ns, as the samples' times: a servo that acts on a sample acts at its very time.
    times = np.rint(np.arange(1, int(trace.duration_s * servo.rate_hz)) * interval_s * 1e9) / 1e9
    free = trace.offset_ns(times)
    noise = random.normal(0.0, servo.noise_ns, len(times))
    control = PiServo(interval_s)
    changes = np.zeros(len(times))
    steered_ns, rate_ppb = float(free[0]), 0.0
    previous_s = times[0]
    for index, time_s in enumerate(times.tolist()):
        steered_ns += rate_ppb * (time_s - previous_s)
        previous_s = time_s
        new_ppb = control.sample(float(free[index]) - steered_ns + float(noise[index]), time_s)
        changes[index] = -(new_ppb - rate_ppb)
        rate_ppb = new_ppb
    return Steering(times, changes)
