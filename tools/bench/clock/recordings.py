"""Recordings of real clocks: one value a line, 10 ns units, 1 Hz, locked to their source."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from agent.clock.estimator import Sample
from agent.errors import UnsupportedError
from tools.bench.clock.predictions import HORIZONS_S, WARM_UP_S, Measurements
from tools.bench.clock.traces import HW_START_NS, LOCAL_START_NS

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
"""Beside the checkout; see its README for where they come from."""
_UNIT_NS = 10
FILES = {
    "statime-i210-direct": "statime/i210-direct-offset.dat",
    "statime-i210-boundary": "statime/i210-bc-offset.dat",
    "host-chrony": "ntpd-rs/offset-chrony.dat",
    "host-ntpd-rs": "ntpd-rs/offset-ntpd-rs.dat",
}


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording as samples, and as a series whose targets are what was measured a horizon later."""

    samples: list[Sample]
    series: Measurements
    base_ns: int


def load(name: str) -> Recording:
    """Read the recording `name`, a key of FILES. Raises UnsupportedError if it isn't there."""
    path = DATA / FILES[name]
    if not path.exists():
        raise UnsupportedError(f"{path.name} is not beside this checkout", f"put it into {path.parent}")
    # Whole units of 10 ns in some files, fractions of them in others: rounded to ns either way.
    offset_ns = np.rint(np.loadtxt(path, ndmin=1) * _UNIT_NS).astype(np.int64)
    count = len(offset_ns)
    seconds = np.arange(count, dtype=np.int64)
    local_ns = LOCAL_START_NS + seconds * 1_000_000_000
    base_ns = LOCAL_START_NS - HW_START_NS
    hw_ns = local_ns - base_ns - offset_ns
    samples = [Sample(local, hw) for local, hw in zip(local_ns.tolist(), hw_ns.tolist(), strict=True)]
    measured = offset_ns.astype(np.float64)
    targets = np.full((count, len(HORIZONS_S)), np.nan)
    for column, horizon in enumerate(HORIZONS_S):
        if horizon >= 1 and round(horizon) < count:
            targets[: -round(horizon), column] = measured[round(horizon) :]
    targets[: round(WARM_UP_S)] = np.nan
    series = Measurements(name, seconds.astype(np.float64), measured, np.zeros(count), targets, 1.0)
    return Recording(samples, series, base_ns)
