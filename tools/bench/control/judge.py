"""What a run was worth, from the consumer's delays and the agent's events."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tools.bench.control.scenario import SLICE_MS, SLICES_PER_P99, Phase, Setting
from tools.bench.control.scene import Run, Span
from tools.testbed.testbed import ConsumerReport

SweepTable = Mapping[tuple[Phase, Setting], float]
"""(phase, static setting) → its steady p99, us."""

_RECOVERED = 1.2
_WORSE = 1.25


Mean = Literal["geometric", "arithmetic"]
"""How p99 is averaged over time. In the geometric mean every moment counts alike by its ratio, as every phase does; in
the arithmetic one a twentieth of the time at twenty times the p99 counts as much as all the rest."""


def mean_p99_us(report: ConsumerReport, start_ns: int, end_ns: int, mean: Mean = "geometric") -> float:
    """p99 averaged over time: the mean of the p99 of each 100 ms that lies wholly within the span, us.

    The p99 of a whole span would be that of its worst hundredth, however good the rest is; in this each moment counts,
    those in which a move is not answered yet as well. NaN where nothing was received.
    """
    p99 = _p99s_us(report, start_ns, end_ns)
    if not np.isfinite(p99).any():
        return math.nan
    return float(np.nanmean(p99) if mean == "arithmetic" else np.exp(np.nanmean(np.log(p99))))


def typical_p99_us(run: Run, span: Span) -> float:
    """The median of the p99 of each 100 ms of a phase, us: what it is once it is steady."""
    return float(np.nanmedian(_p99s_us(run.consumer, span.start_ns, span.end_ns)))


def _p99s_us(report: ConsumerReport, start_ns: int, end_ns: int) -> npt.NDArray[np.float64]:
    step_ns = SLICES_PER_P99 * SLICE_MS * 1_000_000
    return np.array(report.timeline_us(start_ns, step_ns, (end_ns - start_ns) // step_ns, 0.99))


def run_p99_us(run: Run, mean: Mean = "geometric") -> float:
    """The geometric mean over a run's phases of `mean_p99_us`: none outweighs the others by its scale."""
    return float(np.exp(np.mean([np.log(span_p99_us(run, span, mean)) for span in run.spans])))


def span_p99_us(run: Run, span: Span, mean: Mean = "geometric") -> float:
    """`mean_p99_us` of one phase of a run."""
    return mean_p99_us(run.consumer, span.start_ns, span.end_ns, mean)


def decision_ms(span: Span, frames: Sequence[dict[str, Any]]) -> float | None:
    """From a load's move to the agent's first change that was applied in that phase; None where there was none."""
    times = [
        frame["mono_ns"]
        for frame in frames
        if frame["t"] == "change"
        and frame["outcome"] in ("applied", "rolled_back")
        and span.start_ns <= frame["mono_ns"] < span.end_ns
    ]
    return (min(times) - span.start_ns) / 1e6 if times else None


def recovery_ms(report: ConsumerReport, span: Span, oracle_us: float) -> float:
    """From a load's move until p99 over 100 ms is within 1.2 of the oracle's; the span's length where it never is."""
    slice_ns = SLICE_MS * 1_000_000
    length_ns = SLICES_PER_P99 * slice_ns
    for start_ns in range(span.start_ns, span.end_ns - length_ns, slice_ns):
        # A slice of the consumer begins where it likes: one more makes sure of a whole 100 ms.
        (p99,) = report.quantiles_us(start_ns, start_ns + length_ns + slice_ns, 0.99)
        if p99 <= _RECOVERED * oracle_us:
            return (start_ns - span.start_ns) / 1e6
    return (span.end_ns - span.start_ns) / 1e6


def gap_closed(static_us: float, oracle_us: float, agent_us: float) -> float:
    """Share of the way from the best single static setting to the oracle, in log p99; NaN without a gap."""
    gap = math.log(static_us / oracle_us)
    return math.log(static_us / agent_us) / gap if gap > 0 else math.nan


def best_static(table: SweepTable, phases: Sequence[Phase]) -> Setting:
    """The one setting whose p99, in the geometric mean over the phases, is lowest."""
    settings = {setting for _, setting in table}
    return min(settings, key=lambda setting: sum(math.log(table[phase, setting]) for phase in phases))


def oracle(table: SweepTable, phase: Phase) -> Setting:
    """The setting that is best in a phase."""
    return min((setting for known, setting in table if known == phase), key=lambda s: table[phase, s])


def asks_for_an_answer(span: Span, table: SweepTable) -> bool:
    """Whether the setting that a phase began with is not within 1.2 of the phase's oracle, by the sweep."""
    before = table.get((span.phase, span.setting_start), math.inf)
    return before > _RECOVERED * table[span.phase, oracle(table, span.phase)]


def worse_and_stayed(run: Run, table: SweepTable) -> int:
    """Phases that ended in a setting whose steady p99 is above 1.25 of that of the setting they began with."""
    return sum(
        table.get((span.phase, span.setting_end), math.nan)
        > _WORSE * table.get((span.phase, span.setting_start), math.nan)
        for span in run.spans
    )


def log_ratios(frames: Sequence[dict[str, Any]]) -> list[tuple[float, float]]:
    """|ln(measured / predicted)| of each judged change, and the same with p99 before it as the prediction."""
    ratios = []
    for frame in frames:
        if frame["t"] != "effect":
            continue
        before, after, predicted = (
            frame["before"]["p99_ns"],
            frame["after"]["p99_ns"],
            frame["predicted_p99_ns"],
        )
        if before and after and predicted:
            ratios.append((abs(math.log(after / predicted)), abs(math.log(after / before))))
    return ratios


def changes_per_minute(span: Span, frames: Sequence[dict[str, Any]], after_s: float) -> float:
    """Plans applied per minute in a phase, from `after_s` on."""
    from_ns = span.start_ns + round(after_s * 1e9)
    plans = [f for f in frames if f["t"] == "plan" and f["applied"] and from_ns <= f["mono_ns"] < span.end_ns]
    return len(plans) * 60e9 / (span.end_ns - from_ns)
