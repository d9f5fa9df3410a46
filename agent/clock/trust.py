"""Whether a clock's offset may be handed on: compared with another clock, or told to a program that sets clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.clock.clock import ClockReport

JUMPS = frozenset(("phase_step", "tai_utc", "wrap", "freq_step", "path_change"))
"""Tags after which offsets and delays do not compare with those from before."""
CLOCK_JUMPS = JUMPS - {"path_change"}
"""Those of them that are the clock's own."""
# A jump's verdict may come three samples late, and a second tag of the same event after it.
_SETTLING_NS = 1_000_000_000


class Trust:
    """Follows one clock's reports."""

    def __init__(self) -> None:
        self._jump: str = ""
        self._jump_seen_ns = 0

    def doubt(self, report: ClockReport) -> str:
        """Take this tick's report; returns why its offset is not to be used, or "" if it is.

        A jump is over when a second has passed without a further one, and the state is right again.
        """
        for tag in report.tags:
            if tag.kind in JUMPS:
                self._jump, self._jump_seen_ns = tag.kind, report.mono_ns
        if report.state not in ("tracking", "relative"):
            return f"the clock's state is {report.state}"
        if self._jump and report.mono_ns - self._jump_seen_ns < _SETTLING_NS:
            return f"the clock had a {self._jump} a moment ago"
        self._jump = ""
        return ""
