"""Which clocks consumers are told of, what these may be off by, and since when they hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agent.batch.clockshelf import ClockShelf
from agent.batch.layout import PublishedClock
from agent.clock import ClockModel, ClockReport, Prediction
from agent.clock.alignment import ClockName, Reading
from tests.unit import telemetry_frames as sample

S = 1_000_000_000


def reading(report: ClockReport, key: int = 0x0203) -> Reading:
    """A report of a trailer clock."""
    return Reading(ClockName("eth1", "trailer", key), report, 0)


def published(report: ClockReport) -> PublishedClock:
    """The one clock that is told of."""
    (clock,) = ClockShelf().take([reading(report)])
    return clock


def test_a_clock_is_published_with_its_bound() -> None:
    """The model's own error is added to the estimate's bound, its slew to the drift's."""
    report = sample.report()
    model = report.model
    assert model is not None
    clock = published(report)
    assert (clock.ifname, clock.kind, clock.key, clock.timescale) == ("eth1", "trailer", 0x0203, "utc")
    off_ns = abs(model.phc_ns(report.mono_ns) - (report.mono_ns - report.offset_ns))
    assert clock.bound_ns == 20_100 + off_ns
    slew_ppb = abs(model.adj * 1e9 / 2**40 + report.drift_mono_ppb)
    assert clock.growth_ppb == np.ceil(max(20.0, (20_140.0 - 20_100.0) / 0.1) + slew_ppb)


def test_a_model_that_is_right_adds_nothing() -> None:
    """Where model and estimate are the same line, the bounds are the estimate's, or its prediction's."""
    report = sample.report(predictions=(), drift_mono_ppb=0.0)
    hw_ns = report.mono_ns - report.offset_ns
    report = replace(report, model=ClockModel(report.mono_ns, hw_ns, 0, 40, report.mono_ns + S, 0))
    assert (published(report).bound_ns, published(report).growth_ppb) == (20_100, 20)
    unsure = (Prediction(0.001, 0, 1.0, 20_101.0), Prediction(1.0, 0, 1.0, 20_700.0))
    assert published(replace(report, predictions=unsure)).growth_ppb == 600


@pytest.mark.parametrize(
    "changed",
    [
        {"model": None},
        {"state": "init"},
        {"state": "software"},
        {"state": "invalid"},
        {"bound_ns": float("inf")},
        {"drift_bound_ppb": float("inf")},
    ],
)
def test_a_clock_without_a_bound_is_not_published(changed: dict[str, Any]) -> None:
    """Nobody is told a time of which it isn't known how wrong it may be."""
    assert ClockShelf().take([reading(sample.report(**changed))]) == []


def test_a_clock_holds_since_its_latest_jump() -> None:
    """From its first report on, and after a jump from the report on that tells of it; each clock for itself."""
    shelf = ClockShelf()
    first = sample.report()
    assert first.model is not None

    def at(report: ClockReport, mono_ns: int, epoch: int) -> ClockReport:
        assert report.model is not None
        return replace(report, mono_ns=mono_ns, model=report.model._replace(epoch=epoch))

    since = []
    for mono_ns, epoch in ((100, 1), (200, 1), (300, 2), (400, 2)):
        jumping, other = shelf.take(
            [reading(at(first, mono_ns, epoch)), reading(at(first, mono_ns, 7), 0x0901)]
        )
        since.append((jumping.since_ns, other.since_ns))
    assert since == [(100, 100), (100, 100), (300, 100), (300, 100)]
