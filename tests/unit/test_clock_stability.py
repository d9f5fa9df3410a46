"""ADEV, TDEV and MTIE against published values."""

from __future__ import annotations

from itertools import pairwise
from math import isnan, sqrt
from pathlib import Path

import numpy as np
import pytest

from agent.clock.stability import FloatArray, adev, mtie, tdev

_DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "allantools"


def _nist_phase() -> FloatArray:
    """Phase of the 1000-point frequency test suite of NIST SP 1065."""
    n, frequency = 1_234_567_890, []
    for _ in range(1000):
        frequency.append(n / 2_147_483_647)
        n = 16_807 * n % 2_147_483_647
    return np.concatenate(([0.0], np.cumsum(frequency)))


@pytest.mark.parametrize(
    ("m", "allan", "overlapping", "time"),
    [
        (1, 2.922319e-01, 2.922319e-01, 1.687202e-01),
        (10, 9.965736e-02, 9.159953e-02, 3.563623e-01),
        (100, 3.897804e-02, 3.241343e-02, 1.253382e00),
    ],
)
def test_nist_suite(m: int, allan: float, overlapping: float, time: float) -> None:
    """The 1000-point suite gives all seven digits of SP 1065's table."""
    phase = _nist_phase()
    assert f"{adev(phase, 1.0, m, overlapping=False):.6e}" == f"{allan:.6e}"
    assert f"{adev(phase, 1.0, m):.6e}" == f"{overlapping:.6e}"
    assert f"{tdev(phase, m):.6e}" == f"{time:.6e}"


def _table(name: str) -> list[tuple[int, int, str]]:
    """(averaging factor, number of terms, figure as printed) of a Stable32 table."""
    rows = [line.split() for line in (_DATA / name).read_text().splitlines() if line[0] != "#"]
    return [(int(row[0]), int(row[2]), row[3] if len(row) == 4 else row[5]) for row in rows]


def _printed_as(figure: float, printed: str) -> bool:
    """Whether a figure rounds to the digits printed.

    Of the 807 rows five lie within 0.01 of the last digit of a tie, which Stable32 rounded the other way: its own input
    had fewer digits.
    """
    unit = 10.0 ** (int(printed.split("e")[1]) - 4)
    return abs(figure - float(printed)) <= 0.51 * unit


def _phase_dat() -> FloatArray:
    return np.loadtxt(_DATA / "phasedat_PHASE.DAT")


def _ocxo() -> FloatArray:
    frequency = np.loadtxt(_DATA / "ocxo_ocxo_frequency.txt") / 1e7 - 1.0
    return np.concatenate(([0.0], np.cumsum(frequency - frequency.mean())))


@pytest.mark.skipif(not _DATA.exists(), reason="the Stable32 references are not beside this checkout")
class TestStable32:
    def test_adev_of_phase_dat(self) -> None:
        """Stable32's "Allan" is the one that doesn't overlap."""
        phase = _phase_dat()
        for m, terms, printed in _table("phasedat_phase_dat_adev.txt"):
            assert terms == len(phase[::m]) - 2
            assert _printed_as(adev(phase, 1.0, m, overlapping=False), printed)

    def test_tdev_of_phase_dat(self) -> None:
        """Every factor of the table, to the printed digits."""
        phase = _phase_dat()
        for m, terms, printed in _table("phasedat_phase_dat_tdev.txt"):
            assert terms == len(phase) - 3 * m + 1
            assert _printed_as(tdev(phase, m), printed)

    def test_mtie_of_phase_dat(self) -> None:
        """Every factor of the table, to the printed digits."""
        phase = _phase_dat()
        for n, terms, printed in _table("phasedat_phase_dat_mtie.txt"):
            assert terms == len(phase) - n
            assert _printed_as(mtie(phase, n), printed)

    def test_adev_of_ocxo(self) -> None:
        """A measured oscillator, 19,982 seconds of it."""
        phase = _ocxo()
        for m, _, printed in _table("ocxo_stable32_adev_alltau.txt"):
            assert _printed_as(adev(phase, 1.0, m, overlapping=False), printed)

    def test_tdev_of_ocxo(self) -> None:
        """A measured oscillator, 19,982 seconds of it."""
        phase = _ocxo()
        for m, _, printed in _table("ocxo_stable32_tdev_alltau.txt"):
            assert _printed_as(tdev(phase, m), printed)


def test_spacing_scales_adev() -> None:
    """ADEV is per second: the same phases ten times closer are ten times the frequency."""
    phase = _nist_phase()
    assert adev(phase, 0.1, 3) == pytest.approx(10.0 * adev(phase, 1.0, 3))


def test_mtie_of_a_rate() -> None:
    """A constant rate's MTIE is the rate times the interval, for widths that are no powers of two as well."""
    phase = np.arange(100) * 0.5
    for n in (1, 2, 3, 5, 6, 12, 99):
        assert mtie(phase, n) == 0.5 * n


def test_constant_rate_has_no_deviation() -> None:
    """Offset and rate are not instability."""
    phase = 1e6 + 12.5 * np.arange(64)
    assert adev(phase, 1.0, 4) == 0.0
    assert tdev(phase, 4) == pytest.approx(0.0, abs=1e-9)


def test_white_phase_noise() -> None:
    """White PM of sigma s: ADEV is sqrt(3) s / tau, TDEV s / sqrt(m)."""
    phase = np.random.default_rng(1).normal(0.0, 10.0, 200_000)
    for m, later in pairwise((1, 4, 16)):
        assert tdev(phase, m) / tdev(phase, later) == pytest.approx(sqrt(later / m), rel=0.05)
        assert adev(phase, 1.0, m) == pytest.approx(sqrt(3.0) * 10.0 / m, rel=0.02)


def test_too_few_phases() -> None:
    """NaN where not one term can be formed, the figure where just one can."""
    phase = np.array([0.0, 1.0, 0.0])
    assert isnan(adev(phase[:2], 1.0, 1))
    assert not isnan(adev(phase, 1.0, 1))
    assert isnan(tdev(phase[:2], 1))
    assert not isnan(tdev(phase, 1))
    assert isnan(tdev(phase, 2))
    assert isnan(mtie(phase, 3))
    assert mtie(phase, 2) == 1.0
    for figure in (tdev, mtie):
        assert isnan(figure(np.zeros(0), 1))
        with pytest.raises(ValueError, match="begins at 1"):
            figure(phase, 0)
