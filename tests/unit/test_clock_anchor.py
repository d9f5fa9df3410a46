"""Bursts of PHC reads, simulated, to one anchor."""

from __future__ import annotations

import numpy as np

from agent.clock.anchor import Anchor, against_raw, anchor_of
from agent.ffi.clocks import ClockPairs
from agent.ffi.phc import PhcBurst

HW0 = 1_700_000_000_000_000_000
RAW0 = 10_000_000_000_000
OFFSET = RAW0 - HW0
REALTIME_AHEAD = HW0 - 37_000_000_000 - RAW0


def _burst(
    rng: np.random.Generator, n: int = 10, drift_ppb: float = 0.0, excess_ns: float = 2_000.0
) -> PhcBurst:
    """Reads of 1500 ns whose excess delay falls all on one side, as it does under load; true offset OFFSET at RAW0."""
    t1 = RAW0 + np.arange(n) * 20_000 + rng.integers(0, 500, n)
    before, after = 750.0 + rng.normal(0, 10, n), 750.0 + rng.normal(0, 10, n)
    before += (rng.random(n) < 0.5) * rng.exponential(excess_ns, n)
    at = t1 + before
    phc = HW0 + np.rint((at - RAW0) * (1.0 - drift_ppb * 1e-9)).astype(np.int64)
    return PhcBurst("extended", "raw", t1, phc, np.rint(at + after).astype(np.int64))


def _of(burst: PhcBurst, drift_ppb: float = 0.0) -> Anchor:
    anchor = anchor_of(burst, drift_ppb)
    assert anchor is not None
    return anchor


def test_excess_delay_is_weighted_away() -> None:
    """Half of the reads delayed by microseconds on one side: the anchor stays within a few sigma, and its bound."""
    rng = np.random.default_rng(1)
    errors, sigmas = [], []
    for _ in range(200):
        anchor = _of(_burst(rng))
        errors.append(anchor.offset_ns - OFFSET)
        sigmas.append(anchor.var**0.5)
        assert anchor.low_ns <= OFFSET <= anchor.high_ns
        assert anchor.consistent
    assert np.std(errors) < 25
    assert np.std(errors) < 2 * np.median(sigmas)


def test_drift_within_the_burst_is_removed() -> None:
    """At 500 ppm, reads 200 us apart agree once the drift is taken out."""
    rng = np.random.default_rng(2)
    burst = _burst(rng, 25, 500_000.0)
    anchor = _of(burst, 500_000.0)
    assert anchor.consistent
    expected = OFFSET + round((anchor.local_ns - RAW0) * 500e-6)
    assert abs(anchor.offset_ns - expected) < 60


def test_cross_timestamps_agree_before_the_drift_is_known() -> None:
    """Cross-timestamps leave nothing open, so 20 ppm moves them apart within a burst: that is no contradiction."""
    at = RAW0 + np.arange(25) * 30_000
    phc = HW0 + np.rint((at - RAW0) * (1.0 + 20e-6)).astype(np.int64)
    anchor = _of(PhcBurst("precise", "raw", at, phc, at))
    assert anchor.consistent
    assert abs(anchor.offset_ns - OFFSET) <= 25 * 30_000 * 20e-6


def test_reads_that_contradict_are_not_averaged() -> None:
    """A PHC stepped in the middle of a burst leaves no common offset: the anchor says so."""
    burst = _burst(np.random.default_rng(3), excess_ns=1.0)
    burst.phc_ns[5:] += 10_000
    assert not _of(burst).consistent


def test_precise_reads_have_no_delay() -> None:
    """PRECISE latches both clocks: t1 = t2, and the offset is exact."""
    t = RAW0 + np.arange(4) * 1_000
    anchor = _of(PhcBurst("precise", "raw", t, t - OFFSET, t))
    assert (anchor.offset_ns, anchor.read_delay_ns) == (OFFSET, 0)


def test_unusable_reads_are_left_out() -> None:
    """A read of 0 or one whose local clock went back counts for nothing; with none left there is no anchor."""
    t = RAW0 + np.arange(3) * 10_000
    phc = t + 500 - OFFSET
    phc[0] = 0
    late = t + 1000
    late[1] = t[1] - 5
    anchor = _of(PhcBurst("basic", "realtime", t, phc, late))
    assert anchor.local_ns == t[2] + 500
    assert anchor_of(PhcBurst("basic", "raw", t[:1], phc[:1], late[:1]), 0.0) is None


def _pairs(raw_ns: int, realtime_ahead_ns: int, mono_ahead_ns: int = 0, width_ns: int = 80) -> ClockPairs:
    """One instant, every read bracketed by `width_ns`."""
    raw, width = np.array([raw_ns]), np.array([width_ns])
    realtime = raw + realtime_ahead_ns
    return ClockPairs(raw + mono_ahead_ns, raw, realtime, realtime, width, width, width)


def _against_realtime(burst: PhcBurst, slew_ppb: float) -> PhcBurst:
    """The same reads, between reads of a realtime that gains `slew_ppb` on raw."""

    def realtime(raw: np.ndarray) -> np.ndarray:
        return raw + REALTIME_AHEAD + np.rint((raw - RAW0) * slew_ppb * 1e-9).astype(np.int64)

    return PhcBurst("basic", "realtime", realtime(burst.t1_ns), burst.phc_ns, realtime(burst.t2_ns))


def test_realtime_reads_become_raw_whatever_its_slew() -> None:
    """Realtime slewed by 500 ppm: between the pairs around the burst it runs straight, and the anchor is right."""
    rng = np.random.default_rng(5)
    for _ in range(50):
        burst = _against_realtime(_burst(rng), 500_000.0)
        anchor = _of(burst, 500_000.0)
        before, after = RAW0 - 50_000, RAW0 + 400_000
        slewed = round((after - RAW0) * 500e-6)
        pairs = _pairs(before, REALTIME_AHEAD - 25, -25).followed_by(
            _pairs(after, REALTIME_AHEAD + slewed, slewed)
        )
        raw = against_raw(anchor, pairs)
        assert raw is not None
        assert raw.local_clock == "raw"
        assert raw.low_ns <= OFFSET <= raw.high_ns
        assert abs(raw.offset_ns - OFFSET) < 80


def test_a_wide_bracket_of_realtime_widens_the_anchor() -> None:
    """What the pairs leave open is in the variance, the hard bound and the read delay."""
    anchor = _of(_against_realtime(_burst(np.random.default_rng(6)), 0.0))
    widened = []
    for width in (0, 2_000):
        pairs = _pairs(RAW0 - 1_000, REALTIME_AHEAD, 0, width).followed_by(
            _pairs(RAW0 + 400_000, REALTIME_AHEAD, 0, width)
        )
        raw = against_raw(anchor, pairs)
        assert raw is not None
        widened.append(raw)
    narrow, wide = widened
    assert wide.high_ns - wide.low_ns == narrow.high_ns - narrow.low_ns + 2_000
    assert wide.read_delay_ns == narrow.read_delay_ns + 2_000
    assert wide.var == narrow.var + 1_000**2 / 3


def test_a_set_realtime_gives_no_anchor() -> None:
    """Somebody stepped CLOCK_REALTIME by a microsecond while the PHC was read: what was read is of two clocks."""
    anchor = _of(_against_realtime(_burst(np.random.default_rng(7)), 0.0))
    before = _pairs(RAW0 - 1_000, REALTIME_AHEAD)
    assert against_raw(anchor, before.followed_by(_pairs(RAW0 + 400_000, REALTIME_AHEAD + 1_000))) is None
    assert against_raw(anchor, before.followed_by(_pairs(RAW0 + 400_000, REALTIME_AHEAD - 10**9))) is None
    assert against_raw(anchor, before.followed_by(_pairs(RAW0 + 400_000, REALTIME_AHEAD))) is not None
