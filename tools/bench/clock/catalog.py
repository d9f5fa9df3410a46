"""The named synthetic traces. A name and the seed that is made of it never change their meaning."""

from __future__ import annotations

import zlib

import numpy as np

from tools.bench.clock.oscillator import OCXO, TCXO, Oscillator
from tools.bench.clock.recipe import Bursts, Reading, Recipe, Servo, draw
from tools.bench.clock.traces import THERMAL_S, Event, Trace

_HOUR_S = 3600.0
_LONG_S = 24_000.0
_ANY = Reading(bursts=Bursts("any"))
_AFTER = Reading(bursts=Bursts("after"))
_UNSEEN = Reading(bursts=Bursts("unseen", mean_on_s=1.0, mean_off_s=9.0))
_LOAD_S = 600.0
_LOAD_KELVIN = 8.0


def _phase_steps(random: np.random.Generator) -> tuple[Event, ...]:
    """A step every two minutes, 1 us to 10 ms, either way."""
    times = np.arange(120.0, _HOUR_S - 60, 120.0) + random.uniform(-20, 20, 29)
    sizes = 10 ** random.uniform(3, 7, 29) * random.choice([-1, 1], 29)
    return tuple(Event(float(t), "phase_step", float(s)) for t, s in zip(times, sizes, strict=True))


def _frequency_steps(random: np.random.Generator) -> tuple[Event, ...]:
    """A step every five minutes, 50 to 5,000 ppb, either way: a servo elsewhere that nobody tells us of."""
    times = np.arange(300.0, _HOUR_S - 60, 300.0) + random.uniform(-60, 60, 11)
    sizes = 10 ** random.uniform(1.7, 3.7, 11) * random.choice([-1, 1], 11)
    return tuple(Event(float(t), "freq_step", float(s)) for t, s in zip(times, sizes, strict=True))


def _ramps(oscillator: Oscillator, duration_s: float, random: np.random.Generator) -> tuple[Event, ...]:
    """Room temperature in ramps: about every quarter of an hour another rate, up to 12 K/h."""
    times = np.cumsum(random.uniform(600, 1200, int(duration_s / 600)))
    times = times[times < duration_s - 60]
    rates = oscillator.ppb_per_kelvin * random.uniform(-12, 12, len(times)) / _HOUR_S
    changes = np.diff(rates, prepend=0.0)
    return tuple(Event(float(t), "ramp", float(c)) for t, c in zip(times, changes, strict=True))


def _load_steps(oscillator: Oscillator) -> tuple[Event, ...]:
    """Ten minutes of load, ten of none: the board warms by 8 K and cools again."""
    size = oscillator.ppb_per_kelvin * _LOAD_KELVIN / THERMAL_S
    times = np.arange(_LOAD_S, _HOUR_S, _LOAD_S)
    return tuple(Event(float(t), "load", size if i % 2 == 0 else -size) for i, t in enumerate(times))


def _loaded_s() -> tuple[tuple[float, float], ...]:
    return tuple((float(t), float(t) + _LOAD_S) for t in np.arange(_LOAD_S, _HOUR_S, 2 * _LOAD_S))


def _gaps(random: np.random.Generator) -> tuple[tuple[float, float], ...]:
    """A gap every five minutes, 2 to 60 s."""
    starts = np.arange(200.0, _HOUR_S - 120, 300.0)
    return tuple(
        (float(t), float(t + s)) for t, s in zip(starts, random.uniform(2, 60, len(starts)), strict=True)
    )


def _recipes(oscillator: Oscillator) -> list[Recipe]:
    random = np.random.default_rng(zlib.crc32(oscillator.name.encode()))
    name = oscillator.name
    loaded = Reading(bursts=Bursts("any", mean_on_s=4.0, mean_off_s=1.0), loaded_s=_loaded_s())
    # Kept in this order: what is drawn for one trace must not depend on traces that came later.
    phase, frequency, gaps = _phase_steps(random), _frequency_steps(random), _gaps(random)
    slow_ramps, fast_ramps = _ramps(oscillator, _LONG_S, random), _ramps(oscillator, _HOUR_S, random)
    return [
        Recipe(f"{name}-quiet-1hz", oscillator, 1, _LONG_S),
        Recipe(f"{name}-quiet-10hz", oscillator, 10, _HOUR_S),
        Recipe(f"{name}-quiet-16hz", oscillator, 16, _HOUR_S / 2),
        Recipe(f"{name}-irregular", oscillator, 4, _HOUR_S, irregular=True, missing=0.02),
        Recipe(f"{name}-ramps-1hz", oscillator, 1, _LONG_S, events=slow_ramps),
        Recipe(f"{name}-ramps-10hz", oscillator, 10, _HOUR_S, events=fast_ramps),
        Recipe(f"{name}-queued-1hz", oscillator, 1, _LONG_S, _ANY),
        Recipe(f"{name}-queued-10hz", oscillator, 10, _HOUR_S, _ANY),
        Recipe(f"{name}-one-sided-1hz", oscillator, 1, _LONG_S, _AFTER),
        Recipe(f"{name}-one-sided-10hz", oscillator, 10, _HOUR_S, _AFTER),
        Recipe(f"{name}-unseen-10hz", oscillator, 10, _HOUR_S, _UNSEEN),
        Recipe(f"{name}-load-10hz", oscillator, 10, _HOUR_S, loaded, _load_steps(oscillator)),
        Recipe(f"{name}-gaps-10hz", oscillator, 10, _HOUR_S, _AFTER, gaps_s=gaps),
        Recipe(f"{name}-phase-steps-10hz", oscillator, 10, _HOUR_S, events=phase),
        Recipe(f"{name}-queued-phase-steps-10hz", oscillator, 10, _HOUR_S, _AFTER, phase),
        Recipe(f"{name}-freq-steps-10hz", oscillator, 10, _HOUR_S, events=frequency),
    ]


def _steered(oscillator: Oscillator) -> list[Recipe]:
    """Pairs: the same clock (the seed is of the name without its last word) read alike, without and with a servo."""
    recipes = []
    for rate_hz, servo_hz in ((1, 1), (10, 1), (10, 10), (16, 16)):
        for reading, word in ((Reading(), "quiet"), (_AFTER, "one-sided")):
            name = f"{oscillator.name}-{word}-{rate_hz}hz-servo-{servo_hz}hz"
            duration_s = 6_000.0 if rate_hz == 1 else _HOUR_S / 4
            recipes += [
                Recipe(f"{name}-without", oscillator, rate_hz, duration_s, reading),
                Recipe(f"{name}-with", oscillator, rate_hz, duration_s, reading, servo=Servo(servo_hz)),
            ]
    return recipes


RECIPES: dict[str, Recipe] = {r.name: r for o in (TCXO, OCXO) for r in _recipes(o)}
"""The traces that errors, coverage and false tags are measured on, by name."""

STEERED: dict[str, Recipe] = {r.name: r for o in (TCXO, OCXO) for r in _steered(o)}
"""Pairs `NAME-without` and `NAME-with` a servo underneath."""

QUICK = (
    "tcxo-quiet-1hz",
    "tcxo-one-sided-10hz",
    "ocxo-queued-10hz",
    "ocxo-phase-steps-10hz",
)
"""The slice that shows that everything works."""


def seed_of(name: str) -> int:
    """The seed of the trace `name`; both of a pair have the same."""
    for word in ("-without", "-with"):
        name = name.removesuffix(word)
    return zlib.crc32(name.encode())


def trace(name: str) -> Trace:
    """The named trace, drawn anew. KeyError if there is none of that name."""
    recipe = RECIPES.get(name) or STEERED[name]
    return draw(recipe, seed_of(name))
