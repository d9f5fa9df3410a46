"""`make bench-control`: the agent against static settings, kernel defaults and the oracle, as loads move."""

from __future__ import annotations

import argparse

from agent.options import require_root
from tools.bench import command, machine
from tools.bench.control.figures import measure
from tools.bench.figure import Effort


def main() -> int:
    """Measure; exit code 1 with --strict if a target is missed."""
    args = _parser().parse_args()
    require_root("bench-control")
    facts = machine.facts()
    figures = measure(Effort(quick=args.quick))
    command.tell(args, facts, figures, suffix="-control")
    return command.exit_code(args, figures)


def _parser() -> argparse.ArgumentParser:
    return command.parser(
        "tools.bench.control",
        "Measure what steering queues is worth, by the consumer's own clock, both sides in one run. Needs "
        "root, makes its own network namespaces, and leaves nothing behind. Takes an hour; best on an idle machine.",
        quick="two rounds: shows that all of it works",
    )


if __name__ == "__main__":
    command.end("bench", main)
