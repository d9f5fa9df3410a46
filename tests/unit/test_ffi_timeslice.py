"""Slices that the agent asks the scheduler for."""

from __future__ import annotations

import os
import threading

from agent.ffi.timeslice import ask_for_short_slices, slice_ns


def in_thread(asks: bool, policy: int = os.SCHED_OTHER) -> tuple[bool, int, int]:
    """Whether a thread that asks is given short slices; its slice, and that of a thread that it starts."""
    seen: list[int] = []

    def child() -> None:
        seen.append(slice_ns())

    def run() -> None:
        if policy != os.SCHED_OTHER:
            os.sched_setscheduler(0, policy, os.sched_param(0))
        seen.append(int(ask_for_short_slices()) if asks else 0)
        seen.append(slice_ns())
        inner = threading.Thread(target=child)
        inner.start()
        inner.join()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    taken, own, inherited = seen
    return bool(taken), own, inherited


def test_slices_get_short_and_are_inherited() -> None:
    """Where the kernel tells slices at all (6.12); older ones take the call."""
    taken, own, inherited = in_thread(asks=True)
    assert taken
    if in_thread(asks=False)[1]:
        assert own == inherited == 100_000


def test_another_policy_is_left_alone() -> None:
    """An operator chose it."""
    taken, own, _ = in_thread(asks=True, policy=os.SCHED_BATCH)
    assert not taken
    assert own != 100_000
