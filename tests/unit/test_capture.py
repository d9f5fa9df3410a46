"""How large the tables and rings of a capture are made."""

from __future__ import annotations

import pytest

from agent.capture import CaptureTarget, _ring_bytes, _slots_per_cpu, _stack_queues
from agent.options import RunOptions


def target(rx_queues: int, cpus: int = 4) -> CaptureTarget:
    """An interface on a machine of some size."""
    return CaptureTarget("eth1", 3, rx_queues, cpus, tuple(range(cpus)))


@pytest.mark.parametrize("queues", [1, 3, 8, 64, 128])
def test_slots_hold_two_clocks_a_queue(queues: int) -> None:
    """A power of two with room for two clocks on each queue, up to the table's limit."""
    slots = _slots_per_cpu(queues)
    assert slots & (slots - 1) == 0
    assert slots >= min(2 * queues, 128)


@pytest.mark.parametrize(("queues", "expected"), [(1, 1), (2, 2), (3, 4), (64, 64), (128, 64)])
def test_stack_queues_are_a_power_of_two_up_to_64(queues: int, expected: int) -> None:
    """As `config.stack_queues` in records.h wants it."""
    assert _stack_queues(queues) == expected


@pytest.mark.parametrize("queues", [1, 4, 64])
@pytest.mark.parametrize("window_ns", [100_000, 1_000_000, 1_000_000_000])
def test_rings_are_powers_of_two_within_bounds(queues: int, window_ns: int) -> None:
    """64 KiB to 4 MiB a CPU, whatever the window and the queues."""
    size = _ring_bytes(RunOptions(("eth1",), window_ns=window_ns), target(queues))
    assert size & (size - 1) == 0
    assert 64 << 10 <= size <= 4 << 20


def test_the_ring_that_was_asked_for_is_taken() -> None:
    """`--ring-kib` wins over the estimate."""
    assert _ring_bytes(RunOptions(("eth1",), ring_kib=4), target(4)) == 4096
