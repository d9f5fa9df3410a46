"""mono against raw: dialled steering is known, hidden slews are found."""

from __future__ import annotations

import numpy as np
import pytest

from agent.clock.monoraw import MonoRaw
from tests.unit.test_clock_simulation import SimulatedClock, steering


def _follow(world: SimulatedClock, told: bool) -> tuple[MonoRaw, list[int]]:
    """The relation after the run, and its errors in the middle of each tick, from 1 s on."""
    relation = MonoRaw()
    errors = []
    for i in range(1, round(world.seconds * 10)):
        t = i * 0.1
        relation.observe(world.pairs(t), steering(world.steer_ppb(t)) if told else None)
        if t > 1.0:
            at = np.array([t - 0.05])
            mono = int(world.mono_ns(at)[0])
            errors.append(relation.ahead_ns(mono) - (mono - int(world.raw_ns(at)[0])))
    return relation, errors


def test_dialled_frequency_is_known_at_once() -> None:
    """After a change of 200 ppm that adjtimex shows, the rate is right within 1 ppm at the next tick."""
    world = SimulatedClock(1, 3.0, steer_steps=((0.0, 5_000.0), (2.75, 200_000.0)))
    relation, errors = _follow(world, told=True)
    assert relation.rate_ppb == pytest.approx(205_000, abs=1_000)
    assert max(abs(e) for e in errors[:15]) < 30


def test_hidden_slews_are_followed() -> None:
    """A slew of 500 ppm that adjtimex does not show is found from the pairs alone."""
    world = SimulatedClock(2, 4.0, steer_steps=((2.0, 500_000.0),))
    relation, errors = _follow(world, told=False)
    assert relation.rate_ppb == pytest.approx(500_000, abs=500)
    assert max(abs(e) for e in errors[-10:]) < 50


def test_a_kink_inside_a_tick_is_admitted() -> None:
    """Between two reads the moment of a change is unknown: the uncertainty covers the error there, and only there."""
    world = SimulatedClock(3, 3.0, steer_steps=((2.45, 100_000.0),))
    relation, _ = _follow(world, told=True)
    at = np.array([2.45])
    mono = int(world.mono_ns(at)[0])
    error = abs(relation.ahead_ns(mono) - (mono - int(world.raw_ns(at)[0])))
    assert 1_000 < error < 6 * relation.uncertainty_ns(mono)
    assert relation.uncertainty_ns(mono + 200_000_000) < 20
