"""The numpy types of records.h, and the delay histogram's arithmetic."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.ffi import records
from agent.ffi.records import HIST_BUCKETS, STRUCTS, hist_bucket, hist_edges_ns, hist_quantile

_HEADER = Path(__file__).resolve().parents[2] / "bpf/records.h"


def leaf_bytes(dtype: np.dtype) -> int:
    """How many bytes of a type are in a named field."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return leaf_bytes(base) * int(np.prod(shape))
    if dtype.fields is None:
        return dtype.itemsize
    return sum(leaf_bytes(field[0]) for field in dtype.fields.values())


@pytest.mark.parametrize("name", STRUCTS)
def test_a_record_has_no_hidden_padding(name: str) -> None:
    """Every byte that crosses is named in records.h, so none is uninitialised kernel memory."""
    assert leaf_bytes(STRUCTS[name]) == STRUCTS[name].itemsize


def test_every_struct_of_the_header_has_its_dtype() -> None:
    """Nothing in records.h is forgotten in records.py."""
    assert set(re.findall(r"^struct (\w+) \{", _HEADER.read_text(), re.MULTILINE)) == set(STRUCTS)


def test_every_constant_of_the_header_is_exported_with_its_value() -> None:
    """The #defines and the module's constants are the same."""
    defined = re.findall(r"^#define (\w+)[ \t]+(0x[0-9A-Fa-f]+|\d+)", _HEADER.read_text(), re.MULTILINE)
    assert len(defined) > 20
    assert {name: getattr(records, name, None) for name, _ in defined} == {
        name: int(value, 0) for name, value in defined
    }


def test_a_window_record_fits_the_ring_budget() -> None:
    """The design allows a ring record 192 bytes."""
    assert records.WINDOW_DTYPE.itemsize <= 192


def test_nested_structs_are_reached_by_name() -> None:
    """The envelope pair of a window is a field with fields; copies of a model are an array of two."""
    window = np.zeros(2, records.WINDOW_DTYPE)
    window["envelope"]["hw_ns"][1] = 2**63 + 5
    assert window["envelope"]["hw_ns"].tolist() == [0, 2**63 + 5]
    assert np.zeros(3, records.MODEL_DTYPE)["copy"]["adj"].shape == (3, 2)
    assert records.MODEL_DTYPE["copy"].base["adj"] == np.dtype("<i8")


def test_the_edges_are_log_linear() -> None:
    """256 ns to 2^30 ns in steps of a sixteenth of an octave, below and above one open bucket each."""
    edges = hist_edges_ns()
    assert len(edges) == HIST_BUCKETS + 1
    assert edges[:3].tolist() == [0, 256, 272]
    assert edges[17] == 512
    assert edges[-2] == 2**30
    widths = np.diff(edges)[1:-1]
    assert (widths > 0).all()
    assert (widths / edges[1:-2] <= 1 / 16).all()


@given(st.integers(-(2**40), 2**40))
def test_the_bucket_is_the_one_of_the_bit_arithmetic(delay_ns: int) -> None:
    """Exponent and next four bits of the delay give the same bucket as the edges do."""
    if delay_ns < 256:
        expected = 0
    elif delay_ns >= 2**30:
        expected = HIST_BUCKETS - 1
    else:
        octave = delay_ns.bit_length() - 1 - 8
        expected = 1 + octave * 16 + ((delay_ns >> (octave + 4)) & 15)
    assert int(hist_bucket(delay_ns)) == expected


@given(st.lists(st.integers(0, 2**30 - 1), min_size=1, max_size=200), st.floats(0, 1))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(delays: list[int], q: float) -> None:
    """The estimate is off by at most the width of the bucket that holds the sample of that rank."""
    counts = np.bincount(hist_bucket(delays), minlength=HIST_BUCKETS)
    rank = max(int(np.ceil(q * len(delays) - 1e-9)), 1)
    bucket = int(hist_bucket(sorted(delays)[rank - 1]))
    edges = hist_edges_ns()
    assert edges[bucket] <= float(hist_quantile(counts, q)) <= edges[bucket + 1]


def test_a_quantile_is_linear_within_its_bucket() -> None:
    """With all samples in one bucket the quantile runs from its lower to its upper edge."""
    counts = np.zeros(HIST_BUCKETS)
    counts[5] = 8
    assert hist_quantile(counts, [0.0, 0.25, 0.5, 1.0]).tolist() == [320.0, 324.0, 328.0, 336.0]


def test_quantiles_keep_the_leading_axes() -> None:
    """[a, b, buckets] with q of shape [c] gives [a, b, c], with a number [a, b]."""
    counts = np.ones((2, 3, HIST_BUCKETS))
    assert hist_quantile(counts, [0.5, 0.99]).shape == (2, 3, 2)
    assert hist_quantile(counts, 0.5).shape == (2, 3)


def test_an_empty_histogram_has_no_quantile() -> None:
    """No samples: NaN, and only in that row."""
    counts = np.zeros((2, HIST_BUCKETS))
    counts[1, 3] = 1
    assert np.isnan(hist_quantile(counts, 0.5)).tolist() == [True, False]


def test_a_quantile_beyond_the_range_is_its_end() -> None:
    """What is slower than the histogram's range is given as the range's end, not made up."""
    counts = np.zeros(HIST_BUCKETS)
    counts[-1] = 5
    assert float(hist_quantile(counts, 0.99)) == 2.0**30


def test_counts_of_another_length_are_refused() -> None:
    """A histogram of another shape is a programming error."""
    with pytest.raises(ValueError, match="buckets"):
        hist_quantile(np.zeros(100), 0.5)
