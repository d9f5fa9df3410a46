"""What other programs do to the kernel's clock."""

from __future__ import annotations

from dataclasses import replace

from agent.ffi.clocks import Steering
from agent.monosteering import MonoSteering

QUIET = Steering(0.0, 10_000, 0, 0, 0, 0, 0, 37)


def test_a_dialled_frequency_is_told_once_and_counted() -> None:
    """The first change comes with its values, the later ones only count."""
    mono = MonoSteering()
    assert mono.observe(QUIET) == []
    (note,) = mono.observe(replace(QUIET, freq_ppb=12_500.0))
    assert "+0.0 to +12500.0 ppb" in note
    assert mono.observe(replace(QUIET, freq_ppb=12_600.0)) == []
    assert mono.observe(replace(QUIET, freq_ppb=12_600.0)) == []
    assert mono.adjustments == 2


def test_a_kernel_without_tai_is_told_at_the_start() -> None:
    """TAI - UTC of 0 means that nobody told the kernel."""
    (note,) = MonoSteering().observe(replace(QUIET, tai_offset_s=0))
    assert "recognised by the 37 s alone" in note


def test_a_new_tai_offset_is_told() -> None:
    """A leap second, or a daemon that has just started."""
    mono = MonoSteering()
    mono.observe(replace(QUIET, tai_offset_s=0))
    (note,) = mono.observe(QUIET)
    assert "from 0 to 37 s" in note
