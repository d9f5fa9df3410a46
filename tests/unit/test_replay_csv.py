"""The CSV reader: integers exactly, and every fault with its line and what to do."""

from __future__ import annotations

import contextlib
import io
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.clock.estimator import Sample
from agent.errors import UsageError
from agent.replay.csvfile import MAX_LINE_BYTES, MAX_NS, OPTIONAL, REQUIRED, CsvSamples

HEADER = ",".join(REQUIRED)
GOOD = "1790000000000000000,1790000037000000125,1520"


def read(text: str | bytes) -> list[tuple[str, Sample]]:
    """All samples of a file with this content."""
    data = text.encode() if isinstance(text, str) else text
    return list(CsvSamples(io.BytesIO(data), "x.csv"))


def refused(text: str | bytes) -> UsageError:
    """The error that a file with this content gives."""
    with pytest.raises(UsageError) as caught:
        read(text)
    assert caught.value.remedy
    return caught.value


maybe = st.one_of(st.none(), st.integers(0, MAX_NS))
steps = st.lists(st.tuples(st.integers(1, 1 << 40), maybe, maybe, maybe, maybe), min_size=1, max_size=30)


@given(steps, st.permutations(REQUIRED + OPTIONAL[:2]), st.sampled_from(("\n", "\r\n")), st.booleans())
def test_what_was_written_is_read(
    rows: list[tuple[int, ...]], columns: list[str], end: str, quoted: bool
) -> None:
    """Any integers, in any order of columns, with either line end, quoted or not: the same samples, exactly."""
    locals_ns = accumulate(step for step, *_ in rows)
    samples = [Sample(local, *rest) for local, (_, *rest) in zip(locals_ns, rows, strict=True)]
    quote = '"' if quoted else ""
    lines = [",".join(columns)]
    for sample in samples:
        values = (getattr(sample, column) for column in columns)
        lines.append(",".join("" if v is None else f"{quote}{v}{quote}" for v in values))
    assert read(end.join(lines) + end) == [("", sample) for sample in samples]


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """Whatever the file holds behind a header, it is samples or a `UsageError`, never another exception."""
    for head in (b"", HEADER.encode() + b"\n"):
        with contextlib.suppress(UsageError):
            read(head + data)


@given(st.floats(min_value=1e15, max_value=1e18), st.sampled_from(("{:e}", "{:.1f}", "{:g}")))
def test_floats_are_never_rounded(value: float, form: str) -> None:
    """However a float is written, it is refused: what it lost is not in the file."""
    text = form.format(value)
    if text.isdigit():
        return
    error = refused(f"{HEADER}\n{GOOD}\n{text},1,\n")
    assert "line 3" in error.what
    assert f'"{text}", not an integer' in error.what


@pytest.mark.parametrize(
    ("content", "what", "remedy"),
    [
        ("", "line 1: the file is empty", "header local_ns,hw_ns"),
        ("\n\n", "the file is empty", "header local_ns,hw_ns"),
        (HEADER + "\n", "line 2: no sample behind the header", "one line of"),
        ("local_ns,hw_ns\n1,2\n", "line 1: the column read_delay_ns is missing", "begin the file with"),
        (GOOD + "\n", "the column local_ns is missing, the header is '1790", "begin the file with"),
        (HEADER.replace(",", ";") + "\n1;2;3\n", "separated by semicolons", "by commas"),
        (HEADER.replace(",", "\t") + "\n1\t2\t3\n", "separated by tabs", "by commas"),
        (HEADER + ",hw_sec\n1,2,3,4\n", "the column 'hw_sec' is unknown", "hw_seq"),
        (HEADER + ",hw_ns\n1,2,3,4\n", "hw_ns is there twice", "one of them"),
        (f"{HEADER}\n1,2\n", "line 2: 2 fields, the header has 3", "every column"),
        (f"{HEADER}\n1,2,3,4\n", "line 2: 4 fields, the header has 3", "every column"),
        (f"{HEADER}\n{GOOD}\nabc,2,3\n", 'line 3: local_ns is "abc", not an integer', "digits"),
        (f"{HEADER}\n1.7e18,2,3\n", 'line 2: local_ns is "1.7e18", not an integer', "256 ns"),
        (f"{HEADER}\n1,1.5,3\n", 'hw_ns is "1.5", not an integer', "256 ns"),
        (f"{HEADER}\n1_0,2,3\n", 'local_ns is "1_0", not an integer', "digits"),
        (f"{HEADER}\n1,NaN,3\n", 'line 2: hw_ns is "NaN"', "leave the field empty"),
        (f"{HEADER}\n,2,3\n", "line 2: local_ns is empty", "local time"),
        (f"{HEADER}\n5,2,\n4,3,\n", "line 3: local_ns goes back by 1 ns", "sort"),
        (f"{HEADER}\n5,2,\n5,2,\n", "line 3: local_ns is 5 again", "hw_clock"),
        (f"{HEADER}\n-5,2,\n", "local_ns is -5, outside", "nanoseconds"),
        (f"{HEADER}\n5,2,-1\n", "read_delay_ns is -1", "never negative"),
        (f"{HEADER}\n5,9223372036854775808,\n", "hw_ns is 9223372036854775808, outside", "nanoseconds"),
        (f"{HEADER}\n5,{'9' * 40},\n", "hw_ns is", "nanoseconds"),
        (f"{HEADER},hw_clock\n5,2,,\n", "line 2: hw_clock is empty", "which clock"),
        ("# local=mono\n" + HEADER, "line 1: the local clock is 'mono'", "raw, realtime"),
        ("\ufeff" + HEADER + "\n1,x,\n", "line 2: hw_ns", "digits"),
        ("local_ns\rhw_ns\r", "line 1", "CRLF"),
        (f'{HEADER}\n"1"2,2,\n', "line 2", "quote whole fields"),
        (HEADER.encode("utf-16"), "UTF-16", "iconv"),
        (HEADER.encode("utf-16-le"), "UTF-16 without its mark", "iconv"),
        (
            f"{HEADER},hw_clock\n" + "".join(f"{i},1,,{i}\n" for i in range(99)),
            "a clock more than 64",
            "number",
        ),
        (b"\x00\x01\x02\xff", "expected the header", "begin the file with"),
        (f"{HEADER}\n{'1' * (MAX_LINE_BYTES + 1)}", "line 2: the line is longer", "CSV"),
        (f"{HEADER}\n1,\x1b[31m,\n", 'hw_ns is "?[31m"', "digits"),
    ],
)
def test_what_is_wrong_is_said(content: str | bytes, what: str, remedy: str) -> None:
    """Each fault names its line, what is there, and what to do."""
    error = refused(content)
    assert what in error.what
    assert remedy in error.remedy


def test_samples_before_a_fault_are_given() -> None:
    """The reader streams: it fails where the fault is, not before."""
    samples = iter(CsvSamples(io.BytesIO(f"{HEADER}\n1,2,\n2,3,\nx,4,\n".encode()), "x.csv"))
    assert [next(samples)[1].local_ns for _ in range(2)] == [1, 2]
    with pytest.raises(UsageError, match="line 4"):
        next(samples)


def test_first_line_names_the_local_clock() -> None:
    """Raw unless it says realtime; other comments before the header are skipped, empty lines anywhere."""
    body = f"\n{HEADER}\n\n1,2,\n\n"
    for head, realtime in (("", False), ("# local=raw", False), ("# local = realtime\n# by hand", True)):
        samples = CsvSamples(io.BytesIO((head + body).encode()), "x.csv")
        assert samples.local_is_realtime is realtime
        assert [sample.local_ns for _, sample in samples] == [1]


def test_clocks_are_told_apart() -> None:
    """Each clock has its own order of time; a row without a stamp may leave its clock away."""
    rows = read(f"{HEADER},hw_clock\n10,1,,0\n5,1,,1\n6,,,\n11,2,,0\n")
    assert [(clock, sample.local_ns) for clock, sample in rows] == [("0", 10), ("1", 5), ("1", 6), ("0", 11)]
