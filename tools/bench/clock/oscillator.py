"""Oscillators of published noise levels: white, flicker and random-walk FM, drawn exactly at any step.

The levels are coefficients of S_y(f) = h0 + h-1/f + h-2/f^2, one-sided, f in Hz, y fractional frequency.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, expm1, log, pi, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

Floats = NDArray[np.float64]

_PPB2 = 1e18
"""(1 / 1 ppb)^2: from fractional frequency squared to ppb^2; as 1 ppb is 1 ns/s, also from s^2 to ns^2."""
_DAY_S = 86_400.0
_RATE_RATIO = 4.0
"""Rates of neighbouring Markov states of the flicker: their sum ripples by 0.2 dB about 1/f."""
_SLOWEST_PER_S = 2e-5
_FASTEST_PER_S = 100.0


@dataclass(frozen=True, slots=True)
class Oscillator:
    """A class of oscillators: noise, aging and what temperature does to it."""

    name: str
    h0: float
    h_flicker: float
    h_walk: float
    aging_ppb_per_day: float
    ppb_per_kelvin: float

    @property
    def white_ns2_per_s(self) -> float:
        """Phase variance that white FM adds in a second, h0/2 (Brown and Hwang 2012, 9.3)."""
        return self.h0 / 2 * _PPB2

    @property
    def walk_ppb2_per_s(self) -> float:
        """Frequency variance that random-walk FM adds in a second, 2 pi^2 h-2 (Brown and Hwang 2012, 9.3)."""
        return 2 * pi**2 * self.h_walk * _PPB2

    @property
    def aging_ppb_per_s(self) -> float:
        """Systematic change of frequency."""
        return self.aging_ppb_per_day / _DAY_S

    def flicker_states(self) -> tuple[Floats, float]:
        """Rates (1/s) of the Markov states whose sum is the flicker FM, and the variance (ppb^2) that each has.

        A Gauss-Markov state of rate L and variance v has S(f) = 4 v L / (L^2 + (2 pi f)^2); a sum over rates in a
        geometric progression of ratio r tends to v / (f ln r), hence v = h-1 ln r (Keshner 1982).
        """
        count = round(log(_FASTEST_PER_S / _SLOWEST_PER_S, _RATE_RATIO)) + 1
        return _SLOWEST_PER_S * np.power(
            _RATE_RATIO, np.arange(count, dtype=np.float64)
        ), self.h_flicker * log(_RATE_RATIO) * _PPB2


# Noise: NovAtel OEM7 Commands and Logs, EXTERNALCLOCK, "Pre-defined values for oscillators" (VCTCXO and OCXO).
# Aging: 1 ppm/year is the usual limit of a TCXO's data sheet; 5e-10/day an OCXO's (MTI-Milliren 270).
# Temperature: +-0.5 ppm and +-10 ppb over -20..70 C are usual limits; slopes of their steepest parts.
TCXO = Oscillator("tcxo", 1.0e-21, 1.0e-20, 1.0e-20, 1000 / 365.25, 20.0)
OCXO = Oscillator("ocxo", 2.51e-26, 2.51e-23, 2.51e-22, 0.5, 0.3)


def integral_of_markov(rate: float, step_s: float) -> tuple[float, float, float, float, float]:
    """One step of a Gauss-Markov state x of unit variance and of its integral I, exactly.

    Returns (a, b, vxx, vxi, vii): x' = a x + e, I' = I + b x + g with covariance vxx, vxi, vii of (e, g).
    """
    decay = rate * step_s
    a = exp(-decay)
    b = -expm1(-decay) / rate
    vxx = -expm1(-2 * decay)
    if decay < 1e-3:  # The closed forms cancel here; leading terms of their series.
        return a, b, vxx, rate * step_s**2, 2 * rate * step_s**3 / 3
    vxi = (1 - 2 * a + a * a) / rate
    vii = (2 * decay - 3 + 4 * a - a * a) / rate**2
    return a, b, vxx, vxi, vii


def phase_and_frequency(
    oscillator: Oscillator, count: int, step_s: float, random: np.random.Generator
) -> tuple[Floats, Floats]:
    """Phase (ns) and frequency (ppb, without the white FM) at `count` instants `step_s` apart, phase from 0.

    Noise only: aging and temperature are deterministic and not in here. Drawn exactly, whatever the step.
    """
    walk = oscillator.walk_ppb2_per_s
    shocks = random.normal(size=(2, count)) * sqrt(walk * step_s)
    frequency = np.concatenate(([0.0], np.cumsum(shocks[0, :-1])))
    # Given its change, the integral of a random walk is that of its chord, plus a bridge of variance q dt^3 / 12.
    gained = step_s * (frequency + shocks[0] / 2) + shocks[1] * step_s / sqrt(12)
    gained += random.normal(size=count) * sqrt(oscillator.white_ns2_per_s * step_s)
    rates, variance = oscillator.flicker_states()
    for rate in rates:
        a, b, vxx, vxi, vii = integral_of_markov(float(rate), step_s)
        first, second = random.normal(size=(2, count)) * sqrt(variance)
        state = lfilter([1.0], [1.0, -a], np.concatenate(([first[0]], sqrt(vxx) * first[1:])))
        change = np.concatenate((sqrt(vxx) * first[1:], [0.0]))
        gained += b * state + change * (vxi / vxx) + second * sqrt(max(vii - vxi**2 / vxx, 0.0))
        frequency = frequency + state
    return np.concatenate(([0.0], np.cumsum(gained[:-1]))), frequency
