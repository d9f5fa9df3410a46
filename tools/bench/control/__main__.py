"""`make bench-control`: the agent against static settings, kernel defaults and the oracle, as loads move."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from agent.errors import AgentError
from agent.options import require_root
from tools.bench import machine, report
from tools.bench.control.figures import measure
from tools.bench.figure import Effort


def main() -> int:
    """Measure; exit code 1 with --strict if a target is missed."""
    args = _parser().parse_args()
    require_root("bench-control")
    facts = machine.facts()
    figures = measure(Effort(quick=args.quick))
    print(report.table(figures))
    if args.json is not None:
        text = json.dumps(report.as_json(facts, figures), indent=1, ensure_ascii=False)
        args.json.write_text(text + "\n")
    if args.save:
        print(f"written: {report.save(facts, figures, suffix='-control')}")
    return 1 if args.strict and not all(figure.reached for figure in figures) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.control",
        description="Measure what steering queues is worth, by the consumer's own clock, both sides in one run. Needs "
        "root, makes its own network namespaces, and leaves nothing behind. Takes an hour; best on an idle machine.",
    )
    parser.add_argument("--quick", action="store_true", help="two rounds: shows that all of it works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="everything as JSON")
    parser.add_argument("--save", action="store_true", help="write a page and its JSON to docs/results/")
    parser.add_argument("--strict", action="store_true", help="exit code 1 if a target is missed")
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main())
    except AgentError as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        sys.exit(130)
