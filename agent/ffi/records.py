"""What crosses between the kernel programs and Python, as numpy sees it.

Every dtype is derived from `bpf/records.h` through cffi, and every constant comes from that file's #defines:
nothing is typed twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from agent.ffi import _native

_ffi, _lib = _native.ffi, _native.lib

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
WindowArray = npt.NDArray[np.void]
"""An array of WINDOW_DTYPE."""

AGENT_ABI: int = _lib.AGENT_ABI

STAMP_NONE: int = _lib.STAMP_NONE
STAMP_TRAILER: int = _lib.STAMP_TRAILER
STAMP_SKB: int = _lib.STAMP_SKB
STAMP_XDP: int = _lib.STAMP_XDP

HOOK_XDP: int = _lib.HOOK_XDP
HOOK_TC: int = _lib.HOOK_TC

CLOCK_KEY_NONE: int = _lib.CLOCK_KEY_NONE
CLOCK_KEY_PHC: int = _lib.CLOCK_KEY_PHC

HIST_MIN_SHIFT: int = _lib.HIST_MIN_SHIFT
HIST_OCTAVES: int = _lib.HIST_OCTAVES
HIST_SUB_BITS: int = _lib.HIST_SUB_BITS
HIST_SUB: int = _lib.HIST_SUB
HIST_BUCKETS: int = _lib.HIST_BUCKETS

LADDER_RUNGS: int = _lib.LADDER_RUNGS
CLOCKS_PER_CPU: int = _lib.CLOCKS_PER_CPU
MODELS_MAX: int = _lib.MODELS_MAX
TX_QUEUES_MAX: int = _lib.TX_QUEUES_MAX
PTP_ANNOUNCES: int = _lib.PTP_ANNOUNCES
SOFTIRQS: int = _lib.SOFTIRQS
CONSUMERS_MAX: int = _lib.CONSUMERS_MAX
SOFTIRQ_NET_RX: int = _lib.SOFTIRQ_NET_RX

WINDOW_IDLE_CLOSE: int = _lib.WINDOW_IDLE_CLOSE
WINDOW_SAMPLED: int = _lib.WINDOW_SAMPLED
WINDOW_LADDER_RESET: int = _lib.WINDOW_LADDER_RESET
WINDOW_DRIFT_VALID: int = _lib.WINDOW_DRIFT_VALID


def _numpy_type(ctype: Any) -> tuple[Any, tuple[int, ...]]:
    """The numpy type and shape of a cffi type: integers, arrays and structs of those."""
    shape: tuple[int, ...] = ()
    while ctype.kind == "array":
        shape += (ctype.length,)
        ctype = ctype.item
    if ctype.kind == "struct":
        return _struct_dtype(ctype), shape
    if ctype.kind != "primitive" or ctype.cname == "char":
        raise TypeError(f"{ctype.cname} cannot be in a record")
    signed = int(_ffi.cast(ctype, -1)) < 0
    return np.dtype(f"{'i' if signed else 'u'}{_ffi.sizeof(ctype)}"), shape


def _struct_dtype(ctype: Any) -> np.dtype[np.void]:
    names, formats, offsets = [], [], []
    for name, field in ctype.fields:
        names.append(name)
        formats.append(_numpy_type(field.type))
        offsets.append(field.offset)
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": _ffi.sizeof(ctype)})


STRUCTS: dict[str, np.dtype[np.void]] = {
    name: _struct_dtype(_ffi.typeof(f"struct {name}"))
    for name in (
        "clock_pair",
        "window_record",
        "agent_config",
        "slot_head",
        "clock_model_copy",
        "clock_model",
        "cpu_counters",
        "delay_hist",
        "stack_hist",
        "tx_usage",
        "ptp_announce",
        "ptp_seen",
        "irq_cpu",
        "irq_line",
        "consumer_wait",
        "consumer_host",
    )
}
"""Every struct of records.h by its C name."""

WINDOW_DTYPE = STRUCTS["window_record"]
CONFIG_DTYPE = STRUCTS["agent_config"]
SLOT_HEAD_DTYPE = STRUCTS["slot_head"]
MODEL_DTYPE = STRUCTS["clock_model"]
COUNTERS_DTYPE = STRUCTS["cpu_counters"]
HIST_DTYPE = STRUCTS["delay_hist"]
STACK_HIST_DTYPE = STRUCTS["stack_hist"]
TX_USAGE_DTYPE = STRUCTS["tx_usage"]
PTP_SEEN_DTYPE = STRUCTS["ptp_seen"]
IRQ_CPU_DTYPE = STRUCTS["irq_cpu"]
IRQ_LINE_DTYPE = STRUCTS["irq_line"]

MAP_DTYPES: dict[str, np.dtype[np.void]] = {
    "config": CONFIG_DTYPE,
    "slots": SLOT_HEAD_DTYPE,  # the leading part of a larger value
    "models": MODEL_DTYPE,
    "counters": COUNTERS_DTYPE,
    "hists": HIST_DTYPE,
    "stack_hists": STACK_HIST_DTYPE,
    "tx_queues": TX_USAGE_DTYPE,
    "ptp": PTP_SEEN_DTYPE,
    "irq_cpus": IRQ_CPU_DTYPE,  # the leading part, as of the next
    "irq_lines": IRQ_LINE_DTYPE,
    "consumer_waits": STRUCTS["consumer_wait"],
    "consumer_hosts": STRUCTS["consumer_host"],
}
"""The value of each map that is read or written through mmap."""


def hist_edges_ns() -> IntArray:
    """The delay histogram's edges: int64[HIST_BUCKETS + 1], ns; bucket i holds edges[i] <= d < edges[i + 1].

    Log-linear as HdrHistogram: HIST_SUB equal buckets per octave from 2^HIST_MIN_SHIFT. The last bucket is open; its
    upper edge is given as 2^32, which no recorded delay reaches (they are clamped to u32).
    """
    octave = np.arange(HIST_OCTAVES, dtype=np.int64)[:, None]
    sub = np.arange(HIST_SUB, dtype=np.int64)[None, :]
    inner = ((HIST_SUB + sub) << (HIST_MIN_SHIFT - HIST_SUB_BITS + octave)).ravel()
    top = 1 << (HIST_MIN_SHIFT + HIST_OCTAVES)
    return np.concatenate([np.array([0]), inner, np.array([top, 1 << 32])])


_EDGES_NS = hist_edges_ns()
_LOWER_NS = _EDGES_NS[:-1].astype(np.float64)
# The last bucket is open: its quantiles are its lower edge.
_WIDTH_NS = np.append(np.diff(_EDGES_NS[:-1]), 0).astype(np.float64)


def hist_bucket(delay_ns: npt.ArrayLike) -> IntArray:
    """The bucket that a delay falls into (negative ones into 0): the reference for the kernel's arithmetic."""
    return np.asarray(np.searchsorted(_EDGES_NS[1:-1], np.asarray(delay_ns), side="right"), dtype=np.int64)


def hist_quantile(counts: npt.ArrayLike, q: npt.ArrayLike) -> FloatArray:
    """Quantiles of delay histograms, ns, linear within the bucket that holds them.

    `counts` is [..., HIST_BUCKETS], the result [...] + the shape of `q` (0..1); NaN for an empty histogram. A
    quantile in the last, open bucket is given as that bucket's lower edge, 2^30 ns.
    """
    counts = np.asarray(counts, dtype=np.float64)
    quantiles = np.asarray(q, dtype=np.float64)
    if counts.shape[-1] != HIST_BUCKETS:
        raise ValueError(f"a delay histogram has {HIST_BUCKETS} buckets, not {counts.shape[-1]}")
    rows = counts.reshape(-1, HIST_BUCKETS)
    cumulative = rows.cumsum(axis=1)
    rank = cumulative[:, -1:] * quantiles.ravel()
    bucket = np.zeros(rank.shape, dtype=np.intp)
    # Histograms are few and long: a binary search in each beats comparing every bucket of all.
    for row, reached in enumerate(cumulative):
        if reached[-1] > 0:
            # The first bucket that reaches the rank; for rank 0 the first one that holds anything.
            first = reached.searchsorted(0.0, side="right")
            np.maximum(reached.searchsorted(rank[row]), first, out=bucket[row])
    at = np.arange(len(rows))[:, None]
    inside = rows[at, bucket]
    with np.errstate(invalid="ignore"):  # 0/0, so NaN, for an empty histogram
        fraction = (rank - (cumulative[at, bucket] - inside)) / inside
    out = _LOWER_NS[bucket] + np.minimum(np.maximum(fraction, 0.0), 1.0) * _WIDTH_NS[bucket]
    shaped: FloatArray = out.reshape(counts.shape[:-1] + quantiles.shape)
    return shaped
