"""A servo underneath: whether what it does is taken out of the estimate."""

from __future__ import annotations

from tools.bench.clock import catalog
from tools.bench.clock.errors import columns
from tools.bench.clock.evaluation import evaluate_steered
from tools.bench.clock.ratios import mean_figure, worst_figure
from tools.bench.clock.session import Session
from tools.bench.figure import Figure


def measure(session: Session) -> list[Figure]:
    """RMSE with a PI servo steering at 1 to 16 Hz over that of the same clock, read alike, without."""
    pairs = sorted({name.rpartition("-")[0] for name in catalog.STEERED})
    pairs = pairs[:2] if session.effort.quick else pairs
    names = [f"{pair}-{word}" for pair in pairs for word in ("with", "without")]
    errors = dict(zip(names, session.map("steered traces", evaluate_steered, names), strict=True))
    ratios = {pair: errors[f"{pair}-with"] / errors[f"{pair}-without"] for pair in pairs}
    figures = [
        mean_figure(
            f"steering-{horizon:g}s",
            "RMSE with a PI servo steering underneath over that without, geometric mean",
            {pair: float(ratio[column]) for pair, ratio in ratios.items()},
            1.1,
        )
        for horizon, column in columns()
    ]
    each = {f"{p} at {h:g} s": float(r[c]) for p, r in ratios.items() for h, c in columns()}
    return [*figures, worst_figure("steering-worst", "the same, the worst pair and horizon", each, 1.1)]
