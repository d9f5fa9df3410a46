"""The relation of CLOCK_MONOTONIC to CLOCK_MONOTONIC_RAW: what the kernel stamps with against what is steady.

mono is raw, steered: by the frequency that adjtimex shows, and by slews that it does not show. The dialled
frequency is known and taken out; the pairs of reads tell the rest.
"""

from __future__ import annotations

from collections import deque
from math import sqrt
from typing import TYPE_CHECKING

from agent.clock.kalman import DriftBank, Member, SampleNoise
from agent.clock.steering import KnownSteering

if TYPE_CHECKING:
    from agent.ffi.clocks import ClockPairs, Steering

# Slews that adjtimex does not show (a PLL's phase correction, adjtime) reach 500 ppm, but come seldom.
_HIDDEN = (Member(1.0, 0.5), Member(1.0, 50.0), Member(1.0, 5000.0))
_INITIAL_SLEW_VAR = 1000.0**2
# Two clock reads back to back: what the vDSO leaves of noise.
_READ_NOISE_NS = 10.0
_HISTORY = 64
_GATE_SIGMAS = 6.0


class MonoRaw:
    """mono - raw as a function of time, from clock pairs and known steering."""

    def __init__(self) -> None:
        self._bank = DriftBank(_HIDDEN)
        self._raw0_ns = 0
        self._base_ns = 0
        self._steering = KnownSteering()
        self._kink_ns = 0.0
        self.rate_ppb = 0.0
        """d(mono - raw)/draw now, in ppb: the dialled frequency plus what is slewed besides."""
        self._history: deque[tuple[int, int, float]] = deque(maxlen=_HISTORY)
        self.mono_ns = 0
        self.raw_ns = 0
        self.asymmetry_ns = 0.0
        """How far off `ahead_ns` may be for good: mono was read anywhere in its bracket, but each time alike."""

    @property
    def rate_sigma_ppb(self) -> float:
        """Standard deviation of `rate_ppb`."""
        return sqrt(self._bank.estimate().drift_var)

    def observe(self, pairs: ClockPairs, steering: Steering | None) -> None:
        """Take this moment's pairs; `steering` is mono's dialled frequency, None where it was not read."""
        best = pairs.best()
        mono, raw, width = int(pairs.mono_ns[best]), int(pairs.raw_ns[best]), float(pairs.width_ns[best])
        known = self._steering
        change = 0.0 if steering is None else steering.freq_ppb - known.rate_ppb
        var = _READ_NOISE_NS**2 + width * width / 12.0
        bank = self._bank
        if not bank.started:
            self._raw0_ns, self._base_ns = raw, mono - raw
            bank.start(0.0, 0.0, var)
            known.dial(raw, change)
            bank.limit_drift(_INITIAL_SLEW_VAR)
        elif raw > self.raw_ns:
            self._follow(raw, mono - raw, var, change)
        elif change:
            # This moment was seen before, without its steering.
            known.dial(self.raw_ns, change)
        self.rate_ppb = bank.drift_ppb + known.rate_ppb
        if raw >= self.raw_ns:
            self.mono_ns, self.raw_ns, self.asymmetry_ns = mono, raw, width / 2.0
            theta, _ = bank.forecast(0.0)
            ahead = self._base_ns + known.phase_ns(raw) + round(theta)
            self._history.append((mono, ahead, self._kink_ns))

    def ahead_ns(self, mono_ns: int) -> int:
        """Return mono - raw at `mono_ns`: interpolated between the known moments, beyond them by the rate."""
        history = self._history
        last_mono, last_ahead, _ = history[-1]
        if mono_ns >= last_mono:
            return last_ahead + round((mono_ns - last_mono) * self.rate_ppb * 1e-9)
        later = history[-1]
        for i in range(len(history) - 2, -1, -1):
            earlier = history[i]
            if mono_ns >= earlier[0]:
                part = (mono_ns - earlier[0]) / (later[0] - earlier[0])
                return earlier[1] + round(part * (later[1] - earlier[1]))
            later = earlier
        return later[1] + round((mono_ns - later[0]) * self.rate_ppb * 1e-9)

    def uncertainty_ns(self, mono_ns: int) -> float:
        """Return how far `ahead_ns` may be off because the rate changed somewhere between two known moments."""
        worst = 0.0
        for mono, _, kink in reversed(self._history):
            if mono < mono_ns:
                break
            worst = kink
        return worst

    def _follow(self, raw: int, ahead: int, var: float, change: float) -> None:
        bank, known = self._bank, self._steering
        now = (raw - self._raw0_ns) * 1e-9
        span = now - bank.time_s
        bank.advance(now)
        rate = bank.drift_ppb + known.rate_ppb
        if change:
            bank.release_drift(0.0, known.dial_between(self.raw_ns, raw, change))
        theta, predicted_var = bank.forecast(0.0)
        # A residual far out is a slew that adjtimex does not show (mono never steps): admit it at once.
        hidden = ahead - self._base_ns - known.phase_ns(raw)
        residual = hidden - theta
        if residual * residual > _GATE_SIGMAS**2 * (predicted_var + var):
            bank.release_drift((residual / span) ** 2, residual * residual)
        bank.update(hidden, SampleNoise(0.0, var))
        # A kink in the middle of the span is a quarter of change x span from the chord; half of that is sigma.
        self._kink_ns = abs(bank.drift_ppb + known.rate_ppb - rate) * span / 8.0
