"""The clock model that the kernel evaluates per packet, and how it is handed over.

phc = phc0 + D + ((D * adj) >> shift), D = mono - mono0: everything signed, 64 bits, an arithmetic shift.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

SHIFT = 40
# |D * adj| has to stay below 2^63. At 100 ppm |adj| is 1.1e8, so D may reach 83 s; a model lives for seconds.
_PRODUCT_LIMIT = 1 << 63
# Packets stamped before the model was written, and clocks read a moment apart, see D a little outside.
_SPAN_MARGIN_NS = 1_000_000_000
# Slew that leads a new model back to the estimate. 100 ppm corrects 10 us in 100 ms and is invisible in delays.
SLEW_LIMIT_PPB = 100_000.0
# The writer needs about this long: two models meet when the second comes into use, not before.
SWITCH_LEAD_NS = 200_000
_NO_KEY = 0xFFFFFFFF


class ClockModel(NamedTuple):
    """PHC time as a function of CLOCK_MONOTONIC, in the kernel's integer arithmetic.

    `adj` is the PHC's rate against mono minus one, in units of 2^-shift. `epoch` grows with every tagged
    jump; within one epoch, successive models are continuous.
    """

    mono0_ns: int
    phc0_ns: int
    adj: int
    shift: int
    valid_until_mono_ns: int
    epoch: int

    def phc_ns(self, mono_ns: int) -> int:
        """Return PHC time in ns at `mono_ns`, bit for bit what the kernel computes."""
        span = mono_ns - self.mono0_ns
        return self.phc0_ns + span + ((span * self.adj) >> self.shift)


def adj_limit(span_ns: int) -> int:
    """Return the largest |adj| whose product with every |D| <= `span_ns` fits into s64."""
    return (_PRODUCT_LIMIT - 1) // max(span_ns, 1)


def _to_adj(rate_ppb: float, validity_ns: int) -> int:
    limit = adj_limit(validity_ns + _SPAN_MARGIN_NS)
    return max(-limit, min(limit, round(rate_ppb * 1e-9 * (1 << SHIFT))))


def next_model(
    old: ClockModel | None,
    mono_ns: int,
    phc_ns: int,
    drift_mono_ppb: float,
    *,
    step: bool,
    new_epoch: bool,
    slew_s: float,
    validity_ns: int,
) -> ClockModel:
    """Return the model that takes over from `old` just after `mono_ns`.

    `phc_ns` is the estimated PHC time at `mono_ns` and `drift_mono_ppb` d(mono - PHC)/dmono. Unless `step`
    is set, the new model starts where the old one is and slews to the estimate within `slew_s`, by no more
    than `SLEW_LIMIT_PPB`. Where models come less often it takes as long as the old one lasted: it slews until the
    next one comes, and would overshoot.
    """
    start = mono_ns + SWITCH_LEAD_NS
    rate_ppb = -drift_mono_ppb
    estimate = phc_ns + SWITCH_LEAD_NS + round(SWITCH_LEAD_NS * rate_ppb * 1e-9)
    epoch = 0 if old is None else old.epoch + (1 if new_epoch else 0)
    phc0 = estimate
    if old is not None and not step:
        phc0 = old.phc_ns(start)
        slew = (estimate - phc0) / max(slew_s, (start - old.mono0_ns) * 1e-9)
        rate_ppb += max(-SLEW_LIMIT_PPB, min(SLEW_LIMIT_PPB, slew))
    return ClockModel(start, phc0, _to_adj(rate_ppb, validity_ns), SHIFT, start + validity_ns, epoch)


class ModelWriter:
    """Writes models into the mmapped map `models`, so that a reader never sees half of one.

    The reader takes copy[seq & 1] and checks `seq` afterwards; the writer fills the other copy and then
    stores `seq` by one aligned 32-bit store. The copy has to be visible before `seq`: x86 keeps the order
    of stores; for arm64 a lock is released and taken in between (store-release, then load-acquire), since
    numpy has no barrier of its own.
    """

    def __init__(self, models: npt.NDArray[np.void]) -> None:
        """`models` is the map's array of `MODEL_DTYPE` (fields key, seq, shift, epoch, copy[2])."""
        self._models = models
        self._seq = models["seq"]
        self._entries: dict[int, int] = {}
        self._barrier = threading.Lock()
        self.refused = 0
        # A fresh map is all zero, and 0 is a key that a trailer may carry.
        models["key"] = _NO_KEY

    def write(self, key: int, model: ClockModel) -> bool:
        """Publish `model` for clock `key`; return False, and count it in `refused`, if the map is full."""
        entry = self._entries.get(key)
        fresh = entry is None
        if entry is None:
            entry = self._free_entry()
            if entry is None:
                self.refused += 1
                return False
            self._entries[key] = entry
        seq = (int(self._seq[entry]) + 1) & 0xFFFFFFFF
        self._models["copy"][entry, seq & 1] = (
            model.mono0_ns,
            model.phc0_ns,
            model.adj,
            model.valid_until_mono_ns,
        )
        self._models["shift"][entry] = model.shift
        self._barrier.acquire()
        self._barrier.release()
        self._barrier.acquire()
        self._seq[entry] = seq
        self._models["epoch"][entry] = model.epoch
        self._barrier.release()
        if fresh:
            # Last: a reader that finds the key finds a whole model behind it.
            self._models["key"][entry] = key
        return True

    def forget(self, key: int) -> None:
        """Give up the entry of a clock; a reader that is at it notices, since it looks at the key again."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._models["key"][entry] = _NO_KEY

    def _free_entry(self) -> int | None:
        taken = set(self._entries.values())
        return next((entry for entry in range(len(self._models)) if entry not in taken), None)
