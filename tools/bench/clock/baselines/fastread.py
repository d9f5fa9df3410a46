"""The usual Kalman filter of a PHC: the fastest of five reads, as phc2sys takes it, and a fixed Q and R."""

from __future__ import annotations

_READS = 5
"""phc2sys -N, default: of so many reads the one with the shortest delay is used."""
# Nothing is published as usual here: the random walk of a TCXO (2 pi^2 h-2 of h-2 = 1e-20) and 30 ns of read noise.
_WALK_PPB2_PER_S = 0.2
_READ_NS2 = 900.0
_START_NS2 = 1e12
_START_PPB2 = 1e10


class FastReadKalman:
    """Offset and drift; Q of a random-walk FM only. The five reads are five samples in a row."""

    name = "fast-read"

    def __init__(self) -> None:
        self._reads: list[tuple[float, float, float]] = []
        self._state: tuple[float, float] | None = None
        self._p = (_START_NS2, 0.0, _START_PPB2)
        self._state_s = 0.0
        self._time_s = 0.0

    def observe(self, time_s: float, offset_ns: float, delay_ns: float) -> None:
        """Take one read; the fifth of each five lets the fastest of them into the filter."""
        self._time_s = time_s
        self._reads.append((delay_ns, time_s, offset_ns))
        if self._state is None:
            self._state, self._state_s = (offset_ns, 0.0), time_s
        if len(self._reads) == _READS:
            _, read_s, read_ns = min(self._reads)
            self._reads.clear()
            self._update(read_s, read_ns)

    def predict(self, horizon_s: float) -> float:
        """Offset in ns, `horizon_s` after the last measurement."""
        if self._state is None:
            return 0.0
        theta, drift = self._state
        return theta + drift * (self._time_s + horizon_s - self._state_s)

    def _update(self, time_s: float, offset_ns: float) -> None:
        theta, drift = self._state or (offset_ns, 0.0)
        dt = time_s - self._state_s
        p00, p01, p11 = self._p
        q = _WALK_PPB2_PER_S
        p00 += 2 * dt * p01 + dt * dt * p11 + q * dt**3 / 3
        p01 += dt * p11 + q * dt * dt / 2
        p11 += q * dt
        residual = offset_ns - theta - drift * dt
        s = p00 + _READ_NS2
        self._state = (theta + drift * dt + p00 / s * residual, drift + p01 / s * residual)
        self._p = (p00 * _READ_NS2 / s, p01 * _READ_NS2 / s, p11 - p01 * p01 / s)
        self._state_s = time_s
