"""Two-sided samples of a file through the clock: one row a sample, clocks kept apart."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from agent.clock.replay import ClockReplay, SampleReport
from agent.replay.csvfile import CsvSamples
from agent.replay.rows import Row


@dataclass(frozen=True, slots=True)
class Forecasting:
    """What is predicted: horizons in s, ascending, and the experts by name."""

    horizons_s: tuple[float, ...]
    experts: tuple[str, ...]


@dataclass(slots=True)
class _Lane:
    """One clock of the file: its replay, and (index, local - hardware) of the samples without a verdict."""

    replay: ClockReplay
    open: deque[tuple[int, int | None]] = field(default_factory=deque)

    def rows(self, clock: str, reports: list[SampleReport]) -> Iterator[Row]:
        for report in reports:
            index, measured_ns = self.open.popleft()
            yield Row(index, clock, report, measured_ns if report.weight > 0.0 else None)


class SampleReplay:
    """The clocks of a CSV file. `rows` gives their reports; `timescale` and `experts` are known as they come."""

    names_clocks: bool
    """Whether the rows' `clock` is a name that the file gave."""

    def __init__(self, samples: CsvSamples, forecasting: Forecasting) -> None:
        self._samples = samples
        self._forecasting = forecasting
        self._lanes: dict[str, _Lane] = {}
        self.names_clocks = samples.has_clocks

    def rows(self) -> Iterator[Row]:
        """Replay the file. Raises `UsageError` at a line that is wrong, behind the rows that were final before it."""
        for index, (clock, sample) in enumerate(self._samples):
            lane = self._lanes.get(clock)
            if lane is None:
                lane = self._lanes[clock] = self._lane()
            hw_ns = sample.hw_ns
            lane.open.append((index, sample.local_ns - hw_ns if hw_ns else None))
            yield from lane.rows(clock, lane.replay.feed(sample))
        for clock, lane in self._lanes.items():
            yield from lane.rows(clock, lane.replay.finish())

    def experts(self, clock: str) -> tuple[str, ...]:
        """The experts that take part in a clock's forecasts."""
        return self._lanes[clock].replay.experts

    def horizons_s(self, clock: str) -> tuple[float, ...]:
        """The horizons of a clock's forecasts."""
        return self._lanes[clock].replay.horizons_s

    def timescale(self, clock: str) -> str:
        """The time scale of a clock as known so far."""
        return self._lanes[clock].replay.timescale

    def facts(self) -> dict[str, object]:
        """What the first line says of the local clock."""
        return {"kind": "csv", "local": "realtime" if self._samples.local_is_realtime else "raw"}

    def _lane(self) -> _Lane:
        return _Lane(
            ClockReplay(
                horizons_s=self._forecasting.horizons_s,
                experts=self._forecasting.experts,
                local_is_realtime=self._samples.local_is_realtime,
            )
        )
