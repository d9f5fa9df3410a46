"""Frames as JSON lines: the same keys and values, except that a batch of windows becomes sums or single records."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from agent.telemetry.decode import AnyFrame

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

WindowDetail = Literal["summary", "full", "none"]

_DRIFT_VALID = 8  # WINDOW_DRIFT_VALID of bpf/records.h, a part of the stream's format


def to_lines(
    frame: AnyFrame, records: npt.NDArray[np.void] | None, detail: WindowDetail = "summary"
) -> Iterator[str]:
    """The frame's lines, without line ends; `records` are those of a windows frame, None for others.

    Non-finite numbers become null. Integers are exact: use a reader that keeps 64 bits.
    """
    if records is None:
        yield _dumps(frame)
        return
    head = {key: value for key, value in frame.items() if key not in ("n", "data")}
    if detail == "summary":
        yield _dumps(head | summarise(records))
    elif detail == "full":
        names = records.dtype.names or ()
        for record in records.tolist():
            yield _dumps(head | {"t": "window"} | dict(zip(names, record, strict=True)))


def summarise(records: npt.NDArray[np.void]) -> dict[str, Any]:
    """What a batch of window records adds up to.

    `windows` is how many there are, `sums` adds every counter of packets (fields `n…`), `delay_*_ns` are over the
    packets with a delay, `kernel_drift_ppb` is the median of the drifts with the longest baseline. What the
    record's layout has no fields for is left out.
    """
    import numpy as np

    names = records.dtype.names or ()
    summary: dict[str, Any] = {"windows": len(records)}
    if not len(records):
        return summary
    if {"open_mono_ns", "last_mono_ns"} <= set(names):
        summary["open_mono_ns"] = int(records["open_mono_ns"].min())
        summary["last_mono_ns"] = int(records["last_mono_ns"].max())
    if {"queue", "cpu"} <= set(names):
        pairs = np.unique(records[["queue", "cpu"]])
        summary["queue_cpu"] = [list(pair) for pair in pairs.tolist()]
    sums = {
        name: int(records[name].sum(dtype=np.uint64))
        for name in names
        if name == "n" or name.startswith("n_")
    }
    summary["sums"] = sums
    delays = {"n_delay", "delay_sum_ns", "delay_min_ns", "delay_max_ns"}
    if delays <= set(names) and sums["n_delay"]:
        measured = records[records["n_delay"] > 0]
        summary["delay_min_ns"] = int(measured["delay_min_ns"].min())
        summary["delay_mean_ns"] = float(measured["delay_sum_ns"].sum(dtype=np.float64)) / sums["n_delay"]
        summary["delay_max_ns"] = int(measured["delay_max_ns"].max())
    if {"flags", "drift_mono_ppb", "drift_baseline_ns"} <= set(names):
        drifts = records[(records["flags"].astype(np.int64) & _DRIFT_VALID) != 0]
        if len(drifts):
            longest = drifts["drift_baseline_ns"].max()
            chosen = drifts[drifts["drift_baseline_ns"] == longest]["drift_mono_ppb"]
            summary["kernel_drift_ppb"] = float(np.median(chosen))
            summary["kernel_drift_baseline_ns"] = int(longest)
    return summary


def _dumps(value: object) -> str:
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False, default=_text_of_bytes)
    except ValueError:
        return json.dumps(_without_nan(value), separators=(",", ":"), allow_nan=False, default=_text_of_bytes)


def _text_of_bytes(value: object) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} cannot be in a frame")


def _without_nan(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return value
