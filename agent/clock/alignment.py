"""How two hardware clocks stand to each other: feeds that were stamped by different NICs or switches, in one time.

Both are known against the local clock, so at one instant of it hwA - hwB = (local - hwB) - (local - hwA). Whatever is
wrong with the local clock at that instant, its wander since the last samples and the conversion between raw and mono,
is in both and falls out. What is left is each clock's own: the noise of its samples (independent: variances add), the
asymmetry of its reads or the delay of its path (unknown and constant: bounds add).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import hypot
from typing import TYPE_CHECKING, Literal

from agent.clock.track import P99_SIGMAS
from agent.clock.trust import Trust

if TYPE_CHECKING:
    from agent.clock.clock import ClockReport

# Every pair is compared: 66 of them are plenty for a host, and for a reader.
MAX_CLOCKS = 12
_PERIOD_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ClockName:
    """Which clock: that of an interface, or of a switch whose trailers arrive there."""

    ifname: str
    kind: Literal["phc", "trailer"]
    key: int


@dataclass(frozen=True, slots=True)
class Reading:
    """A clock's report of one tick; `base_delay_ns` is the most that its path's least delay may be."""

    name: ClockName
    report: ClockReport
    base_delay_ns: int


@dataclass(frozen=True, slots=True)
class Aligned:
    """`offset_ns` is first - second at `mono_ns`, within `bound_ns` (p99); `drift_ppb` is its slope against raw.

    `doubt` says why it must not be used; the figures are then what is known nevertheless, and may be infinite.
    """

    first: ClockName
    second: ClockName
    mono_ns: int
    offset_ns: int
    sigma_ns: float
    bound_ns: float
    drift_ppb: float
    drift_bound_ppb: float
    doubt: str


class Alignment:
    """Compares all clocks of a run with each other, once a second and whenever one is doubted or trusted anew."""

    def __init__(self) -> None:
        self.omitted = 0
        """Clocks beyond MAX_CLOCKS that were not compared."""
        self._trust: dict[ClockName, Trust] = {}
        self._doubts: dict[ClockName, str] = {}
        self._due_ns = 0

    def take(self, mono_ns: int, readings: Sequence[Reading]) -> list[Aligned] | None:
        """This tick's readings of all clocks; returns the pairs if it is time to tell them (none any more: [])."""
        self.omitted = max(0, len(readings) - MAX_CLOCKS)
        compared = readings[:MAX_CLOCKS]
        doubts = {
            reading.name: self._trust.setdefault(reading.name, Trust()).doubt(reading.report)
            for reading in compared
        }
        if len(compared) < 2:
            doubts = {}
        if doubts == self._doubts and (not doubts or mono_ns < self._due_ns):
            return None
        self._due_ns, self._doubts = mono_ns + _PERIOD_NS, doubts
        return [
            align(first, second, doubts[first.name] or doubts[second.name])
            for first, second in combinations(compared, 2)
        ]


def align(first: Reading, second: Reading, doubt: str = "") -> Aligned:
    """Compare two clocks' reports, made at most some ticks apart.

    In state "relative" an offset has the least delay of its path in it, somewhere from 0 to `base_delay_ns`. Both
    errors have one sign, so the difference is off by the larger of the two at most, not by their sum.
    """
    a, b = first.report, second.report
    mono_ns = max(a.mono_ns, b.mono_ns)
    sigma_ns = hypot(_sigma_ns(a, mono_ns), _sigma_ns(b, mono_ns))
    base_ns = max(_base_ns(first), _base_ns(second))
    return Aligned(
        first.name,
        second.name,
        mono_ns,
        _offset_ns(b, mono_ns) - _offset_ns(a, mono_ns),
        sigma_ns,
        P99_SIGMAS * sigma_ns + _unknown_ns(first) + _unknown_ns(second) + base_ns,
        b.drift_raw_ppb - a.drift_raw_ppb,
        hypot(a.drift_bound_ppb, b.drift_bound_ppb),
        doubt,
    )


def _offset_ns(report: ClockReport, mono_ns: int) -> int:
    """local - hardware at `mono_ns`."""
    return report.offset_ns + round(report.drift_mono_ppb * 1e-9 * (mono_ns - report.mono_ns))


def _sigma_ns(report: ClockReport, mono_ns: int) -> float:
    return hypot(report.sigma_ns, report.drift_sigma_ppb * 1e-9 * (mono_ns - report.mono_ns))


def _base_ns(reading: Reading) -> float:
    return float(reading.base_delay_ns) if reading.report.state == "relative" else 0.0


def _unknown_ns(reading: Reading) -> float:
    """What the report's bound has beside its sigma and the base delay."""
    report = reading.report
    if report.bound_ns == float("inf"):
        return report.bound_ns
    return max(0.0, report.bound_ns - P99_SIGMAS * report.sigma_ns - _base_ns(reading))
