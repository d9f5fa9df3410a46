"""The clocks of one interface: which windows are whose, and what is fed to them."""

from __future__ import annotations

import numpy as np

from agent.clock.interface import by_clock
from agent.ffi.records import CLOCK_KEY_NONE, WINDOW_DTYPE, WindowArray


def windows(*keys: int) -> WindowArray:
    """Windows of these clocks, numbered."""
    made = np.zeros(len(keys), dtype=WINDOW_DTYPE)
    made["clock_key"] = keys
    made["seq"] = np.arange(len(keys))
    return made


def split(records: WindowArray) -> dict[int, list[int]]:
    """Clock key -> numbers of its windows."""
    return {key: own["seq"].tolist() for key, own in by_clock(records)}


def test_windows_are_told_apartby_clock() -> None:
    """Each clock gets its own windows, in order; those without a stamp belong to none."""
    assert split(windows(0x703, CLOCK_KEY_NONE, 0x701, 0x703)) == {0x701: [2], 0x703: [0, 3]}


def test_a_single_clock_gets_all_windows() -> None:
    """The usual case."""
    assert split(windows(0x703, 0x703)) == {0x703: [0, 1]}


def test_without_stamps_there_is_no_clock() -> None:
    """Nothing came, or nothing that is stamped."""
    assert split(windows()) == {}
    assert split(windows(CLOCK_KEY_NONE, CLOCK_KEY_NONE)) == {}
