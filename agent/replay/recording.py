"""A file of whatever kind as rows: what its first bytes say it is decides who reads it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from io import BufferedReader, FileIO
from typing import TYPE_CHECKING, Protocol

from agent.errors import UsageError
from agent.replay.capture import PCAP_MARKS, PCAPNG_MARK
from agent.replay.csvfile import CsvSamples
from agent.replay.packets import PacketReplay
from agent.replay.reports import Horizons
from agent.replay.rows import Row
from agent.replay.samples import Forecasting, SampleReplay
from agent.replay.telemetry import TelemetryReplay
from agent.telemetry.schema import STREAM_MARK, STREAM_MARK_OFFSET

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_HEAD_BYTES = 64
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


class _RecordingFile(FileIO):
    """A file whose first read has all that tells its kind, however little at a time a pipe hands over.

    Raises `UsageError` where the system refuses to read it.
    """

    def __init__(self, name: str) -> None:
        from_stdin = name == "-"
        super().__init__(_stdin() if from_stdin else name, closefd=not from_stdin)
        self._told = name
        self._begun = False

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        n = self._read_some(view)
        while not self._begun and 0 < n < _HEAD_BYTES and (more := self._read_some(view[n:])):
            n += more
        self._begun = True
        return n

    def _read_some(self, view: memoryview) -> int:
        try:
            return super().readinto(view) or 0
        except OSError as error:
            raise UsageError(
                f"cannot read {self._told} on: {error.strerror}", "check the disk, or copy what can be read"
            ) from error


def _stdin() -> int:
    fd = sys.stdin.fileno()
    if os.isatty(fd):
        raise UsageError(
            "standard input is a terminal, there is nothing to replay",
            "name a FILE, or pipe: `zcat phc.csv.gz | agent replay -`",
        )
    return fd


def open_file(name: str) -> BufferedReader:
    """Open a recording for reading, standard input for "-". Raises `UsageError`."""
    try:
        return BufferedReader(_RecordingFile(name))
    except OSError as error:
        raise UsageError(
            f"cannot read {name}: {error.strerror}", "name a recording: CSV, telemetry, pcap or pcapng"
        ) from error


def open_replay(
    file: BufferedReader, name: str, forecasting: Forecasting, base_delay_ns: int | None
) -> Replay:
    """Return the replay of an open file, by its first bytes. Raises `UsageError` for what none can read."""
    head = file.peek(_HEAD_BYTES)
    for mark, packed, tool in _PACKED:
        if head.startswith(mark):
            raise UsageError(f"{name} is packed ({packed})", f"unpack it first: `{tool} {name} > FILE`")
    is_telemetry = head[STREAM_MARK_OFFSET:].startswith(STREAM_MARK)
    is_capture = head.startswith((*PCAP_MARKS, PCAPNG_MARK))
    if base_delay_ns is not None and not is_capture:
        raise UsageError(
            f"--base-delay-ns is for captures, {name} is none", "leave it away: telemetry has it recorded"
        )
    if is_telemetry:
        return TelemetryReplay(file, name, Horizons.of(forecasting.horizons_s))
    if is_capture:
        return PacketReplay(file, name, Horizons.of(forecasting.horizons_s), base_delay_ns)
    return SampleReplay(CsvSamples(file, name), forecasting)
