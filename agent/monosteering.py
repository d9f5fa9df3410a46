"""What other programs do to the kernel's clock: noticed each tick, counted, and told once."""

from __future__ import annotations

from agent.ffi.clocks import Steering

_UTC_ONLY = (
    "nobody told the kernel TAI − UTC (it says 0, it is 37 s since 2017): CLOCK_TAI equals UTC here, and a hardware "
    "clock in TAI is recognised by the 37 s alone; `leapsectz right/UTC` in chrony.conf tells it, or phc2sys with a "
    "grandmaster that announces it"
)


class MonoSteering:
    """Follows adjtimex: the dialled frequency of CLOCK_MONOTONIC, and TAI − UTC."""

    def __init__(self) -> None:
        self.now: Steering | None = None
        """As it was last read."""
        self.adjustments = 0
        """How often the dialled frequency was found changed."""

    def observe(self, steering: Steering) -> list[str]:
        """Take this tick's reading; returns what there is to tell people."""
        before, self.now = self.now, steering
        if before is None:
            return [] if steering.tai_offset_s else [_UTC_ONLY]
        notes = []
        if steering.freq_ppb != before.freq_ppb:
            if self.adjustments == 0:
                notes.append(
                    f"another program steers the system clock: its dialled frequency went from "
                    f"{before.freq_ppb:+.1f} to {steering.freq_ppb:+.1f} ppb. Such changes are taken out of the "
                    "estimates, and counted as mono_adjustments"
                )
            self.adjustments += 1
        if steering.tai_offset_s != before.tai_offset_s:
            notes.append(
                f"the kernel's TAI − UTC went from {before.tai_offset_s} to {steering.tai_offset_s} s: a leap second, "
                "or a daemon told it"
            )
        return notes
