"""`agent run`: the main job."""

from __future__ import annotations

import argparse
import sys

from agent.cli._begin import begin
from agent.errors import PartialError
from agent.options import (
    add_batch_arguments,
    add_refclock_arguments,
    add_rewrite_arguments,
    add_run_arguments,
)
from agent.signals import hold_end_signals


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "run",
        help="measure, predict, tune and undo on one or more interfaces (the main job)",
        description="Stamp packets in the kernel, track the hardware clock, tune IRQs and queues, measure the effect "
        "and undo what did not help. On a terminal it shows a status view; into a pipe or file it writes msgpack "
        "telemetry (read it with `agent decode`). SIGINT, SIGTERM and SIGHUP end it cleanly: programs detached, "
        "settings back.",
        epilog="exit codes: 0 done, 2 usage, 3 host unsupported, 4 conflict with another owner, 5 partly done "
        "(the telemetry reader went away, an interface vanished or lost our program, or a setting was not put back)",
    )
    add_run_arguments(parser)
    add_refclock_arguments(parser)
    add_rewrite_arguments(parser)
    add_batch_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the loop until it ends; returns its exit code."""
    options = begin(args, "run")
    hold_end_signals()
    from agent.ffi.scheduling import give_way

    give_way()
    from agent.loop import Loop
    from agent.telemetry.output import StreamOutput
    from agent.telemetry.status import StatusView

    output: StreamOutput | StatusView
    stdout = sys.stdout.fileno()
    output = StatusView(stdout) if sys.stdout.isatty() else StreamOutput(stdout)
    try:
        code = Loop(options, output).run()
    finally:
        complete = output.close()
    if complete is False:
        raise PartialError(
            f"the reader did not read the end of the telemetry ({output.closed_reason}); everything is restored",
            "see that the collector keeps up, or that the disk has room",
        )
    return code
