"""`make bench`: measure the figures that this program promises and say which are reached."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from agent.errors import AgentError, PartialError, UsageError
from agent.options import require_root
from tools.bench import machine, report
from tools.bench.figure import Effort, Figure
from tools.bench.registry import MEASUREMENTS, measurement


def main() -> int:
    """Run the chosen measurements; exit code 5 if one could not be made, 1 with --strict if a target is missed."""
    args = _parser().parse_args()
    if args.list:
        for name, line in MEASUREMENTS.items():
            print(f"{name:<12} {line}")
        return 0
    names = list(MEASUREMENTS) if args.only is None else args.only.split(",")
    unknown = [name for name in names if name not in MEASUREMENTS]
    if unknown:
        raise UsageError(f"no measurement {', '.join(unknown)}", "--list shows them")
    require_root("bench")
    facts = machine.facts()
    figures, missing = _measure(names, Effort(quick=args.quick))
    print(report.table(figures, missing))
    if args.json is not None:
        text = json.dumps(report.as_json(facts, figures, missing), indent=1, ensure_ascii=False)
        args.json.write_text(text + "\n")
    if args.save:
        print(f"written: {report.save(facts, figures, missing)}")
    if missing:
        raise PartialError(f"not measured: {', '.join(missing)}", "the causes are told above")
    return 1 if args.strict and not all(figure.reached for figure in figures) else 0


def _measure(names: list[str], effort: Effort) -> tuple[list[Figure], dict[str, str]]:
    """The figures, and why measurements could not be made: one doesn't cost the others."""
    figures: list[Figure] = []
    missing: dict[str, str] = {}
    for name in names:
        effort.say(f"{name}: {MEASUREMENTS[name]}")
        start = time.monotonic()
        try:
            figures += measurement(name).measure(effort)
        except AgentError as error:
            effort.say(f"{name}: {error}")
            missing[name] = error.what
        else:
            effort.say(f"{name}: {time.monotonic() - start:.0f} s")
    return figures, missing


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench",
        description="Measure the figures that the agent promises, each with both of its sides in one run. Needs root, "
        "makes its own network namespaces, and leaves nothing behind. Best on an otherwise idle machine.",
    )
    parser.add_argument("--only", metavar="NAME[,NAME]", help="these measurements (default: all)")
    parser.add_argument(
        "--quick", action="store_true", help="few repetitions: wide spreads, a tenth of the time"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="everything as JSON")
    parser.add_argument("--save", action="store_true", help="write a page and its JSON to docs/results/")
    parser.add_argument("--strict", action="store_true", help="exit code 1 if a target is missed")
    parser.add_argument("--list", action="store_true", help="list the measurements and do nothing")
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
