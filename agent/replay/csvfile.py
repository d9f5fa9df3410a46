"""Samples from a CSV file, strictly: what is not an integer is refused with its line, never rounded.

    # local=realtime                       first line, where the local clock isn't raw
    local_ns,hw_ns,read_delay_ns           and, if wanted: seq, hw_seq, hw_clock
    1790000000000000000,1790000037000000125,1520

An empty field is a missing value. One line at a time is in memory.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from typing import BinaryIO, NoReturn

from agent.clock.estimator import Sample
from agent.errors import UsageError

REQUIRED = ("local_ns", "hw_ns", "read_delay_ns")
OPTIONAL = ("seq", "hw_seq", "hw_clock")
LOCAL_CLOCKS = ("raw", "realtime")
# Offsets of two such times, and predictions of them, are far inside 64 bits. As a time since 1970 it is in 2116.
MAX_NS = 1 << 62
MAX_LINE_BYTES = 4096
# Each has its own estimate, some 300 KiB: a column of something else must not take all memory.
MAX_CLOCKS = 64

_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_CONVERT = "convert it: `iconv -f UTF-16 -t UTF-8 FILE` (UTF-16LE without a mark)"
_INTEGER = re.compile(rb"[+-]?[0-9]+")
_FLOAT = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_A_NUMBER = (b"nan", b"inf", b"-inf", b"+inf", b"infinity", b"null", b"none", b"na", b"n/a", b"-")


class CsvSamples:
    """The samples of one CSV file, in its order.

    `local_is_realtime` is what the first line says. Iterating gives (clock, sample): `clock` is the `hw_clock` column,
    "" without one. Raises `UsageError` with line number and remedy, at once for the header, else where a line is wrong.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self._name = name
        self._line = 0
        self.local_is_realtime = False
        self._columns = self._read_header()
        self.has_clocks = "hw_clock" in self._columns
        # One match and no more for a line as it should be; whatever else is looked at field by field.
        field = rb"([0-9]{1,19})?"
        self._usual = re.compile(rb",".join([field] * len(self._columns)) + rb"\r?\n?")

    def __iter__(self) -> Iterator[tuple[str, Sample]]:
        positions = [self._columns.index(c) if c in self._columns else None for c in REQUIRED + OPTIONAL]
        last: dict[str, int] = {}
        clock = ""
        empty = True
        while line := self._next_line():
            usual = self._usual.fullmatch(line)
            fields = usual.groups() if usual else self._split(line)
            if fields is None:
                continue
            empty = False
            values = [None if not text else int(text) for text in fields]
            local, hw, delay, seq, hw_seq, key = (None if p is None else values[p] for p in positions)
            if local is None:
                self._fail(
                    "local_ns is empty",
                    "every sample needs its local time; leave hw_ns empty if there is no stamp",
                )
            self._check_range("local_ns", local)
            self._check_range("hw_ns", hw or 0)
            self._check_range("read_delay_ns", delay or 0)
            if self.has_clocks:
                if key is None and hw:
                    self._fail("hw_clock is empty", "say which clock made the stamp, or leave the column out")
                clock = clock if key is None else str(key)
            before = last.get(clock)
            if before is None and len(last) == MAX_CLOCKS:
                self._fail(
                    f"hw_clock is {clock}, a clock more than {MAX_CLOCKS}",
                    "number the clocks, not the samples; put further clocks into another file",
                )
            if before is not None and local <= before:
                self._fail_order(local, before)
            last[clock] = local
            yield clock, Sample(local, hw, delay, seq, hw_seq)
        if empty:
            self._fail(
                "no sample behind the header", f"add one line of {','.join(self._columns)} for each sample"
            )

    # ---- lines -----------------------------------------------------------------------------------------------

    def _next_line(self) -> bytes:
        line = self._file.readline(MAX_LINE_BYTES)
        self._line += 1
        if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
            self._fail(
                f"the line is longer than {MAX_LINE_BYTES} bytes", "give a CSV file of integer columns"
            )
        return line

    def _read_header(self) -> list[str]:
        line = self._next_line()
        if line.startswith(_UTF16_MARKS):
            self._fail("the file is UTF-16", _CONVERT)
        line = line.removeprefix(_UTF8_MARK)
        while line.startswith(b"#") or (line and not line.strip()):
            self._read_comment(line)
            line = self._next_line()
        if not line:
            self._fail("the file is empty", f"give a CSV file with the header {','.join(REQUIRED)}")
        try:
            text = line.decode("ascii").strip()
        except UnicodeDecodeError:
            self._fail(
                f"this is no CSV file, telemetry or capture: expected the header, found {line[:40]!r}",
                self._header_remedy(),
            )
        if "\0" in text:
            self._fail("there are NUL bytes: the file is UTF-16 without its mark", _CONVERT)
        names = [name.strip() for name in self._unquoted(text)]
        self._check_header(names, text)
        return names

    def _read_comment(self, line: bytes) -> None:
        found = re.fullmatch(rb"#\s*local\s*=\s*(\S*)\s*", line)
        if not found:
            return
        local = found[1].decode(errors="replace")
        if local not in LOCAL_CLOCKS:
            self._fail(
                f"the local clock is {local!r}", f"write `# local=` and one of {', '.join(LOCAL_CLOCKS)}"
            )
        self.local_is_realtime = local == "realtime"

    def _check_header(self, names: list[str], text: str) -> None:
        missing = [name for name in REQUIRED if name not in names]
        if missing:
            for separator, called in ((";", "semicolons"), ("\t", "tabs")):
                if separator in text:
                    self._fail(f"the columns are separated by {called}", "separate them by commas")
            self._fail(
                f"the column {missing[0]} is missing, the header is {text[:80]!r}", self._header_remedy()
            )
        unknown = [name for name in names if name not in REQUIRED + OPTIONAL]
        if unknown:
            known = ", ".join(REQUIRED + OPTIONAL)
            self._fail(f"the column {unknown[0]!r} is unknown", f"name it one of {known}, or cut it away")
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            self._fail(f"the column {twice[0]} is there twice", "keep one of them")

    @staticmethod
    def _header_remedy() -> str:
        return f"begin the file with {','.join(REQUIRED)} (read_delay_ns may be empty throughout)"

    def _split(self, line: bytes) -> list[bytes] | None:
        """The fields of a line that isn't as usual: quotes, blanks, signs; None for an empty line."""
        line = line.strip()
        if not line:
            return None
        if b'"' in line:
            fields = [text.encode() for text in self._unquoted(line.decode("latin-1"))]
        else:
            fields = line.split(b",")
        if len(fields) != len(self._columns):
            self._fail(
                f"{len(fields)} fields, the header has {len(self._columns)}: {_shown(line)}",
                "write every column on every line; a missing value is an empty field",
            )
        fields = [field.strip() for field in fields]
        for name, field in zip(self._columns, fields, strict=True):
            if field and not _INTEGER.fullmatch(field):
                self._fail_field(name, field)
            if len(field) > 20:
                self._fail_range(name, _shown(field))
        return fields

    def _unquoted(self, line: str) -> list[str]:
        try:
            return next(csv.reader([line], strict=True))
        except csv.Error as error:
            self._fail(
                f"{_shown(line.encode())}: {error}", "quote whole fields or none, and end lines by LF or CRLF"
            )

    # ---- what is wrong ---------------------------------------------------------------------------------------

    def _fail(self, what: str, remedy: str) -> NoReturn:
        raise UsageError(f"{self._name}, line {self._line}: {what}", remedy)

    def _fail_field(self, name: str, field: bytes) -> NoReturn:
        if field.lower() in _NOT_A_NUMBER:
            self._fail(f"{name} is {_shown(field)}", "leave the field empty where there is no value")
        if _FLOAT.fullmatch(field):
            self._fail(
                f"{name} is {_shown(field)}, not an integer",
                "write whole nanoseconds: a float has steps of 256 ns at today's epoch, and what it lost is lost",
            )
        self._fail(f"{name} is {_shown(field)}, not an integer", "write whole nanoseconds in digits")

    def _fail_range(self, name: str, shown: str) -> NoReturn:
        self._fail(
            f"{name} is {shown}, outside 0 … 2^62", "write nanoseconds, counted from 1970 or from a boot"
        )

    def _check_range(self, name: str, value: int) -> None:
        if not 0 <= value <= MAX_NS:
            if name == "read_delay_ns" and value < 0:
                self._fail(
                    f"read_delay_ns is {value}",
                    "it is the time after the read less the time before: never negative",
                )
            self._fail_range(name, str(value))

    def _fail_order(self, local_ns: int, before_ns: int) -> NoReturn:
        if local_ns == before_ns:
            self._fail(
                f"local_ns is {local_ns} again",
                "keep one line for each moment; where the lines are of several clocks, name them in a column hw_clock",
            )
        self._fail(
            f"local_ns goes back by {before_ns - local_ns} ns",
            "sort the lines by local_ns; if the local clock itself was stepped, split the file there",
        )


def _shown(text: bytes) -> str:
    """A field in an error message: short, and nothing that a terminal obeys."""
    shown = "".join(char if char.isprintable() else "?" for char in text.decode("utf-8", "replace"))
    return f'"{shown[:37]}…"' if len(shown) > 40 else f'"{shown}"'
