"""However many clocks somebody sends trailers of, the agent keeps as many as the kernel has room for."""

from __future__ import annotations

import numpy as np
import pytest

from agent.clock.model import ModelWriter
from agent.clock.table import ClockTable
from agent.ffi.records import CLOCK_KEY_PHC, MODEL_DTYPE, MODELS_MAX

S = 1_000_000_000


@pytest.fixture
def table() -> ClockTable:
    """An interface without clocks."""
    return ClockTable(None, ModelWriter(np.zeros(MODELS_MAX, MODEL_DTYPE)).forget)


def keys(table: ClockTable) -> set[int]:
    """What it has."""
    return {clock.key for clock in table}


def test_a_clock_is_made_once(table: ClockTable) -> None:
    """The same key is the same clock."""
    assert table.seen(7, 0) is table.seen(7, S)


def test_ever_new_clocks_do_not_add_up(table: ClockTable) -> None:
    """A thousand clocks, one every second: the newest remain."""
    for second in range(1000):
        table.seen(second, second * S)
    assert len(keys(table)) == MODELS_MAX
    assert 999 in keys(table)


def test_a_clock_in_use_is_not_displaced(table: ClockTable) -> None:
    """One seen every second outlives any number of others, and so does the PHC, though it is never seen again."""
    table.seen(CLOCK_KEY_PHC, 0)
    real = table.seen(7, 0)
    for second in range(1, 1000):
        assert table.seen(7, second * S) is real
        table.seen(1000 + second, second * S)
    assert CLOCK_KEY_PHC in keys(table)


def test_where_all_are_in_use_there_is_no_room(table: ClockTable) -> None:
    """The newcomer is left out, and comes in when one of the others was idle for long enough."""
    for key in range(MODELS_MAX):
        table.seen(key, 0)
    assert table.seen(100, 9 * S) is None
    assert table.seen(100, 10 * S) is not None
    assert len(keys(table)) == MODELS_MAX
