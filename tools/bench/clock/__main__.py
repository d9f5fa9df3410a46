"""`make bench-clock`: measure what the clock promises, against baselines, truth and the limit."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from agent.errors import AgentError, PartialError, UsageError
from tools.bench import machine, report
from tools.bench.clock import plots
from tools.bench.clock.registry import MEASUREMENTS
from tools.bench.clock.session import Session
from tools.bench.figure import Effort, Figure


def main() -> int:
    """Run the chosen measurements; exit code 5 if one could not be made, 1 with --strict if a target is missed."""
    args = _parser().parse_args()
    if args.list:
        for name, (line, _) in MEASUREMENTS.items():
            print(f"{name:<12} {line}")
        return 0
    names = list(MEASUREMENTS) if args.only is None else args.only.split(",")
    unknown = [name for name in names if name not in MEASUREMENTS]
    if unknown:
        raise UsageError(f"no measurement {', '.join(unknown)}", "--list shows them")
    if args.processes < 1:
        raise UsageError(f"{args.processes} processes", "--processes takes a number from 1 on")
    facts = machine.facts()
    figures, missing = _measure(names, Session(Effort(quick=args.quick), args.processes))
    print(report.table(figures, missing))
    if args.json is not None:
        text = json.dumps(report.as_json(facts, figures, missing), indent=1, ensure_ascii=False)
        args.json.write_text(text + "\n")
    if args.save:
        page = report.save(facts, figures, missing, suffix="-clock")
        print(f"written: {page}")
        for picture in plots.save(figures, page.with_suffix("")):
            print(f"written: {picture}")
    if missing:
        raise PartialError(f"not measured: {', '.join(missing)}", "the causes are told above")
    return 1 if args.strict and not all(figure.reached for figure in figures) else 0


def _measure(names: list[str], session: Session) -> tuple[list[Figure], dict[str, str]]:
    """The figures, and why measurements could not be made: one doesn't cost the others."""
    figures: list[Figure] = []
    missing: dict[str, str] = {}
    for name in names:
        line, measure = MEASUREMENTS[name]
        session.effort.say(f"{name}: {line}")
        start = time.monotonic()
        try:
            figures += measure(session)
        except AgentError as error:
            session.effort.say(f"{name}: {error}")
            missing[name] = error.what
        else:
            session.effort.say(f"{name}: {time.monotonic() - start:.0f} s")
    return figures, missing


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.clock",
        description="Measure what the clock promises on synthetic clocks of known truth and on recordings, with "
        "baselines and the limit of what can be known in the same run. Needs no privileges.",
    )
    parser.add_argument("--only", metavar="NAME[,NAME]", help="these measurements (default: all)")
    parser.add_argument(
        "--quick", action="store_true", help="a slice: shows that all works, spreads are wide"
    )
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="at a time (default: 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="everything as JSON")
    parser.add_argument(
        "--save", action="store_true", help="write a page, its JSON and pictures to docs/results/"
    )
    parser.add_argument("--strict", action="store_true", help="exit code 1 if a target is missed")
    parser.add_argument("--list", action="store_true", help="list the measurements and do nothing")
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main())
    except AgentError as error:
        print(f"bench-clock: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("bench-clock: interrupted", file=sys.stderr)
        sys.exit(130)
