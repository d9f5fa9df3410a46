"""`make bench`: measure the figures that this program promises and say which are reached."""

from __future__ import annotations

import argparse

from agent.errors import PartialError
from agent.options import require_root
from tools.bench import command, machine
from tools.bench.figure import Effort
from tools.bench.registry import MEASUREMENTS, measurement


def main() -> int:
    """Run the chosen measurements; exit code 5 if one could not be made, 1 with --strict if a target is missed."""
    args = _parser().parse_args()
    if args.list:
        for name, line in MEASUREMENTS.items():
            print(f"{name:<12} {line}")
        return 0
    names = command.chosen(args.only, MEASUREMENTS)
    require_root("bench")
    facts = machine.facts()
    effort = Effort(quick=args.quick)
    figures, missing = command.run(
        names, MEASUREMENTS, effort, lambda name: measurement(name).measure(effort)
    )
    command.tell(args, facts, figures, missing)
    if missing:
        raise PartialError(f"not measured: {', '.join(missing)}", "the causes are told above")
    return command.exit_code(args, figures)


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(
        "tools.bench",
        "Measure the figures that the agent promises, each with both of its sides in one run. Needs root, "
        "makes its own network namespaces, and leaves nothing behind. Best on an otherwise idle machine.",
        quick="few repetitions: wide spreads, a tenth of the time",
    )
    command.add_choice(parser)
    return parser


if __name__ == "__main__":
    command.end("bench", main)
