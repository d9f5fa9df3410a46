"""`make bench-ingest`: frames into a detector, by fixed windows and by the agent's; and what consumers get besides."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from agent.errors import AgentError
from agent.options import require_root
from tools.bench import machine, report
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
    print(report.table(figures, {}))
    if args.json is not None:
        text = json.dumps(report.as_json(facts, figures), indent=1, ensure_ascii=False)
        args.json.write_text(text + "\n")
    if args.picture is not None:
        picture.save(args.picture, setting, measured.last)
    if args.save:
        written = report.save(facts, figures, suffix="-ingest")
        picture.save(written.with_suffix(".png"), setting, measured.last)
        print(f"written: {written}, {written.with_suffix('.png')}")
    return 1 if args.strict and not all(figure.reached for figure in figures) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.ingest",
        description="Measure what batch windows and receive timestamps do for consumers. Needs root and the packages "
        "of '.[bench]', makes its own network namespaces, and leaves nothing behind. Best on an idle machine.",
    )
    parser.add_argument(
        "--quick", action="store_true", help="few repetitions: wide spreads, a fraction of the time"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="everything as JSON")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="latency over time, on all sides")
    parser.add_argument(
        "--save", action="store_true", help="write a page, its JSON and the picture to docs/results/"
    )
    parser.add_argument("--strict", action="store_true", help="exit code 1 if a target is missed")
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main())
    except AgentError as error:
        print(f"bench-ingest: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("bench-ingest: interrupted", file=sys.stderr)
        sys.exit(130)
