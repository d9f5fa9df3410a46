from __future__ import annotations

import math
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.errors import AgentError
from agent.telemetry import schema
from agent.telemetry.decode import AnyFrame, DamagedStreamError, Decoder, ForeignStreamError
from agent.telemetry.encode import Encoder, pack
from agent.telemetry.jsonlines import to_lines
from agent.telemetry.readable import Readable
from tests.unit import telemetry_frames as sample


def decode(data: bytes, portion: int = 1 << 20) -> tuple[list[AnyFrame], AgentError | None]:
    """All frames, and the error behind them if there was one; every frame is also printed in every way."""
    decoder = Decoder()
    readable = Readable()
    frames: list[AnyFrame] = []
    try:
        for start in range(0, len(data), portion):
            for frame in decoder.feed(data[start : start + portion]):
                records = decoder.records(frame) if frame["t"] == "windows" else None
                for detail in ("summary", "full", "none"):
                    list(to_lines(frame, records, detail))
                readable.line(frame, records)
                frames.append(frame)
        decoder.finish()
    except AgentError as error:
        return frames, error
    return frames, None


@pytest.mark.parametrize("portion", [1, 7, 64 << 10])
def test_what_was_encoded_is_decoded(portion: int) -> None:
    """Every frame comes back equal, however the bytes are cut into portions."""
    frames, error = decode(sample.stream(), portion)
    assert error is None
    assert frames == sample.run_of_frames()


def test_records_are_those_that_were_captured() -> None:
    """The batch is read by the layout in hello alone."""
    decoder = Decoder()
    frames = list(decoder.feed(sample.stream()))
    records = decoder.records(frames[1])
    assert (records["envelope.mono_ns"] == 0).all()
    assert (records["open_mono_ns"] == sample.windows()["open_mono_ns"]).all()


def test_frames_are_given_as_they_complete() -> None:
    """A follower sees a frame at once, not with the next one."""
    decoder = Decoder()
    first = pack(sample.hello(Encoder()))
    assert list(decoder.feed(first[:-1])) == []
    assert [frame["t"] for frame in decoder.feed(first[-1:])] == ["hello"]


def test_truncated_stream_gives_all_before_and_says_where() -> None:
    """Cut within the last frame, all the others are given; the error names where that frame begins."""
    data = sample.stream()
    frames, error = decode(data[:-3])
    assert len(frames) == len(sample.run_of_frames()) - 1
    assert isinstance(error, DamagedStreamError)
    assert error.exit_code == 5
    begins = len(data) - len(pack(sample.run_of_frames()[-1]))
    assert f"begins at byte {begins}" in error.what


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"", "empty"),
        (b"hello world", "byte 0"),
        (b'{"t":"hello"}\n', "JSON"),
        (b"\x1f\x8b\x08\x00\x00", "gzip"),
        (b"\xd4\xc3\xb2\xa1\x02\x00", "pcap"),
        (b"\x00" * 100, "byte 0"),
        (msgpack.packb({"v": 1, "t": "hello"}), "agent-telemetry"),
        (msgpack.packb([1, 2, 3]), "byte 0"),
        (b"\xdd\xff\xff\xff\xff" * 10, "byte 0"),
    ],
)
def test_foreign_data_is_refused_by_its_first_bytes(data: bytes, named: str) -> None:
    """What is no telemetry ends with exit code 2 and a name for what was found."""
    frames, error = decode(data)
    assert frames == []
    assert isinstance(error, ForeignStreamError)
    assert error.exit_code == 2
    assert named in error.what
    assert error.remedy


def test_newer_version_is_refused_by_number() -> None:
    """A stream of a later version is not guessed at."""
    frame: Any = sample.hello(Encoder())
    frame["v"] = schema.TELEMETRY_VERSION + 1
    _, error = decode(pack(frame))
    assert isinstance(error, ForeignStreamError)
    assert f"version {schema.TELEMETRY_VERSION + 1}" in error.what


def test_unknown_types_and_keys_of_this_version_are_passed_on() -> None:
    """A reader of today survives additions within the version."""
    encoder = Encoder()
    first: Any = sample.hello(encoder)
    first["added"] = [1]
    later: Any = {"v": 1, "t": "weather", "seq": 1, "mono_ns": 7, "sky": "blue"}
    frames, error = decode(pack(first) + pack(later))
    assert error is None
    assert frames == [first, later]


def test_garbage_behind_good_frames_is_damage() -> None:
    """Text that something else wrote into the stream is named with its offset, the frames before are given."""
    first = pack(sample.hello(Encoder()))
    frames, error = decode(first + b"Traceback (most recent call last)")
    assert len(frames) == 1
    assert isinstance(error, DamagedStreamError)
    assert f"byte {len(first)}" in error.what


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("offset_ns", 1.5, "offset_ns is a float"),
        ("offset_ns", True, "offset_ns is a bool"),
        ("tags", {}, "tags is a map"),
        ("tags", [{"kind": "wrap"}], "the key 'mono_ns'"),
        ("model", [], "model is an array"),
        ("ifname", None, "ifname is nil"),
    ],
)
def test_wrong_types_are_named_by_their_path(key: str, value: object, named: str) -> None:
    """A field of the wrong type is refused, and the error says which."""
    encoder = Encoder()
    first = pack(sample.hello(encoder))
    frame: Any = encoder.clock("eth1", "trailer", sample.report())
    frame[key] = value
    _, error = decode(first + pack(frame))
    assert isinstance(error, DamagedStreamError)
    assert named in error.what


def test_batch_of_another_size_is_refused() -> None:
    """The bytes of a batch have to be n records."""
    encoder = Encoder()
    first = pack(sample.hello(encoder))
    (batch,) = encoder.windows(1, "eth1", sample.windows(2))
    batch["n"] = 3
    _, error = decode(first + pack(batch))
    assert isinstance(error, DamagedStreamError)
    assert "3 records" in error.what


@pytest.mark.parametrize(
    "changed",
    [
        {"formats": ["|O"]},
        {"formats": ["<f8"]},
        {"offsets": [-8]},
        {"offsets": [1 << 40]},
        {"itemsize": 0},
        {"itemsize": 1 << 50},
        {"names": []},
    ],
)
def test_hostile_record_layout_is_refused(changed: dict[str, Any]) -> None:
    """No layout makes numpy read objects, or outside the record."""
    frame: Any = sample.hello(Encoder())
    frame["window_record"] = {"names": ["a"], "formats": ["<u8"], "offsets": [0], "itemsize": 8} | changed
    _, error = decode(pack(frame))
    assert isinstance(error, ForeignStreamError)
    assert "window_record" in error.what


def test_hostile_lengths_and_depth_are_refused() -> None:
    """Lengths beyond the limits, extension types and deep nesting end the stream, before memory is taken."""
    first = pack(sample.hello(Encoder()))
    deep: Any = []
    for _ in range(40):
        deep = [deep]
    for tail in (
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xd6\xff\x00\x00\x00\x00",
        b"\x91" * 5000,
        msgpack.packb({"v": 1, "t": "x", "seq": 1, "mono_ns": 1, "deep": deep}),
    ):
        frames, error = decode(first + tail)
        assert len(frames) == 1
        assert isinstance(error, DamagedStreamError), tail[:5]


def test_frame_without_end_is_refused() -> None:
    """A frame that goes on for ever is given up at the limit, not kept in memory."""
    first = pack(sample.hello(Encoder()))
    endless = b"\xdc\x20\x00" + (b"\xc5\xff\xff" + b"x" * 0xFFFF) * 200
    frames, error = decode(first + endless)
    assert len(frames) == 1
    assert isinstance(error, DamagedStreamError)
    assert "does not end" in error.what


def test_dropped_frames_are_counted_by_the_gaps() -> None:
    """A missing `seq` is a frame that the sink dropped; a second run in the same file starts anew."""
    encoder = Encoder()
    frames = [sample.hello(encoder)] + [sample.health(encoder) for _ in range(5)]
    data = b"".join(pack(frame) for frame in [*frames[:2], *frames[4:]])
    decoder = Decoder()
    list(decoder.feed(data + sample.stream()))
    assert decoder.missing_frames == 2
    assert decoder.complete


def test_nan_is_null_in_json() -> None:
    """Another encoder's NaN does not become invalid JSON."""
    frame: AnyFrame = {"v": 1, "t": "x", "seq": 1, "mono_ns": 1, "a": [math.nan, math.inf], "b": b"\x00"}
    (line,) = to_lines(frame, None)
    assert '"a":[null,null]' in line


def test_summary_adds_the_counters_up() -> None:
    """A batch's line has the sums over its records and the extremes of the delay."""
    decoder = Decoder()
    batch = list(decoder.feed(sample.stream()))[1]
    (line,) = to_lines(batch, decoder.records(batch))
    assert '"windows":4' in line
    assert '"n_stamped":40' in line
    assert '"delay_mean_ns":5000.0' in line
    assert '"kernel_drift_ppb":12000.0' in line


def test_full_gives_a_line_a_window() -> None:
    """Every record is a line of its own, with exact integers."""
    decoder = Decoder()
    batch = list(decoder.feed(sample.stream()))[1]
    lines = list(to_lines(batch, decoder.records(batch), "full"))
    assert len(lines) == 4
    assert f'"first.hw_ns":{sample.REALTIME_NS}' in lines[0]
    assert '"t":"window"' in lines[0]


def test_readable_lines_obey_nothing() -> None:
    """Control characters in names and causes do not reach the terminal."""
    frame: Any = sample.health(Encoder(), notes=["\x1b[2Jgone\r\n"])
    line = Readable().line(frame)
    assert "\x1b" not in line
    assert "\n" not in line
    assert "gone" in line


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**18])
def test_any_number_can_be_shown(value: float) -> None:
    """Numbers that our encoder never writes are shown all the same."""

    def replaced(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: replaced(inner) for key, inner in item.items()}
        if isinstance(item, list):
            return [replaced(inner) for inner in item]
        return value if isinstance(item, float) else item

    for frame in sample.run_of_frames()[1:]:
        frames, error = decode(pack(sample.hello(Encoder())) + pack(replaced(frame)))
        assert error is None
        assert len(frames) == 2


# The documented errors, and nothing else, for any input.


@given(st.binary(max_size=400))
@settings(max_examples=150, derandomize=True, deadline=None)
def test_random_bytes_are_refused(data: bytes) -> None:
    """Noise is never a stream, and never anything but a documented error."""
    assert isinstance(decode(data)[1], ForeignStreamError)


@given(st.binary(max_size=200), st.integers(1, 50))
@settings(max_examples=150, derandomize=True, deadline=None)
def test_random_bytes_behind_a_hello(tail: bytes, portion: int) -> None:
    """Noise behind a good frame leaves that frame given."""
    frames, _ = decode(pack(sample.hello(Encoder())) + tail, portion)
    assert frames[0]["t"] == "hello"


@given(st.integers(0, len(sample.stream()) - 1))
@settings(max_examples=100, derandomize=True, deadline=None)
def test_every_cut_gives_the_frames_before_it(cut: int) -> None:
    """Cut anywhere, exactly the complete frames come out."""
    whole = sample.run_of_frames()
    ends = np.cumsum([len(pack(frame)) for frame in whole])
    frames, error = decode(sample.stream()[:cut])
    assert frames == whole[: int(np.searchsorted(ends, cut, side="right"))]
    if cut in ends:
        assert error is None
    else:
        assert isinstance(error, ForeignStreamError if cut < 23 else DamagedStreamError)


@given(
    st.lists(st.tuples(st.integers(0, len(sample.stream()) - 1), st.integers(0, 255)), min_size=1, max_size=8)
)
@settings(max_examples=300, derandomize=True, deadline=None)
def test_flipped_bytes_raise_nothing_else(changes: list[tuple[int, int]]) -> None:
    """Whatever bytes change, the result is frames and perhaps a documented error."""
    data = bytearray(sample.stream())
    for position, value in changes:
        data[position] = value
    decode(bytes(data), 97)


_plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@given(st.sampled_from(sample.run_of_frames()), st.data())
@settings(max_examples=300, derandomize=True, deadline=None)
def test_any_value_in_any_field_raises_nothing_else(frame: Any, data: st.DataObject) -> None:
    """Each field may hold anything that msgpack can: it is refused or shown, never a traceback."""
    changed = dict(frame)
    changed[data.draw(st.sampled_from(sorted(changed)))] = data.draw(_plain)
    decode(pack(sample.hello(Encoder())) + msgpack.packb(changed))
