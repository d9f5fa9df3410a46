"""One PHC read on the loop's ticks: within a budget of reads, backing off where the device refuses.

A card's ports may share one PHC, so there is one reader for a device, and each tick's reading goes to the clocks of
all interfaces that it stamps for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agent.errors import AgentError
from agent.ffi.clocks import ClockPairs, clock_pairs
from agent.ffi.phc import MAX_READS, Phc, PhcBurst, PhcGoneError
from agent.telemetry.schema import PhcItem

_PAIRS = 5
# What a tick may wait for one device. Reads take from 1 us (memory-mapped) to hundreds (USB, some PRECISE ones).
_LONGEST_BURST_NS = 500_000
# A device that refuses is left alone for this long at first, and for at most the other.
_FIRST_PAUSE_NS = 200_000_000
_LONGEST_PAUSE_NS = 30_000_000_000


@dataclass(frozen=True, slots=True)
class PhcReading:
    """What one tick learnt of a PHC."""

    burst: PhcBurst | None
    """None: no read was due, or the device refused."""
    pairs: ClockPairs
    """The kernel's clocks before the burst, and after it too where that is against realtime."""
    steered_ppb: float
    """How much another program changed the dialled frequency since the reading before; positive: runs faster."""


class PhcReader:
    """Reads `phc` at most `reads_per_s` times a second, a burst a tick, for the interface `ifname` first of all."""

    def __init__(
        self,
        phc: Phc,
        ifname: str,
        reads_per_s: int,
        pairs: Callable[[int], ClockPairs] = clock_pairs,
    ) -> None:
        self.phc = phc
        self.gone = False
        self.reads = self.refusals = self.adjustments = 0
        self.pause_ns = 0
        """How long the device is left alone after its latest refusal; 0: it answers."""
        self.frequency_ppb: float | None = None
        """The frequency dialled into the clock; None where it cannot be read."""
        self.method = ""
        """How it is read: `precise`, `extended` or `basic`, and against which local clock."""
        self._max_adjustment_ppb = phc.caps().max_adj_ppb
        self._ifname = ifname
        self._reads_per_s = reads_per_s
        self._pairs = pairs
        self._tokens = 1.0
        self._affordable = MAX_READS
        self._tick_ns: int | None = None
        self._reading: PhcReading | None = None
        self._paused_until_ns = 0
        self._frequency_readable = True
        self._notes: list[str] = []

    def read(self, mono_ns: int) -> PhcReading:
        """The reading of the tick that began at `mono_ns`; asked again for the same tick, the same one."""
        if self._reading is None or mono_ns != self._tick_ns:
            steered_ppb = 0.0 if self.gone else self._steered_ppb()
            pairs = self._pairs(_PAIRS)
            burst = None if self.gone else self._burst(mono_ns)
            if burst is not None and burst.local_clock == "realtime":
                pairs = pairs.followed_by(self._pairs(_PAIRS))
            self._tick_ns, self._reading = mono_ns, PhcReading(burst, pairs, steered_ppb)
        return self._reading

    def facts(self) -> PhcItem:
        """How it is read and steered, for the `steering` frame."""
        return {
            "ifname": self._ifname,
            "device": str(self.phc.path),
            "method": self.method,
            "pause_ns": self.pause_ns,
            "frequency_ppb": self.frequency_ppb,
            "max_adjustment_ppb": self._max_adjustment_ppb,
        }

    def take_notes(self) -> list[str]:
        """What there is to tell people since the last call."""
        notes, self._notes = self._notes, []
        return notes

    def _burst(self, mono_ns: int) -> PhcBurst | None:
        if self._tick_ns is not None:
            earned = (mono_ns - self._tick_ns) * 1e-9 * self._reads_per_s
            self._tokens = min(self._tokens + earned, float(MAX_READS))
        n = min(int(self._tokens), self._affordable)
        if n == 0 or mono_ns < self._paused_until_ns:
            return None
        self._tokens -= n  # a refused read is one too
        try:
            burst = self.phc.read_burst(n)
        except PhcGoneError as error:
            self._leave(error)
            return None
        except AgentError as error:
            self._back_off(mono_ns, error)
            return None
        self.reads += n
        per_read_ns = max(1, int(burst.t2_ns[-1] - burst.t1_ns[0]) // n)
        self._affordable = min(MAX_READS, max(1, _LONGEST_BURST_NS // per_read_ns))
        self._answered(burst)
        return burst

    def _back_off(self, mono_ns: int, error: AgentError) -> None:
        """Leave the device alone, twice as long as the last time."""
        self.refusals += 1
        if self.pause_ns == 0:
            self._note(
                f"{error.what}: read again later, ever more seldom while it refuses; until then the clock "
                "follows the packets' envelope or its own prediction"
            )
        self.pause_ns = min(max(2 * self.pause_ns, _FIRST_PAUSE_NS), _LONGEST_PAUSE_NS)
        self._paused_until_ns = mono_ns + self.pause_ns

    def _answered(self, burst: PhcBurst) -> None:
        if self.pause_ns:
            # Not at once back to 0: a device that refuses every other read would be asked at the full rate.
            self.pause_ns = self.pause_ns // 2 if self.pause_ns > _FIRST_PAUSE_NS else 0
            if self.pause_ns == 0:
                self._note(f"{self.phc.path} answers again; {self.refusals} bursts were refused so far")
        method = f"{burst.method} against {burst.local_clock}"
        if method != self.method:
            self.method = method
            self._note(f"{self.phc.path} is read up to {self._reads_per_s} times a second, {method}")

    def _steered_ppb(self) -> float:
        """How the dialled frequency changed; the kernel keeps it, so this is no read of the device."""
        if not self._frequency_readable:
            return 0.0
        try:
            now = self.phc.frequency_ppb()
        except PhcGoneError as error:
            self._leave(error)
            return 0.0
        except AgentError as error:
            self._frequency_readable = False
            self._note(f"{error.what}: its steering is taken for drift from here on ({error.remedy})")
            return 0.0
        before, self.frequency_ppb = self.frequency_ppb, now
        if before is None or now == before:
            return 0.0
        if self.adjustments == 0:
            self._note(
                f"another program steers {self.phc.path}: the dialled frequency went from {before:+.1f} to "
                f"{now:+.1f} ppb. Such changes are taken out of the estimate, and counted as phc_adjustments"
            )
        self.adjustments += 1
        return now - before

    def _leave(self, error: PhcGoneError) -> None:
        self.gone = True
        self._note(f"{error.what}: following the packets' envelope from here on")

    def _note(self, text: str) -> None:
        self._notes.append(f"{self._ifname}: {text}")
