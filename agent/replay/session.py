"""The rows of a file on their way out, summed up clock by clock as they pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from agent.errors import UsageError
from agent.replay.recording import Replay
from agent.replay.rows import Row
from agent.replay.scores import ScoredErrors
from agent.replay.summary import ClockSummary, ClockSums

# Each takes some 300 KiB. Live, an interface has 16 at a time; a recording may see more of them come and go.
_MAX_CLOCKS = 256


class Observer(Protocol):
    """Somebody who wants the rows and the errors too: the plot."""

    def row(self, row: Row) -> None:
        """Take a row."""

    def errors(self, clock: str, horizon_s: float, scored: ScoredErrors) -> None:
        """Take errors of the mixture at one horizon."""


class Session:
    """One replay: `rows` first, to its end, then `summaries`."""

    def __init__(self, replay: Replay, observer: Observer | None) -> None:
        self._replay = replay
        self._observer = observer
        self._sums: dict[str, ClockSums] = {}

    def rows(self) -> Iterator[Row]:
        """Pass the file's rows on. Raises what the file's replay raises."""
        for row in self._replay.rows():
            sums = self._sums.get(row.clock)
            if sums is None:
                sums = self._sums[row.clock] = self._begin(row.clock)
            sums.add(row)
            if self._observer is not None:
                self._observer.row(row)
            yield row

    def summaries(self) -> list[ClockSummary]:
        """Return what each clock came to, in the order of their first rows."""
        return [sums.summary(self._replay.timescale(clock)) for clock, sums in self._sums.items()]

    def _begin(self, clock: str) -> ClockSums:
        if len(self._sums) == _MAX_CLOCKS:
            raise UsageError(
                f"clock {clock!r} is one more than {_MAX_CLOCKS}: their stamps are damaged, or no time stamps",
                "replay the part of the file that has fewer",
            )
        horizons_s = self._replay.horizons_s(clock)
        sums = ClockSums(clock, horizons_s, self._replay.experts(clock))
        observer = self._observer
        if observer is not None:
            sums.observe_errors(lambda h, scored: observer.errors(clock, horizons_s[h], scored))
        return sums
