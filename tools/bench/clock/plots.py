"""Pictures of a run: recall of jumps by size, and RMSE ratios per trace. Needs matplotlib, an optional extra."""

from __future__ import annotations

from pathlib import Path

from agent.errors import UnsupportedError
from tools.bench.figure import Figure


def save(figures: list[Figure], stem: Path) -> list[Path]:
    """Write STEM-recall.png and STEM-ratios.png, as far as their figures were measured; returns what was written.

    Raises UnsupportedError without matplotlib.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise UnsupportedError(
            "no pictures: matplotlib is not installed", ".venv/bin/pip install '.[plot]'"
        ) from error
    mpl.use("Agg")
    named = {figure.name: figure for figure in figures}
    written = []
    if "jump-recall" in named:
        written.append(_recall(named["jump-recall"], stem.with_name(f"{stem.name}-recall.png")))
    if "baseline-1s" in named:
        written.append(_ratios(named, stem.with_name(f"{stem.name}-ratios.png")))
    return written


def _recall(figure: Figure, path: Path) -> Path:
    from matplotlib import pyplot

    curve = figure.detail["curve"]
    drawing, axes = pyplot.subplots(figsize=(7, 4))
    sizes = [(row["from"] * row["to"]) ** 0.5 for row in curve]
    axes.semilogx(sizes, [100 * row["recall"] for row in curve], "o-")
    axes.axvline(8, color="grey", linestyle="--")
    axes.set_xlabel("size of the step, multiples of max(√S, δ/16)")
    axes.set_ylabel("tagged within 4 samples, %")
    axes.set_title(f"{figure.detail['false_tags_a_day_beside']:.2g} false tags a day at 10 Hz beside")
    drawing.tight_layout()
    drawing.savefig(path, dpi=110)
    pyplot.close(drawing)
    return path


def _ratios(named: dict[str, Figure], path: Path) -> Path:
    from matplotlib import pyplot

    shown = [(h, named[f"baseline-{h}"]) for h in ("1s", "10s", "60s") if f"baseline-{h}" in named]
    traces = list(shown[0][1].detail["per_trace"])
    drawing, panels = pyplot.subplots(1, len(shown), figsize=(12, 0.24 * len(traces) + 1.5), sharey=True)
    for axes, (horizon, figure) in zip(panels, shown, strict=True):
        places = range(len(traces))
        axes.barh(
            places, [figure.detail["per_trace"][t] for t in traces], color="tab:blue", label="the clock"
        )
        axes.plot([figure.detail["limit_over_baseline"][t] for t in traces], places, "k|", label="the limit")
        axes.axvline(1.0, color="red", linewidth=0.8)
        axes.set_xscale("log")
        axes.set_title(f"RMSE over best baseline, {horizon}")
    panels[0].set_yticks(range(len(traces)), traces, fontsize=7)
    panels[0].legend(fontsize=7)
    drawing.tight_layout()
    drawing.savefig(path, dpi=110)
    pyplot.close(drawing)
    return path
