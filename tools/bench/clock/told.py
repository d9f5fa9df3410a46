"""The limit: a Kalman filter that is told what no estimator can know.

It is told the oscillator's true levels (white, flicker and random-walk FM, the flicker as the very sum of Markov
states that the traces are drawn from), each sample's true error variance, the steering, and of every event its time,
its kind and its scale: the state that jumped gets the variance size^2. It is not told the sign, nor the value, of
anything. For a linear system with Gaussian noise no predictor has a smaller expected square; one-sided waits are not
Gaussian, and of them it is told the second moment only, so there others may come out better.
"""

from __future__ import annotations

from functools import lru_cache
from math import exp

import numpy as np

from tools.bench.clock.oscillator import Floats, Oscillator, integral_of_markov
from tools.bench.clock.traces import THERMAL_S, Event, Trace

_START_NS2 = 1e14
_START_PPB2 = 4e8
_OFFSET, _DRIFT, _RAMP, _WARMING, _FLICKER = 0, 1, 2, 3, 4
"""Places in the state: offset (ns), random walk (ppb), rates of ramps and of a warming board (ppb/s), flicker (ppb)."""
_STATE_OF = {"phase_step": _OFFSET, "freq_step": _DRIFT, "ramp": _RAMP, "load": _WARMING}


class ToldFilter:
    """State and covariance; times in seconds, offsets in ns."""

    def __init__(self, oscillator: Oscillator) -> None:
        self._oscillator = oscillator
        rates, variance = oscillator.flicker_states()
        self._x = np.zeros(_FLICKER + len(rates))
        start = np.full(len(self._x), variance)
        start[:_FLICKER] = _START_NS2, _START_PPB2, oscillator.aging_ppb_per_s**2, 0.0
        self._p = np.diag(start)
        self._time_s = 0.0

    def advance(self, time_s: float) -> None:
        """Go on to `time_s`."""
        step = round(time_s - self._time_s, 9)
        if step > 0:
            f, q = _transition(self._oscillator, step)
            self._x = f @ self._x
            self._p = f @ self._p @ f.T + q
        self._time_s = time_s

    def tell(self, event: Event) -> None:
        """Say that now something of `event`'s kind and scale happened."""
        state = _STATE_OF[event.kind]
        self._p[state, state] += event.size**2

    def innovation_variance(self, variance_ns2: float) -> float:
        """S of a sample of this variance taken now."""
        return float(self._p[_OFFSET, _OFFSET]) + variance_ns2

    def update(self, offset_ns: float, variance_ns2: float) -> None:
        """Take a sample at the time advanced to."""
        gain = self._p[:, _OFFSET] / self.innovation_variance(variance_ns2)
        self._x = self._x + gain * (offset_ns - self._x[_OFFSET])
        self._p = self._p - np.outer(gain, self._p[_OFFSET])

    def predict(self, horizons_s: tuple[float, ...]) -> tuple[Floats, Floats]:
        """Offsets (ns) and their deviations (ns) at the horizons from the time advanced to."""
        rows, noise = _outlook(self._oscillator, horizons_s)
        variance = np.einsum("hi,ij,hj->h", rows, self._p, rows, optimize=False) + noise
        return rows @ self._x, np.sqrt(variance)


@lru_cache(maxsize=512)
def _transition(oscillator: Oscillator, step_s: float) -> tuple[Floats, Floats]:
    """Transition matrix and process noise over `step_s`."""
    rates, variance = oscillator.flicker_states()
    size = _FLICKER + len(rates)
    f, q = np.eye(size), np.zeros((size, size))
    f[_OFFSET, _DRIFT] = f[_DRIFT, _RAMP] = step_s
    f[_OFFSET, _RAMP] = step_s**2 / 2
    warming = exp(-step_s / THERMAL_S)
    f[_WARMING, _WARMING] = warming
    f[_DRIFT, _WARMING] = THERMAL_S * (1 - warming)
    f[_OFFSET, _WARMING] = THERMAL_S * (step_s - THERMAL_S * (1 - warming))
    walk = oscillator.walk_ppb2_per_s
    q[_OFFSET, _OFFSET] = oscillator.white_ns2_per_s * step_s + walk * step_s**3 / 3
    q[_OFFSET, _DRIFT] = q[_DRIFT, _OFFSET] = walk * step_s**2 / 2
    q[_DRIFT, _DRIFT] = walk * step_s
    for place, rate in enumerate(rates, _FLICKER):
        a, b, vxx, vxi, vii = integral_of_markov(float(rate), step_s)
        f[place, place], f[_OFFSET, place] = a, b
        q[place, place] = variance * vxx
        q[_OFFSET, place] = q[place, _OFFSET] = variance * vxi
        q[_OFFSET, _OFFSET] += variance * vii
    return f, q


@lru_cache(maxsize=16)
def _outlook(oscillator: Oscillator, horizons_s: tuple[float, ...]) -> tuple[Floats, Floats]:
    """For each horizon the row of the transition that gives the offset, and the noise that comes in until then."""
    pairs = [_transition(oscillator, horizon) for horizon in horizons_s]
    return np.array([f[_OFFSET] for f, _ in pairs]), np.array([q[_OFFSET, _OFFSET] for _, q in pairs])


def run_told(trace: Trace, horizons_s: tuple[float, ...]) -> tuple[Floats, Floats, Floats]:
    """Predictions (n, horizons) beyond the trace's base in ns, their deviations, and each sample's S in ns^2."""
    told = ToldFilter(trace.oscillator)
    measured = trace.measured_ns()
    known = trace.steering.offset_ns(trace.time_s)
    rate = np.cumsum(trace.steering_per_sample())
    events = sorted(trace.events, key=lambda event: event.time_s)
    predicted = np.empty((len(trace), len(horizons_s)))
    deviation = np.empty_like(predicted)
    innovation = np.empty(len(trace))
    for i, time_s in enumerate(trace.time_s.tolist()):
        while events and events[0].time_s <= time_s:
            event = events.pop(0)
            told.advance(event.time_s)
            told.tell(event)
        told.advance(time_s)
        innovation[i] = told.innovation_variance(float(trace.variance_ns2[i]))
        if np.isfinite(measured[i]):
            told.update(float(measured[i] - known[i]), float(trace.variance_ns2[i]))
        predicted[i], deviation[i] = told.predict(horizons_s)
    predicted += known[:, None] + rate[:, None] * np.array(horizons_s)
    return predicted, deviation, innovation
