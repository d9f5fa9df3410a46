"""What a read's delay says about its error: learnt per clock, since paths differ in where they make a read wait.

A read that took longer than the fastest waited somewhere: before the hardware clock was sampled, after, or both. Its
offset is then off by some part of half the excess, between -1 and 1. On one path that part scatters all over the
interval, on another it is always the same. Both are learnt from the samples themselves, by octave of the excess.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

# Noise of a read that took no longer than the fastest: PHC reads jitter by some percent of their delay.
_NOISE_FLOOR_NS = 20.0
_NOISE_PER_DELAY = 0.02
# The fastest read is searched among the last one to two of these.
_DELAY_BLOCK = 256
# Before anything was learnt: no bias, and a variance between that of an error anywhere in the interval (1/3) and
# one at its end (1), which count as so many samples; at most so many are remembered.
_PRIOR_VARIANCE = 0.5
_PRIOR_COUNT = 8.0
_MEMORY = 300.0
_LEAST_VARIANCE = 1e-4
# Half an excess has to stand out of the other noise by this factor to tell anything.
_CLEAR = 2.0
_MAX_PART = 1.5


@dataclass(slots=True)
class _Octave:
    """Reads of about one excess delay: mean and variance of error / (excess / 2)."""

    mean: float = 0.0
    variance: float = _PRIOR_VARIANCE
    count: float = _PRIOR_COUNT


class ReadNoise(NamedTuple):
    """One read: the error to expect, its variance by noise that all reads have, and by its own excess delay."""

    bias_ns: float
    nominal_var: float
    extra_var: float
    half_excess_ns: float


class ReadDelay:
    """The delays of one clock's reads, and what they mean."""

    __slots__ = ("_count", "_current", "_octaves", "_previous", "fastest_ns")

    def __init__(self) -> None:
        self.fastest_ns = 0
        """The smallest delay of the last one to two blocks of reads."""
        self._current: int | None = None
        self._previous: int | None = None
        self._count = 0
        self._octaves: dict[int, _Octave] = {}

    def noise(self, delay_ns: int) -> ReadNoise:
        """Take one read's delay; return what it says."""
        if self._count == _DELAY_BLOCK:
            self._previous, self._current, self._count = self._current, None, 0
        self._count += 1
        self._current = delay_ns if self._current is None else min(self._current, delay_ns)
        self.fastest_ns = self._current if self._previous is None else min(self._current, self._previous)
        floor = max(_NOISE_FLOOR_NS, _NOISE_PER_DELAY * self.fastest_ns)
        half = (delay_ns - self.fastest_ns) / 2.0
        octave = self._octaves.get(int(half).bit_length())
        if octave is None:
            return ReadNoise(0.0, floor * floor, _PRIOR_VARIANCE * half * half, half)
        return ReadNoise(octave.mean * half, floor * floor, octave.variance * half * half, half)

    def learn(self, half_excess_ns: float, error_ns: float, other_var: float) -> None:
        """Learn from an accepted read that was off by `error_ns`, of which other noise has `other_var`."""
        square = half_excess_ns * half_excess_ns
        if square < _CLEAR * _CLEAR * other_var:
            return
        octave = self._octaves.setdefault(int(half_excess_ns).bit_length(), _Octave())
        part = min(max(error_ns / half_excess_ns, -_MAX_PART), _MAX_PART)
        octave.count = min(octave.count + 1.0, _MEMORY)
        apart = part - octave.mean
        octave.mean += apart / octave.count
        own = max(apart * (part - octave.mean) - other_var / square, 0.0)
        octave.variance += (own - octave.variance) / octave.count
        octave.variance = max(octave.variance, _LEAST_VARIANCE)
