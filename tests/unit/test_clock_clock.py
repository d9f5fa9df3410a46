"""The live clock's states, anchors, steering, tags by episode, and models, on simulated truth."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from agent.clock import Clock, ClockReport, Tag
from agent.ffi.phc import PhcBurst
from agent.ffi.records import WINDOW_DRIFT_VALID, WINDOW_DTYPE
from tests.unit.test_clock_simulation import (
    BASE_DELAY_NS,
    REALTIME_AHEAD,
    Delay,
    Lift,
    SimulatedClock,
    queueing,
    run,
    steering,
)


def _burst(world: SimulatedClock, t: float, local_clock: str = "raw") -> PhcBurst:
    """Ten PHC reads of about 1.5 us, with one-sided excess."""
    rng = world.rng
    at = np.linspace(t, t + 18e-5, 10)
    before = 750e-9 + rng.normal(0, 10e-9, 10) + (rng.random(10) < 0.4) * rng.exponential(1e-6, 10)
    after = 750e-9 + rng.normal(0, 10e-9, 10)
    ahead = REALTIME_AHEAD if local_clock == "realtime" else 0
    return PhcBurst(
        "extended",
        local_clock,  # type: ignore[arg-type]
        world.raw_ns(at - before) + ahead,
        world.hw_ns(at),
        world.raw_ns(at + after) + ahead,
    )


def _anchored(
    world: SimulatedClock,
    delay: Delay | None = None,
    silent_from: float = math.inf,
    local_clock: str = "raw",
) -> list[tuple[float, ClockReport]]:
    """A "phc" clock with ten bursts per second until `silent_from`, and windows if `delay` is given."""
    clock = Clock(0x0100_0000, "phc")
    out = []
    for i in range(round(world.seconds * 10)):
        t = (i + 1) * 0.1 + 0.0003
        pairs = world.pairs(t)
        if delay is not None:
            clock.observe_windows(world.windows(i * 0.1, (i + 1) * 0.1, delay), pairs)
        if t < silent_from:
            around = world.pairs(t - 0.0003).followed_by(world.pairs(t + 0.0001))
            clock.observe_anchor(_burst(world, t - 0.0002, local_clock), around)
        out.append((t, clock.tick(pairs, steering(world.steer_ppb(t)))))
    return out


def _tags(reports: list[tuple[float, ClockReport]]) -> list[Tag]:
    return [tag for _, report in reports for tag in report.tags]


@pytest.mark.parametrize("local_clock", ["raw", "realtime"])
def test_anchors_give_offset_without_base_delay(local_clock: str) -> None:
    """PHC reads against raw or realtime: state tracking, offset within tens of ns, bound at least half the delay."""
    world = SimulatedClock(1, 6.0)
    _, report = _anchored(world, local_clock=local_clock)[-1]
    assert report.state == "tracking"
    assert report.timescale == "tai"
    assert abs(report.offset_ns - world.offset_at_mono_ns(report.mono_ns)) < 80
    assert report.bound_ns >= 700
    assert abs(report.drift_raw_ppb - world.mean_drift_ppb(5.0, 6.0)) < 60


def test_the_bound_has_room_for_where_mono_was_read() -> None:
    """Cross-timestamps against raw are exact, but mono is read late in its bracket each time: within the bound."""
    world = SimulatedClock(7, 4.0)
    clock = Clock(0x0100_0000, "phc")
    for i in range(40):
        t = (i + 1) * 0.1
        at = np.linspace(t - 2e-4, t - 1e-4, 10)
        raw_ns = world.raw_ns(at)
        clock.observe_anchor(PhcBurst("precise", "raw", raw_ns, world.hw_ns(at), raw_ns), world.pairs(t))
        pairs = world.pairs(t)
        pairs.mono_ns[:] = world.mono_ns(np.array([t])) + 20
        report = clock.tick(pairs, steering())
        assert abs(report.offset_ns - world.offset_at_mono_ns(report.mono_ns)) <= report.bound_ns


@pytest.mark.parametrize("size_ns", [-250_000, 250_000])
def test_anchors_tell_a_phc_step(size_ns: int) -> None:
    """A stepped PHC is one phase_step, though the packets' envelope shows it too."""
    world = SimulatedClock(2, 5.0, jumps=((3.05, size_ns),))
    tags = _tags(_anchored(world, queueing()))
    assert [tag.kind for tag in tags] == ["phase_step"]
    assert abs(tags[0].size_ns - size_ns) < 200


def test_an_envelope_that_moves_alone_is_the_path() -> None:
    """The envelope rises by 30 us and the PHC's anchors do not: a path change."""
    world = SimulatedClock(3, 5.0)
    reports = _anchored(world, queueing(3_000.0, [Lift(3.0, 9.0, 30_000, 1.0)]))
    assert [tag.kind for tag in _tags(reports)] == ["path_change"]
    assert reports[-1][1].state == "tracking"


def test_without_phc_reads_the_envelope_takes_over() -> None:
    """When the PHC stops answering, packets keep the clock: relative, with the reason, drift still right."""
    world = SimulatedClock(4, 6.0)
    _, report = _anchored(world, queueing(), silent_from=3.0)[-1]
    assert report.state == "relative"
    assert report.reason.startswith("no PHC reads")
    assert abs(report.drift_raw_ppb - world.mean_drift_ppb(5.0, 6.0)) < 60


def test_holdover_bound_grows_and_ends() -> None:
    """Without anything, the bound grows, holds the truth for a minute, and after the maximal age all is invalid."""
    world = SimulatedClock(5, 70.0)
    clock = Clock(0x0100_0000, "phc")
    for i in range(100):
        pairs = world.pairs((i + 1) * 0.1)
        clock.observe_anchor(_burst(world, (i + 1) * 0.1 - 0.0002), pairs)
        clock.tick(pairs, steering())
    bounds = []
    for t in (12.0, 20.0, 40.0, 69.0):
        report = clock.tick(world.pairs(t), steering())
        assert report.state == "holdover"
        assert abs(report.offset_ns - world.offset_at_mono_ns(report.mono_ns)) <= report.bound_ns
        bounds.append(report.bound_ns)
    assert bounds == sorted(bounds)
    assert bounds[-1] > 2 * bounds[0]
    pairs = world.pairs(69.0)
    late = 3_600_000_000_000
    for column in (pairs.mono_ns, pairs.raw_ns, pairs.realtime_ns):
        column += late
    report = clock.tick(pairs, steering())
    assert (report.state, report.model) == ("invalid", None)


def test_packets_without_stamps_are_software() -> None:
    """Windows whose packets have no stamp: software, with the reason, one missing tag, no NaN."""
    world = SimulatedClock(6, 2.0)
    clock = Clock(1, "trailer")
    tags: list[Tag] = []
    for i in range(20):
        windows = np.zeros(4, WINDOW_DTYPE)
        windows["n"] = windows["n_missing"] = 10
        windows["open_mono_ns"] = windows["last_mono_ns"] = world.mono_ns(np.array([i * 0.1]))[0]
        pairs = world.pairs((i + 1) * 0.1)
        clock.observe_windows(windows, pairs)
        report = clock.tick(pairs, steering())
        tags += report.tags
    assert (report.state, report.reason) == ("software", "packets carry no hardware stamp")
    assert [tag.kind for tag in tags] == ["missing"]
    assert report.offset_ns == 0
    assert not math.isnan(report.bound_ns)


@pytest.mark.parametrize(
    ("spoilt", "kinds", "cause"),
    [
        ("missing", ["missing"], "packets carry no hardware stamp any more"),
        ("repeated", ["stale"], "of the packets' stamps, the PHC itself reads well"),
    ],
)
def test_packets_that_lose_their_stamps_are_told_of_an_anchored_clock(
    spoilt: str, kinds: list[str], cause: str
) -> None:
    """From 3 s on packets have no stamp, or the same again and again: one tag, and the clock goes on by its reads."""
    world = SimulatedClock(9, 8.0)
    clock = Clock(0x0100_0000, "phc")
    tags: list[Tag] = []
    for i in range(80):
        pairs = world.pairs((i + 1) * 0.1)
        windows = world.windows(i * 0.1, (i + 1) * 0.1, queueing())
        if i >= 30 and spoilt == "missing":
            windows["n_missing"], windows["n_stamped"] = windows["n"], 0
            for pair in ("first", "last", "envelope"):
                windows[pair] = 0
        elif i >= 30:
            for pair in ("first", "last", "envelope"):
                windows[pair]["hw_ns"] = world.hw_ns(np.array([3.0]))[0]
        clock.observe_windows(windows, pairs)
        clock.observe_anchor(_burst(world, (i + 1) * 0.1 - 0.0002), pairs)
        report = clock.tick(pairs, steering())
        tags += report.tags
    assert [tag.kind for tag in tags] == kinds
    assert cause in tags[0].cause
    assert report.state == "tracking"
    assert abs(report.offset_ns - world.offset_at_mono_ns(report.mono_ns)) <= report.bound_ns


def test_silence_is_holdover_and_ends_without_a_jump() -> None:
    """Two seconds without packets: holdover with its reason, then relative again, nothing tagged."""
    world = SimulatedClock(7, 8.0)
    clock = Clock(1, "trailer", BASE_DELAY_NS)
    states = {}
    tags: list[Tag] = []
    for i in range(80):
        pairs = world.pairs((i + 1) * 0.1 + 0.0003)
        if not 40 <= i < 62:
            clock.observe_windows(world.windows(i * 0.1, (i + 1) * 0.1, queueing()), pairs)
        report = clock.tick(pairs, steering())
        states[i] = (report.state, report.reason)
        tags += report.tags
    assert states[35] == ("relative", "")
    assert states[60] == ("holdover", "no packets")
    assert states[79] == ("relative", "")
    assert tags == []


def test_a_clock_from_1970_has_drift_but_is_tagged() -> None:
    """A clock that counts from 1970 is tagged once, and its drift is usable."""
    world = SimulatedClock(8, 4.0, hw0=60_000_000_000)
    done = run(world, queueing())
    assert [tag.kind for _, tag in done.tags] == ["epoch_unset"]
    assert done.at(4.0).timescale == "unset"
    assert abs(done.at(4.0).drift_raw_ppb - world.mean_drift_ppb(3.0, 4.0)) < 80


def test_phc_steering_is_a_known_input() -> None:
    """A PHC that a servo steers by 5 ppm, and says so, has no jump and its new drift at once."""
    world = SimulatedClock(9, 5.0, rate_steps=((3.05, -5_000.0),))
    clock = Clock(0x0100_0000, "phc")
    tags: list[Tag] = []
    for i in range(45):
        t = (i + 1) * 0.1
        pairs = world.pairs(t)
        if i == 30:
            clock.steer_phc(5_000.0, pairs)
        clock.observe_anchor(_burst(world, t - 0.0002), pairs)
        report = clock.tick(pairs, steering())
        tags += report.tags
        if i >= 30:
            assert abs(report.drift_raw_ppb - world.mean_drift_ppb(t - 0.01, t)) < 100
    assert tags == []


def test_steering_of_mono_is_known_to_an_anchored_clock() -> None:
    """mono steered by 200 ppm: the drift against it has the change at the next tick, that of the oscillators none."""
    world = SimulatedClock(12, 4.0, steer_steps=((3.05, 200_000.0),))
    reports = {round(t, 1): report for t, report in _anchored(world)}
    assert reports[3.1].drift_mono_ppb - reports[3.0].drift_mono_ppb == pytest.approx(200_000, abs=2_000)
    assert reports[3.1].drift_raw_ppb == pytest.approx(world.mean_drift_ppb(2.1, 3.1), abs=100)
    assert reports[3.1].tags == ()


def test_realtime_that_is_set_during_reads_is_an_outlier() -> None:
    """CLOCK_REALTIME stepped between the pairs around a burst: that burst is left out, and tagged."""
    world = SimulatedClock(13, 4.0)
    clock = Clock(0x0100_0000, "phc")
    tags: list[Tag] = []
    for i in range(30):
        t = (i + 1) * 0.1
        pairs = world.pairs(t)
        after = world.pairs(t)
        if i == 20:
            after.realtime_ns[0] += 5_000_000
        around = world.pairs(t - 0.0003).followed_by(after)
        clock.observe_anchor(_burst(world, t - 0.0002, "realtime"), around)
        tags += clock.tick(pairs, steering()).tags
    assert [tag.kind for tag in tags] == ["outlier"]
    assert "CLOCK_REALTIME was set" in tags[0].cause


def test_models_step_only_with_a_tagged_jump() -> None:
    """From tick to tick the model is continuous and never goes back; at the jump it steps, one epoch on."""
    world = SimulatedClock(10, 5.0, jumps=((3.05, -250_000),))
    done = run(world, queueing())
    models = [(report.model, report.tags) for _, report in done.reports if report.model is not None]
    for (old, _), (new, tags) in pairwise(models):
        assert old is not None
        assert new is not None
        gap = new.phc_ns(new.mono0_ns) - old.phc_ns(new.mono0_ns)
        if any(tag.kind == "phase_step" for tag in tags):
            assert gap == pytest.approx(-250_000, abs=2_000)
            assert new.epoch == old.epoch + 1
        else:
            assert (gap, new.epoch) == (0, old.epoch)


def test_kernel_drift_is_that_of_the_longest_baseline() -> None:
    """Of the tick's records, those with nearly the longest baseline give the kernel's figure, by the median."""
    world = SimulatedClock(11, 1.0)
    windows: npt.NDArray[np.void] = world.windows(0.0, 0.1, queueing())
    windows["flags"][:5] = WINDOW_DRIFT_VALID
    windows["drift_mono_ppb"][:5] = [11_900, 12_000, 12_500, -400_000, 300_000]
    windows["drift_baseline_ns"][:5] = [4_000_000_000, 4_100_000_000, 4_050_000_000, 64_000_000, 8_000_000]
    clock = Clock(1, "trailer", BASE_DELAY_NS)
    pairs = world.pairs(0.1003)
    clock.observe_windows(windows, pairs)
    report = clock.tick(pairs, steering())
    assert (report.kernel_drift_ppb, report.kernel_drift_baseline_ns) == (12_000.0, 4_100_000_000)
    report = clock.tick(world.pairs(0.2), steering())
    assert report.kernel_drift_ppb is None
