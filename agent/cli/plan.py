"""`agent plan`: what `run` would change and why, changing nothing."""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from agent.cli._begin import begin
from agent.options import add_run_arguments
from agent.signals import hold_end_signals

if TYPE_CHECKING:
    from agent.telemetry.schema import Frame

_DEFAULT_SECONDS = 4.0


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "plan",
        help="show what `run` would change and why, changing nothing",
        description=f"Watch the interfaces for {_DEFAULT_SECONDS:g} s (or --seconds) as `agent run --observe` does, "
        "then show for every queue what is set, what would be set, the delay measured now and predicted then, and "
        "what decided. Nothing is changed.",
    )
    add_run_arguments(parser, f"{_DEFAULT_SECONDS:g}")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure, explain; returns 0."""
    options = begin(args, "plan")
    hold_end_signals()
    from agent.control.plan import render_reports
    from agent.loop import Loop
    from agent.telemetry.output import NoOutput

    seconds = options.seconds or _DEFAULT_SECONDS

    class Announcing(NoOutput):
        """Says how long it takes, once the interfaces are there."""

        def put(self, frame: Frame, *, keep: bool = False) -> None:
            if frame["t"] == "hello":
                print(f"measuring for {seconds:g} s …", file=sys.stderr)

    loop = Loop(replace(options, observe=True, refclock=None, seconds=seconds), Announcing())
    loop.run()
    reports = loop.reports
    if not args.json:
        print(render_reports(reports))
        return 0
    lanes = [
        {
            "ifname": report.ifname,
            "queues": report.queues,
            "actuator": report.lever,
            "current": report.current,
            "wanted": report.wanted,
            "measured": {
                "n": report.now.n,
                "p50_us": _us(report.now.p50_ns),
                "p99_us": _us(report.now.p99_ns),
            },
            "predicted": None
            if report.expected is None
            else {"p50_us": _us(report.expected.p50_ns), "p99_us": _us(report.expected.p99_ns)},
            "reason": report.reason,
            "cause": report.cause,
        }
        for report in reports
    ]
    json.dump({"seconds": seconds, "lanes": lanes}, sys.stdout)
    print()
    return 0


def _us(value_ns: float) -> float | None:
    return round(value_ns / 1e3, 3) if math.isfinite(value_ns) else None
