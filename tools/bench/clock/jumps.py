"""Jumps: how many of those injected are found, how soon, what they do to the drift; and what is found that wasn't.

A jump's size is a multiple of the largest max(sqrt S, delta / 16) of the samples that its verdict may wait for: S the
innovation variance of the told filter, delta the sample's read delay. Multiples of 8 and above have to be found; those
below give the curve.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tools.bench.clock import product
from tools.bench.clock.oscillator import OCXO, TCXO, Floats
from tools.bench.clock.recipe import Bursts, Reading, Recipe, draw
from tools.bench.clock.session import Session
from tools.bench.clock.told import run_told
from tools.bench.clock.traces import Event
from tools.bench.figure import Figure, Spread

DAY_SAMPLES = 864_000
"""A day at 10 Hz."""
FOUND_WITHIN = 4
"""Samples, the one that jumped included, one of which has to carry the tag."""
_TOLD_AS_JUMP = frozenset({"phase_step", "freq_step", "tai_utc", "wrap"})
_LEAST = 8.0
_SPACING = 80
"""Samples from one jump to the next."""
_WARM_UP = 400
_ECHO = 12
"""Tags that come so many samples after a jump belong to it, however wrong."""
_EXCURSION_LIMIT_PPB = 20.0
_EDGES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 32, 1e3, 1e6)
"""Bins of the recall curve, as multiples."""
_RULE_OF_THREE = 3.0
"""Of what was never seen in n trials at most 3/n happens, with 95 % confidence."""


@dataclass(frozen=True, slots=True)
class Injected:
    """All jumps of one trace: multiples, samples until the tag (-1: none), excursions; and what else was tagged."""

    multiple: Floats
    latency: Floats
    excursion_ppb: Floats
    false_tags: int
    samples: int


def measure(session: Session) -> list[Figure]:
    """False tags on stationary traces; recall, and excursion of the drift, on injected jumps."""
    per_trace = session.effort.repeat(400, 60)
    readings = ("quiet", "queued")
    jobs = [
        (name, rate, word, per_trace) for name in ("tcxo", "ocxo") for rate in (1, 10) for word in readings
    ]
    parts = session.map("injected jumps", inject, jobs)
    return [_false_tags(session), *_recall(parts), _excursion(parts, jobs)]


def _false_tags(session: Session) -> Figure:
    stationary = [r for r in session.synthetic if r.false_tags is not None]
    tags = {r.name: r.false_tags for r in stationary if r.false_tags}
    count = sum(len(found) for found in tags.values())
    days = sum(r.samples for r in stationary) / DAY_SAMPLES
    # Poisson: the exact interval at 0, the normal one of the square root otherwise.
    low, high = (
        ((np.sqrt(count) - 0.98) ** 2, (np.sqrt(count) + 0.98) ** 2) if count else (0.0, _RULE_OF_THREE)
    )
    return Figure(
        "false-tags",
        "jump tags a day (864,000 samples) on traces where nothing jumped",
        count / days,
        "a day",
        1.0,
        "at most",
        Spread(float(low) / days, float(high) / days, "95 % Poisson interval"),
        sum(r.samples for r in stationary),
        {
            "tags": {name: [list(tag) for tag in (found or [])[:20]] for name, found in tags.items()},
            "days": days,
        },
    )


def _recall(parts: list[Injected]) -> list[Figure]:
    multiple = np.concatenate([p.multiple for p in parts])
    latency = np.concatenate([p.latency for p in parts])
    found = (latency >= 0) & (latency < FOUND_WITHIN)
    judged = multiple >= _LEAST
    count, hits = int(judged.sum()), int((found & judged).sum())
    days = sum(p.samples for p in parts) / DAY_SAMPLES
    curve = []
    for low, high in pairwise(_EDGES):
        within = (multiple >= low) & (multiple < high)
        if within.any():
            curve.append(
                {"from": low, "to": high, "n": int(within.sum()), "recall": float(found[within].mean())}
            )
    percent = 100 * hits / count
    missed = count - hits
    interval = Spread(
        100 * max(0.0, 1 - (missed + 2 * np.sqrt(missed) + _RULE_OF_THREE) / count),
        100.0 if not missed else 100 * min(1.0, 1 - max(0.0, missed - 2 * np.sqrt(missed)) / count),
        "about 95 %, Poisson",
    )
    return [
        Figure(
            "jump-recall",
            f"phase steps of at least max(8 sqrt S, delta/2) tagged within {FOUND_WITHIN} samples",
            percent,
            "%",
            99.9,
            "at least",
            interval,
            count,
            {
                "curve": curve,
                "false_tags_a_day_beside": sum(p.false_tags for p in parts) / days,
                "missed": missed,
                "never_tagged": int((judged & (latency < 0)).sum()),
            },
        )
    ]


def _excursion(parts: list[Injected], jobs: list[tuple[str, int, str, int]]) -> Figure:
    each = {
        f"{n}-{rate}hz-{word}": p.excursion_ppb for (n, rate, word, _), p in zip(jobs, parts, strict=True)
    }
    everything = np.concatenate(list(each.values()))
    return Figure(
        "jump-excursion",
        "largest change of the drift estimate in the 40 samples from a found phase step on",
        float(everything.max()),
        "ppb",
        _EXCURSION_LIMIT_PPB,
        "at most",
        Spread(float(np.median(everything)), float(np.quantile(everything, 0.99)), "median to 99 %"),
        len(everything),
        {name: {"median": float(np.median(e)), "max": float(e.max())} for name, e in each.items() if len(e)},
    )


def inject(job: tuple[str, int, str, int]) -> Injected:
    """Draw a clock, let it jump, and see what is said: `job` is (class, rate in Hz, reading, number of jumps)."""
    name, rate_hz, word, count = job
    oscillator = {"tcxo": TCXO, "ocxo": OCXO}[name]
    reading = Reading(bursts=Bursts("any")) if word == "queued" else Reading()
    samples = _WARM_UP + _SPACING * (count + 1)
    recipe = Recipe(f"{name}-jumps", oscillator, rate_hz, samples / rate_hz, reading)
    seed = 7000 + rate_hz + (word == "queued")
    unharmed = draw(recipe, seed)
    _, _, innovation = run_told(unharmed, (1.0,))
    random = np.random.default_rng(seed)
    places = _WARM_UP + _SPACING * np.arange(1, count + 1)
    multiple = _multiples(count, random)
    unit = np.maximum(np.sqrt(innovation), unharmed.read_delay_ns / 16)
    # The samples that a verdict may wait for have to show the jump too: had they waited longer, nobody could tell.
    unit = sliding_window_view(unit, FOUND_WITHIN).max(axis=1)[places]
    sizes = multiple * unit * random.choice([-1, 1], count)
    # Just before its sample: that one is the first to show it.
    times = unharmed.time_s[places] - 0.01 / rate_hz
    events = tuple(Event(float(t), "phase_step", float(s)) for t, s in zip(times, sizes, strict=True))
    trace = draw(replace(recipe, events=events), seed)
    ran = product.run(trace.samples(), trace.base_ns, horizons_s=(1.0,))
    tagged = np.array([i for i, _ in ran.tags(_TOLD_AS_JUMP)], dtype=np.int64)
    latency = np.array([_latency(tagged, int(place)) for place in places], dtype=np.float64)
    since = np.searchsorted(places, tagged, side="right") - 1
    far = (since < 0) | (tagged - places[np.maximum(since, 0)] >= _ECHO)
    false_tags = int((far & (tagged >= _WARM_UP)).sum())
    drift = np.array([np.nan if r.drift_ppb is None else r.drift_ppb for r in ran.reports])
    excursions = [float(np.abs(drift[p : p + 40] - drift[p - 1]).max()) for p in places[latency >= 0]]
    return Injected(multiple, latency, np.array(excursions), false_tags, len(trace))


def _multiples(count: int, random: np.random.Generator) -> Floats:
    """Three in ten below what has to be found, half just above it, the rest far above."""
    kind = random.random(count)
    small, near = random.uniform(1, _LEAST, count), random.uniform(_LEAST, 2 * _LEAST, count)
    large = 2 * _LEAST * 10 ** random.uniform(0, 4.5, count)
    return np.where(kind < 0.3, small, np.where(kind < 0.8, near, large))


def _latency(tagged: np.ndarray, place: int) -> int:
    """Samples from `place` to the first tag at or after it, -1 if it is an echo's length away or more."""
    index = int(np.searchsorted(tagged, place))
    if index == len(tagged) or tagged[index] - place >= _ECHO:
        return -1
    return int(tagged[index]) - place
