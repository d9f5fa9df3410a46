"""ADEV, TDEV and MTIE against Stable32's own output, row by row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from agent.clock.stability import adev, mtie, tdev
from agent.errors import UnsupportedError
from tools.bench.clock.oscillator import Floats
from tools.bench.clock.recordings import DATA
from tools.bench.clock.session import Session
from tools.bench.figure import Figure

_FOLDER = DATA / "allantools"
_DIGITS = 4
"""Behind the point, in Stable32's tables."""
_NOMINAL_HZ = 1e7
# Rounding either way at a tie: Stable32's own input had fewer digits than the files that are distributed.
_HALF_A_DIGIT = 0.51


def measure(session: Session) -> list[Figure]:
    """Rows of the reference tables that are not met to the printed digits."""
    if not _FOLDER.exists():
        raise UnsupportedError(
            "Stable32's references are not beside this checkout", f"put them into {_FOLDER}"
        )
    phase = np.loadtxt(_FOLDER / "phasedat_PHASE.DAT")
    frequency = np.loadtxt(_FOLDER / "ocxo_ocxo_frequency.txt") / _NOMINAL_HZ - 1.0
    ocxo = np.concatenate(([0.0], np.cumsum(frequency - frequency.mean())))
    wrong: dict[str, list[str]] = {}
    rows = 0
    for name, data, figure in _tables(phase, ocxo):
        table = _read(name)
        rows += len(table)
        off = [
            f"{m}: {figure(data, m):.6e}, not {printed}"
            for m, printed in table
            if not _met(figure(data, m), printed)
        ]
        if off:
            wrong[name] = off
    count = sum(len(off) for off in wrong.values())
    what = "rows of Stable32's tables of ADEV, TDEV and MTIE that are not met to the printed digits"
    return [Figure("metrics", what, count, "", 0, "exactly", None, rows, {"wrong": wrong})]


def _tables(phase: Floats, ocxo: Floats) -> list[tuple[str, Floats, Callable[[Floats, int], float]]]:
    def allan(data: Floats, m: int) -> float:
        return adev(data, 1.0, m, overlapping=False)

    return [
        ("phasedat_phase_dat_adev.txt", phase, allan),
        ("phasedat_phase_dat_tdev.txt", phase, tdev),
        ("phasedat_phase_dat_mtie.txt", phase, mtie),
        ("ocxo_stable32_adev_alltau.txt", ocxo, allan),
        ("ocxo_stable32_tdev_alltau.txt", ocxo, tdev),
    ]


def _read(name: str) -> list[tuple[int, str]]:
    """(averaging factor, figure as printed) of each row."""
    rows = [line.split() for line in (_FOLDER / name).read_text().splitlines() if line and line[0] != "#"]
    return [(int(row[0]), row[3] if len(row) == 4 else row[5]) for row in rows]


def _met(figure: float, printed: str) -> bool:
    unit = 10.0 ** (int(printed.split("e")[1]) - _DIGITS)
    return abs(figure - float(printed)) <= _HALF_A_DIGIT * unit
