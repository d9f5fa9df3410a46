"""The simulated PHC: what it publishes for the kernel, and the truth that it keeps."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tools.testbed.simphc import PHC_DTYPE, SHIFT, Jump, SimulatedPhc, Truth

S = 1_000_000_000


def make_truth(drift_ppb: int = 12_000, mono_gain_ppb: int = 0, jump_ns: int = 0) -> Truth:
    """One segment of 10 s, or two with a jump between them at 5 s; mono gains `mono_gain_ppb` on raw."""
    adj = round(-drift_ppb * (1 << SHIFT) / 1e9)
    mono0 = np.array([0, 5 * S])
    phc0 = np.array([1000 * S, 1000 * S + 5 * S + ((5 * S * adj) >> SHIFT) + jump_ns])
    pair_mono = np.arange(0, 10 * S, S // 100)
    pair_raw = pair_mono - pair_mono * mono_gain_ppb // S
    jumps = (Jump(5 * S, jump_ns),) if jump_ns else ()
    return Truth(mono0, phc0, np.array([adj, adj]), pair_mono, pair_raw, jumps)


def run_phc(
    seconds: float, drift_ppb: int = 12_000, seed: int = 1, jump_ns: int = 0, wander: float = 5.0
) -> tuple[SimulatedPhc, Truth]:
    """Let a simulated PHC run for a while on memory of our own."""
    shared = np.zeros(1, dtype=PHC_DTYPE)
    phc = SimulatedPhc(shared, drift_ppb, wander, jump_ns, seconds / 2, seed)
    phc.start()
    try:
        time.sleep(seconds)
        return phc, phc.truth()
    finally:
        phc.close()


def test_offset_grows_by_the_drift() -> None:
    """A PHC that is slow by 12 ppm falls 12 us behind mono in each second."""
    truth = make_truth()
    start, end = truth.offset_ns([2 * S, 3 * S]).tolist()
    assert end - start == pytest.approx(12_000, abs=1)


def test_drift_against_mono_and_raw_differ_by_the_steering() -> None:
    """If mono gains 3 ppm on raw, drift against raw is 3 ppm less than against mono."""
    truth = make_truth(drift_ppb=15_000, mono_gain_ppb=3_000)
    assert truth.drift_mono_ppb(4 * S) == pytest.approx(15_000, abs=2)
    assert truth.drift_raw_ppb(4 * S) == pytest.approx(12_000, abs=2)


def test_a_jump_is_no_drift() -> None:
    """The mean drift over a span with a jump in it doesn't contain the jump."""
    truth = make_truth(jump_ns=250_000)
    assert truth.drift_mono_ppb(5 * S + S // 2) == pytest.approx(12_000, abs=2)
    before, after = truth.offset_ns([5 * S - 1, 5 * S]).tolist()
    assert after - before == pytest.approx(-250_000, abs=2)


def test_near_jump_is_symmetric() -> None:
    """Moments on both sides of a jump are near it."""
    truth = make_truth(jump_ns=1)
    assert truth.near_jump([5 * S - 10, 5 * S + 10, 5 * S + 11], within_ns=10).tolist() == [True, True, False]


def test_drift_without_clock_pairs_is_an_error() -> None:
    """Drift against raw for a span in which the clock did not run is refused."""
    with pytest.raises(ValueError, match="did not run"):
        make_truth().drift_raw_ppb(100 * S)


def test_segments_are_continuous_but_for_the_jump() -> None:
    """Each segment starts where the one before ends, to the nanosecond; the injected jump is the only step."""
    _, truth = run_phc(0.3, jump_ns=77_000)
    (jump,) = truth.jumps
    starts = truth.mono0_ns[1:]
    old = truth.mono0_ns[:-1]
    end_of_old = truth.phc0_ns[:-1] + (starts - old) + (((starts - old) * truth.adj[:-1]) >> SHIFT)
    steps = truth.phc0_ns[1:] - end_of_old
    assert set(steps[starts != jump.mono_ns].tolist()) <= {0, 1}
    assert steps[starts == jump.mono_ns].tolist() in ([77_000], [77_001])


def test_rounding_does_not_add_up() -> None:
    """Where each segment loses a fraction of a nanosecond, the clock as a whole does not drift by it."""
    _, truth = run_phc(0.5, drift_ppb=12_001, wander=0.0)
    start, end = int(truth.mono0_ns[0]), int(truth.mono0_ns[-1])
    gained = int(truth.offset_ns(end) - truth.offset_ns(start))
    assert gained == pytest.approx((end - start) * 12_001e-9, abs=2)


def test_the_published_segment_is_the_last_of_the_truth() -> None:
    """What the kernel reads is what the truth says."""
    shared = np.zeros(1, dtype=PHC_DTYPE)
    phc = SimulatedPhc(shared, 12_000, 0.0, 0, 0.0, 1)
    phc.start()
    time.sleep(0.05)
    phc.close()
    truth = phc.truth()
    current = shared["segment"][0, int(shared["seq"][0]) & 1]
    assert current.tolist() == (truth.mono0_ns[-1], truth.phc0_ns[-1], truth.adj[-1])


def test_the_clock_runs_slow_by_the_drift_against_raw() -> None:
    """The mean drift against raw is the one asked for, within what wander and clock reads allow."""
    _, truth = run_phc(0.4, drift_ppb=-40_000)
    end = int(truth.pair_mono_ns[-1])
    assert truth.drift_raw_ppb(end, span_ns=300_000_000) == pytest.approx(-40_000, abs=2_000)


def test_wander_is_the_same_for_the_same_seed() -> None:
    """Two runs with one seed walk alike, another seed walks otherwise."""
    walks = [run_phc(0.1, seed=seed)[1].adj[:4].tolist() for seed in (5, 5, 6)]
    assert walks[0] == walks[1]
    assert walks[0] != walks[2]


def test_a_jump_on_demand() -> None:
    """`jump` steps the clock and says when."""
    shared = np.zeros(1, dtype=PHC_DTYPE)
    phc = SimulatedPhc(shared, 0, 0.0, 0, 0.0, 1)
    phc.start()
    try:
        jump = phc.jump(-5_000)
        truth = phc.truth()
    finally:
        phc.close()
    assert jump in truth.jumps
    before, after = truth.offset_ns([jump.mono_ns - 1, jump.mono_ns]).tolist()
    assert after - before == 5_000
