"""docs/results/DATE-rig.md from what the tests of the rig left: `python -m tests.rig.resultspage DIRECTORY PAGE`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """One figure with its target."""

    what: str
    seen: float
    unit: str
    wanted: float
    at_least: bool = False

    @property
    def reached(self) -> bool:
        """Whether the target is."""
        return self.seen >= self.wanted if self.at_least else self.seen <= self.wanted

    def cells(self) -> list[str]:
        """As the table has it."""
        sign = "≥" if self.at_least else "≤"
        return [
            self.what,
            f"{self.seen:,.4g} {self.unit}".strip(),
            f"{sign} {self.wanted:,.4g} {self.unit}".strip(),
            "yes" if self.reached else "**no**",
        ]


def _clock(path: str, figures: dict[str, Any]) -> list[Row]:
    return [
        Row(f"`--stamp {path}`: drift error, PHC read, from 5 s on, p95", figures["drift_error_p95_ppb"], "ppb", 20),
        Row(f"`--stamp {path}`: offset error, idle, p99", figures["offset_error_p99_ns"], "ns", 200),
        Row(f"`--stamp {path}`: … within the bound", figures["offset_within_bound"], "", 0.99, at_least=True),
        Row(
            f"`--stamp {path}`: drift error by stamps alone, median after some seconds "
            f"(stated bound {figures['stamps_alone_drift_bound_median_ppb']:,.4g} ppb)",
            figures["stamps_alone_drift_error_median_ppb"],
            "ppb",
            50,
        ),
    ]  # fmt: skip


def _feeds(figures: dict[str, Any]) -> list[Row]:
    flood = f"flood, {figures['flood_pps']:,} packets/s"
    return [
        Row(f"offset error, {flood}, p99", figures["flood_offset_error_p99_ns"], "ns", 1_000),
        Row(
            f"… within the bound, {figures['flood_reports']} reports",
            figures["flood_offset_within_bound"], "", 0.99, at_least=True,
        ),
        Row(
            f"two PHCs aligned with each other, median error of {figures['alignments']} "
            f"(largest {figures['alignment_error_max_ns']:,} ns)",
            figures["alignment_error_median_ns"],
            "ns",
            200,
        ),
        Row(
            f"rewritten SO_TIMESTAMPNS against the hardware's stamp, p99 of {figures['rewritten_packets']}",
            figures["rewritten_error_p99_ns"],
            "ns",
            1_000,
        ),
    ]  # fmt: skip


def _flood(figures: dict[str, Any]) -> list[Row]:
    what = (
        f"igb, flood on one queue ({figures['flood_pps']:,} packets/s), a consumer on its CPU that falls behind: "
        f"p99 delay agent / initial ({figures['agent_p99_us'] / 1e3:.1f} / {figures['initial_p99_us'] / 1e3:.1f} ms)"
    )
    return [Row(what, figures["ratio"], "", 0.5)]


def _kills(figures: dict[str, Any]) -> list[Row]:
    what = (
        f"igb, {figures['settings']} settings (affinity, RPS, XPS, coalescing): kills after which one was not "
        f"byte-identical, of {figures['kills']} ({figures['changed']} had changed something)"
    )
    return [Row(what, 0, "", 0)]


def page(directory: Path) -> str:
    """The page, of the files that are there."""

    def read(name: str) -> dict[str, Any] | None:
        path = directory / f"{name}.json"
        return json.loads(path.read_text()) if path.exists() else None

    rows: list[Row] = []
    kernels: set[str] = set()
    for name, rows_of in (
        ("testnic-skb", lambda figures: _clock("skb", figures)),
        ("testnic-xdp", lambda figures: _clock("xdp", figures)),
        ("testnic-feeds", _feeds),
        ("igb-flood", _flood),
        ("igb-kills", _kills),
    ):
        figures = read(name)
        if figures is not None:
            rows += rows_of(figures)
            kernels.add(figures["kernel"])
    parts = [
        "# In the rig\n",
        f"Written by `python -m tests.rig.resultspage` after `make test-rig`. Guest: {', '.join(sorted(kernels))}, "
        "emulated CPUs; the truth is what testnic's history says. One run a line: no more than that.\n",
        "| figure | seen | wanted | reached |",
        "| --- | --- | --- | --- |",
        *("| " + " | ".join(row.cells()) + " |" for row in rows),
    ]
    faults = read("testnic-faults")
    if faults is not None:
        parts += [
            "\n| packets' stamps | packets, stamped, missing, duplicate | tags | outside the bound |",
            "| --- | --- | --- | --- |",
        ]
        for fault, seen in faults.items():
            counts = ", ".join(
                str(seen["counts"][key]) for key in ("n", "n_stamped", "n_missing", "n_duplicate")
            )
            tags = "; ".join(f"*{tag['kind']}* {tag['cause']}" for tag in seen["tags"]) or "none"
            parts.append(f"| {fault} | {counts} | {tags} | {seen['outside']} of {seen['reports']} |")
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(page(Path(sys.argv[1])))
