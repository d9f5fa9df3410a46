"""Figures for people (a table on a terminal, a page in docs/results/) and for programs (JSON)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.bench.figure import Figure

RESULTS = Path(__file__).resolve().parents[2] / "docs/results"
_NOTHING: Mapping[str, str] = {}
_SIGNS = {"at most": "≤", "at least": "≥", "exactly": "="}


def as_json(
    machine: dict[str, Any], figures: list[Figure], missing: Mapping[str, str] = _NOTHING
) -> dict[str, Any]:
    """Everything, as JSON types; `missing` says why a measurement could not be made, by its name."""
    return {
        "machine": machine,
        "not_measured": dict(missing),
        "figures": [
            {
                "name": figure.name,
                "what": figure.what,
                "value": figure.value,
                "unit": figure.unit,
                "target": figure.target,
                "direction": figure.direction,
                "reached": figure.reached,
                "spread": None
                if figure.spread is None
                else {
                    "low": figure.spread.low,
                    "high": figure.spread.high,
                    "method": figure.spread.method,
                },
                "samples": figure.samples,
                "detail": figure.detail,
            }
            for figure in figures
        ],
    }


def table(figures: list[Figure], missing: Mapping[str, str] = _NOTHING) -> str:
    """The figures in columns, and under them what was not measured and why."""
    head = ("figure", "value", "spread", "target", "reached", "n")
    rows = [head, *(_row(figure) for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines += [f"{name}: not measured: {why}" for name, why in missing.items()]
    return "\n".join(line.rstrip() for line in lines)


def _row(figure: Figure) -> tuple[str, ...]:
    unit = f" {figure.unit}" if figure.unit else ""
    spread = figure.spread
    return (
        figure.name,
        f"{_number(figure.value)}{unit}",
        f"{_number(spread.low)} – {_number(spread.high)}" if spread else "",
        f"{_SIGNS[figure.direction]} {_number(figure.target)}{unit}",
        "yes" if figure.reached else "NO",
        str(figure.samples),
    )


def _number(value: float) -> str:
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def markdown(
    machine: dict[str, Any], figures: list[Figure], json_name: str, missing: Mapping[str, str] = _NOTHING
) -> str:
    """A page that says what was measured, how, on what."""
    lines = [
        f"# Figures of {machine['date']}",
        "",
        f"Commit {machine['commit']}. Every ratio has both of its sides from this one run; "
        f"all details are in [{json_name}]({json_name}).",
        "",
        "| figure | what | value | spread | target | reached | n |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for figure in figures:
        name, value, spread, target, reached, n = _row(figure)
        method = f" ({figure.spread.method})" if figure.spread else ""
        lines.append(f"| {name} | {figure.what} | {value} | {spread}{method} | {target} | {reached} | {n} |")
    lines += [f"| {name} | not measured: {why} | | | | | |" for name, why in missing.items()]
    lines += ["", "## How", ""]
    for figure in figures:
        lines += [f"**{figure.name}**", ""]
        lines += [f"- {key}: {_detail(value)}" for key, value in figure.detail.items()]
        lines += [""]
    lines += ["## The machine", "", "| | |", "| --- | --- |"]
    lines += [f"| {key} | {value} |" for key, value in machine.items()]
    return "\n".join(lines) + "\n"


def _detail(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_detail(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(_detail(item) for item in value)
    return str(value)


def save(
    machine: dict[str, Any],
    figures: list[Figure],
    missing: Mapping[str, str] = _NOTHING,
    *,
    suffix: str = "",
    directory: Path = RESULTS,
) -> Path:
    """Write the page and its JSON, named by date and commit (and `suffix`); returns the page's path."""
    commit = machine["commit"].partition(" ")[0] or "unknown"
    name = f"{machine['date'][:10]}-{commit}{suffix}"
    directory.mkdir(parents=True, exist_ok=True)
    data = as_json(machine, figures, missing)
    (directory / f"{name}.json").write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    page = directory / f"{name}.md"
    page.write_text(markdown(machine, figures, f"{name}.json", missing))
    return page
