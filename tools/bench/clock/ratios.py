"""Ratios of RMSE over many traces: their geometric mean with its spread, and the worst of them by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from tools.bench.figure import Figure, Spread

_RESAMPLES = 4000


def geometric_mean(ratios: Mapping[str, float]) -> tuple[float, Spread]:
    """The geometric mean, and its 95 % percentile-bootstrap interval over the traces; fixed seed."""
    logs = np.log(list(ratios.values()))
    means = np.random.default_rng(1).choice(logs, size=(_RESAMPLES, len(logs))).mean(axis=1)
    low, high = np.exp(np.quantile(means, [0.025, 0.975])).tolist()
    return float(np.exp(logs.mean())), Spread(low, high, "95 % bootstrap over traces")


def mean_figure(name: str, what: str, ratios: Mapping[str, float], target: float, **detail: Any) -> Figure:
    """A figure of the geometric mean, at most `target`."""
    value, spread = geometric_mean(ratios)
    return Figure(
        name, what, value, "", target, "at most", spread, len(ratios), detail | {"per_trace": dict(ratios)}
    )


def worst_figure(name: str, what: str, ratios: Mapping[str, float], target: float) -> Figure:
    """A figure of the largest ratio, with the name of its trace."""
    worst = max(ratios, key=lambda trace: ratios[trace])
    direction: Literal["at most"] = "at most"
    detail = {"worst": worst, "beyond_target": [t for t, ratio in ratios.items() if ratio > target]}
    return Figure(name, what, ratios[worst], "", target, direction, None, len(ratios), detail)
