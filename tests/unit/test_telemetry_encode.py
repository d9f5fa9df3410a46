from __future__ import annotations

import math

import msgpack
import numpy as np

from agent.ffi.records import WINDOW_DTYPE
from agent.telemetry import schema
from agent.telemetry.encode import Encoder, delay_rows, host_facts, pack, record_layout
from tests.unit import telemetry_frames as sample


def test_the_first_bytes_tell_what_the_stream_is() -> None:
    """Any hello begins with a map header and then the mark, whatever else it holds."""
    data = pack(sample.hello(Encoder()))
    begin = schema.STREAM_MARK_OFFSET
    assert data[begin : begin + len(schema.STREAM_MARK)] == schema.STREAM_MARK
    assert 0x81 <= data[0] <= 0x8F


def test_frames_are_numbered_in_the_order_they_are_made() -> None:
    """`seq` counts from 0 without gaps, over all types."""
    frames = sample.run_of_frames()
    assert [frame["seq"] for frame in frames] == list(range(len(frames)))
    assert {frame["t"] for frame in frames} == set(schema.FRAME_TYPES)


def test_layout_rebuilds_the_record() -> None:
    """numpy makes the same memory layout of the description, with nested fields as dotted names."""
    layout = record_layout(WINDOW_DTYPE)
    rebuilt = np.dtype(layout)  # type: ignore[arg-type]
    records = sample.windows()
    again = np.frombuffer(records.tobytes(), dtype=rebuilt)
    assert rebuilt.itemsize == WINDOW_DTYPE.itemsize
    assert (again["first.hw_ns"] == records["first"]["hw_ns"]).all()
    assert (again["drift_mono_ppb"] == records["drift_mono_ppb"]).all()


def test_no_windows_make_no_frame() -> None:
    """An idle tick adds nothing to the stream."""
    assert list(Encoder().windows(0, "eth1", sample.windows(0))) == []


def test_many_windows_are_split_into_frames_that_a_decoder_takes() -> None:
    """A batch frame holds at most MAX_BATCH_RECORDS records."""
    frames = list(Encoder().windows(0, "eth1", sample.windows(schema.MAX_BATCH_RECORDS + 5)))
    assert [frame["n"] for frame in frames] == [schema.MAX_BATCH_RECORDS, 5]
    assert all(len(frame["data"]) <= schema.MAX_DATA_BYTES for frame in frames)


def test_unbounded_figures_are_nil() -> None:
    """NaN and infinity never get into the stream."""
    frame = Encoder().clock("eth1", "phc", sample.report(bound_ns=math.inf, sigma_ns=math.nan, model=None))
    assert frame["bound_ns"] is None
    assert frame["sigma_ns"] is None
    assert frame["model"] is None


def test_epoch_nanoseconds_stay_exact() -> None:
    """A stamp beyond 2^53 comes back digit for digit."""
    frame = msgpack.unpackb(pack(Encoder().clock("eth1", "trailer", sample.report())))
    assert frame["model"]["phc0_ns"] == sample.REALTIME_NS
    assert frame["offset_ns"] == sample.START_NS - sample.REALTIME_NS


def test_delay_rows_are_quantiles_of_histograms() -> None:
    """A histogram with one filled bucket has its quantiles within that bucket; an empty one has none."""
    from agent.ffi.records import HIST_BUCKETS, hist_edges_ns

    counts = np.zeros((2, HIST_BUCKETS), dtype=np.int64)
    counts[0, 50] = 100
    rows = list(delay_rows("hook", {(0, 3): counts[0], (1, 4): counts[1]}))
    low, high = hist_edges_ns()[50:52].tolist()
    assert rows[0]["p50_ns"] is not None
    assert low <= rows[0]["p50_ns"] <= high
    assert rows[1] == {"queue": 1, "cpu": 4, "where": "hook", "n": 0, "p50_ns": None, "p99_ns": None}


def test_too_many_delay_rows_are_counted() -> None:
    """The busiest pairs are kept, and how many were left out is said."""
    rows = [
        {"queue": i, "cpu": 0, "where": "hook", "n": i, "p50_ns": 1.0, "p99_ns": 2.0}
        for i in range(schema.MAX_DELAY_ROWS + 3)
    ]
    frame = Encoder().delay(0, "eth1", 1, rows)  # type: ignore[arg-type]
    assert frame["omitted"] == 3
    assert frame["rows"][0]["n"] == schema.MAX_DELAY_ROWS + 2


def test_host_facts_are_of_this_machine() -> None:
    """The kernel release and boot id are this host's."""
    facts = host_facts()
    assert facts["kernel"]
    assert len(facts["boot_id"]) in (0, 36)
