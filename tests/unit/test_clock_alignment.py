"""Two clocks against each other: simulated ones of known truth, and what a difference is made of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agent.clock import Clock, ClockReport, Tag
from agent.clock.alignment import MAX_CLOCKS, Aligned, Alignment, ClockName, Reading, align
from agent.clock.track import P99_SIGMAS
from tests.unit import telemetry_frames as sample
from tests.unit.test_clock_simulation import BASE_DELAY_NS, HW0, SimulatedClock, queueing, steering

S = 1_000_000_000
FIRST, SECOND = ClockName("eth1", "trailer", 0x0203), ClockName("eth2", "trailer", 0x0901)


def reading(name: ClockName = FIRST, base_delay_ns: int = 20_000, **changed: Any) -> Reading:
    """A clock in state relative, without tags."""
    facts = {"state": "relative", "mono_ns": 100 * S, "tags": (), "key": name.key}
    return Reading(name, sample.report(**(facts | changed)), base_delay_ns)


def pairs_of_run(worlds: tuple[SimulatedClock, SimulatedClock], seconds: float) -> list[Aligned]:
    """Two trailer clocks over one local clock; the comparisons that are told, in order."""
    clocks = (Clock(FIRST.key, "trailer", BASE_DELAY_NS), Clock(SECOND.key, "trailer", BASE_DELAY_NS))
    alignment = Alignment()
    told: list[Aligned] = []
    for i in range(round(seconds * 10)):
        t = (i + 1) * 0.1 + 0.0003
        readings = []
        for name, clock, world in zip((FIRST, SECOND), clocks, worlds, strict=True):
            pairs = world.pairs(t)
            clock.observe_windows(world.windows(i * 0.1, (i + 1) * 0.1, queueing()), pairs)
            report = clock.tick(pairs, steering(world.steer_ppb(t)))
            readings.append(Reading(name, report, clock.base_delay_limit_ns))
        told += alignment.take(round(t * S), readings) or []
    return told


def true_offset_ns(worlds: tuple[SimulatedClock, SimulatedClock], mono_ns: int) -> int:
    """First - second, as simulated."""
    return worlds[1].offset_at_mono_ns(mono_ns) - worlds[0].offset_at_mono_ns(mono_ns)


def test_offset_and_drift_are_the_truth_within_the_bound() -> None:
    """Clocks 37 s and 5 ms apart that differ by 20 ppm: every valid comparison holds, and is told once a second."""
    worlds = (
        SimulatedClock(1, 12.0, 12_000.0, hw0=HW0),
        SimulatedClock(2, 12.0, -8_000.0, hw0=HW0 - 37 * S - 5_000_000),
    )
    told = [pair for pair in pairs_of_run(worlds, 12.0) if not pair.doubt]
    assert len(told) in (11, 12)
    for pair in told:
        assert abs(pair.offset_ns - true_offset_ns(worlds, pair.mono_ns)) <= pair.bound_ns
        # Both paths add the same microsecond: the bound may be that of one of them, not of two.
        assert pair.bound_ns < 2 * BASE_DELAY_NS
    last = told[-1]
    first_ppb, second_ppb = (world.mean_drift_ppb(11.0, 12.0) for world in worlds)
    assert abs(last.drift_ppb - (second_ppb - first_ppb)) <= last.drift_bound_ppb < 200


def test_steering_of_the_local_clock_is_in_neither() -> None:
    """mono is slewed by 300 ppm in between: the difference of the two clocks does not move."""
    steps = ((6.03, 300_000.0),)
    worlds = (
        SimulatedClock(3, 10.0, steer_steps=steps),
        SimulatedClock(4, 10.0, -8_000.0, steer_steps=steps),
    )
    told = [pair for pair in pairs_of_run(worlds, 10.0) if not pair.doubt]
    errors = [pair.offset_ns - true_offset_ns(worlds, pair.mono_ns) for pair in told]
    assert np.abs(errors).max() < 200
    assert told[-1].drift_ppb == pytest.approx(-20_000, abs=200)


def test_a_jump_of_either_makes_it_doubtful_until_it_has_settled() -> None:
    """The second clock steps at 5 s: doubtful within a tick of the tag, right again later, with the step in it."""
    worlds = (SimulatedClock(5, 10.0), SimulatedClock(6, 10.0, jumps=((5.03, 400_000),)))
    told = pairs_of_run(worlds, 10.0)
    doubted = [pair for pair in told if "phase_step" in pair.doubt]
    assert doubted
    assert doubted[0].doubt == "the clock had a phase_step a moment ago"
    after = [pair for pair in told if pair.mono_ns > doubted[-1].mono_ns]
    assert after
    assert all(not pair.doubt for pair in after)
    assert abs(after[-1].offset_ns - true_offset_ns(worlds, after[-1].mono_ns)) <= after[-1].bound_ns


def shifted(made: Reading, by_ns: int) -> Reading:
    """A reading whose local clock is wrong by so much."""
    return replace(made, report=replace(made.report, offset_ns=made.report.offset_ns + by_ns))


def test_an_error_of_the_local_clock_falls_out() -> None:
    """The same microseconds wrong in both offsets change nothing."""
    first, second = reading(offset_ns=1_000), reading(SECOND, offset_ns=400)
    assert align(first, second).offset_ns == -600
    assert align(shifted(first, 7_000), shifted(second, 7_000)) == align(first, second)


def test_reports_of_different_instants_are_brought_to_one() -> None:
    """The first report is 2 ms older, and its clock loses 100 ppm: 200 ns are added to its offset."""
    first = reading(offset_ns=1_000, mono_ns=100 * S, drift_mono_ppb=100_000.0)
    second = reading(SECOND, offset_ns=1_000, mono_ns=100 * S + 2_000_000, drift_mono_ppb=0.0)
    found = align(first, second)
    assert (found.mono_ns, found.offset_ns) == (100 * S + 2_000_000, -200)
    assert align(second, first).offset_ns == 200


@pytest.mark.parametrize(
    ("states", "expected_ns"),
    [
        (("relative", "relative"), 20_000),  # the larger base delay
        (("tracking", "relative"), 20_000),
        (("relative", "tracking"), 5_000),
        (("tracking", "tracking"), 0),
    ],
)
def test_the_bound_has_each_clocks_own_and_of_base_delays_the_larger(
    states: tuple[str, str], expected_ns: int
) -> None:
    """Variances add, asymmetries add; unknown base delays are both positive, and only their difference counts."""
    asymmetry_ns = (700.0, 300.0)
    readings = []
    for name, state, base_ns, own_ns in zip(
        (FIRST, SECOND), states, (5_000, 20_000), asymmetry_ns, strict=True
    ):
        bound_ns = P99_SIGMAS * 30.0 + own_ns + (base_ns if state == "relative" else 0)
        readings.append(
            reading(name, base_ns, state=state, sigma_ns=30.0, bound_ns=bound_ns, drift_sigma_ppb=0.0)
        )
    found = align(readings[0], readings[1])
    assert found.sigma_ns == pytest.approx(30.0 * 2**0.5)
    assert found.bound_ns == pytest.approx(P99_SIGMAS * 30.0 * 2**0.5 + 1_000.0 + expected_ns)


@pytest.mark.parametrize("state", ["init", "holdover", "software", "invalid"])
def test_a_clock_in_doubt_is_said_to_be(state: str) -> None:
    """Whichever of the two it is."""
    good, bad = reading(), reading(SECOND, state=state)
    for readings in ((good, bad), (bad, good)):
        (pair,) = Alignment().take(0, readings) or []
        assert pair.doubt == f"the clock's state is {state}"


def test_it_is_told_once_a_second_and_when_something_changes() -> None:
    """Ticks between say nothing, unless a clock is doubted or trusted anew, or one has gone."""
    alignment = Alignment()
    steady = (reading(), reading(SECOND))
    lost = (reading(), reading(SECOND, state="holdover"))
    assert alignment.take(0, steady)
    assert alignment.take(S // 5, steady) is None
    assert alignment.take(2 * S // 5, lost)
    assert alignment.take(3 * S // 5, lost) is None
    assert alignment.take(4 * S // 5, steady)
    assert alignment.take(9 * S // 5, steady)
    assert alignment.take(2 * S, steady[:1]) == []
    assert alignment.take(4 * S, steady[:1]) is None


def test_a_single_clock_is_never_compared() -> None:
    """The usual run says nothing about it."""
    assert Alignment().take(0, [reading()]) is None


def test_a_stream_of_made_up_device_ids_is_bounded() -> None:
    """Twelve clocks are compared, the others are counted."""
    alignment = Alignment()
    pairs = alignment.take(0, [reading(ClockName("eth1", "trailer", key)) for key in range(40)]) or []
    assert len(pairs) == MAX_CLOCKS * (MAX_CLOCKS - 1) // 2
    assert alignment.omitted == 40 - MAX_CLOCKS


def test_bounds_without_an_estimate_are_infinite() -> None:
    """A clock that has no figure yet makes none up."""
    empty: ClockReport = sample.report(
        state="init", sigma_ns=float("inf"), bound_ns=float("inf"), drift_sigma_ppb=float("inf"),
        drift_bound_ppb=float("inf"), tags=(),
    )  # fmt: skip
    found = align(reading(), Reading(SECOND, empty, 20_000))
    assert found.bound_ns == found.drift_bound_ppb == float("inf")


def test_a_jump_tag_of_another_kind_is_no_doubt() -> None:
    """A bounce was never in the estimate."""
    tags = (Tag("bounce", 100 * S, 5_000, "one read"),)
    (pair,) = Alignment().take(0, [reading(tags=tags), reading(SECOND)]) or []
    assert pair.doubt == ""
