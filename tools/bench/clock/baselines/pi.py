"""linuxptp's PI servo (pi.c), and the same as a predictor: a clock that it would have steered."""

from __future__ import annotations

# config.c of linuxptp: pi_proportional_* and pi_integral_*; the scales are pi.c's for hardware stamps.
_KP_SCALE, _KP_EXPONENT, _KP_NORM_MAX = 0.7, -0.3, 0.7
_KI_SCALE, _KI_EXPONENT, _KI_NORM_MAX = 0.3, 0.4, 0.3
_MAX_FREQUENCY_PPB = 900_000_000.0
_FREQ_EST_MARGIN = 0.001
# first_step_threshold: 20 us. step_threshold is 0 by default: it never steps again.
FIRST_STEP_NS = 20_000.0


class PiServo:
    """The servo: takes the offset of the clock that it steers, returns the frequency to take out of it.

    `stepped` tells after a sample whether the clock has to be stepped by that offset.
    """

    def __init__(self, interval_s: float) -> None:
        self._kp: float = min(_KP_SCALE * interval_s**_KP_EXPONENT, _KP_NORM_MAX / interval_s)
        self._ki: float = min(_KI_SCALE * interval_s**_KI_EXPONENT, _KI_NORM_MAX / interval_s)
        self._first: tuple[float, float] | None = None
        self._locked = False
        self._drift_ppb = 0.0
        self.stepped = False

    def sample(self, offset_ns: float, time_s: float) -> float:
        """Return the frequency in ppb after the measurement of `offset_ns` at `time_s` of the local clock."""
        self.stepped = False
        if self._locked:
            integral = self._ki * offset_ns
            ppb = self._kp * offset_ns + self._drift_ppb + integral
            if abs(ppb) > _MAX_FREQUENCY_PPB:
                return _clamped(ppb)
            self._drift_ppb += integral
            return ppb
        if self._first is None:
            self._first = (offset_ns, time_s)
            return self._drift_ppb
        since_s = time_s - self._first[1]
        if since_s * (1 + _FREQ_EST_MARGIN) < min(0.016 / self._ki, 1000.0):
            return self._drift_ppb
        self._drift_ppb = _clamped(self._drift_ppb + (offset_ns - self._first[0]) / since_s)
        self._locked = True
        self.stepped = abs(offset_ns) > FIRST_STEP_NS
        return self._drift_ppb


class Pi:
    """Predicts with the clock that the servo steers: its phase now, and the frequency that it has been given."""

    name = "pi"

    def __init__(self, interval_s: float) -> None:
        self._servo = PiServo(interval_s)
        self._phase_ns: float | None = None
        self._rate_ppb = 0.0
        self._time_s = 0.0

    def observe(self, time_s: float, offset_ns: float, delay_ns: float) -> None:
        """Take one measurement; the read delay plays no part in it."""
        if self._phase_ns is None:
            self._phase_ns, self._time_s = offset_ns, time_s
        self._phase_ns += self._rate_ppb * (time_s - self._time_s)
        self._time_s = time_s
        self._rate_ppb = self._servo.sample(offset_ns - self._phase_ns, time_s)
        if self._servo.stepped:
            self._phase_ns = offset_ns

    def predict(self, horizon_s: float) -> float:
        """Offset in ns, `horizon_s` after the last measurement."""
        return (self._phase_ns or 0.0) + self._rate_ppb * horizon_s


def _clamped(ppb: float) -> float:
    return max(-_MAX_FREQUENCY_PPB, min(_MAX_FREQUENCY_PPB, ppb))
