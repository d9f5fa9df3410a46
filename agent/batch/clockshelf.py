"""The clocks as consumers get them: the kernel's models, with what they may be off by and since when they hold."""

from __future__ import annotations

import math
from collections.abc import Iterable

from agent.batch.layout import PublishedClock
from agent.clock.alignment import ClockName, Reading

_TRUSTED = ("tracking", "relative", "holdover")


class ClockShelf:
    """Follows the clocks' readings, tick by tick; knows when each of them jumped last."""

    def __init__(self) -> None:
        self._epochs: dict[ClockName, tuple[int, int]] = {}
        """Clock → (epoch, since when, ns of mono)."""

    def take(self, readings: Iterable[Reading]) -> list[PublishedClock]:
        """The clocks whose time is known to a bound."""
        clocks = []
        seen = {}
        for reading in readings:
            model = reading.report.model
            if model is None:
                continue
            epoch, since_ns = self._epochs.get(reading.name, (model.epoch, reading.report.mono_ns))
            if epoch != model.epoch:
                # The jump was some samples ago; from this report on its size is known.
                epoch, since_ns = model.epoch, reading.report.mono_ns
            seen[reading.name] = (epoch, since_ns)
            if (clock := _published(reading, since_ns)) is not None:
                clocks.append(clock)
        self._epochs = seen
        return clocks


def _published(reading: Reading, since_ns: int) -> PublishedClock | None:
    """A clock, or None while its time is not known to a bound.

    The model slews to the estimate: how far it is off, and at what rate it moves, is added to the estimate's own bound.
    """
    report = reading.report
    model = report.model
    if model is None or report.state not in _TRUSTED or not math.isfinite(report.bound_ns):
        return None
    off_ns = abs(model.phc_ns(report.mono_ns) - (report.mono_ns - report.offset_ns))
    slew_ppb = abs(math.ldexp(model.adj, -model.shift) * 1e9 + report.drift_mono_ppb)
    growth_ppb = report.drift_bound_ppb
    for prediction in report.predictions:
        # The time over which the model is used; what is uncertain in a millisecond is no rate.
        if 0.1 <= prediction.horizon_s <= 1.0:
            growth_ppb = max(growth_ppb, (prediction.p99_ns - report.bound_ns) / prediction.horizon_s)
    if not math.isfinite(growth_ppb):
        return None
    return PublishedClock(
        ifname=reading.name.ifname,
        key=report.key,
        epoch=model.epoch & 0xFFFFFFFF,
        mono0_ns=model.mono0_ns,
        phc0_ns=model.phc0_ns,
        adj=model.adj,
        valid_until_ns=model.valid_until_mono_ns,
        since_ns=since_ns,
        at_mono_ns=report.mono_ns,
        bound_ns=math.ceil(report.bound_ns) + off_ns,
        growth_ppb=min(math.ceil(growth_ppb + slew_ppb), 0xFFFFFFFF),
        shift=model.shift,
        kind=reading.name.kind,
        timescale=report.timescale,
    )
