"""`make bench-clock`: measure what the clock promises, against baselines, truth and the limit."""

from __future__ import annotations

import argparse

from agent.errors import PartialError, UsageError
from tools.bench import command, machine
from tools.bench.clock import plots
from tools.bench.clock.registry import MEASUREMENTS
from tools.bench.clock.session import Session
from tools.bench.figure import Effort


def main() -> int:
    """Run the chosen measurements; exit code 5 if one could not be made, 1 with --strict if a target is missed."""
    args = _parser().parse_args()
    lines = {name: line for name, (line, _) in MEASUREMENTS.items()}
    if args.list:
        for name, line in lines.items():
            print(f"{name:<12} {line}")
        return 0
    names = command.chosen(args.only, lines)
    if args.processes < 1:
        raise UsageError(f"{args.processes} processes", "--processes takes a number from 1 on")
    facts = machine.facts()
    session = Session(Effort(quick=args.quick), args.processes)
    figures, missing = command.run(names, lines, session.effort, lambda name: MEASUREMENTS[name][1](session))
    page = command.tell(args, facts, figures, missing, suffix="-clock")
    if page is not None:
        for picture in plots.save(figures, page.with_suffix("")):
            print(f"written: {picture}")
    if missing:
        raise PartialError(f"not measured: {', '.join(missing)}", "the causes are told above")
    return command.exit_code(args, figures)


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(
        "tools.bench.clock",
        "Measure what the clock promises on synthetic clocks of known truth and on recordings, with "
        "baselines and the limit of what can be known in the same run. Needs no privileges.",
        quick="a slice: shows that all works, spreads are wide",
        saved="a page, its JSON and pictures",
    )
    command.add_choice(parser)
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="at a time (default: 2)")
    return parser


if __name__ == "__main__":
    command.end("bench-clock", main)
