"""Receive timestamps for unmodified applications: which clock they are made of, in which time scale, and when not.

tc ingress writes `skb->tstamp`, which SO_TIMESTAMP and SO_TIMESTAMPNS show: the packet's own hardware stamp, or what
the clock's model says for the moment at which the packet passed. This decides what it may write. Whenever the clock is
not to be trusted, packets keep the kernel's own stamp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent.clock.clock import Clock, ClockReport
from agent.clock.trust import Trust
from agent.ffi.clocks import ClockPairs

_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class HandedOn:
    """The clock that receive timestamps are made of, and what is added to its time."""

    key: int
    base_ns: int


class TimestampRewrite:
    """One interface's receive timestamps. `take` each tick's reports."""

    def __init__(self, ifname: str, scale: str, apply: Callable[[HandedOn | None], None]) -> None:
        """`scale` is `realtime` or `tai`; `apply` makes the kernel hand on a clock, or none."""
        self._ifname = ifname
        self._scale = scale
        self._apply = apply
        self._applied: HandedOn | None = None
        self._trust: dict[int, Trust] = {}
        self._told = ""
        self._notes: list[str] = []

    def take(self, reports: Sequence[tuple[Clock, ClockReport]], pairs: ClockPairs) -> None:
        """Look at the clocks of this tick, and follow: hand on the one there was while it can be, else the best."""
        doubts = {clock.key: self._doubt(report) for clock, report in reports}
        self._trust = {key: trust for key, trust in self._trust.items() if key in doubts}
        chosen = min(
            reports, key=lambda pair: self._rank(pair[0], pair[1], doubts[pair[0].key]), default=None
        )
        if chosen is None:
            self._follow(None, "there is no hardware clock")
            return
        clock, report = chosen
        base_ns = base_of(report.timescale, self._scale, pairs)
        if doubts[clock.key]:
            self._follow(None, doubts[clock.key])
        elif isinstance(base_ns, str):
            self._follow(None, base_ns)
        else:
            self._follow(HandedOn(clock.key, base_ns), "")

    def take_notes(self) -> list[str]:
        """What changed since the call before, for people."""
        notes, self._notes = self._notes, []
        return notes

    def _doubt(self, report: ClockReport) -> str:
        doubt = self._trust.setdefault(report.key, Trust()).doubt(report)
        # In holdover the model goes on within its bound; the kernel's own stamps would be of another clock.
        return "" if report.state == "holdover" and report.model is not None else doubt

    def _rank(self, clock: Clock, report: ClockReport, doubt: str) -> tuple[bool, bool, bool, int]:
        """The smallest is the best: what can be handed on, what was, a PHC, the one with the most samples."""
        was = self._applied is not None and self._applied.key == clock.key
        return bool(doubt), not was, clock.kind != "phc", -report.samples

    def _follow(self, wanted: HandedOn | None, why_not: str) -> None:
        if wanted != self._applied:
            # From one clock to another by way of none, for a tick: the kernel must not mix the two.
            self._applied = wanted if self._applied is None else None
            self._apply(self._applied)
        said = why_not or f"{self._scale} by clock {wanted.key if wanted else ''}"
        if said != self._told:
            self._told = said
            if why_not:
                self._notes.append(f"{self._ifname}: receive timestamps are the kernel's own: {why_not}")
            else:
                self._notes.append(f"{self._ifname}: receive timestamps are {said}")


def base_of(timescale: str, scale: str, pairs: ClockPairs) -> int | str:
    """What to add to a clock's time to get `scale` (`realtime`: UTC, or `tai`), ns; or why that isn't known."""
    if timescale not in ("tai", "utc"):
        return f"the clock's time scale is {timescale}"
    if timescale == ("utc" if scale == "realtime" else "tai"):
        return 0
    best = pairs.best()
    tai_utc_s = round(int(pairs.tai_ns[best] - pairs.realtime_ns[best]) / _SECOND_NS)
    if not tai_utc_s:
        return (
            f"the clock counts {timescale.upper()} and nobody told the kernel TAI - UTC "
            "(`leapsectz right/UTC` in chrony.conf)"
        )
    return (tai_utc_s if scale == "tai" else -tai_utc_s) * _SECOND_NS
