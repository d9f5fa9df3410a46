"""One clock's offset as the filters see it: an integer base and a float close to it."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from agent.clock.kalman import BankState, DriftBank, Estimate, NoiseScale, robust_variance

# The float part is folded into the base when it grows beyond this, so that it never loses a nanosecond.
_FOLD_NS = 1e7


@dataclass(frozen=True, slots=True)
class Suspect:
    """A sample that did not fit its prediction, kept until the next ones tell why."""

    index: int
    local_ns: int
    offset_ns: int
    residual_ns: int
    nominal_var: float
    extra_var: float
    read_delay_ns: int


class Track:
    """Offset (local - hardware) and drift against an unsteered local clock, exact to the nanosecond.

    Offsets come and go as integers; inside, the bank sees floats relative to a base.
    """

    __slots__ = ("_base_ns", "_time0_ns", "bank", "noise")

    def __init__(self) -> None:
        self.bank = DriftBank()
        self.noise = NoiseScale()
        self._base_ns = 0
        self._time0_ns = 0

    def start(self, local_ns: int, offset_ns: int, var: float) -> None:
        """Begin anew with this sample."""
        self._time0_ns = local_ns
        self._base_ns = offset_ns
        self.noise = NoiseScale()
        self.noise.add(0.0, 0.0, var)
        self.bank.start(0.0, 0.0, var)

    def seconds(self, local_ns: int) -> float:
        """Return local time as the bank's seconds."""
        return (local_ns - self._time0_ns) * 1e-9

    def relative_ns(self, offset_ns: int) -> float:
        """Return an offset as the bank's float."""
        return float(offset_ns - self._base_ns)

    def advance(self, local_ns: int) -> None:
        """Predict up to `local_ns`."""
        self.bank.advance(self.seconds(local_ns))
        theta = self.bank.rough_theta_ns
        if abs(theta) > _FOLD_NS:
            whole = round(theta)
            self.bank.shift(-whole)
            self._base_ns += whole
            self.noise.forget_neighbours()

    def residual(self, offset_ns: int) -> tuple[int, float]:
        """Return (measured - predicted offset in ns, variance of the prediction) at the bank's time."""
        theta, var = self.bank.forecast(0.0)
        return offset_ns - self._base_ns - round(theta), var

    def accept(
        self, offset_ns: int, nominal_var: float, extra_var: float, above: float, below: float
    ) -> float:
        """Correct by a sample at the bank's time; return its weight, 1 for one that counts in full.

        `nominal_var` is scaled by the noise seen, `extra_var` is not; `above` and `below` are the robust
        limits of `robust_variance`.
        """
        measured = self.relative_ns(offset_ns)
        var = nominal_var * self.noise.scale + extra_var
        theta, predicted_var = self.bank.forecast(0.0)
        used = robust_variance(measured - theta, predicted_var + var, var, above, below)
        self.bank.update(measured, used)
        self.noise.add(self.bank.time_s, measured, nominal_var + extra_var / self.noise.scale)
        return var / used

    def step(self, by_ns: int) -> None:
        """Move the offset by a jump and forget how well it was known; the drift stays."""
        self._base_ns += by_ns
        self.bank.release_offset()
        self.noise.forget_neighbours()

    def release_drift(self, slope_ppb: float, residual_ns: float) -> None:
        """Admit a frequency step of about `slope_ppb` that already moved the offset by `residual_ns`."""
        self.bank.release_drift(slope_ppb * slope_ppb, residual_ns * residual_ns)
        self.noise.forget_neighbours()

    def estimate(self) -> Estimate:
        """Return the state at the bank's time, the offset relative to the base."""
        return self.bank.estimate()

    def offset_at(self, local_ns: int) -> tuple[int, float]:
        """Return (offset in ns, sigma in ns) predicted for `local_ns`, at or after the bank's time."""
        horizon = max(self.seconds(local_ns) - self.bank.time_s, 0.0)
        theta, var = self.bank.forecast(horizon)
        return self._base_ns + round(theta), sqrt(var)

    def save(self) -> tuple[int, BankState]:
        """Return what `restore` needs."""
        return self._base_ns, self.bank.save()

    def restore(self, state: tuple[int, BankState]) -> None:
        """Return to a saved state."""
        self._base_ns, bank = state
        self.bank.restore(bank)
        self.noise.forget_neighbours()
