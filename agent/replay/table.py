"""The summary for people."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite

from agent.replay.scores import ErrorFigures, HorizonFigures
from agent.replay.summary import ClockSummary
from agent.telemetry.figures import duration, ppb, printable

_COLUMN_WIDTH = 11


def table(clock: ClockSummary) -> Iterator[str]:
    """The lines of one clock's summary."""
    yield printable(
        f"{f'clock {clock.clock}: ' if clock.clock else ''}{clock.rows} samples over "
        f"{duration(clock.span_s * 1e9)}, {clock.accepted} in the estimate, time scale {clock.timescale}"
    )
    yield "states   " + (_counts(clock.states) or "none")
    yield "tags     " + (_counts(clock.tags) or "none")
    stability = (
        "" if not isfinite(clock.offset.rate_ppb) else f"rate {ppb(clock.offset.rate_ppb)} taken out; "
    )
    yield f"offset   {stability}TDEV {_by_tau(clock.offset.tdev_ns)}; MTIE {_by_tau(clock.offset.mtie_ns)}"
    yield ""
    yield from _errors(clock.horizons)


def _errors(horizons: list[HorizonFigures]) -> Iterator[str]:
    """Prediction errors: a line a horizon, RMSE of the mixture and of each expert, the best expert marked."""
    names = list(horizons[0].experts) if horizons else []
    heads = ["horizon", "n", "mixture", *names, "p99", "bound", "within"]
    yield "prediction errors: RMSE of the mixture and of each expert (* the best of those that predicted n times); the"
    yield "mixture's p99, its usual p99 bound, and the share within: each error against its own bound, with the noise"
    yield "of what it is measured by allowed for."
    yield "".join(head.rjust(_COLUMN_WIDTH) for head in heads)
    for h in horizons:
        if h.mixture.n == 0:
            why = "samples are too far apart" if h.left_out["hole"] else "the recording is too short for it"
            yield f"{h.horizon_s:g} s".rjust(_COLUMN_WIDTH) + "0".rjust(_COLUMN_WIDTH) + f"  {why}"
            continue
        least = min((e.rmse_ns for e in h.experts.values() if e.n == h.mixture.n), default=0.0)
        cells = [f"{h.horizon_s:g} s", str(h.mixture.n), duration(h.mixture.rmse_ns)]
        cells += [_expert(e, least) for e in h.experts.values()]
        cells += [duration(h.mixture.p99_ns), duration(h.median_bound_ns), f"{100 * h.coverage:.2f} %"]
        yield "".join(cell.rjust(_COLUMN_WIDTH) for cell in cells)


def _expert(figures: ErrorFigures, least: float) -> str:
    if not figures.n:
        return "-"
    return f"{'*' if figures.rmse_ns == least else ''}{duration(figures.rmse_ns)}"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count)


def _by_tau(figures: dict[float, float]) -> str:
    """Three of the figures, short to long."""
    taus = list(figures)
    if not taus:
        return "?"
    chosen = sorted({taus[0], taus[len(taus) // 2], taus[-1]})
    return ", ".join(f"{duration(figures[tau])} at {tau:.3g} s" for tau in chosen)
