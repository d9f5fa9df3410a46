"""How wide a bound is to be while no stamp comes: by how far off the estimate was whenever they came back."""

from __future__ import annotations

from math import sqrt

# The 99.95th percentile of a normal distribution: in holdover the bound is to hold 99.9 times in 100.
_NORMAL = 3.2905
# A bank's sigma counts like so many silences that turned out as it said; silences before the last so many fade.
_PRIOR_SILENCES = 8
_MEMORY_SILENCES = 64
# No silence counts for more sigmas than this, squared: one stamp may be bad.
_MOST = 25.0
# An error tells about the silence if the sample's own noise is no more than this part of its variance.
_NOISE_PART = 0.25


class Silences:
    """What is learnt at the end of each silence.

    A silence is long against what the filter saw before it: how much a clock wanders in ten minutes shows in ten
    minutes only, and the bank's guess of it, from less, is off by a factor.
    """

    __slots__ = ("_count", "_ratio_var")

    def __init__(self) -> None:
        self._count = float(_PRIOR_SILENCES)
        self._ratio_var = 1.0

    def ended(self, residual_ns: float, spread_var: float, noise_var: float) -> None:
        """Take the first stamp that fits: its residual, that one's variance in ns², and the sample's own part of it."""
        if noise_var > _NOISE_PART * spread_var:
            return
        self._count = min(self._count + 1.0, float(_MEMORY_SILENCES))
        self._ratio_var += (min(residual_ns**2 / spread_var, _MOST) - self._ratio_var) / self._count

    @property
    def sigmas(self) -> float:
        """How many of the bank's sigmas hold the truth 99.9 times in 100.

        The spread is itself known from few silences: Student's t for as many degrees of freedom, by the expansion of
        Abramowitz and Stegun 26.7.5.
        """
        z, n = _NORMAL, self._count
        first = (z**3 + z) / 4.0
        second = (5.0 * z**5 + 16.0 * z**3 + 3.0 * z) / 96.0
        third = (3.0 * z**7 + 19.0 * z**5 + 17.0 * z**3 - 15.0 * z) / 384.0
        return sqrt(self._ratio_var) * (z + first / n + second / n**2 + third / n**3)
