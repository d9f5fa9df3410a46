"""`agent run --refclock chrony:SOCK`: a hardware clock as a reference clock of chronyd, by its SOCK driver.

One datagram a second says how far UTC, by the hardware clock, is ahead of the system clock. More often would tell
nothing new: the estimates of one second come from the same filter. chronyd takes from a sample its offset alone, no
error with it. So the error is told the other way round: a sample whose bound is above `max_error_ns` is not sent, and
the line for chrony.conf that the agent prints has a `delay` of twice that, half of which chronyd adds to the source's
maximum assumed error. Every sample that chronyd gets is within what it assumes.

The leap status is always "normal": the kernel's leap flags are chronyd's own, and would come back to it as if a clock
had said so.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agent.clock.clock import ClockReport
from agent.clock.trust import Trust
from agent.ffi.clocks import ClockPairs
from agent.telemetry.schema import RefclockItem

_PERIOD_NS = 1_000_000_000
_MAGIC = 0x534F434B
_LEAP_NORMAL = 0
# struct sock_sample of chrony's refclock_sock.c: timeval, offset (s), pulse, leap, padding, magic.
_SAMPLE = struct.Struct("@lldiiii")
# Processes looked at on each tick: a host with 1000 of them is through in 25 s.
_PROCESSES_A_TICK = 8


class Conflicts(Protocol):
    """Tells which other program carries time between the clock and the system clock."""

    def look_on(self, processes: int) -> str:
        """What conflicts and why, or ""; looks at some more processes."""


@dataclass(frozen=True, slots=True)
class ReferenceSample:
    """UTC by the hardware clock is `ahead_ns` ahead of CLOCK_REALTIME at `realtime_ns`, within `bound_ns` (p99)."""

    realtime_ns: int
    ahead_ns: int
    bound_ns: float


def reference_sample(
    report: ClockReport, pairs: ClockPairs, base_delay_ns: int | None, max_error_ns: int
) -> ReferenceSample | str:
    """The sample that a clock's report gives, or why there is none.

    CLOCK_REALTIME - CLOCK_MONOTONIC is constant until somebody sets the clock, so any of the tick's `pairs` relates
    the report to realtime, to half of their brackets. In state "relative" the path's least delay is in the offset:
    unless it is known, the sample would be off by it, always to the same side; where it is, it is taken out, and stays
    in the bound, as nobody says how well it is known. Holdover is not told on: chronyd has its own.
    """
    offset_ns = report.offset_ns
    if report.state == "relative":
        if base_delay_ns is None:
            return "relative: the packets' base delay is unknown (--base-delay-ns tells it)"
        offset_ns -= base_delay_ns
    best = pairs.best()
    realtime_ahead_ns = int(pairs.realtime_ns[best]) - int(pairs.mono_ns[best])
    utc_behind_ns = 0
    if report.timescale == "tai":
        tai_utc_s = round((int(pairs.tai_ns[best]) - int(pairs.realtime_ns[best])) * 1e-9)
        if not tai_utc_s:
            return "the clock counts TAI and nobody told the kernel TAI - UTC (`leapsectz right/UTC` in chrony.conf)"
        utc_behind_ns = tai_utc_s * 1_000_000_000
    elif report.timescale != "utc":
        return f"the clock's time scale is {report.timescale}"
    bound_ns = report.bound_ns + (int(pairs.width_ns[best]) + int(pairs.realtime_width_ns[best])) / 2
    if bound_ns > max_error_ns:
        return f"the clock's bound is above {max_error_ns} ns (--refclock-max-error)"
    # realtime - UTC = (realtime - mono) + (mono - hardware) + (hardware - UTC)
    realtime_fast_ns = realtime_ahead_ns + offset_ns + utc_behind_ns
    return ReferenceSample(report.mono_ns + realtime_ahead_ns, -realtime_fast_ns, bound_ns)


def datagram(sample: ReferenceSample) -> bytes:
    """The sample as chronyd's SOCK driver takes it. Its time has microseconds; the offset is not affected by that."""
    seconds, ns = divmod(sample.realtime_ns, 1_000_000_000)
    return _SAMPLE.pack(seconds, ns // 1000, sample.ahead_ns / 1e9, 0, _LEAP_NORMAL, 0, _MAGIC)


def chrony_line(path: Path, max_error_ns: int) -> str:
    """The line for chrony.conf."""
    return f"refclock SOCK {path} refid AGNT poll 2 delay {2 * max_error_ns * 1e-9:.9f}"


class Refclock:
    """Feeds the socket at `path` from the one clock of the interface `ifname`; never blocks, never raises."""

    def __init__(
        self,
        path: Path,
        ifname: str,
        max_error_ns: int,
        base_delay_ns: int | None,
        conflicts: Conflicts | None,
    ) -> None:
        """`conflicts` is None where no device on this host is the clock (a trailer's)."""
        self.sent = self.refused = self.failed = 0
        """Samples that went out, that were not trusted, that chronyd did not take."""
        self._path = path
        self._ifname = ifname
        self._max_error_ns = max_error_ns
        self._base_delay_ns = base_delay_ns
        self._conflicts = conflicts
        self._trust: dict[int, Trust] = {}
        # What looks like a trailer for some packets is a clock of its own, and never comes to be trusted.
        self._trusted_once: set[int] = set()
        self._sample: ReferenceSample | None = None
        self._trouble = "nothing sent yet"
        self._due_ns = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._notes = [
            f"chronyd is fed at {path}; its line for chrony.conf: {chrony_line(path, max_error_ns)}"
        ]

    def take(self, mono_ns: int, reports: Sequence[ClockReport], pairs: ClockPairs) -> None:
        """Look at this tick's reports of the interface's clocks, and send a sample if one is due and right."""
        conflict = self._conflicts.look_on(_PROCESSES_A_TICK) if self._conflicts is not None else ""
        doubts = {report.key: self._trust.setdefault(report.key, Trust()).doubt(report) for report in reports}
        self._trusted_once |= {key for key, doubt in doubts.items() if not doubt}
        if mono_ns < self._due_ns:
            return
        self._due_ns = mono_ns + _PERIOD_NS
        self._sample = None
        trouble = self._send(reports, doubts, pairs, conflict)
        if trouble != self._trouble:
            self._notes.append(f"refclock: {trouble or 'chronyd is fed'}")
            self._trouble = trouble

    def stop(self, why: str) -> None:
        """There will be no more reports: say so, instead of the last sample."""
        self._sample, self._trouble = None, why

    def take_notes(self) -> list[str]:
        """What there is to tell people since the last call."""
        notes, self._notes = self._notes, []
        return notes

    def facts(self) -> RefclockItem:
        """How it goes, for the `refclock` frame."""
        sample = self._sample
        return {
            "path": str(self._path),
            "ifname": self._ifname,
            "trouble": self._trouble,
            "realtime_ns": None if sample is None else sample.realtime_ns,
            "ahead_ns": None if sample is None else sample.ahead_ns,
            "bound_ns": None if sample is None else sample.bound_ns,
            "max_error_ns": self._max_error_ns,
            "sent": self.sent,
            "refused": self.refused,
            "failed": self.failed,
        }

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _send(
        self, reports: Sequence[ClockReport], doubts: Mapping[int, str], pairs: ClockPairs, conflict: str
    ) -> str:
        """Send the sample there is; returns why nothing went out, or ""."""
        sample = self._judge(reports, doubts, pairs, conflict)
        if isinstance(sample, str):
            self.refused += 1
            return sample
        try:
            # By its name each time: chronyd makes the socket anew when it starts.
            self._socket.sendto(datagram(sample), os.fspath(self._path))
        except OSError as error:
            self.failed += 1
            return f"no chronyd takes samples at {self._path}: {error.strerror}"
        self.sent += 1
        self._sample = sample
        return ""

    def _judge(
        self, reports: Sequence[ClockReport], doubts: Mapping[int, str], pairs: ClockPairs, conflict: str
    ) -> ReferenceSample | str:
        if conflict:
            return conflict
        if len(self._trusted_once) > 1:
            return f"{self._ifname} has {len(self._trusted_once)} clocks: which is right is unknown"
        report = next((r for r in reports if r.key in self._trusted_once), None)
        if report is None:
            return f"no clock of {self._ifname} can be trusted yet"
        if doubts[report.key]:
            return doubts[report.key]
        return reference_sample(report, pairs, self._base_delay_ns, self._max_error_ns)
