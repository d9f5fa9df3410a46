"""The envelope against known truth: accuracy, jumps, and what must not be called a jump."""

from __future__ import annotations

import numpy as np
import pytest

from agent.clock import Clock
from agent.clock.windows import SUB_INTERVAL_NS, PathMinimum, Windows, path_key, rough_drift_ppb
from agent.ffi.records import WINDOW_DTYPE
from tests.unit.test_clock_simulation import (
    BASE_DELAY_NS,
    HW0,
    MONO0,
    Lift,
    SimulatedClock,
    queueing,
    run,
    steering,
)

JUMPS = (-5_000, 5_000, -250_000, 250_000, -1_000_000, 1_000_000, -37_000_000_000, 37_000_000_000)


def _minima(pairs: list[tuple[int, int, int, int]], drift_mono_ppb: float) -> list[PathMinimum]:
    """The minima of windows from (cpu, queue, mono, hw)."""
    out = np.zeros(len(pairs), WINDOW_DTYPE)
    for row, (cpu, queue, mono, hw) in zip(out, pairs, strict=True):
        row["cpu"], row["queue"], row["n_stamped"] = cpu, queue, 1
        for name in ("first", "last", "envelope"):
            row[name]["mono_ns"], row[name]["hw_ns"] = mono, hw
    windows = Windows()
    windows.add(out)
    windows.collapse(0, 2 * MONO0, drift_mono_ppb)
    return windows.minima()


def test_collapse_is_exact_at_epoch_size() -> None:
    """Offsets of epoch size keep every nanosecond."""
    pairs = [(0, 0, MONO0 + 5, HW0 + 2), (0, 0, MONO0 + 9, HW0 + 7), (1, 3, MONO0 + 9, HW0)]
    minima = _minima(pairs, 0.0)
    assert {m.start_mono_ns for m in minima} == {MONO0 // SUB_INTERVAL_NS * SUB_INTERVAL_NS}
    found = {m.path: m.offset_ns for m in minima}
    assert found == {path_key(0, 0): MONO0 - HW0 + 2, path_key(1, 3): MONO0 - HW0 + 9}


def test_collapse_takes_the_drift_out() -> None:
    """The lowest pair is the least queued one, not the earliest of a drifting clock."""
    early, late = (0, 0, MONO0, HW0 - 500), (0, 0, MONO0 + 10_000_000, HW0 + 10_000_000 - 600)
    (minimum,) = _minima([early, late], 50_000.0)
    assert minimum.mono_ns == MONO0 + 10_000_000


def test_rough_drift_ignores_a_burst() -> None:
    """A few lifted sub-intervals do not bend the first guess of the drift."""
    lifted = {3, 4}
    pairs = [
        (
            0,
            0,
            MONO0 + i * SUB_INTERVAL_NS,
            HW0 + i * (SUB_INTERVAL_NS - 240) - (90_000 if i in lifted else 0),
        )
        for i in range(10)
    ]
    assert rough_drift_ppb(_minima(pairs, 0.0)) == pytest.approx(12_000, abs=1)


def test_drift_is_found_within_50_ppb() -> None:
    """12 ppm with 10 ppb/sqrt(s) of wander is known within 50 ppb after 5 s of bursty packets, over 12 seeds."""
    errors = []
    for seed in range(12):
        world = SimulatedClock(seed, 5.0)
        report = run(world, queueing()).at(5.0)
        assert report.state == "relative"
        errors.append(abs(report.drift_raw_ppb - world.mean_drift_ppb(4.0, 5.0)))
    assert max(errors) < 50


def test_bounds_hold() -> None:
    """p99 bounds of drift and offset, and of the predictions 1 s ahead, hold for at least 99 %."""
    inside: dict[str, list[bool]] = {"drift": [], "offset": [], "ahead": []}
    for seed in range(8):
        world = SimulatedClock(100 + seed, 8.0)
        for t, report in run(world, queueing()).reports:
            if t < 1.0:
                continue
            inside["drift"].append(
                abs(report.drift_raw_ppb - world.mean_drift_ppb(t, t + 0.001)) <= report.drift_bound_ppb
            )
            error = report.offset_ns - world.offset_at_mono_ns(report.mono_ns)
            inside["offset"].append(abs(error) <= report.bound_ns)
            second = next(p for p in report.predictions if p.horizon_s == 1.0)
            error = second.offset_ns - world.offset_at_mono_ns(report.mono_ns + 1_000_000_000)
            inside["ahead"].append(abs(error) <= second.p99_ns)
    assert {name: float(np.mean(values)) >= 0.99 for name, values in inside.items()} == dict.fromkeys(
        inside, True
    )


@pytest.mark.parametrize("size_ns", JUMPS)
def test_a_jump_is_tagged_once_and_soon(size_ns: int) -> None:
    """Either sign, 5 us to 37 s: one tag with the size, within 0.3 s, drift kept, no other tag."""
    world = SimulatedClock(abs(size_ns) % 97, 6.0, jumps=((3.0137, size_ns),))
    done = run(world, queueing())
    kind = "tai_utc" if abs(size_ns) == 37_000_000_000 else "phase_step"
    assert [tag.kind for _, tag in done.tags] == [kind]
    when, tag = done.tags[0]
    assert when - 3.0137 <= 0.3
    assert abs(tag.mono_ns - MONO0 - 3_013_700_000) <= 2 * SUB_INTERVAL_NS
    assert abs(tag.size_ns - size_ns) <= 1_000
    after = done.at(3.6)
    assert abs(after.drift_raw_ppb - world.mean_drift_ppb(3.5, 3.6)) < 60
    assert abs(after.offset_ns - world.offset_at_mono_ns(after.mono_ns)) <= after.bound_ns


@pytest.mark.parametrize("paths", [1, 4])
def test_queueing_is_no_jump(paths: int) -> None:
    """An envelope lifted by 10 to 500 us for up to 500 ms, on one path or all, tags nothing and keeps the drift."""
    rng = np.random.default_rng(paths)
    lifts = []
    t = 1.0
    while t < 14.0:
        start = t + rng.uniform(0.1, 0.5)
        t = start + rng.uniform(0.05, 0.5)
        by = 10 ** rng.uniform(4.0, 5.7)
        on = tuple(range(paths)) if rng.random() < 0.6 else (int(rng.integers(paths)),)
        lifts.append(Lift(start, t, by, by * rng.uniform(0.4, 1.5), on))
    world = SimulatedClock(paths, 15.0)
    done = run(world, queueing(3_000.0, lifts), paths=paths)
    assert done.tags == []
    assert all(
        abs(report.offset_ns - world.offset_at_mono_ns(report.mono_ns)) <= report.bound_ns
        for t, report in done.reports
        if t > 1.0
    )
    assert abs(done.at(15.0).drift_raw_ppb - world.mean_drift_ppb(14.0, 15.0)) < 60


def test_a_jump_is_seen_through_bursts_on_one_path() -> None:
    """With one path queueing heavily, the others tell of the jump."""
    world = SimulatedClock(3, 5.0, jumps=((3.05, -250_000),))
    done = run(world, queueing(lifts=[Lift(2.0, 5.0, 60_000, 60_000, (2,))]))
    assert [tag.kind for _, tag in done.tags] == ["phase_step"]


def test_a_path_that_falls_silent_is_no_jump() -> None:
    """When the lowest path stops, the next one is 2 us higher, and the clock stays."""
    world = SimulatedClock(5, 6.0)
    bases = (0.0, 2_000.0, 5_000.0, 9_000.0)
    delay = queueing(3_000.0, bases=bases)
    clock = Clock(1, "trailer", BASE_DELAY_NS)
    tags = []
    for i in range(60):
        windows = world.windows(i * 0.1, (i + 1) * 0.1, delay)
        if i >= 30:
            windows = windows[windows["queue"] >= 1]
        t = (i + 1) * 0.1 + 0.0003
        pairs = world.pairs(t)
        clock.observe_windows(windows, pairs)
        report = clock.tick(pairs, steering())
        tags += list(report.tags)
    assert tags == []
    error = report.offset_ns - world.offset_at_mono_ns(report.mono_ns) - BASE_DELAY_NS
    assert abs(error) < 300


def test_an_announced_change_is_a_path_change() -> None:
    """A 20 us shift of the envelope right after an applied change is the path's; the epoch changes, time does not."""
    world = SimulatedClock(6, 5.0)

    def announce(clock: Clock, t: float) -> None:
        if abs(t - 2.9003) < 0.01:
            clock.path_changed(int(world.mono_ns(np.array([2.95]))[0]), "rps_cpus of eth1 rx-0: 1 -> 2")

    constant = queueing(3_000.0, lifts=[Lift(3.0, 9.0, 20_000, 1.0)])
    done = run(world, constant, on_tick=announce)
    assert [(tag.kind, tag.cause) for _, tag in done.tags] == [
        ("path_change", "rps_cpus of eth1 rx-0: 1 -> 2")
    ]
    assert done.tags[0][1].size_ns == pytest.approx(20_000, abs=500)


@pytest.mark.parametrize("change_ppb", [-100_000.0, 100_000.0])
def test_a_rate_step_is_no_phase_step(change_ppb: float) -> None:
    """A rate that changes by 100 ppm is tagged as freq_step, and the new one is found."""
    world = SimulatedClock(7, 6.0, rate_steps=((3.0, change_ppb),))
    done = run(world, queueing())
    assert {tag.kind for _, tag in done.tags} == {"freq_step"}
    assert abs(done.at(6.0).drift_raw_ppb - world.mean_drift_ppb(5.0, 6.0)) < 100


def test_steering_is_no_drift() -> None:
    """mono slewed by 20 ppm in mid-run changes drift_mono, not drift_raw, and is no jump."""
    world = SimulatedClock(8, 6.0, steer_steps=((0.0, -3_000.0), (3.03, 20_000.0), (4.51, -35_000.0)))
    done = run(world, queueing())
    assert done.tags == []
    for t, slewed in ((2.9, -3_000.0), (4.4, 17_000.0), (6.0, -18_000.0)):
        report = done.at(t)
        assert abs(report.drift_raw_ppb - world.mean_drift_ppb(t - 0.5, t)) < 80
        assert abs(report.drift_mono_ppb - report.drift_raw_ppb - slewed) < 60


def test_delays_below_zero_are_rare() -> None:
    """Under the model given to the kernel, hardly any envelope lies before the hardware stamp."""
    world = SimulatedClock(9, 6.0)
    done = run(world, queueing())
    windows = world.windows(6.0, 6.1, queueing())
    model = done.reports[-1][1].model
    assert model is not None
    delays = [model.phc_ns(int(w["envelope"]["mono_ns"])) - int(w["envelope"]["hw_ns"]) for w in windows]
    assert np.mean(np.array(delays) < 0) < 0.01
    assert np.median(delays) < 20_000


def test_a_frozen_stamp_is_stale() -> None:
    """The same hardware stamp in all windows: one stale tag, no jump, holdover with its reason."""
    world = SimulatedClock(10, 5.0)
    frozen = world.windows(2.0, 2.1, queueing())["envelope"]["hw_ns"][0]
    clock = Clock(1, "trailer", BASE_DELAY_NS)
    tags = []
    for i in range(50):
        windows = world.windows(i * 0.1, (i + 1) * 0.1, queueing())
        if i >= 20:
            for name in ("first", "last", "envelope"):
                windows[name]["hw_ns"] = frozen
        pairs = world.pairs((i + 1) * 0.1 + 0.0003)
        clock.observe_windows(windows, pairs)
        report = clock.tick(pairs, steering())
        tags += [tag.kind for tag in report.tags]
    assert tags == ["stale"]
    assert (report.state, report.reason) == ("holdover", "hardware stamps repeat")
