"""The model's arithmetic against C's, its continuity, and its way into the map."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.clock.model import (
    SHIFT,
    SLEW_LIMIT_PPB,
    ClockModel,
    ModelWriter,
    adj_limit,
    next_model,
)
from agent.ffi.records import CLOCK_KEY_NONE, CLOCK_KEY_PHC, MODEL_DTYPE, MODELS_MAX

MONO = 5_000_000_000_000
EPOCH = 1_764_000_000_000_000_000
VALIDITY = 2_000_000_000

monos = st.integers(10**9, 10**16)
phcs = st.integers(10**9, 4 * 10**18)
drifts = st.floats(-500_000, 500_000)


def _as_the_kernel(model: ClockModel, mono_ns: int) -> int:
    """The C expression in 64-bit arithmetic that wraps, by numpy's fixed-width integers."""
    with np.errstate(over="ignore"):
        span = np.int64(np.uint64(mono_ns) - np.uint64(model.mono0_ns))
        correction = (span * np.int64(model.adj)) >> np.int64(model.shift)
        return int(np.uint64(model.phc0_ns) + np.uint64(span) + np.uint64(correction))


@given(mono=monos, phc=phcs, drift=drifts, span=st.integers(-500_000_000, VALIDITY))
def test_phc_is_what_the_kernel_computes(mono: int, phc: int, drift: float, span: int) -> None:
    """Python's unbounded integers and C's wrapping ones agree over a model's whole life, before its start too."""
    model = next_model(None, mono, phc, drift, step=True, new_epoch=False, slew_s=0.5, validity_ns=VALIDITY)
    at = model.mono0_ns + span
    assert np.uint64(model.phc_ns(at)) == np.uint64(_as_the_kernel(model, at))


def test_shift_40_holds_over_60_s_at_100_ppm() -> None:
    """The product D * adj stays below 2^63 for 60 s at 100 ppm, as the map's definition promises."""
    assert adj_limit(60_000_000_000) >= round(100e-6 * (1 << SHIFT))


@given(mono=monos, phc=phcs, drift=drifts, error=st.integers(-10_000_000, 10_000_000), turn=drifts)
def test_models_are_continuous(mono: int, phc: int, drift: float, error: int, turn: float) -> None:
    """Without a jump, the next model is where the last one is at the switch, and slews within its limit."""
    old = next_model(None, mono, phc, drift, step=True, new_epoch=False, slew_s=0.5, validity_ns=VALIDITY)
    later = mono + 100_000_000
    new = next_model(
        old,
        later,
        old.phc_ns(later) + error,
        turn,
        step=False,
        new_epoch=False,
        slew_s=0.5,
        validity_ns=VALIDITY,
    )
    assert new.phc_ns(new.mono0_ns) == old.phc_ns(new.mono0_ns)
    assert new.epoch == old.epoch
    assert abs(new.adj / (1 << SHIFT) * 1e9 + turn) <= SLEW_LIMIT_PPB + 1e-3


def test_slewing_reaches_the_estimate() -> None:
    """5 us of error are gone after some ticks of half-second slews."""
    model = next_model(None, MONO, EPOCH, 0.0, step=True, new_epoch=False, slew_s=0.5, validity_ns=VALIDITY)
    for tick in range(1, 60):
        now = MONO + tick * 100_000_000
        truth = EPOCH + tick * 100_000_000 + 5_000
        model = next_model(
            model, now, truth, 0.0, step=False, new_epoch=False, slew_s=0.5, validity_ns=VALIDITY
        )
    assert abs(model.phc_ns(now) - truth) < 20


@pytest.mark.parametrize("tick_s", [0.1, 0.5, 1.0, 1.9])
def test_late_models_do_not_overshoot(tick_s: float) -> None:
    """A host that is busy ticks seldom: an error of 50 us is gone after some ticks of any length, and grows in none."""
    tick_ns = round(tick_s * 1e9)
    model = next_model(None, MONO, EPOCH, 0.0, step=True, new_epoch=False, slew_s=0.5, validity_ns=VALIDITY)
    errors = [50_000]
    for tick in range(1, 1 + round(max(40, 20 / tick_s))):
        at = MONO + tick * tick_ns
        errors.append(abs(EPOCH + 50_000 + tick * tick_ns - model.phc_ns(at)))
        model = next_model(
            model, at, EPOCH + 50_000 + tick * tick_ns, 0.0,
            step=False, new_epoch=False, slew_s=0.5, validity_ns=VALIDITY,
        )  # fmt: skip
    assert all(later <= max(before, 20) for before, later in pairwise(errors))
    assert errors[-1] <= 20


def test_a_jump_steps_into_a_new_epoch() -> None:
    """After a tagged jump the model is at the estimate at once, in the next epoch."""
    old = next_model(None, MONO, EPOCH, 0.0, step=True, new_epoch=False, slew_s=0.5, validity_ns=VALIDITY)
    new = next_model(
        old, MONO, EPOCH + 37 * 10**9, 0.0, step=True, new_epoch=True, slew_s=0.5, validity_ns=VALIDITY
    )
    assert new.phc_ns(MONO) == EPOCH + 37 * 10**9
    assert new.epoch == old.epoch + 1


def _map() -> np.ndarray:
    return np.zeros(MODELS_MAX, MODEL_DTYPE)


def test_the_writer_fills_the_copy_that_is_not_read() -> None:
    """Each write goes to copy[(seq + 1) & 1]; the other stays as it was until the next."""
    models = _map()
    writer = ModelWriter(models)
    first = ClockModel(MONO, EPOCH, -7, SHIFT, MONO + VALIDITY, 0)
    second = ClockModel(MONO + 1, EPOCH + 2, 9, SHIFT, MONO + VALIDITY + 1, 1)
    assert writer.write(CLOCK_KEY_PHC, first)
    assert writer.write(CLOCK_KEY_PHC, second)
    entry = models[0]
    assert (entry["key"], entry["seq"], entry["shift"], entry["epoch"]) == (CLOCK_KEY_PHC, 2, SHIFT, 1)
    assert entry["copy"][1].tolist() == (MONO, EPOCH, -7, MONO + VALIDITY)
    assert entry["copy"][0].tolist() == (MONO + 1, EPOCH + 2, 9, MONO + VALIDITY + 1)


def test_unused_entries_match_no_trailer() -> None:
    """Key 0 is a trailer's too: a fresh map's entries are marked unused."""
    models = _map()
    writer = ModelWriter(models)
    assert set(models["key"].tolist()) == {CLOCK_KEY_NONE}
    writer.write(0, ClockModel(MONO, EPOCH, 0, SHIFT, MONO + 1, 0))
    assert models["key"].tolist().count(0) == 1


def test_the_sequence_wraps() -> None:
    """After 2^32 writes the sequence is 0 again, and the copies still alternate."""
    models = _map()
    writer = ModelWriter(models)
    model = ClockModel(MONO, EPOCH, 0, SHIFT, MONO + 1, 0)
    writer.write(5, model)
    models["seq"][0] = 0xFFFFFFFF
    writer.write(5, model)
    assert models["seq"][0] == 0
    assert models["copy"][0, 0]["mono0_ns"] == MONO


def test_a_full_map_is_counted() -> None:
    """The clock that finds no entry is refused and counted, the others stay."""
    writer = ModelWriter(_map())
    model = ClockModel(MONO, EPOCH, 0, SHIFT, MONO + 1, 0)
    assert all(writer.write(key, model) for key in range(MODELS_MAX))
    assert not writer.write(1000, model)
    assert writer.refused == 1
    assert writer.write(3, model)


def test_a_forgotten_clock_makes_room() -> None:
    """Its entry is marked unused, and the next clock gets it; forgetting it twice does nothing."""
    models = _map()
    writer = ModelWriter(models)
    model = ClockModel(MONO, EPOCH, 0, SHIFT, MONO + 1, 0)
    for key in range(MODELS_MAX):
        writer.write(key, model)
    writer.forget(5)
    writer.forget(5)
    assert 5 not in models["key"]
    assert writer.write(1000, model)
    assert 1000 in models["key"]
