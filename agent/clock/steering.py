"""What somebody dials into a clock on purpose: out of what is measured, and back into what is told.

In between, a clock is what its oscillator makes of it. No filter, expert or score there ever sees a servo at work.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

# Samples are looked at again while their verdict is open: the phase of so many changes ago is still exact.
_CHANGES = 1024


@dataclass(frozen=True, slots=True)
class _Piece:
    """From `since_ns` on at `rate_ppb`, from a phase of `phase_ns` and a rest below one nanosecond."""

    since_ns: int
    phase_ns: int
    rest_ns: float
    rate_ppb: float

    def at(self, local_ns: int) -> tuple[int, float]:
        gained = self.rest_ns + (local_ns - self.since_ns) * self.rate_ppb * 1e-9
        whole = round(gained)
        return self.phase_ns + whole, gained - whole


class KnownSteering:
    """The sum of the known changes of one clock's drift, and what it has added to its offset since the first."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces = deque([_Piece(0, 0, 0.0, 0.0)], maxlen=_CHANGES)

    @property
    def rate_ppb(self) -> float:
        """What is dialled in now, beyond what was there before the first change."""
        return self._pieces[-1].rate_ppb

    def dial(self, local_ns: int, change_ppb: float) -> None:
        """Add a change of drift from `local_ns` on, not before the last one."""
        last = self._pieces[-1]
        since_ns = max(local_ns, last.since_ns)
        phase_ns, rest_ns = last.at(since_ns)
        self._pieces.append(_Piece(since_ns, phase_ns, rest_ns, last.rate_ppb + change_ppb))

    def dial_between(self, start_ns: int, end_ns: int, change_ppb: float) -> float:
        """Add a change that was made at some time between the two; return the variance (ns^2) of its phase.

        The middle is the best guess, and the time is uniform around it.
        """
        self.dial((start_ns + end_ns) // 2, change_ppb)
        return float((change_ppb * (end_ns - start_ns) * 1e-9) ** 2 / 12.0)

    def phase_ns(self, local_ns: int) -> int:
        """Return what it had added to the offset by `local_ns`; after now, if nothing is changed any more."""
        piece = self._pieces[-1]
        if local_ns < piece.since_ns:
            piece = next((p for p in reversed(self._pieces) if local_ns >= p.since_ns), self._pieces[0])
        return piece.phase_ns + round(piece.rest_ns + (local_ns - piece.since_ns) * piece.rate_ppb * 1e-9)
