"""The fit of service times against known truth: noise, outliers, a change, and batches of one size."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from agent.batch.servicetime import ServiceTime

IntArray = npt.NDArray[np.int64]
BASE_NS, ITEM_NS = 1_000_000.0, 300_000.0


def batches(
    n: int, *, base_ns: float = BASE_NS, item_ns: float = ITEM_NS, outliers: float = 0.0, seed: int = 1
) -> tuple[IntArray, IntArray]:
    """Sizes around 6, service times with 5 % noise, and a share of them many times as long."""
    rng = np.random.default_rng(seed)
    sizes = rng.poisson(5, n) + 1
    took = (base_ns + item_ns * sizes) * (1.0 + 0.05 * rng.standard_normal(n))
    took *= np.where(rng.random(n) < outliers, rng.uniform(5, 30, n), 1.0)
    return sizes.astype(np.int64), took.astype(np.int64)


def test_it_knows_nothing_before_it_has_seen_some() -> None:
    """Fifteen batches are too few, sixteen are enough."""
    fit = ServiceTime()
    fit.observe(*batches(15))
    assert not fit.known
    fit.observe(*batches(1))
    assert fit.known


@pytest.mark.parametrize("seed", range(5))
def test_it_finds_the_line(seed: int) -> None:
    """Base and slope within 10 % of truth, although every 20th batch takes 5 to 30 times as long."""
    fit = ServiceTime()
    fit.observe(*batches(600, outliers=0.05, seed=seed))
    model = fit.model()
    assert model.base_ns == pytest.approx(BASE_NS, rel=0.10)
    assert model.item_ns == pytest.approx(ITEM_NS, rel=0.10)


def test_warming_up_is_no_service_time() -> None:
    """The first batches take 30 times as long: the fit begins with what the others took."""
    sizes, took = batches(16)
    took[:3] *= 30
    fit = ServiceTime()
    fit.observe(sizes, took)
    model = fit.model()
    assert model.base_ns + 6 * model.item_ns == pytest.approx(BASE_NS + 6 * ITEM_NS, rel=0.10)


def test_it_follows_a_change() -> None:
    """Twice as slow from now on: within 300 batches it says so, to 10 %."""
    fit = ServiceTime()
    fit.observe(*batches(500))
    fit.observe(*batches(300, base_ns=2 * BASE_NS, item_ns=2 * ITEM_NS, seed=2))
    model = fit.model()
    assert model.base_ns + 6 * model.item_ns == pytest.approx(2 * (BASE_NS + 6 * ITEM_NS), rel=0.10)


def test_a_slower_spell_with_larger_batches_is_no_slope() -> None:
    """Whenever the consumer is slower more items wait, so batches are larger: the line's shape stays what it is."""
    rng, fit = np.random.default_rng(4), ServiceTime()
    for spell in range(20):
        slower = 1.0 + 0.5 * (spell % 2)
        sizes = rng.poisson(2 + 3 * (spell % 2), 150) + 1
        took = slower * (BASE_NS + ITEM_NS * sizes) * (1.0 + 0.05 * rng.standard_normal(150))
        fit.observe(sizes.astype(np.int64), took.astype(np.int64))
    model = fit.model()
    assert model.base_ns / model.item_ns == pytest.approx(BASE_NS / ITEM_NS, rel=0.2)


def test_a_change_is_in_the_residuals_at_once() -> None:
    """What a replay draws has the right mean when 64 batches have been slower, before the line has moved."""
    fit = ServiceTime()
    fit.observe(*batches(500))
    fit.observe(*batches(64, base_ns=2 * BASE_NS, item_ns=2 * ITEM_NS, seed=2))
    model = fit.model()
    mean_ns = model.base_ns + 6 * model.item_ns + float(model.residual_ns.mean())
    assert mean_ns == pytest.approx(2 * (BASE_NS + 6 * ITEM_NS), rel=0.15)


def test_a_stall_is_no_service_time() -> None:
    """Every 20th batch takes 50 ms more, as somebody else had the CPU: a replay draws the usual noise."""
    sizes, took = batches(600)
    took[::20] += 50_000_000
    fit = ServiceTime()
    fit.observe(sizes, took)
    model = fit.model()
    assert np.abs(model.residual_ns).max() < 0.3 * (BASE_NS + 6 * ITEM_NS)


def test_batches_of_one_size_do_not_wind_it_up() -> None:
    """Thousands of equal batches tell nothing of the slope; when sizes vary again, it is found."""
    fit = ServiceTime()
    took = np.random.default_rng(3).normal(BASE_NS + 8 * ITEM_NS, 50_000, 5_000)
    fit.observe(np.full(5_000, 8), took.astype(np.int64))
    model = fit.model()
    assert model.base_ns + 8 * model.item_ns == pytest.approx(BASE_NS + 8 * ITEM_NS, rel=0.02)
    assert model.item_ns > 0
    fit.observe(*batches(300))
    assert fit.model().item_ns == pytest.approx(ITEM_NS, rel=0.10)


def test_neither_part_is_below_zero() -> None:
    """Batches that get faster with size, or that take nothing at the start, are no line through the negative."""
    sizes = np.tile(np.arange(1, 9), 50)
    fit = ServiceTime()
    fit.observe(sizes, 1_000_000 - 50_000 * sizes)
    assert fit.model().item_ns == 0.0
    fit = ServiceTime()
    fit.observe(sizes, 100_000 * sizes - 90_000)
    assert fit.model().base_ns == 0.0


def test_hostile_times_give_no_nonsense() -> None:
    """Service times from 1 ns to 10 s in random order leave a finite line."""
    rng = np.random.default_rng(7)
    fit = ServiceTime()
    took = np.exp(rng.uniform(0, np.log(1e10), 5_000)).astype(np.int64) + 1
    fit.observe(rng.integers(1, 65_536, 5_000), took)
    model = fit.model()
    assert np.isfinite([model.base_ns, model.item_ns, fit.sigma_ns]).all()
    assert model.base_ns >= 0.0
    assert model.item_ns >= 0.0
