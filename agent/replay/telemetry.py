"""A telemetry stream through the clocks that wrote it: the same windows and inputs, tick by tick, the same reports.

Each report is compared with the `clock` frame that was recorded: they are equal, bit for bit, where this agent's clock
is that of the recording and no frame was dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from math import isfinite
from typing import TYPE_CHECKING, Any, BinaryIO, get_args

import numpy as np

from agent.clock.clock import Clock, ClockReport
from agent.clock.interface import InterfaceClocks, TickInputs
from agent.errors import PartialError
from agent.ffi.clocks import ClockPairs, Steering
from agent.ffi.phc import LocalClock, Method, PhcBurst
from agent.ffi.records import WINDOW_DTYPE, WindowArray
from agent.phcreader import PhcReading
from agent.replay.reports import Horizons, row_of
from agent.replay.rows import Row
from agent.telemetry.decode import AnyFrame, DamagedStreamError, Decoder, ForeignStreamError
from agent.telemetry.encode import Encoder, record_layout
from agent.telemetry.readable import clock_name

if TYPE_CHECKING:
    from agent.telemetry.schema import BurstItem, PhcInput

_READ_BYTES = 64 << 10
_PAIR_ROWS = len(fields(ClockPairs))
_READ_ROWS = 3
_METHODS: dict[str, Method] = {name: name for name in get_args(Method)}
_LOCAL_CLOCKS: dict[str, LocalClock] = {name: name for name in get_args(LocalClock)}
_COUNTED_BY_WRITER = ("seq", "v", "t")
# What no run comes near, and what a damaged or hostile file could take memory or digits by.
_MAX_INTERFACES = 64
_MAX_WAITING_WINDOWS = 1 << 18
_MAX_NS = 1 << 62
_MAX_STEERING_PPB = 1e9
_WINDOW_MOMENTS = ("open_mono_ns", "last_mono_ns")
_WINDOW_PAIRS = ("first", "last", "envelope")


@dataclass(slots=True)
class _Interface:
    """One interface: the windows since its last tick, its clocks, and the reports that wait for their frames."""

    clocks: InterfaceClocks | None = None
    """None before the first tick."""
    windows: list[WindowArray] = field(default_factory=list)
    mono_ns: int = 0
    """Of its last tick."""
    reports: dict[int, dict[str, Any]] = field(default_factory=dict)


class TelemetryReplay:
    """The clocks of one stream, of one run after the other where it holds several."""

    names_clocks = True

    def __init__(self, file: BinaryIO, name: str, horizons: Horizons) -> None:
        self._file = file
        self._name = name
        self._horizons = horizons
        self._decoder = Decoder()
        self._encoder = Encoder()
        self._interfaces: dict[str, _Interface] = {}
        self._timescales: dict[str, str] = {}
        self._runs = self._ticks = self._rows = self._compared = self._identical = 0

    def rows(self) -> Iterator[Row]:
        """Replay the stream. Raises `UsageError` for what can't be replayed, `PartialError` where it breaks off."""
        while data := self._file.read(_READ_BYTES):
            for frame in self._decoder.feed(data):
                yield from self._take(frame)
        self._decoder.finish()
        if not self._ticks:
            raise ForeignStreamError(
                f"{self._name} has no `inputs` frames: its agent did not record what its clocks were fed",
                "record it again with this agent, or read it by `agent decode`",
            )
        if self._decoder.missing_frames:
            raise PartialError(
                f"{self._name}: {self._decoder.missing_frames} frames are missing, the agent had to drop them: the "
                "clocks were fed less than live, and differ from there on",
                "record to a file or to a reader that keeps up",
            )

    def horizons_s(self, clock: str) -> tuple[float, ...]:
        """The horizons of the reports."""
        return self._horizons.horizons_s

    def experts(self, clock: str) -> tuple[str, ...]:
        """None: a live report has the mixture only."""
        return ()

    def timescale(self, clock: str) -> str:
        """The time scale of a clock's last report."""
        return self._timescales[clock]

    def facts(self) -> dict[str, object]:
        """How many runs and ticks there were, and how many recorded `clock` frames came out the same."""
        return {
            "kind": "telemetry",
            "runs": self._runs,
            "ticks": self._ticks,
            "recorded_reports": self._compared,
            "identical_reports": self._identical,
        }

    # ---- frames ----------------------------------------------------------------------------------------------

    def _take(self, frame: AnyFrame) -> Iterator[Row]:
        kind = frame["t"]
        if kind == "hello":
            self._begin(frame)
        elif kind == "windows":
            self._keep(frame)
        elif kind == "inputs":
            yield from self._tick(frame)
        elif kind == "clock":
            self._compare(frame)
        elif kind == "change":
            clocks = self._interface(frame["ifname"]).clocks
            if clocks is not None:
                clocks.setting_changed(frame["mono_ns"], frame["actuator"], frame["target"], frame["outcome"])

    def _begin(self, hello: AnyFrame) -> None:
        if hello["window_record"] != record_layout(WINDOW_DTYPE):
            raise ForeignStreamError(
                f"{self._name} was recorded by agent {hello['agent_version']}, whose window records are others",
                "replay it with that version",
            )
        self._runs += 1
        self._interfaces.clear()

    def _interface(self, ifname: str) -> _Interface:
        if ifname not in self._interfaces:
            if len(self._interfaces) == _MAX_INTERFACES:
                raise self._damaged(f"an interface more than {_MAX_INTERFACES}")
            self._interfaces[ifname] = _Interface()
        return self._interfaces[ifname]

    def _keep(self, frame: AnyFrame) -> None:
        """Keep windows for the tick that they were drained in."""
        records = np.frombuffer(self._decoder.records(frame), WINDOW_DTYPE)
        interface = self._interface(frame["ifname"])
        moments = [records[name] for name in _WINDOW_MOMENTS]
        moments += [records[pair][name] for pair in _WINDOW_PAIRS for name in ("mono_ns", "hw_ns")]
        if any((moment > _MAX_NS).any() for moment in moments):
            raise self._damaged(f"windows with a time beyond {_MAX_NS} ns")
        interface.windows.append(records)
        if sum(map(len, interface.windows)) > _MAX_WAITING_WINDOWS:
            raise self._damaged(
                f"{_MAX_WAITING_WINDOWS} windows of {frame['ifname']} without `inputs` behind them"
            )

    def _tick(self, frame: AnyFrame) -> Iterator[Row]:
        interface, ifname = self._interface(frame["ifname"]), frame["ifname"]
        if interface.clocks is None:
            interface.clocks = InterfaceClocks(frame["base_delay_ns"])
        windows = np.concatenate([np.zeros(0, WINDOW_DTYPE), *interface.windows])
        interface.windows.clear()
        inputs = self._inputs(frame)
        now_ns = int(inputs.pairs.mono_ns.min())
        if now_ns < interface.mono_ns:
            raise self._damaged(
                f"a tick of {ifname} that is {interface.mono_ns - now_ns} ns before the last one"
            )
        interface.mono_ns = int(inputs.pairs.mono_ns.max())
        if len(windows) and windows["last_mono_ns"].max() > interface.mono_ns:
            raise self._damaged(f"windows of {ifname} that end after the tick they came in")
        self._ticks += 1
        interface.reports = {}
        for clock, report in interface.clocks.tick(windows, inputs):
            # Without what counts frames, as the writer of the recording put it.
            interface.reports[report.key] = _content(self._encoder.clock(ifname, clock.kind, report))
            yield self._row(ifname, clock, report)

    def _row(self, ifname: str, clock: Clock, report: ClockReport) -> Row:
        name = f"{ifname} {clock_name(clock.kind, clock.key)}"
        self._timescales[name] = report.timescale
        row = row_of(self._rows, name, report, self._horizons)
        self._rows += 1
        return row

    def _compare(self, frame: AnyFrame) -> None:
        reports = self._interface(frame["ifname"]).reports
        self._compared += 1
        self._identical += reports.pop(frame["key"], None) == _content(frame)

    # ---- what a tick was fed ---------------------------------------------------------------------------------

    def _inputs(self, frame: AnyFrame) -> TickInputs:
        steering = frame["steering"]
        for f in fields(Steering):
            most = _MAX_STEERING_PPB if f.name == "freq_ppb" else _MAX_NS
            self._check(f"inputs.steering.{f.name}", steering[f.name], -most, most)
        self._check("inputs.mono_ns", frame["mono_ns"], 0)
        self._check("inputs.base_delay_ns", frame["base_delay_ns"] or 0, 0)
        for item in frame["announces"]:
            self._check("inputs.announces.mono_ns", item["mono_ns"], 0)
        return TickInputs(
            frame["mono_ns"],
            ClockPairs(*self._table(frame["pairs"], _PAIR_ROWS, "inputs.pairs")),
            Steering(**{f.name: steering[f.name] for f in fields(Steering)}),
            None if frame["phc"] is None else self._reading(frame["phc"]),
            tuple((item["mono_ns"], item["message"]) for item in frame["announces"]),
        )

    def _reading(self, phc: PhcInput) -> PhcReading:
        burst = phc["burst"]
        self._check("inputs.phc.steered_ppb", phc["steered_ppb"], -_MAX_STEERING_PPB, _MAX_STEERING_PPB)
        if burst is None:
            # Pairs without a burst say nothing.
            none = np.zeros(0, dtype=np.int64)
            return PhcReading(None, ClockPairs(*[none] * _PAIR_ROWS), phc["steered_ppb"])
        pairs = ClockPairs(*self._table(burst["pairs"], _PAIR_ROWS, "inputs.phc.burst.pairs"))
        return PhcReading(self._burst(burst), pairs, phc["steered_ppb"])

    def _burst(self, burst: BurstItem) -> PhcBurst:
        method, local_clock = _METHODS.get(burst["method"]), _LOCAL_CLOCKS.get(burst["local_clock"])
        if method is None or local_clock is None:
            raise self._damaged(f"reads of a PHC by {burst['method']!r} against {burst['local_clock']!r}")
        return PhcBurst(
            method, local_clock, *self._table(burst["reads"], _READ_ROWS, "inputs.phc.burst.reads")
        )

    def _table(self, data: bytes, rows: int, what: str) -> Any:
        """The rows of a table of `<i8`, which has at least one column; times and widths, so none is negative."""
        if not data or len(data) % (8 * rows):
            raise self._damaged(f"{what} of {len(data)} bytes")
        table = np.frombuffer(data, "<i8").astype(np.int64).reshape(rows, -1)
        self._check(what, int(table.min()), 0)
        self._check(what, int(table.max()), 0)
        return table

    def _check(self, what: str, value: float, least: float, most: float = _MAX_NS) -> None:
        if not (isfinite(value) and least <= value <= most):
            raise self._damaged(f"{what} {value}")

    def _damaged(self, found: str) -> DamagedStreamError:
        return DamagedStreamError(
            f"frame {self._decoder.frames - 1} has {found}",
            "what came before is good; the file was damaged, or written by something else",
        )


def _content(frame: Any) -> dict[str, Any]:
    return {key: value for key, value in frame.items() if key not in _COUNTED_BY_WRITER}
