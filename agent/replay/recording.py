"""A file of whatever kind as rows: what its first bytes say it is decides who reads it."""

from __future__ import annotations

from collections.abc import Iterator
from io import BufferedReader
from typing import Protocol

from agent.errors import UsageError
from agent.replay.capture import PCAP_MARKS, PCAPNG_MARK
from agent.replay.csvfile import CsvSamples
from agent.replay.packets import PacketReplay
from agent.replay.reports import Horizons
from agent.replay.rows import Row
from agent.replay.samples import Forecasting, SampleReplay
from agent.replay.telemetry import TelemetryReplay
from agent.telemetry.schema import STREAM_MARK, STREAM_MARK_OFFSET

_PACKED = (
    (b"\x1f\x8b", "gzip", "zcat"),
    (b"\x28\xb5\x2f\xfd", "zstd", "zstdcat"),
    (b"\xfd7zXZ", "xz", "xzcat"),
)


class Replay(Protocol):
    """The clocks of one file."""

    names_clocks: bool
    """Whether the rows' `clock` is a name."""

    def rows(self) -> Iterator[Row]:
        """Replay the file.

        Raises `UsageError` at what is wrong, behind the rows before it; `PartialError` behind all rows of a file that
        breaks off.
        """

    def horizons_s(self, clock: str) -> tuple[float, ...]:
        """The horizons of a clock's forecasts."""

    def experts(self, clock: str) -> tuple[str, ...]:
        """The experts that a clock's forecasts tell apart."""

    def timescale(self, clock: str) -> str:
        """The time scale of a clock as known so far."""

    def facts(self) -> dict[str, object]:
        """What the summary tells of the file besides its clocks; plain data, known behind the rows."""


def open_file(name: str) -> BufferedReader:
    """Open a recording for reading. Raises `UsageError`."""
    try:
        return open(name, "rb")  # noqa: PTH123 - the caller closes it
    except OSError as error:
        raise UsageError(
            f"cannot read {name}: {error.strerror}", "name a recording: CSV, telemetry, pcap or pcapng"
        ) from error


def open_replay(
    file: BufferedReader, name: str, forecasting: Forecasting, base_delay_ns: int | None
) -> Replay:
    """Return the replay of an open file, by its first bytes. Raises `UsageError` for what none can read."""
    head = file.peek(64)
    for mark, packed, tool in _PACKED:
        if head.startswith(mark):
            raise UsageError(f"{name} is packed ({packed})", f"unpack it first: `{tool} {name} > FILE`")
    if head[0:1] and head[STREAM_MARK_OFFSET:].startswith(STREAM_MARK):
        return TelemetryReplay(file, name, Horizons.of(forecasting.horizons_s))
    if head.startswith((*PCAP_MARKS, PCAPNG_MARK)):
        return PacketReplay(file, name, Horizons.of(forecasting.horizons_s), base_delay_ns)
    return SampleReplay(CsvSamples(file, name), forecasting)
