"""A picture of a replay: the offset with its tags, and for each horizon the prediction errors against their bound.

Needs matplotlib, an optional extra. Memory is bounded: a strip holds a few thousand buckets of extremes, and merges
neighbours when it is full, so that no peak is lost.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agent.clock.jumps import TagKind
from agent.errors import UsageError
from agent.replay.octaves import FloatArray
from agent.replay.rows import Row
from agent.replay.scores import ScoredErrors
from agent.telemetry.figures import duration, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BUCKETS = 4096
_MAX_MARKS = 256
# A series with no value for this many of its usual intervals has a hole.
_HOLE = 8.0
_MAX_CLOCKS = 3
# Okabe and Ito: told apart by everybody.
_INK, _BAND, _LINE = "#222222", "#0072B2", "#D55E00"
_TAG_COLOURS: dict[TagKind, str] = {
    "phase_step": "#D55E00",
    "tai_utc": "#CC79A7",
    "wrap": "#E69F00",
    "freq_step": "#009E73",
    "path_change": "#56B4E9",
    "bounce": "#999999",
    "epoch_unset": "#F0E442",
    "stale": "#000000",
    "missing": "#BBBBBB",
    "outlier": "#CCCCCC",
}
_NOISY = "… with the noise of\nwhat is measured"
_LEGEND = ("error", "p99 bound", _NOISY)
# Tags that mark single moments; of the others, which come in runs, only the count is told.
_MARKED = frozenset(("phase_step", "tai_utc", "wrap", "freq_step", "path_change", "bounce"))


class Strip:
    """Extremes over time of a series of any length: at most 4096 buckets, each as many values as the others."""

    def __init__(self) -> None:
        self._per_bucket = 1
        self._in_bucket = 0
        self._buckets: list[tuple[int, float, float, float, float]] = []

    def add(self, local_ns: int, value: float, p99_ns: float = 0.0, bound_ns: float = 0.0) -> None:
        """Take a value, its forecast bound, and the one with noise allowed for."""
        bucket = (local_ns, value, value, p99_ns, bound_ns)
        if self._in_bucket:
            self._buckets[-1] = _joined(self._buckets[-1], bucket)
        else:
            if len(self._buckets) == _BUCKETS:
                pairs = zip(self._buckets[::2], self._buckets[1::2], strict=True)
                self._buckets = [_joined(a, b) for a, b in pairs]
                self._per_bucket *= 2
            self._buckets.append(bucket)
        self._in_bucket = (self._in_bucket + 1) % self._per_bucket

    def table(self) -> FloatArray:
        """Return float64[5, n]: local time in s (of the first value), lowest, highest, widest bounds of both kinds.

        Where the series has a hole, a column of NaN keeps a line from being drawn across.
        """
        table = np.array(self._buckets, dtype=np.float64).reshape(-1, 5).T
        table[0] *= 1e-9
        if table.shape[1] < 3:
            return table
        apart = np.diff(table[0])
        holes = np.flatnonzero(apart > _HOLE * np.median(apart)) + 1
        return np.insert(table, holes, np.nan, axis=1)

    def __len__(self) -> int:
        return len(self._buckets)


def _joined(
    a: tuple[int, float, float, float, float], b: tuple[int, float, float, float, float]
) -> tuple[int, float, float, float, float]:
    return a[0], min(a[1], b[1]), max(a[2], b[2]), max(a[3], b[3]), max(a[4], b[4])


@dataclass(slots=True)
class _ClockStrips:
    """What is drawn of one clock."""

    start_ns: int
    offset: Strip = field(default_factory=Strip)
    errors: dict[float, Strip] = field(default_factory=dict)
    marks: list[tuple[int, TagKind]] = field(default_factory=list)
    tags: Counter[TagKind] = field(default_factory=Counter)
    steps: int = 0
    _rate: float | None = None
    _base: tuple[int, int, float] | None = None
    _last: float = 0.0

    def row(self, row: Row) -> None:
        report = row.report
        for kind in (report.tag, *row.more_tags):
            if kind is None:
                continue
            self.tags[kind] += 1
            if kind in _MARKED and len(self.marks) < _MAX_MARKS:
                self.marks.append((report.local_ns - self.start_ns, kind))
        if row.measured_ns is None:
            return
        if self._rate is None:
            if report.state not in ("tracking", "relative") or report.drift_ppb is None:
                return
            # Near enough to draw by; what is left of the slope is taken out at the end.
            self._rate = report.drift_ppb * 1e-9
        if self._base is None or row.reanchored:
            self.steps += self._base is not None
            # A step is taken out: the offset goes on where it was.
            self._base = (report.local_ns, row.measured_ns, self._last)
        span = report.local_ns - self._base[0]
        self._last = self._base[2] + row.measured_ns - self._base[1] - self._rate * span
        self.offset.add(report.local_ns - self.start_ns, self._last)


class Plot:
    """Collects what a replay tells, and draws it at the end. Raises `UsageError` where it couldn't, at once."""

    def __init__(self, path: str) -> None:
        try:
            import matplotlib.figure  # noqa: F401
        except ImportError as error:
            raise UsageError(
                f"--plot needs matplotlib: {error}", "install the extra: `.venv/bin/pip install '.[plot]'`"
            ) from None
        self._path = Path(path)
        if self._path.suffix != ".png":
            raise UsageError(f"--plot {path}: only PNG is drawn", "name a file that ends in .png")
        if not os.access(self._path.parent, os.W_OK):
            raise UsageError(f"--plot {path}: the directory can't be written to", "name another one")
        if self._path.is_dir():
            raise UsageError(f"--plot {path}: it is a directory", "name a file in it")
        self._clocks: dict[str, _ClockStrips] = {}

    def row(self, row: Row) -> None:
        """Take a row."""
        strips = self._clocks.get(row.clock)
        if strips is None:
            strips = self._clocks[row.clock] = _ClockStrips(row.report.local_ns)
        strips.row(row)

    def errors(self, clock: str, horizon_s: float, scored: ScoredErrors) -> None:
        """Take errors of the mixture at one horizon."""
        strips = self._clocks[clock]
        strip = strips.errors.setdefault(horizon_s, Strip())
        moments = (scored.local_ns - strips.start_ns).tolist()
        columns = (scored.error_ns.tolist(), scored.p99_ns.tolist(), scored.bound_ns.tolist())
        for at, error, p99, bound in zip(moments, *columns, strict=True):
            strip.add(at, error, p99, bound)

    def draw(self, title: str) -> None:
        """Write the picture. Raises `UsageError` where the file can't be written."""
        from matplotlib.figure import Figure

        clocks = list(self._clocks.items())[:_MAX_CLOCKS]
        horizons = sorted({h for _, strips in clocks for h, strip in strips.errors.items() if len(strip)})
        rows = 1 + len(horizons)
        figure = Figure(
            figsize=(10.0 * max(1, len(clocks)), 3.4 + 1.7 * len(horizons)), dpi=110, layout="constrained"
        )
        left_out = len(self._clocks) - len(clocks)
        more = f" ({left_out} more clocks are not drawn)" if left_out else ""
        name = printable(Path(title).name)
        figure.suptitle(f"{name}{more}", fontsize=12, color=_INK, parse_math=False)
        axes = figure.subplots(
            rows,
            max(1, len(clocks)),
            squeeze=False,
            sharex="col",
            height_ratios=[2.0] + [1.0] * len(horizons),
        )
        for column, (name, strips) in enumerate(clocks):
            _draw_offset(axes[0][column], name, strips)
            for row, horizon_s in enumerate(horizons, start=1):
                _draw_errors(axes[row][column], horizon_s, strips)
            axes[-1][column].set_xlabel("local time since the beginning, s")
        try:
            figure.savefig(self._path)
        except OSError as error:
            raise UsageError(f"cannot write {self._path}: {error.strerror}", "name another file") from error


def _draw_offset(axes: Axes, name: str, strips: _ClockStrips) -> None:
    seconds, low, high, _, _ = strips.offset.table()
    if len(seconds) > 1:
        middle = (low + high) / 2.0
        known = ~np.isnan(seconds)
        line = np.polyval(np.polyfit(seconds[known], middle[known], 1), seconds)
        scale, unit = _unit(float(np.nanmax(np.maximum(abs(low - line), abs(high - line)))))
        axes.fill_between(seconds, (low - line) / scale, (high - line) / scale, color=_BAND, alpha=0.35, lw=0)
        axes.plot(seconds, (middle - line) / scale, color=_BAND, lw=0.8)
        axes.set_ylabel(f"offset, {unit}")
    rebased = ", steps taken out" if strips.steps else ""
    axes.set_title(
        f"{printable(name) + ': ' if name else ''}measured offset less its mean rate{rebased}",
        loc="left",
        parse_math=False,
        fontsize=10,
        color=_INK,
    )
    for kind, colour in _TAG_COLOURS.items():
        moments = [t * 1e-9 for t, marked in strips.marks if marked == kind]
        label = f"{kind} ({strips.tags[kind]})"
        if moments:
            for moment in moments:
                axes.axvline(moment, color=colour, lw=1.2, alpha=0.9, zorder=0)
            axes.plot([], [], color=colour, lw=2, label=label)
        elif strips.tags[kind]:
            axes.plot([], [], color=colour, marker="s", ls="", label=label)
    if strips.tags:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False, title="tags")
    _plain(axes)


def _draw_errors(axes: Axes, horizon_s: float, strips: _ClockStrips) -> None:
    strip = strips.errors.get(horizon_s)
    if strip is None or not len(strip):
        axes.set_axis_off()
        return
    seconds, low, high, p99, bound = strip.table()
    # Forecasts from the beginning have wide bounds: they would flatten all others.
    usual = np.nanquantile(np.maximum(abs(low), abs(high)), 0.99)
    limit = max(1.5 * float(max(usual, np.nanmedian(p99))), 1.0)
    scale, unit = _unit(limit)
    axes.fill_between(seconds, -bound / scale, bound / scale, color=_LINE, alpha=0.15, lw=0, label=_NOISY)
    axes.fill_between(seconds, low / scale, high / scale, color=_BAND, alpha=0.7, lw=0.4, label="error")
    for sign in (1.0, -1.0):
        axes.plot(seconds, sign * p99 / scale, color=_LINE, lw=1.0, label="p99 bound" if sign > 0 else None)
    axes.set_ylim(-limit / scale, limit / scale)
    axes.set_ylabel(unit)
    axes.set_title(
        f"prediction error {duration(horizon_s * 1e9)} ahead", loc="left", fontsize=9, color=_INK, pad=3
    )
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda i: _LEGEND.index(labels[i]))
    axes.legend(
        [handles[i] for i in order],
        [labels[i] for i in order],
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        fontsize=8,
        frameon=False,
    )
    _plain(axes)


def _plain(axes: Axes) -> None:
    axes.axhline(0.0, color="#888888", lw=0.5, zorder=0)
    axes.grid(axis="y", color="#E5E5E5", lw=0.6)
    axes.set_axisbelow(True)
    axes.margins(x=0.01)
    spines: Any = axes.spines
    for side in ("top", "right"):
        spines[side].set_visible(False)


def _unit(ns: float) -> tuple[float, str]:
    for scale, unit in ((1.0, "ns"), (1e3, "µs"), (1e6, "ms")):
        if ns < 1e3 * scale:
            return scale, unit
    return 1e9, "s"
