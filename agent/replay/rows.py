"""What every reader gives: one row for each report of a clock, whatever the file was."""

from __future__ import annotations

from dataclasses import dataclass

from agent.clock.jumps import TagKind
from agent.clock.replay import SampleReport

# After these the offset is another one: no forecast from before can know it.
REANCHORINGS: frozenset[TagKind | None] = frozenset(("phase_step", "tai_utc", "wrap", "path_change"))


@dataclass(frozen=True, slots=True)
class Row:
    """One report, and what it is compared with.

    `index` counts the file's rows; `clock` names the clock, "" where the file has one without a name. `measured_ns` is
    the offset that later forecasts, and forecasts for it, are scored by: the sample's own local - hardware; None
    where it doesn't count. `more_tags` are further tags of a report that has several.
    """

    index: int
    clock: str
    report: SampleReport
    measured_ns: int | None
    more_tags: tuple[TagKind, ...] = ()

    @property
    def reanchored(self) -> bool:
        """Whether the offset is another one from here on."""
        if self.measured_ns is None:
            return False
        return self.report.tag in REANCHORINGS or any(tag in REANCHORINGS for tag in self.more_tags)
