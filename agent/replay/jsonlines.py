"""Rows and summary as JSON lines. Integers are exact; what is unknown or unbounded is null, never NaN."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

from agent.replay.rows import Row
from agent.replay.scores import ErrorFigures, HorizonFigures
from agent.replay.summary import ClockSummary


class RowWriter:
    """Turns rows into lines. Made once a file: what is the same in every line is formatted once."""

    def __init__(self, *, names_clocks: bool) -> None:
        self._names_clocks = names_clocks
        self._heads: dict[tuple[float, ...], list[str]] = {}
        self._text: dict[str, str] = {}

    def line(self, row: Row, horizons_s: tuple[float, ...]) -> str:
        """Return the row's line, without its end."""
        r = row.report
        clock = f'"clock":{self._quoted(row.clock)},' if self._names_clocks else ""
        tags = ""
        if row.more_tags:
            tags = f',"more_tags":{json.dumps(row.more_tags)}'
        return (
            f'{{"i":{row.index},{clock}"local_ns":{r.local_ns},'
            f'"offset_ns":{"null" if r.offset_ns is None else r.offset_ns},'
            f'"drift_ppb":{_number(r.drift_ppb)},"sigma_ns":{_number(r.sigma_ns)},"bound_ns":{_number(r.bound_ns)},'
            f'"state":"{r.state}","tag":{"null" if r.tag is None else self._quoted(r.tag)},'
            f'"cause":{self._quoted(r.cause)},"weight":{r.weight:.4g}{tags},'
            f'"predict":{self._predict(row, horizons_s)}}}'
        )

    def _predict(self, row: Row, horizons_s: tuple[float, ...]) -> str:
        forecast = row.report.horizons
        if forecast is None:
            return "null"
        heads = self._heads.get(horizons_s)
        if heads is None:
            heads = self._heads[horizons_s] = [f'"{h:g}":{{"offset_ns":' for h in horizons_s]
        parts = [
            f'{head}{offset},"p99_ns":{_number(p99)}}}'
            for head, offset, p99 in zip(
                heads, forecast.offset_ns.tolist(), forecast.p99_ns.tolist(), strict=True
            )
        ]
        return "{" + ",".join(parts) + "}"

    def _quoted(self, text: str) -> str:
        """Causes and names repeat; those with figures in them don't, and are not kept."""
        quoted = self._text.get(text)
        if quoted is None:
            quoted = json.dumps(text)
            if len(self._text) < 256:
                self._text[text] = quoted
        return quoted


def summary_line(head: dict[str, object], clocks: list[ClockSummary]) -> str:
    """Return the last line: `head` and the clock's summary; with several clocks their sums, and each under `clocks`."""
    if len(clocks) == 1:
        summary = head | _clock(clocks[0])
    else:
        scales = {clock.timescale for clock in clocks}
        summary = head | {
            "samples": sum(clock.rows for clock in clocks),
            "accepted": sum(clock.accepted for clock in clocks),
            "timescale": scales.pop() if len(scales) == 1 else "unknown",
            "states": _added([clock.states for clock in clocks]),
            "tags": _added([clock.tags for clock in clocks]),
            "clocks": [{"clock": clock.clock, **_clock(clock)} for clock in clocks],
        }
    return json.dumps({"summary": summary}, separators=(",", ":"), allow_nan=False)


def _clock(clock: ClockSummary) -> dict[str, Any]:
    return {
        "samples": clock.rows,
        "accepted": clock.accepted,
        "span_s": round(clock.span_s, 9),
        "timescale": clock.timescale,
        "states": clock.states,
        "tags": clock.tags,
        "offset": {
            "rate_ppb": _finite(clock.offset.rate_ppb),
            "tdev_ns": _by_tau(clock.offset.tdev_ns),
            "mtie_ns": _by_tau(clock.offset.mtie_ns),
        },
        "horizons": {f"{h.horizon_s:g}": _horizon(h) for h in clock.horizons},
    }


def _horizon(h: HorizonFigures) -> dict[str, Any]:
    return {
        "mixture": _errors(h.mixture)
        | {"coverage": _finite(h.coverage), "median_bound_ns": _finite(h.median_bound_ns)},
        "experts": {name: _errors(figures) for name, figures in h.experts.items()},
        "left_out": h.left_out,
    }


def _errors(figures: ErrorFigures) -> dict[str, Any]:
    return {
        "n": figures.n,
        "rmse_ns": _finite(figures.rmse_ns),
        "p99_ns": _finite(figures.p99_ns),
        "tdev_ns": _by_tau(figures.tdev_ns),
        "mtie_ns": _by_tau(figures.mtie_ns),
    }


def _by_tau(figures: dict[float, float]) -> dict[str, float | None]:
    return {f"{tau:g}": _finite(figure) for tau, figure in figures.items()}


def _added(counts: list[dict[str, int]]) -> dict[str, int]:
    return {name: sum(count[name] for count in counts) for name in (counts[0] if counts else {})}


def _finite(value: float) -> float | None:
    return float(f"{value:.6g}") if isfinite(value) else None


def _number(value: float | None) -> str:
    """Thousandths of a nanosecond, or of a ppb, are more than anybody measures."""
    if value is None or not isfinite(value):
        return "null"
    return f"{value:.3f}"
