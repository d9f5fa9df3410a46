"""Offset and drift of one clock against an unsteered one: a bank of Kalman filters.

Every member of the bank is the textbook filter for one model of a clock (Galleani & Tavella 2003): white frequency
noise and a random walk of frequency, some of them with aging or with a wander that returns to a line, each of another
strength. Their mixture, weighted by how well each predicted the samples so far (Magill 1965), is the
adaptive Q: a quiet oscillator is averaged for long, a wandering one followed fast, and nobody has to say which.

The arithmetic is `agent/ffi/clockbank.c`. Time is in seconds and offset in ns since a base that the caller
keeps as integers, so drift is in ns/s = ppb.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import log
from typing import Any

from agent.ffi import _native

_ffi, _lib = _native.ffi, _native.lib

# Nobody knows the drift before the second sample; crystals are within 100 ppm.
_INITIAL_DRIFT_VAR = 1e5**2
# How many samples the members' weights remember.
_WEIGHT_MEMORY = 10_000.0
# The prior over a walk's strength: between flat in its logarithm (0), which is too sure of quiet clocks before a walk
# has shown, and flat in itself (1); measured by the coverage of bounds in the first minutes.
_WALK_SLOPE = 0.7
_AGING_SLOPE = 0.3


@dataclass(frozen=True, slots=True)
class Member:
    """One model of a clock.

    `white_ns` is white frequency noise in ns per sqrt(second), `walk_ppb` random-walk frequency noise in ppb per
    sqrt(second). With `aging_ppb_s`, the drift's rate walks too, in ppb/s per sqrt(second); with `wander_ns`,
    the offset wanders besides, in ns per sqrt(second), and returns within `return_s`. A `locked` clock has no drift:
    somebody disciplines it. `share` is the part of the prior.
    """

    white_ns: float
    walk_ppb: float
    aging_ppb_s: float = 0.0
    wander_ns: float = 0.0
    return_s: float = 0.0
    locked: bool = False
    share: float = 1.0

    @property
    def family(self) -> int:
        """The number of its family, in the order that a bank wants."""
        if self.wander_ns:
            return int(_lib.AGENT_FAMILY_RETURNING)
        if self.aging_ppb_s:
            return int(_lib.AGENT_FAMILY_AGING)
        return int(_lib.AGENT_FAMILY_LOCKED if self.locked else _lib.AGENT_FAMILY_FREE)


def _decades(low: float, high: float, per_decade: int = 2) -> list[float]:
    """Return powers of 10 ** (1 / per_decade) from `low` to `high`."""
    steps = round(log(high / low) / log(10.0) * per_decade)
    return [low * 10.0 ** (i / per_decade) for i in range(steps + 1)]


def _grid() -> tuple[Member, ...]:
    """Return the members for a clock of which nothing is known: OCXO to a TCXO in a draught, free or locked.

    Half a decade between neighbours costs a filter in between some percent of error at most.
    """
    free = [Member(w, r, share=r**_WALK_SLOPE) for w, r in product(_decades(0.01, 1e3), _decades(1e-3, 3e2))]
    locked = [Member(w, 0.0, locked=True) for w in _decades(1.0, 3e3)]
    aging = [
        Member(w, r, aging_ppb_s=a, share=a**_AGING_SLOPE)
        for w, r, a in product((0.01, 0.3, 10.0), (0.001, 0.03, 1.0), _decades(1e-6, 1.0, 1))
    ]
    returning = [
        Member(0.01, 1e-3, wander_ns=x, return_s=t, locked=is_locked)
        for t, x, is_locked in product((5.0, 20.0, 80.0, 300.0), _decades(10.0, 3e3), (False, True))
    ]
    families = ((0.97, free), (0.01, locked), (0.01, aging), (0.01, returning))
    shared = [
        [replace(m, share=part * m.share / sum(n.share for n in family)) for m in family]
        for part, family in families
    ]
    free, locked, aging, returning = shared
    return (*free, *locked, *aging, *returning)


MEMBERS = _grid()


def _rows(members: tuple[Member, ...]) -> Any:
    rows = _ffi.new("struct agent_member[]", len(members))
    total = sum(m.share for m in members)
    for row, m in zip(rows, members, strict=True):
        row.family = m.family
        third = m.aging_ppb_s or m.wander_ns
        row.white_var, row.walk_var, row.third_var = m.white_ns**2, m.walk_ppb**2, third**2
        row.tau_s = m.return_s
        row.drift_var = 0.0 if m.locked else _INITIAL_DRIFT_VAR
        row.log_prior = log(m.share / total)
    return rows


class DriftBank:
    """A bank of offset/drift filters that are mixed by their own predictive likelihood.

    `members` are in the order of their families; `native` is the core's `agent_bank`.
    """

    __slots__ = ("native",)

    def __init__(self, members: tuple[Member, ...] = MEMBERS) -> None:
        self.native = _ffi.gc(
            _lib.agent_bank_new(_rows(members), len(members), _WEIGHT_MEMORY), _lib.agent_bank_free
        )
        if self.native == _ffi.NULL:
            raise MemoryError("no memory for a bank of clock filters")

    @property
    def time_s(self) -> float:
        """The time that the state is of."""
        time_s: float = _lib.agent_bank_time(self.native)
        return time_s
