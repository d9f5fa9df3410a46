"""A live clock's reports as rows. Its estimate is what is scored by: packets are no two-sided samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agent.clock.clock import ClockReport
from agent.clock.forecast import HORIZONS_S, Forecast
from agent.clock.jumps import TagKind
from agent.clock.replay import SampleReport
from agent.errors import UsageError
from agent.replay.rows import Row

# Of a tick's tags the gravest stands in `tag`.
_BY_GRAVITY: tuple[TagKind, ...] = (
    "tai_utc", "phase_step", "wrap", "freq_step", "path_change", "bounce", "epoch_unset", "stale", "missing", "outlier",
)  # fmt: skip
_IN_THE_ESTIMATE = ("tracking", "relative", "init")


@dataclass(frozen=True, slots=True)
class Horizons:
    """A choice of the horizons that a live clock predicts at: their places among them."""

    horizons_s: tuple[float, ...]
    places: tuple[int, ...]

    @classmethod
    def of(cls, wanted_s: tuple[float, ...]) -> Horizons:
        """Return the choice. Raises `UsageError` for others."""
        strange = [h for h in wanted_s if h not in HORIZONS_S]
        if strange:
            live = ",".join(f"{h:g}" for h in HORIZONS_S)
            raise UsageError(
                f"--horizons {strange[0]:g}: clocks of telemetry and captures are replayed as they run, which is at "
                "fixed horizons",
                f"choose among {live}; other horizons are for CSV files",
            )
        return cls(wanted_s, tuple(HORIZONS_S.index(h) for h in wanted_s))


def row_of(index: int, clock: str, report: ClockReport, horizons: Horizons) -> Row:
    """Return the row of one tick's report."""
    kinds = sorted((tag.kind for tag in report.tags), key=_BY_GRAVITY.index)
    known = report.samples > 0
    counts = known and report.state in _IN_THE_ESTIMATE
    forecast = None
    if report.predictions:
        chosen = [report.predictions[place] for place in horizons.places]
        forecast = Forecast(
            np.array([p.offset_ns for p in chosen], dtype=np.int64),
            np.array([p.sigma_ns for p in chosen]),
            np.array([p.p99_ns for p in chosen]),
            np.zeros((len(chosen), 0), dtype=np.int64),
            np.zeros((len(chosen), 0)),
        )
    sample = SampleReport(
        index,
        report.mono_ns,
        report.offset_ns if known else None,
        report.drift_raw_ppb if known else None,
        report.sigma_ns,
        report.bound_ns,
        report.sigma_ns,
        report.state,
        kinds[0] if kinds else None,
        "; ".join(tag.cause for tag in report.tags) or report.reason,
        1.0 if counts else 0.0,
        forecast,
    )
    return Row(index, clock, sample, report.offset_ns if counts else None, tuple(kinds[1:]))
