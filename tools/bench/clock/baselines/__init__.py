"""What there was before: each predicts the offset from (time, offset, read delay), with its published constants."""

from __future__ import annotations

from typing import Protocol

from tools.bench.clock.baselines.chrony import Chrony
from tools.bench.clock.baselines.fastread import FastReadKalman
from tools.bench.clock.baselines.linreg import Linreg
from tools.bench.clock.baselines.pi import Pi
from tools.bench.clock.baselines.simple import Hold, MovingAverage


class Predictor(Protocol):
    """Takes measurements in the order of time, and predicts from the last one."""

    name: str

    def observe(self, time_s: float, offset_ns: float, delay_ns: float) -> None:
        """Take the offset measured at `time_s`; `delay_ns` is its read delay, 0 if unknown."""

    def predict(self, horizon_s: float) -> float:
        """The offset in ns, `horizon_s` after the last measurement."""


def baselines(interval_s: float) -> list[Predictor]:
    """One of each, new. `interval_s` is the usual one of the samples: the PI servo's constants depend on it."""
    return [Linreg(), Pi(interval_s), Chrony(), FastReadKalman(), Hold(), MovingAverage()]
