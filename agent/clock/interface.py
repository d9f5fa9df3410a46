"""The clocks of one interface, fed tick by tick: by the loop as it happens, by a replay as it was recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from agent.clock.clock import Clock, ClockReport
from agent.clock.ptp import PtpWatch
from agent.clock.table import ClockTable
from agent.clock.trust import CLOCK_JUMPS
from agent.ffi.records import CLOCK_KEY_NONE, CLOCK_KEY_PHC, WindowArray

if TYPE_CHECKING:
    from agent.ffi.clocks import ClockPairs, Steering
    from agent.phcreader import PhcReading


@dataclass(frozen=True, slots=True)
class TickInputs:
    """What the clocks of an interface are fed in one tick, besides the windows; with them, all there is.

    `mono_ns` is when the tick began; `pairs` were read after the windows were drained. `phc` is the tick's reading
    of the interface's PHC, None where it has none that stamps. `announces` are PTP's Announce messages that passed,
    each with its mono time.
    """

    mono_ns: int
    pairs: ClockPairs
    steering: Steering
    phc: PhcReading | None
    announces: tuple[tuple[int, bytes], ...] = ()


class InterfaceClocks:
    """The clocks that an interface's packets showed, and its PHC's. The same inputs give the same reports.

    `base_delay_ns` and `forget` as in `ClockTable`; a replay, which writes no models, has none to forget.
    """

    def __init__(self, base_delay_ns: int | None, forget: Callable[[int], None] = lambda key: None) -> None:
        self._table = ClockTable(base_delay_ns, forget)
        self.ptp = PtpWatch()
        """The PTP time sources on this interface."""

    @property
    def base_delay_ns(self) -> int | None:
        """What is known of the least delay, of the clocks to come."""
        return self._table.base_delay_ns

    def tick(self, windows: WindowArray, inputs: TickInputs) -> list[tuple[Clock, ClockReport]]:
        """Feed all clocks what this tick brought, and bring them up to now; each with its report."""
        for key, own in by_clock(windows):
            clock = self._table.seen(key, inputs.mono_ns)
            if clock is not None:
                clock.observe_windows(own, inputs.pairs)
        if inputs.phc is not None:
            self._anchor(inputs.phc, inputs)
        for heard_ns, message in inputs.announces:
            self.ptp.hear(heard_ns, message)
        self.ptp.look(inputs.mono_ns)
        return [
            (clock, self._with_causes(clock.tick(inputs.pairs, inputs.steering))) for clock in self._table
        ]

    def setting_changed(self, mono_ns: int, actuator: str, target: str, outcome: str) -> None:
        """Tell of a setting that the controller wrote: where it took effect, packets may go another way from now on."""
        if outcome in ("applied", "rolled_back"):
            for clock in self._table:
                clock.path_changed(mono_ns, f"{actuator} {target}")

    def _with_causes(self, report: ClockReport) -> ClockReport:
        """The report, its clock's jumps put down to a change of the PTP time source where there was one."""
        if not any(tag.kind in CLOCK_JUMPS for tag in report.tags):
            return report
        tags = []
        for tag in report.tags:
            cause = self.ptp.cause_of(tag.mono_ns) if tag.kind in CLOCK_JUMPS else ""
            tags.append(replace(tag, cause=f"{tag.cause}; {cause}") if cause else tag)
        return replace(report, tags=tuple(tags))

    def _anchor(self, reading: PhcReading, inputs: TickInputs) -> None:
        clock = self._table.seen(CLOCK_KEY_PHC, inputs.mono_ns)
        if clock is None:
            return
        if reading.steered_ppb:
            clock.steer_phc(reading.steered_ppb, inputs.pairs)
        if reading.burst is not None:
            clock.observe_anchor(reading.burst, reading.pairs)


def by_clock(windows: WindowArray) -> Iterator[tuple[int, WindowArray]]:
    """Windows by the clock that stamped them; those of no clock are left out."""
    if len(windows) == 0:
        return
    keys = windows["clock_key"].copy()
    first = int(keys[0])
    if (keys == first).all():  # the usual case needs no copy of the records
        if first != CLOCK_KEY_NONE:
            yield first, windows
        return
    for key in np.unique(keys).tolist():
        if key != CLOCK_KEY_NONE:
            yield key, windows[keys == key]
