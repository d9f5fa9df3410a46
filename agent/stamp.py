"""Hardware time for consumers: what a NIC's or a switch's clock showed at an instant of mono, and its bound.

The agent (`agent run --batch`) publishes its clocks' models on its page; this evaluates them as the kernel does,
without a system call. Nothing here loads BPF, NumPy or SciPy.
"""

from __future__ import annotations

import functools
import logging
import threading
from pathlib import Path
from time import monotonic_ns
from typing import NamedTuple

from agent.batch.forks import renew_in_children
from agent.batch.layout import (
    CLOCKS,
    DEFAULT_PAGE,
    STATE_DIR,
    PageError,
    PublishedClock,
    page_path,
    unpack_clocks,
)
from agent.batch.page import FollowedPage

_log = logging.getLogger("agent.stamp")
_SEQ = CLOCKS.seq_index
_BILLION = 1_000_000_000
_NOT_WATCHED = "the clock was not watched then, or has jumped since"


class PhcTime(NamedTuple):
    """An instant in hardware time."""

    phc_ns: int
    bound_ns: int
    """p99 of the error, the unknown part of a path's delay included."""
    timescale: str
    """What the clock counts: `tai`, `utc`, `unset` (from 1970) or `unknown`."""
    epoch: int
    """Grows with every jump of the clock: times of different epochs do not compare."""


class MonoTime(NamedTuple):
    """An instant in the host's time."""

    mono_ns: int
    bound_ns: int
    """p99 of the error."""


class PhcClock:
    """One hardware clock of the agent's, read through its page. Threads may share one."""

    def __init__(
        self,
        ifname: str | None = None,
        key: int | None = None,
        *,
        page: str = DEFAULT_PAGE,
        state_dir: Path = STATE_DIR,
        owner_uid: int = 0,
    ) -> None:
        """The clock of an interface, and of its clocks the one with `key` as telemetry tells it.

        Either may be left out where that leaves one clock. `page`, `state_dir` and `owner_uid` as in `BatchWindow`.
        Raises `ValueError` for a name that no page can have.
        """
        self._ifname = ifname
        self._key = key
        self._followed = FollowedPage(page_path(state_dir, page), owner_uid)
        self._seq = -1
        self._clock: PublishedClock | None = None
        self.trouble = ""
        """Why there was no time to tell when it was last asked for; empty if there was."""
        self.begin_anew()
        renew_in_children(self)

    def begin_anew(self) -> None:
        """In the child of a fork: no thread of the parent's holds anything here."""
        self._lock = threading.Lock()

    def time(self, mono_ns: int) -> PhcTime | None:
        """What the clock showed at `mono_ns` of `time.monotonic_ns()`; None where that is not known.

        That is so while there is no agent or it doesn't know the clock, more than about 2 s after it stopped, and for
        instants before the clock's latest jump, or before the agent watched it.
        """
        clock = self._clock
        if clock is None or self._followed.words[_SEQ] != self._seq or mono_ns >= clock.valid_until_ns:
            with self._lock:
                clock = self._clock = self._read_anew(mono_ns)
            if clock is None:
                return None
        if mono_ns < clock.since_ns:
            self._tell(_NOT_WATCHED)
            return None
        span = mono_ns - clock.mono0_ns
        phc_ns = clock.phc0_ns + span + ((span * clock.adj) >> clock.shift)
        return PhcTime(phc_ns, _bound_ns(clock, mono_ns), clock.timescale, clock.epoch)

    def mono(self, phc_ns: int) -> MonoTime | None:
        """When the clock showed `phc_ns`, a hardware stamp say: the inverse of `time`, to 1 ns. None as there."""
        with self._lock:
            if self._clock is None or self._followed.words[_SEQ] != self._seq:
                self._clock = self._read_anew(monotonic_ns())
            if self._clock is not None and _mono_ns(self._clock, phc_ns) >= self._clock.valid_until_ns:
                # Nobody writes that page any more if the agent was killed; the next one's is another file.
                self._clock = self._read_anew(_mono_ns(self._clock, phc_ns))
            clock = self._clock
        if clock is None:
            return None
        mono_ns = _mono_ns(clock, phc_ns)
        if not clock.since_ns <= mono_ns < clock.valid_until_ns:
            self._tell(_NOT_WATCHED if mono_ns < clock.since_ns else self._too_far())
            return None
        return MonoTime(mono_ns, _bound_ns(clock, mono_ns))

    def _read_anew(self, mono_ns: int) -> PublishedClock | None:
        try:
            self._seq, body = self._followed.look(monotonic_ns(), bool(self.trouble)).body(CLOCKS)
            clock = self._choose(unpack_clocks(body))
            if mono_ns >= clock.valid_until_ns:
                raise PageError(self._too_far())
        except PageError as error:
            self._tell(error.what)
            return None
        self.trouble = ""
        return clock

    def _too_far(self) -> str:
        return f"the model of the clock in {self._followed.path} does not reach that far"

    def _choose(self, clocks: list[PublishedClock]) -> PublishedClock:
        found = [
            clock
            for clock in clocks
            if self._ifname in (None, clock.ifname) and self._key in (None, clock.key)
        ]
        if not found:
            raise PageError(f"the agent knows the time of no such clock, of {len(clocks)}")
        if len(found) > 1:
            names = ", ".join(f"{clock.ifname} {clock.kind} {clock.key}" for clock in found)
            raise PageError(f"the agent has several clocks: {names}", "name the interface, and the key")
        return found[0]

    def _tell(self, trouble: str) -> None:
        if trouble != self.trouble:
            self.trouble = trouble
            _log.warning("no hardware time: %s", trouble)


def _mono_ns(clock: PublishedClock, phc_ns: int) -> int:
    """When it showed `phc_ns`, by phc - phc0 = D + D * adj / 2^shift."""
    return clock.mono0_ns + ((phc_ns - clock.phc0_ns) << clock.shift) // ((1 << clock.shift) + clock.adj)


def _bound_ns(clock: PublishedClock, mono_ns: int) -> int:
    return clock.bound_ns + abs(mono_ns - clock.at_mono_ns) * clock.growth_ppb // _BILLION + 1


@functools.cache
def _clock_of(ifname: str | None) -> PhcClock:
    return PhcClock(ifname)


def phc_time(mono_ns: int, ifname: str | None = None) -> PhcTime | None:
    """What the hardware clock (of an interface, where there are several) showed at `mono_ns`; None if not known.

    By the agent's default page; `PhcClock` has other pages and clocks, and tells why there is no time.
    """
    return _clock_of(ifname).time(mono_ns)
