"""A track, windows and the envelope in C against the same in plain Python (`track_reference.py`)."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

from agent.clock import Clock
from agent.clock.envelope import Envelope
from agent.clock.estimator import MAX_HOLDOVER_NS
from agent.clock.forecast import MAX_OFFSET_NS
from agent.clock.kalman import MEMBERS
from agent.clock.monoraw import MonoRaw
from agent.clock.track import Track
from agent.clock.windows import Windows
from agent.ffi.clocks import ClockPairs
from agent.ffi.phc import PhcBurst
from agent.ffi.records import WINDOW_DRIFT_VALID, WINDOW_DTYPE, WindowArray
from tests.unit.clock_core import lib
from tests.unit.clock_reference import ReferenceBank
from tests.unit.test_clock_core import INITIAL_DRIFT_VAR, MEMORY, close
from tests.unit.test_clock_simulation import MONO0, RAW0, SimulatedClock, queueing, steering
from tests.unit.track_reference import (
    SUB_INTERVAL_NS,
    ReferenceEnvelope,
    ReferenceMinimum,
    ReferenceTrack,
    median_of_longest,
    reference_minima,
)

EPOCH_NS = -1_690_000_000_000_000_000
LOCAL0_NS = 5_000_000_000


def _reference() -> ReferenceTrack:
    return ReferenceTrack(ReferenceBank(MEMBERS, MEMORY, INITIAL_DRIFT_VAR))


def _same(track: Track, reference: ReferenceTrack, local_ns: int, close_to: float = 1e-9) -> None:
    """Offset to the nanosecond, everything else to `close_to`, drift and noise of its own scale."""
    for ahead_ns in (0, 1_000_000_000):
        (offset_ns, sigma_ns), (expected_ns, expected) = (
            t.offset_at(local_ns + ahead_ns) for t in (track, reference)
        )
        # Halves may be rounded either way.
        assert abs(offset_ns - expected_ns) <= 1
        assert sigma_ns == pytest.approx(expected, rel=close_to)
    (drift_ppb, var), (expected_ppb, expected_var) = track.drift(), reference.drift()
    assert drift_ppb == pytest.approx(expected_ppb, rel=1e-9, abs=close_to * sqrt(expected_var))
    assert var == pytest.approx(expected_var, rel=close_to)
    assert track.noise.scale == pytest.approx(reference.noise.scale, rel=close_to)
    assert track.noise.triples == pytest.approx(reference.noise.count - 3.0)


# 1e7 ns from its base, where a member's offset is known to 2e-9 ns only, the second one's is moved.
@pytest.mark.parametrize(("drift_ppb", "close_to"), [(300.0, 1e-9), (90_000.0, 1e-7)])
def test_a_track_equals_its_rules(drift_ppb: float, close_to: float) -> None:
    """Samples good and bad, a step, a frequency step, steering, of a clock of today."""
    rng = np.random.default_rng(round(drift_ppb))
    track, reference = Track(), _reference()
    whole_ns, local_ns, offset = EPOCH_NS, LOCAL0_NS, 0.0
    for t in (track, reference):
        t.start(local_ns, whole_ns, 900.0)
    for i in range(1, 300):
        dt_ns = 500_000_000 + int(rng.integers(-20_000_000, 20_000_000))
        local_ns += dt_ns
        offset += (drift_ppb + (600.0 if i >= 200 else 0.0) + (25.0 if i > 120 else 0.0)) * dt_ns * 1e-9
        if i == 120:
            for t in (track, reference):
                t.steer(25.0, local_ns - 200_000_000, local_ns)
        for t in (track, reference):
            t.advance(local_ns)
        if i == 60:
            whole_ns += 37_000_000_123
            for t in (track, reference):
                t.step(37_000_000_123)
        if i == 201:
            for t in (track, reference):
                t.release_drift(600.0, 300.0)
        bad = i % 41 == 7
        measured_ns = whole_ns + round(offset + rng.normal(0.0, 3_000.0 if bad else 25.0))
        extra_var = 250_000.0 if i % 29 == 3 else 0.0
        residual, expected = (t.residual(measured_ns, 900.0, extra_var) for t in (track, reference))
        assert abs(residual[0] - expected[0]) <= 1
        assert residual[1] == pytest.approx(expected[1], rel=close_to)
        weight, expected_weight = (
            t.accept(measured_ns, 900.0, extra_var, 2.5, 2.5) for t in (track, reference)
        )
        assert weight == pytest.approx(expected_weight, rel=close_to)
        _same(track, reference, local_ns, close_to)


def test_a_restored_track_goes_on_as_if_nothing_had_been() -> None:
    """What came after the snapshot leaves no trace in the offset and its sigma, for whom it was no evidence."""
    once, twice = Track(), Track()
    for t in (once, twice):
        t.start(LOCAL0_NS, EPOCH_NS, 900.0)
        for i in range(1, 50):
            t.advance(LOCAL0_NS + i * 10**8)
            t.accept(EPOCH_NS + 20 * i, 900.0, 0.0, 2.5, 2.5)
    before = twice.save()
    twice.advance(LOCAL0_NS + 51 * 10**8)
    twice.accept(EPOCH_NS + 10**9, 900.0, 0.0, 2.5, 2.5)
    twice.restore(before)
    at_ns = LOCAL0_NS + 60 * 10**8
    assert twice.offset_at(at_ns) == once.offset_at(at_ns)
    assert twice.drift() == once.drift()


def _bursty_windows(world: SimulatedClock, start_s: float, end_s: float) -> WindowArray:
    return world.windows(start_s, end_s, queueing(4_000.0, bases=(0.0, 0.0, 2_000.0, 6_000.0)))


def test_minima_equal_their_definition() -> None:
    """Of windows of four paths, some without a stamp: each minimum, its scatter, its spread; in any order."""
    world = SimulatedClock(3, 1.0)
    drawn = _bursty_windows(world, 0.0, 0.2)
    drawn["n_stamped"][::7] = 0
    drawn = drawn[np.random.default_rng(1).permutation(len(drawn))]
    until_ns = MONO0 + 150_000_000
    windows = Windows()
    windows.add(drawn[:300])
    windows.add(drawn[300:])
    windows.collapse(0, until_ns, 12_000.0)
    expected = reference_minima(drawn, until_ns, 12_000.0)
    native = windows.native
    for found, minimum in zip(native.minima[0 : native.n_minima], expected, strict=True):
        assert (found.start_mono_ns, found.path, found.mono_ns, found.offset_ns, found.windows) == (
            minimum.start_mono_ns,
            minimum.path,
            minimum.mono_ns,
            minimum.offset_ns,
            minimum.windows,
        )
        close(found.scatter_ns, np.array(minimum.scatter_ns), 1.0)
        close(found.spread_ns, np.array(minimum.spread_ns), 1.0)


def test_only_what_was_used_is_forgotten() -> None:
    """Pairs from before the limit go, those after it stay; what is older than what was done counts as late."""
    windows = Windows()
    windows.add(_bursty_windows(SimulatedClock(3, 1.0), 0.0, 0.1))
    before = windows.native.n_pending
    late = lib.agent_windows_forget(windows.native, MONO0 + 20_000_000, MONO0 + 60_000_000)
    assert 0 < late < before - windows.native.n_pending
    assert lib.agent_windows_earliest(windows.native) >= MONO0 + 60_000_000


def test_the_ladder_s_drift_is_the_median_of_the_longest_baselines() -> None:
    """Even and odd numbers of them; without any there is none."""
    rng = np.random.default_rng(4)
    windows = Windows()
    for n in (1, 2, 9, 40):
        drawn = np.zeros(n, WINDOW_DTYPE)
        drawn["flags"] = WINDOW_DRIFT_VALID
        drawn["drift_baseline_ns"] = rng.integers(1, 10**9, n)
        drawn["drift_mono_ppb"] = rng.integers(-(10**5), 10**5, n)
        windows.add(drawn)
        baselines, drifts = drawn["drift_baseline_ns"].tolist(), drawn["drift_mono_ppb"].tolist()
        assert windows.ladder_drift() == (median_of_longest(baselines, drifts), max(baselines))
    assert windows.ladder_drift() == (None, 0)


def test_fitting_sub_intervals_equal_their_rules() -> None:
    """Four paths of different bases that queue: the same samples come out of the windows, so the same track."""
    world = SimulatedClock(11, 3.0)
    at = np.array([RAW0])
    monoraw = MonoRaw()
    width = np.array([0])
    monoraw.observe(ClockPairs(at + (MONO0 - RAW0), at, at, at, width, width, width), None)
    windows = Windows()
    envelope = Envelope(windows, monoraw, MAX_HOLDOVER_NS)
    reference = ReferenceEnvelope(_reference(), MONO0 - RAW0)
    drift_ppb = 12_000.0
    for i in range(20):
        drawn = _bursty_windows(world, i * 0.1, (i + 1) * 0.1)
        windows.add(drawn)
        windows.collapse(0, MONO0 + 10**12, drift_ppb)
        envelope._work_through(drift_ppb)
        lib.agent_windows_forget(windows.native, 0, MONO0 + 10**12)
        by_sub: dict[int, list[ReferenceMinimum]] = {}
        for m in reference_minima(drawn, MONO0 + 10**12, drift_ppb):
            by_sub.setdefault(m.start_mono_ns, []).append(m)
        for minima in by_sub.values():
            reference.take(minima, drift_ppb)
        assert reference.suspects == 0
        assert envelope.suspected_ns == 0
        _same(envelope.track, reference.track, RAW0 + round((i + 1) * 1e8) + SUB_INTERVAL_NS)
    assert any(path.base_ns > 3_000 for path in reference.paths.values())
    assert SUB_INTERVAL_NS == lib.AGENT_SUB_INTERVAL_NS


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seed", range(4))
def test_stamps_from_anybody_stay_within_what_clocks_can_be_apart(seed: int) -> None:
    """Packets and reads with any 64 bits for a stamp, some or all: every figure is a number in range, none wraps."""
    rng = np.random.default_rng(seed)
    world = SimulatedClock(seed, 3.0)
    clock = Clock(1, "phc" if seed % 2 else "trailer", 1_000)
    for i in range(25):
        windows = _bursty_windows(world, i * 0.1, (i + 1) * 0.1)
        wrong = rng.random(len(windows)) < (0.02, 1.0)[seed // 2]
        for name in ("first", "last", "envelope"):
            stamps = windows[name]["hw_ns"]
            stamps[wrong] = rng.integers(0, 2**64 - 1, int(wrong.sum()), dtype=np.uint64)
        at_s = (i + 1) * 0.1 + 0.0003
        pairs = world.pairs(at_s)
        clock.observe_windows(windows, pairs)
        reads = np.sort(rng.integers(0, 2**62, 20))
        clock.observe_anchor(
            PhcBurst("extended", "raw", reads[::2].copy(), reads[5:15], reads[1::2].copy()), pairs
        )
        report = clock.tick(pairs, steering(float(rng.normal(0.0, 1e4))))
        for offset_ns in (report.offset_ns, *(p.offset_ns for p in report.predictions)):
            assert abs(offset_ns) <= MAX_OFFSET_NS + 10**12
        assert not any(np.isnan((p.sigma_ns, p.p99_ns)).any() for p in report.predictions)
