"""Reads of this machine's own clocks."""

import time

import numpy as np

from agent.ffi.clocks import ClockPairs, adjtimex_state, clock_pairs


def test_the_reads_are_of_the_clocks_that_they_name() -> None:
    """Each clock of a pair lies between two reads of the same clock by Python."""
    clocks = (time.CLOCK_MONOTONIC, time.CLOCK_MONOTONIC_RAW, time.CLOCK_REALTIME, time.CLOCK_TAI)
    before = [time.clock_gettime_ns(clock) for clock in clocks]
    pairs = clock_pairs(8)
    after = [time.clock_gettime_ns(clock) for clock in clocks]
    for low, column, high in zip(
        before, (pairs.mono_ns, pairs.raw_ns, pairs.realtime_ns, pairs.tai_ns), after, strict=True
    ):
        assert column.dtype == np.int64
        assert (column >= low - pairs.tai_width_ns).all()
        assert (column <= high).all()


def test_rows_come_in_time_order() -> None:
    """raw grows from row to row and every bracket has a width."""
    pairs = clock_pairs(50)
    assert len(pairs) == 50
    assert (np.diff(pairs.raw_ns) > 0).all()
    assert (pairs.width_ns >= 0).all()


def test_a_row_is_one_instant_within_its_widths() -> None:
    """realtime - mono is the same in all rows, up to the widths of their brackets."""
    pairs = clock_pairs(20)
    difference = pairs.realtime_ns - pairs.mono_ns
    best = pairs.best()
    slack = pairs.width_ns + pairs.realtime_width_ns + pairs.width_ns[best] + pairs.realtime_width_ns[best]
    assert (np.abs(difference - difference[best]) <= slack).all()


def test_the_best_row_is_the_narrowest() -> None:
    """The narrowest mono bracket wins; among equals the one whose other brackets are narrow."""
    zeros = np.zeros(4, np.int64)
    pairs = ClockPairs(
        mono_ns=zeros,
        raw_ns=zeros,
        realtime_ns=zeros,
        tai_ns=zeros,
        width_ns=np.array([50, 40, 40, 40]),
        realtime_width_ns=np.array([10, 90, 45, 60]),
        tai_width_ns=np.array([10, 90, 45, 60]),
    )
    assert pairs.best() == 2


def test_the_steering_is_read_and_not_changed() -> None:
    """Reading twice gives the same frequency and tick, within what the kernel allows (500 ppm, 10 %)."""
    first, second = adjtimex_state(), adjtimex_state()
    assert (first.tick_us, first.status) == (second.tick_us, second.status)
    assert 9_000 <= first.tick_us <= 11_000
    assert abs(first.freq_ppb - (first.tick_us - 10_000) * 100_000) <= 500_000
