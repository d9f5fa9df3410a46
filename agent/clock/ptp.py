"""What PTP messages on the wire say of the clock that others follow, and when that changes.

A NIC's or a switch's clock steps mostly because its PTP time source did: another grandmaster took over, or the one
there is lost its own source. That is told by Announce messages (IEEE 1588-2019, 13.5) before or while it happens.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass

# Header: type, version, length, domain, minor sdo id, flags, correction, -, source identity and port, sequence,
# control, log interval; body: origin time, UTC offset, -, priority 1, class, accuracy, variance, priority 2,
# grandmaster, steps removed, time source.
_ANNOUNCE = struct.Struct(">BBHBBHq4x8sHHBb10xhxBBBHB8sHB")
_TYPE_ANNOUNCE = 0xB
_VERSION = 2
_UTC_OFFSET_VALID = 0x0004
_TIME_TRACEABLE = 0x0010
# announceReceiptTimeout's default, in announce intervals; and for intervals that are not to be believed.
_TIMEOUT_INTERVALS = 3
_LONGEST_INTERVAL_S = 16.0
# A jump is put down to a change this long before it at most: a port needs some announces to choose its master, and a
# servo some seconds to step. Or shortly after: the Announce may come behind the step.
_CAUSE_BEFORE_NS = 10_000_000_000
_CAUSE_AFTER_NS = 2_000_000_000
_MAX_SOURCES = 16


@dataclass(frozen=True, slots=True)
class Announce:
    """One Announce message. `quality` orders grandmasters: the best master clock algorithm takes the smallest."""

    source: str
    """Who sent it: clock identity and port number."""
    domain: int
    grandmaster: str
    """Its clock identity, as `ptp4l` writes it."""
    clock_class: int
    """6: locked to its reference, 7: in holdover, 52 and 187: degraded, 248: never had one."""
    steps_removed: int
    utc_offset_s: int | None
    """TAI - UTC as the grandmaster has it; None where it doesn't know."""
    time_traceable: bool
    interval_s: float
    quality: tuple[int, int, int, int, int, str]


def parse_announce(message: bytes) -> Announce | None:
    """The Announce in these bytes, from the PTP header on; None if there is none."""
    if len(message) < _ANNOUNCE.size:
        return None
    (
        kind, version, _, domain, _, flags, _, source, port, _, _, log_interval, utc_offset_s,
        priority1, clock_class, accuracy, variance, priority2, grandmaster, steps_removed, _,
    ) = _ANNOUNCE.unpack_from(message)  # fmt: skip
    if kind & 0xF != _TYPE_ANNOUNCE or version & 0xF != _VERSION:
        return None
    name = _identity(grandmaster)
    return Announce(
        source=f"{_identity(source)}-{port}",
        domain=domain,
        grandmaster=name,
        clock_class=clock_class,
        steps_removed=steps_removed,
        utc_offset_s=utc_offset_s if flags & _UTC_OFFSET_VALID else None,
        time_traceable=bool(flags & _TIME_TRACEABLE),
        interval_s=min(2.0 ** max(log_interval, -7), _LONGEST_INTERVAL_S),
        quality=(priority1, clock_class, accuracy, variance, priority2, name),
    )


@dataclass(frozen=True, slots=True)
class PtpChange:
    """Something about the time source changed at `mono_ns`."""

    mono_ns: int
    text: str


class PtpWatch:
    """Follows the Announces on one interface: of a domain's sources heard lately, ports follow the best."""

    def __init__(self) -> None:
        self.masters: dict[int, Announce] = {}
        """By domain, the best of the sources heard lately."""
        self.changes = 0
        self._heard: dict[tuple[int, str], tuple[int, Announce]] = {}
        self._lost: dict[int, Announce] = {}
        self._recent: deque[PtpChange] = deque(maxlen=8)
        self._untold: list[PtpChange] = []

    def hear(self, mono_ns: int, message: bytes) -> None:
        """Take an Announce message that passed at `mono_ns`; anything else is ignored."""
        announce = parse_announce(message)
        if announce is None:
            return
        key = (announce.domain, announce.source)
        if key not in self._heard and len(self._heard) >= _MAX_SOURCES:
            del self._heard[min(self._heard, key=lambda known: self._heard[known][0])]
        self._heard[key] = (mono_ns, announce)

    def take_changes(self) -> list[PtpChange]:
        """The changes since this was called last."""
        changes, self._untold = self._untold, []
        return changes

    def look(self, mono_ns: int) -> None:
        """Notice what has changed by `mono_ns`; call it on every tick."""
        for key, (heard_ns, announce) in list(self._heard.items()):
            if mono_ns - heard_ns > _TIMEOUT_INTERVALS * announce.interval_s * 1e9:
                del self._heard[key]
        changes = []
        for domain in sorted({domain for domain, _ in self._heard} | set(self.masters)):
            rivals = [item for (of, _), item in self._heard.items() if of == domain]
            at_ns, now = min(
                rivals, key=lambda item: (item[1].quality, item[1].steps_removed), default=(mono_ns, None)
            )
            text = self._follow(domain, now)
            if text:
                changes.append(PtpChange(at_ns, text))
        self.changes += len(changes)
        self._recent += changes
        self._untold += changes

    def cause_of(self, jump_mono_ns: int) -> str:
        """The change that a jump is probably due to, and how long before it was; "" if there was none."""
        likely = [
            change
            for change in self._recent
            if -_CAUSE_AFTER_NS <= jump_mono_ns - change.mono_ns <= _CAUSE_BEFORE_NS
        ]
        if not likely:
            return ""
        change = likely[-1]
        before_s = (jump_mono_ns - change.mono_ns) * 1e-9
        when = f"{before_s:.1f} s before" if before_s >= 0 else f"{-before_s:.1f} s after"
        return f"{change.text} {when}"

    def _follow(self, domain: int, now: Announce | None) -> str:
        """Take a domain's master; what changed. One that comes after a silence is compared with the one before it."""
        if now is None:
            self._lost[domain] = lost = self.masters.pop(domain)
            return f"PTP grandmaster {lost.grandmaster} was no longer announced"
        before = self.masters.get(domain) or self._lost.pop(domain, None)
        self.masters[domain] = now
        return "" if before is None else _difference(before, now)


def _difference(before: Announce, now: Announce) -> str:
    if now.grandmaster != before.grandmaster:
        return f"PTP grandmaster changed from {before.grandmaster} to {now.grandmaster}"
    if now.clock_class != before.clock_class:
        return f"PTP grandmaster {now.grandmaster} went from class {before.clock_class} to {now.clock_class}"
    if now.source != before.source:
        return f"PTP master port changed from {before.source} to {now.source}"
    if now.utc_offset_s != before.utc_offset_s:
        return f"PTP grandmaster's TAI − UTC went from {before.utc_offset_s} to {now.utc_offset_s}"
    return ""


def _identity(raw: bytes) -> str:
    """As linuxptp writes it: `001b19.fffe.0a0b0c`."""
    digits = raw.hex()
    return f"{digits[:6]}.{digits[6:10]}.{digits[10:]}"
