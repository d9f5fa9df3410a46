"""Names of steps and shapes of residuals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.clock.estimator import Estimator, Sample, timescale_of
from agent.clock.jumps import growth_of, matches_wrap, name_step, shape_of


@given(k=st.integers(27, 61), m=st.integers(0, 60), sign=st.sampled_from([-1, 1]), off=st.integers(-60, 60))
def test_two_powers_are_a_wrap(k: int, m: int, sign: int, off: int) -> None:
    """+-(2^k +- 2^m), m < k - 1, within 64 ns is a counter's wrap."""
    if m < k - 1:
        assert matches_wrap((1 << k) + sign * (1 << m) + off, 0.0)
        assert matches_wrap(-((1 << k) + sign * (1 << m) + off), 0.0)


@pytest.mark.parametrize(
    "size", [250_000, 1_000_000, 1_000_000_000, 1_039_723_456_473, 37_000_000_000, 100_000_000]
)
def test_ordinary_steps_are_no_wrap(size: int) -> None:
    """Round decimal steps, and the one of the field report, are not two powers of two."""
    assert matches_wrap(size, 1000.0) == ""


def test_steps_have_names() -> None:
    """37 s, 74 s and the kernel's own TAI offset are tai_utc; 2^33 is a wrap; the rest are phase steps."""
    assert name_step(-37_000_000_100, 500.0, 0)[0] == "tai_utc"
    assert name_step(74_000_000_000, 500.0, 0)[0] == "tai_utc"
    assert name_step(38_000_000_000, 500.0, 0)[0] == "phase_step"
    assert name_step(38_000_000_000, 500.0, 38)[0] == "tai_utc"
    assert name_step(1 << 33, 500.0, 0)[0] == "wrap"
    assert name_step(250_000, 500.0, 0)[0] == "phase_step"


def test_shapes() -> None:
    """Constant is a step, also at epoch size; a line from nothing a ramp; a line from afar both; noise neither."""
    t = [0.0, 1.0, 2.0, 3.0]
    sigmas = [3.0] * 4
    big = 1_700_000_000_000_000_000
    assert shape_of(t, [big + 3, big - 4, big, big + 2], sigmas)[0] == "step"
    shape, slope = shape_of(t, [100, 200, 300, 400], sigmas)
    assert shape == "ramp"
    assert slope == pytest.approx(100.0)
    assert shape_of(t, [-100, -210, -290, -400], sigmas)[0] == "ramp"
    assert shape_of(t, [big, big + 1000, big + 2000, big + 3000], sigmas)[0] == "step_and_ramp"
    assert shape_of(t, [5_000, -7_000, 9_000, -100], sigmas)[0] == "erratic"


def test_where_bad_stamps_are_usual_a_line_has_to_be_one() -> None:
    """What merely grows is a ramp of a clock whose stamps are good, and nothing of one whose stamps are not."""
    t, grown, sigmas = [0.0, 1.0, 2.0, 3.0], [1_000, 2_600, 2_900, 4_000], [15.0] * 4
    assert shape_of(t, grown, sigmas)[0] == "ramp"
    assert shape_of(t, grown, sigmas, strict=True)[0] == "erratic"
    assert shape_of(t, [1_000, 2_020, 2_990, 4_000], sigmas, strict=True)[0] == "ramp"


def test_growth_is_told_from_a_constant() -> None:
    """Residuals that grow from nothing are the drift's, not a step's: rate and beginning are told."""
    t, sigmas = [1.0, 2.0, 3.0, 4.0], [5.0] * 4
    assert growth_of(t, [10, 20, 30, 40], sigmas, 0.0) == pytest.approx((10.0, 0.0))
    assert growth_of(t, [30, 31, 29, 30], sigmas, 0.0) is None
    later = [*t, 5.0, 6.0]
    assert growth_of(later, [0, 0, 10, 20, 30, 40], [5.0] * 6, 0.0, 4) == pytest.approx((10.0, 2.0))
    assert growth_of(later, [0, 1, 0, -1, 40, 40], [5.0] * 6, 0.0, 4) is None


def _clock(n: int, hw_step: int = 0, at: int = 0, seed: int = 1) -> list[Sample]:
    rng = np.random.default_rng(seed)
    out = []
    for i in range(n):
        local = 10**13 + i * 100_000_000
        hw = 17 * 10**17 + i * 100_001_000 + round(rng.normal(0, 30)) + (hw_step if i >= at else 0)
        out.append(Sample(local, hw, 1500 + round(rng.exponential(50))))
    return out


def _tags(samples: list[Sample]) -> list[tuple[int, str]]:
    estimator = Estimator()
    verdicts = [v for s in samples for v in estimator.update(s)] + estimator.flush()
    return [(v.index, v.kind) for v in verdicts if v.kind not in (None, "outlier")]


@pytest.mark.parametrize("size", [-1_000, 1_000, 5_000, -250_000, 3_600_000_000_000, 12_345_678_901_234_567])
def test_a_step_is_tagged_at_its_first_sample(size: int) -> None:
    """From the read delay's half upwards, of either sign, to many days: one phase_step, at the right sample."""
    assert _tags(_clock(200, size, 100)) == [(100, "phase_step")]


def test_no_tags_in_a_long_quiet_recording() -> None:
    """20,000 samples of Gaussian noise have no jump."""
    assert _tags(_clock(20_000)) == []


def test_missing_between_suspects_does_not_delay_the_verdict() -> None:
    """A suspect followed by three samples without a stamp is judged all the same."""
    samples = _clock(60)
    odd = Sample(samples[40].local_ns, (samples[40].hw_ns or 0) + 10_000_000, 1500)
    gap = [Sample(s.local_ns, None) for s in samples[41:44]]
    estimator = Estimator()
    seen = []
    for s in [*samples[:40], odd, *gap]:
        seen += estimator.update(s)
    assert sorted(v.index for v in seen)[-4:] == [40, 41, 42, 43]


def test_time_scales() -> None:
    """37 s ahead of UTC is TAI, none is UTC, an hour is nothing known."""
    assert timescale_of(37_000_012_345, 0) == "tai"
    assert timescale_of(-1_000, 37) == "utc"
    assert timescale_of(3_600_000_000_000, 0) == "unknown"
