"""`make bench-control`: the agent against static settings, kernel defaults and the oracle, as loads move."""

from __future__ import annotations

import argparse

from agent.errors import UsageError
from agent.options import require_root
from tools.bench import command, machine
from tools.bench.control.figures import measure
from tools.bench.figure import Effort

_PAIRS, _QUICK_PAIRS = 20, 2


def main() -> int:
    """Measure; exit code 1 with --strict if a target is missed."""
    args = _parser().parse_args()
    require_root("bench-control")
    facts = machine.facts()
    if args.pairs < 1:
        raise UsageError(f"--pairs {args.pairs}: nothing would be measured", "1 or more")
    figures = measure(Effort(quick=args.quick), _QUICK_PAIRS if args.quick else args.pairs)
    command.tell(args, facts, figures, suffix="-control")
    return command.exit_code(args, figures)


def _parser() -> argparse.ArgumentParser:
    flags = command.parser(
        "tools.bench.control",
        "Measure what steering queues is worth, by the consumer's own clock, both sides in one run. Needs "
        "root, makes its own network namespaces, and leaves nothing behind. Takes 70 minutes; best on an idle machine.",
        quick="two rounds, in shorter spans: shows that all of it works",
    )
    flags.add_argument(
        "--pairs", type=int, default=_PAIRS, metavar="N",
        help="rounds over the moving loads, and of all else in proportion (default 20; 8 take half an hour)",
    )  # fmt: skip
    return flags


if __name__ == "__main__":
    command.end("bench", main)
