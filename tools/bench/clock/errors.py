"""How far off predictions are: against the baselines, the limit, recordings, and the best single expert."""

from __future__ import annotations

import numpy as np

from tools.bench.clock.evaluation import Result
from tools.bench.clock.oscillator import Floats
from tools.bench.clock.predictions import HORIZONS_S, VERDICT_SAMPLES, WARM_UP_S
from tools.bench.clock.ratios import mean_figure, worst_figure
from tools.bench.clock.session import Session
from tools.bench.figure import Figure

JUDGED_S = (1.0, 10.0, 60.0)
"""Horizons with a target; the shorter ones are reported."""
_OVER_BASELINE = {1.0: 0.35, 10.0: 0.45, 60.0: 0.7}
_SCORED = (
    f"predictions from {WARM_UP_S:.0f} s on, but for those of the {VERDICT_SAMPLES} samples from a jump on, and those "
    "whose horizon has a jump in it"
)


def measure(session: Session) -> list[Figure]:
    """RMSE over the best baseline, over the limit, and over the best single expert, on the synthetic traces."""
    results = session.synthetic
    over_baseline = {r.name: r.clock_rmse / r.best_baseline() for r in results}
    over_told = {r.name: r.clock_rmse / r.told_rmse for r in results if r.told_rmse is not None}
    best_possible = {r.name: r.told_rmse / r.best_baseline() for r in results if r.told_rmse is not None}
    figures = []
    for horizon, column in columns():
        figures.append(
            mean_figure(
                f"baseline-{horizon:g}s",
                "RMSE over that of the best baseline of each trace, geometric mean over the synthetic traces",
                {name: float(ratio[column]) for name, ratio in over_baseline.items()},
                _OVER_BASELINE[horizon],
                scored=_SCORED,
                best_baseline={r.name: best_baseline(r, column) for r in results},
                limit_over_baseline={name: float(ratio[column]) for name, ratio in best_possible.items()},
                shorter_horizons=_shorter(over_baseline),
            )
        )
    figures.append(
        worst_figure(
            "baseline-worst",
            "the same, the worst single trace at 1, 10 or 60 s",
            each(over_baseline),
            1.05,
        )
    )
    for horizon, column in columns():
        figures.append(
            mean_figure(
                f"limit-{horizon:g}s",
                "RMSE over that of a Kalman filter told noise levels, variances, steering and jump times",
                {name: float(ratio[column]) for name, ratio in over_told.items()},
                1.25,
                rmse_ns={r.name: float(r.clock_rmse[column]) for r in results},
                shorter_horizons=_shorter(over_told),
            )
        )
    over_expert = {r.name: _over_best(r) for r in results}
    figures.append(
        worst_figure(
            "experts",
            "RMSE of the mixture over the single expert that was best in hindsight, the worst trace and horizon",
            each(over_expert),
            1.05,
        )
    )
    return figures


def columns() -> list[tuple[float, int]]:
    """The judged horizons and their places among HORIZONS_S."""
    return [(horizon, HORIZONS_S.index(horizon)) for horizon in JUDGED_S]


def each(ratios: dict[str, Floats]) -> dict[str, float]:
    """One entry per trace and judged horizon."""
    return {
        f"{name} at {horizon:g} s": float(ratio[column])
        for name, ratio in ratios.items()
        for horizon, column in columns()
    }


def _shorter(ratios: dict[str, Floats]) -> dict[str, float]:
    """Geometric means at the horizons that have no target."""
    places = {h: c for c, h in enumerate(HORIZONS_S) if h not in JUDGED_S}
    return {
        f"{h:g}s": float(np.exp(np.mean(np.log([r[c] for r in ratios.values()])))) for h, c in places.items()
    }


def best_baseline(result: Result, column: int) -> str:
    """Name of the baseline with the least RMSE at a horizon."""
    return min(result.baseline_rmse, key=lambda name: float(result.baseline_rmse[name][column]))


def best_expert(result: Result, column: int) -> str:
    """Name of the expert that alone would have had the least RMSE at a horizon."""
    alone = {name: values for name, values in result.expert_rmse.items() if name != "mixture"}
    return min(alone, key=lambda name: float(alone[name][column]))


def _over_best(result: Result) -> Floats:
    alone = [values for name, values in result.expert_rmse.items() if name != "mixture"]
    ratio: Floats = result.expert_rmse["mixture"] / np.min(alone, axis=0)
    return ratio
