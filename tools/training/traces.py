"""Synthetic clocks to train on: other seeds than the benchmark's, and whatever it fixes drawn from ranges around it."""

from __future__ import annotations

import numpy as np

from tools.bench.clock.oscillator import Oscillator
from tools.bench.clock.recipe import Bursts, Reading, Recipe, draw
from tools.bench.clock.traces import Event, EventKind, Trace

TRAINING_SEEDS = range(7_000, 7_056)
VALIDATION_SEEDS = range(8_000, 8_020)
SAMPLES = 5_000
_RATES_HZ = (0.5, 1.0, 2.0, 5.0, 8.0, 12.0, 20.0)
_LEAD_S = 65.0
"""No event before this, nor so close to the end that its horizons don't end inside."""


def trace(seed: int) -> Trace:
    """The clock of a seed. Those of odd seeds jump."""
    random = np.random.default_rng(seed)
    rate_hz = float(random.choice(_RATES_HZ))
    duration_s = SAMPLES / rate_hz
    oscillator = _oscillator(random)
    events = _drifting(oscillator, duration_s, random)
    if seed % 2:
        events += _jumps(duration_s, random)
    recipe = Recipe(
        f"training-{seed}",
        oscillator,
        rate_hz,
        duration_s,
        _reading(random),
        tuple(sorted(events, key=lambda event: event.time_s)),
        irregular=bool(random.random() < 0.25),
        gaps_s=_gaps(duration_s, random) if random.random() < 0.25 else (),
        missing=float(random.choice([0.0, 0.01, 0.05])),
        drift_ppb=float(random.uniform(-50_000, 50_000)),
    )
    return draw(recipe, seed)


def _log_uniform(random: np.random.Generator, low: float, high: float) -> float:
    return float(10 ** random.uniform(np.log10(low), np.log10(high)))


def _oscillator(random: np.random.Generator) -> Oscillator:
    """From better than an OCXO to worse than a TCXO, each noise by itself."""
    return Oscillator(
        "drawn",
        _log_uniform(random, 1e-26, 1e-20),
        _log_uniform(random, 1e-23, 5e-20),
        _log_uniform(random, 1e-22, 5e-20),
        float(random.uniform(-5, 5)),
        _log_uniform(random, 0.1, 50.0),
    )


def _reading(random: np.random.Generator) -> Reading:
    bursts = None
    if random.random() < 0.6:
        bursts = Bursts(
            ("any", "after", "unseen")[random.integers(3)],
            _log_uniform(random, 0.5, 20),
            _log_uniform(random, 2, 60),
            _log_uniform(random, 500, 100_000),
        )
    return Reading(
        _log_uniform(random, 4, 100), _log_uniform(random, 500, 5_000), _log_uniform(random, 20, 300), bursts
    )


def _times(duration_s: float, mean_s: float, random: np.random.Generator) -> list[float]:
    spans = random.exponential(mean_s, 1 + int(2 * duration_s / mean_s))
    times = _LEAD_S + np.cumsum(spans)
    return [float(t) for t in times[times < duration_s - _LEAD_S]]


def _drifting(oscillator: Oscillator, duration_s: float, random: np.random.Generator) -> list[Event]:
    """Half of the clocks feel temperature: ramps of the room, steps of the load."""
    if random.random() < 0.5:
        return []
    kind: EventKind = "ramp" if random.random() < 0.5 else "load"
    # K/s: of a room up to 20 K/h; of a board that some kelvins of load warm in about 200 s.
    largest = 20 / 3600 if kind == "ramp" else 0.06
    return [
        Event(t, kind, oscillator.ppb_per_kelvin * float(random.uniform(-largest, largest)))
        for t in _times(duration_s, duration_s / 6, random)
    ]


def _jumps(duration_s: float, random: np.random.Generator) -> list[Event]:
    events = []
    for t in _times(duration_s, duration_s / 25, random):
        sign = float(random.choice([-1, 1]))
        if random.random() < 0.7:
            events.append(Event(t, "phase_step", sign * _log_uniform(random, 300, 3e7)))
        else:
            events.append(Event(t, "freq_step", sign * _log_uniform(random, 30, 8_000)))
    return events


def _gaps(duration_s: float, random: np.random.Generator) -> tuple[tuple[float, float], ...]:
    return tuple((t, t + float(random.uniform(2, 40))) for t in _times(duration_s, duration_s / 10, random))
