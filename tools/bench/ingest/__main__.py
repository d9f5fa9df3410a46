"""`make bench-ingest`: frames into a detector, by fixed windows and by the agent's; and what consumers get besides."""

from __future__ import annotations

import argparse
from pathlib import Path

from agent.options import require_root
from tools.bench import command, machine
from tools.bench.figure import Effort
from tools.bench.ingest import measurement, page, picture, receivetime, scenario


def main() -> int:
    """Measure; exit code 1 with --strict if a target is missed."""
    args = _parser().parse_args()
    require_root("bench")
    setting, effort = scenario.read(), Effort(quick=args.quick)
    facts = machine.facts()
    figures = [page.measure(effort), *receivetime.measure(effort)]
    measured = measurement.measure(setting, effort)
    figures += measured.figures
    written = command.tell(args, facts, figures, suffix="-ingest")
    if args.picture is not None:
        picture.save(args.picture, setting, measured.last)
    if written is not None:
        picture.save(written.with_suffix(".png"), setting, measured.last)
        print(f"written: {written.with_suffix('.png')}")
    return command.exit_code(args, figures)


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(
        "tools.bench.ingest",
        "Measure what batch windows and receive timestamps do for consumers. Needs root and the packages "
        "of '.[bench]', makes its own network namespaces, and leaves nothing behind. Best on an idle machine.",
        quick="few repetitions: wide spreads, a fraction of the time",
        saved="a page, its JSON and the picture",
    )
    parser.add_argument("--picture", type=Path, metavar="FILE", help="latency over time, on all sides")
    return parser


if __name__ == "__main__":
    command.end("bench-ingest", main)
