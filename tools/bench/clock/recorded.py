"""How far off predictions are on recordings of real, locked clocks."""

from __future__ import annotations

from tools.bench.clock.errors import best_baseline, best_expert, columns, each
from tools.bench.clock.ratios import mean_figure, worst_figure
from tools.bench.clock.session import Session
from tools.bench.figure import Figure


def measure(session: Session) -> list[Figure]:
    """RMSE over the best baseline on recordings of locked servos."""
    over_baseline = {r.name: r.clock_rmse / r.best_baseline() for r in session.recorded}
    figures = [
        mean_figure(
            f"recordings-{horizon:g}s",
            "RMSE over that of the best baseline of each recording, geometric mean",
            {name: float(ratio[column]) for name, ratio in over_baseline.items()},
            0.97,
            best_baseline={r.name: best_baseline(r, column) for r in session.recorded},
            best_expert={r.name: best_expert(r, column) for r in session.recorded},
        )
        for horizon, column in columns()
    ]
    worst = worst_figure(
        "recordings-worst", "the same, the worst recording at 1, 10 or 60 s", each(over_baseline), 1.02
    )
    return [*figures, worst]
