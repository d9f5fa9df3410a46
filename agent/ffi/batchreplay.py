"""What a batch window would have come to on recorded arrivals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agent.ffi import _native

_ffi, _lib = _native.ffi, _native.lib

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ServiceModel:
    """A batch of b items takes base_ns + item_ns * b + a residual, ns; float64[n >= 1] of those that were seen."""

    base_ns: float
    item_ns: float
    residual_ns: FloatArray


def replay_batches(
    arrival_ns: IntArray, service: ServiceModel, max_wait_ns: int, max_items: int
) -> tuple[FloatArray, float]:
    """Serve items that arrived at int64[n] (ascending) by a window, as one consumer would.

    Returns float64[n], how long after its arrival each item's batch was done, and how long the consumer was busy, ns.
    """
    arrivals = np.ascontiguousarray(arrival_ns, dtype=np.int64)
    residuals = np.ascontiguousarray(service.residual_ns, dtype=np.float64)
    if len(residuals) == 0 or max_items < 1:
        raise ValueError("needs at least one residual, and batches of at least one item")
    latency = np.empty(len(arrivals))
    model = _ffi.new("struct agent_batch_service *")
    model.base_ns, model.item_ns = service.base_ns, service.item_ns
    model.residual_ns, model.residuals = _ffi.from_buffer("double[]", residuals), len(residuals)
    busy_ns: float = _lib.agent_batch_replay(
        _ffi.from_buffer("int64_t[]", arrivals),
        len(arrivals),
        model,
        max_wait_ns,
        max_items,
        _ffi.from_buffer("double[]", latency, require_writable=True),
    )
    return latency, busy_ns
