"""How long a consumer takes for a batch of b items, fitted online: s(b) = m·(a + c·b).

The line's shape, a and c, is the model's and the machine's, and stays: recursive least squares with slow exponential
forgetting (Ljung and Söderström 1983, §2.2), each batch weighted by Huber's function of its residual, so that one that
was interrupted moves nothing. It begins with the median of slopes (Theil and Sen) of the first batches, of which some
are warming up. The level m is followed fast: it is what a busy neighbour or a CPU's frequency changes. Without it they
would be taken for shape: whenever a consumer is slower, its batches get larger too, as more items wait, so that larger
batches would seem to take longer than they do, and small ones to take next to nothing.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import numpy.typing as npt

from agent.ffi.batchreplay import ServiceModel

_START = 16
# Batches that the shape remembers, those that the level does, and those whose residuals a replay draws from.
_MEMORY = 1500
_LEVEL_GAIN = 1.0 / 12
_RESIDUALS = 64
# One batch, however long it took, moves the level by this share of the gain at most.
_LEVEL_CLIP = 0.25
_FORGET = 1.0 - 1.0 / _MEMORY
_SIZE_GAIN = 1.0 / 150
_HUBER = 2.5
# E[min(z², _HUBER²)] of a normal z: what the scale of clipped residuals is short of.
_CLIPPED = 0.98
_SCALE_GAIN = 1.0 / 50
# A normal distribution's standard deviation is this many median absolute deviations.
_MAD = 1.4826
# Residuals further than so many standard deviations from their median are stalls.
_STALL = 3.0
# What a fit of batches that were all of one size is held by: half of the time is the items'.
_RIDGE = 0.01

FloatArray = npt.NDArray[np.float64]


class ServiceTime:
    """The fit. Times in ns."""

    def __init__(self) -> None:
        self._first: list[tuple[float, float]] = []
        self._theta: FloatArray = np.zeros(2)
        self._cov: FloatArray = np.eye(2)
        self._cov_limit: FloatArray = np.ones(2)
        self._level = 1.0
        self._scale_ns = 0.0
        self._mean_items = 0.0
        self._latest: deque[tuple[float, float]] = deque(maxlen=_RESIDUALS)
        self.largest = 0
        """The largest batch so far: beyond it, the line is a guess."""

    @property
    def known(self) -> bool:
        """Enough batches were seen."""
        return not self._first and self.largest > 0

    @property
    def sigma_ns(self) -> float:
        """Spread of the batches around the line, outliers clipped."""
        return self._level * self._scale_ns

    def observe(self, items: npt.NDArray[np.int64], service_ns: npt.NDArray[np.int64]) -> None:
        """Take batches, in their order: int64[n] items each, int64[n] ns."""
        for size, took_ns in zip(items.tolist(), service_ns.tolist(), strict=True):
            self.largest = max(self.largest, size)
            if self._scale_ns > 0.0:
                self._update(float(size), float(took_ns))
                continue
            self._first.append((float(size), float(took_ns)))
            if len(self._first) == _START:
                self._begin()

    def model(self) -> ServiceModel:
        """The line, with neither part below zero, and the residuals of the latest batches. Only where it is known.

        A stall, as when somebody else had the CPU, comes with time and not with batches: no window avoids it, and drawn
        once a batch it would speak for few and large ones. So residuals far from the others are brought nearer.
        """
        base_ns, item_ns = (self._level * self._theta).tolist()
        middle_ns = base_ns + item_ns * self._mean_items
        if item_ns < 0.0:
            base_ns, item_ns = middle_ns, 0.0
        elif base_ns < 0.0:
            base_ns, item_ns = 0.0, middle_ns / self._mean_items
        sizes, took_ns = np.array(self._latest).T
        return ServiceModel(base_ns, item_ns, _without_stalls(took_ns - base_ns - item_ns * sizes))

    def _begin(self) -> None:
        sizes, took = np.array(self._first).T
        self._latest.extend(self._first)
        self._first = []
        self._mean_items = float(sizes.mean())
        i, j = np.triu_indices(len(sizes), 1)
        apart = sizes[i] != sizes[j]
        if apart.any():
            slopes = (took[j] - took[i])[apart] / (sizes[j] - sizes[i])[apart]
            item_ns = float(np.median(slopes))
        else:
            item_ns = 0.5 * float(np.median(took)) / self._mean_items
        base_ns = float(np.median(took - item_ns * sizes))
        self._theta = np.array([base_ns, item_ns])
        residuals = took - base_ns - item_ns * sizes
        self._scale_ns = max(_MAD * float(np.median(np.abs(residuals))), 1e-3 * float(np.median(took)), 1.0)
        rows = np.stack([np.ones_like(sizes), sizes])
        ridge = np.diag([_RIDGE, _RIDGE * self._mean_items**2])
        self._cov = np.linalg.inv(rows @ rows.T + ridge)
        self._cov_limit = 1.0 / np.diag(ridge)

    def _update(self, size: float, took_ns: float) -> None:
        self._latest.append((size, took_ns))
        (p00, p01), (_, p11) = self._cov.tolist()
        base_ns, item_ns = self._theta.tolist()
        expected_ns = max(base_ns + item_ns * size, 1.0)
        residual = took_ns / self._level - expected_ns
        bound = _HUBER * self._scale_ns
        weight = 1.0 if abs(residual) <= bound else bound / abs(residual)
        off = residual / expected_ns
        self._level *= 1.0 + _LEVEL_GAIN * max(min(off, _LEVEL_CLIP), -_LEVEL_CLIP)
        clipped = min(abs(residual), bound)
        variance = self._scale_ns**2 * (1.0 - _SCALE_GAIN) + clipped**2 / _CLIPPED * _SCALE_GAIN
        self._scale_ns = max(math.sqrt(variance), 1.0)
        self._mean_items += _SIZE_GAIN * (size - self._mean_items)
        # Gain of the weighted sample, then the covariance; written out, as two by two needs no library.
        g0, g1 = p00 + p01 * size, p01 + p11 * size
        innovation = _FORGET / weight + g0 + g1 * size
        k0, k1 = g0 / innovation, g1 / innovation
        self._theta = np.array([base_ns + k0 * residual, item_ns + k1 * residual])
        # What no batch tells about is not forgotten without end.
        limit0, limit1 = self._cov_limit.tolist()
        grown = 1.0 / _FORGET if p00 < limit0 and p11 < limit1 else 1.0
        c00, c01, c11 = (p00 - k0 * g0) * grown, (p01 - k0 * g1) * grown, (p11 - k1 * g1) * grown
        self._cov = np.array([[c00, c01], [c01, c11]])


def _without_stalls(residuals: FloatArray) -> FloatArray:
    middle = float(np.median(residuals))
    reach = _STALL * _MAD * float(np.median(np.abs(residuals - middle)))
    return np.clip(residuals, middle - reach, middle + reach)
