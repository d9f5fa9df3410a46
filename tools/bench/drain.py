"""Records/s out of the perf rings: our drain into numpy, over BCC's Python callback with one ctypes cast a record.

Both read the same records (struct window_record) from rings of the same size, filled to the same level by the same
program on every CPU, in turn.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from agent.ffi.bpf import BpfMap, test_run
from agent.ffi.programs import source_path
from agent.ffi.records import WINDOW_DTYPE
from agent.ffi.rings import Rings
from tools.bench.bccmodule import compile_module
from tools.bench.figure import Effort, Figure, median_with_bootstrap

_RING_BYTES = 256 * 1024  # the agent's default
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SAMPLE_BYTES = 8 + 4 + WINDOW_DTYPE.itemsize + 4  # header, size, record, padding
_RECORDS = _RING_BYTES // _SAMPLE_BYTES * 9 // 10
_ROUNDS = 20
_TURNS = 5
_LIMIT = 50.0

_SOURCE = """
#include <uapi/linux/bpf.h>
%s

BPF_PERF_OUTPUT(numpy_events);
BPF_PERF_OUTPUT(bcc_events);
BPF_ARRAY(emitted, u64, 2);

static __always_inline u64 next(u32 side)
{
	u64 *count = emitted.lookup(&side);

	return count ? (*count)++ : 0;
}

int emit_numpy(struct __sk_buff *ctx)
{
	struct window_record record = {.seq = next(0), .n = 1};

	numpy_events.perf_submit(ctx, &record, sizeof(record));
	return 0;
}

int emit_bcc(struct __sk_buff *ctx)
{
	struct window_record record = {.seq = next(1), .n = 1};

	bcc_events.perf_submit(ctx, &record, sizeof(record));
	return 0;
}
"""


@dataclass(frozen=True, slots=True)
class _Rate:
    """One turn of one side."""

    records: int
    ns: int

    @property
    def per_s(self) -> float:
        return self.records / self.ns * 1e9


class _Fill:
    """Produces records on every CPU by running a program there.

    A tc program: running an XDP program that is attached nowhere makes the kernel patch its text, and caches go cold.
    """

    def __init__(self, prog_fd: int) -> None:
        self._prog_fd = prog_fd

    def __call__(self) -> None:
        before = os.sched_getaffinity(0)
        try:
            for cpu in before:
                os.sched_setaffinity(0, {cpu})
                test_run(self._prog_fd, bytes(64), _RECORDS)
        finally:
            os.sched_setaffinity(0, before)


def measure(effort: Effort) -> list[Figure]:
    """The ratio of the two rates, round by round."""
    records = (source_path("capture").parent / "records.h").read_text()
    module = compile_module(_SOURCE % records)
    cpus = sorted(os.sched_getaffinity(0))
    fill_numpy = _Fill(module.load_func(b"emit_numpy", module.SCHED_CLS).fd)
    fill_bcc = _Fill(module.load_func(b"emit_bcc", module.SCHED_CLS).fd)

    record_type: type[ctypes.Structure] = np.ctypeslib.as_ctypes_type(WINDOW_DTYPE)  # type: ignore[arg-type,assignment]
    seen = 0

    def callback(cpu: int, data: int, size: int) -> None:
        # As BCC's documentation has it.
        nonlocal seen
        _record = ctypes.cast(data, ctypes.POINTER(record_type)).contents
        seen += 1

    module[b"bcc_events"].open_perf_buffer(callback, page_cnt=_RING_BYTES // _PAGE_BYTES)
    events = BpfMap("numpy_events", os.dup(module[b"numpy_events"].map_fd))
    out = np.zeros(2 * _RECORDS * len(cpus), WINDOW_DTYPE)
    with Rings(events, cpus, _RING_BYTES) as rings:

        def by_bcc() -> int:
            nonlocal seen
            seen = 0
            module.perf_buffer_poll(timeout=0)
            return seen

        rounds = [
            (_turns(fill_numpy, lambda: rings.drain(out)), _turns(fill_bcc, by_bcc))
            for _ in range(effort.repeat(_ROUNDS, 4))
        ]
    module.cleanup()
    expected = _RECORDS * len(cpus)
    short = sum(rate.records != expected for pair in rounds for rate in pair)
    value, spread = median_with_bootstrap([ours.per_s / bcc.per_s for ours, bcc in rounds])
    return [
        Figure(
            name="drain",
            what="records/s into numpy over BCC's Python callback",
            value=value,
            unit="",
            target=_LIMIT,
            direction="at least",
            spread=spread,
            samples=len(rounds),
            detail={
                "numpy, million records/s": float(np.median([ours.per_s for ours, _ in rounds])) / 1e6,
                "bcc, million records/s": float(np.median([bcc.per_s for _, bcc in rounds])) / 1e6,
                "records a turn": expected,
                "turns that did not get every record": short,
                "how": f"records of {WINDOW_DTYPE.itemsize} bytes, rings of {_RING_BYTES >> 10} KiB on {len(cpus)} "
                "CPUs filled to nine tenths by BPF_PROG_RUN; perf_buffer_poll with a callback of one ctypes cast "
                "and a count, against Rings.drain; medians of turns in a row, the sides in turn",
            },
        )
    ]


def _turns(fill: Callable[[], None], consume: Callable[[], int]) -> _Rate:
    """The median rate of some turns in a row; the first is not counted: the other side's left the caches cold."""
    rates = []
    for _ in range(1 + _TURNS):
        fill()
        start = time.perf_counter_ns()
        records = consume()
        rates.append(_Rate(records, time.perf_counter_ns() - start))
    return sorted(rates[1:], key=lambda rate: rate.per_s)[_TURNS // 2]
