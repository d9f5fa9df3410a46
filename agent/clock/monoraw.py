"""The relation of CLOCK_MONOTONIC to CLOCK_MONOTONIC_RAW: what the kernel stamps with against what is steady.

mono is raw, steered: by the frequency that adjtimex shows, and by slews that it does not show. The dialled
frequency is known and taken out; the pairs of reads tell the rest. The arithmetic is `agent/ffi/clockmono.c`.
"""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING

from agent.clock.kalman import DriftBank, Member
from agent.ffi import _native

if TYPE_CHECKING:
    from agent.ffi.clocks import ClockPairs, Steering

_ffi, _lib = _native.ffi, _native.lib

# Slews that adjtimex does not show (a PLL's phase correction, adjtime) reach 500 ppm, but come seldom.
_HIDDEN = (Member(1.0, 0.5), Member(1.0, 50.0), Member(1.0, 5000.0))


class MonoRaw:
    """mono - raw as a function of time, from clock pairs and known steering.

    `native` is the core's `agent_monoraw`.
    """

    __slots__ = ("_bank", "asymmetry_ns", "mono_ns", "native", "rate_ppb", "raw_ns")

    def __init__(self) -> None:
        self._bank = DriftBank(_HIDDEN)
        self.native = _ffi.new("struct agent_monoraw *")
        self.native.bank = self._bank.native
        self.rate_ppb = 0.0
        """d(mono - raw)/draw now, in ppb: the dialled frequency plus what is slewed besides."""
        self.mono_ns = 0
        self.raw_ns = 0
        self.asymmetry_ns = 0.0
        """How far off `ahead_ns` may be for good: mono was read anywhere in its bracket, but each time alike."""

    @property
    def rate_sigma_ppb(self) -> float:
        """Standard deviation of `rate_ppb`."""
        sigma_ppb: float = _lib.agent_monoraw_rate_sigma(self.native)
        return sigma_ppb

    def observe(self, pairs: ClockPairs, steering: Steering | None) -> None:
        """Take this moment's pairs; `steering` is mono's dialled frequency, None where it was not read."""
        best = pairs.best_moment
        freq_ppb = nan if steering is None else steering.freq_ppb
        _lib.agent_monoraw_observe(self.native, best.mono_ns, best.raw_ns, best.width_ns, freq_ppb)
        self.rate_ppb = self.native.rate_ppb
        if best.raw_ns >= self.raw_ns:
            self.mono_ns, self.raw_ns = best.mono_ns, best.raw_ns
            self.asymmetry_ns = best.width_ns / 2.0

    def ahead_ns(self, mono_ns: int) -> int:
        """Return mono - raw at `mono_ns`: interpolated between the known moments, beyond them by the rate."""
        ahead_ns: int = _lib.agent_monoraw_ahead(self.native, mono_ns)
        return ahead_ns

    def uncertainty_ns(self, mono_ns: int) -> float:
        """Return how far `ahead_ns` may be off because the rate changed somewhere between two known moments."""
        uncertainty_ns: float = _lib.agent_monoraw_uncertainty(self.native, mono_ns)
        return uncertainty_ns
