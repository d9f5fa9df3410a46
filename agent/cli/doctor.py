"""`agent doctor`: what this host can and cannot do, each with cause and remedy. Changes nothing, but with `--fix`."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from agent.errors import PartialError, UnsupportedError, UsageError
from agent.host.consumers import find_pids
from agent.host.paths import HostPaths
from agent.host.rtnl import require_answers
from agent.telemetry.figures import printable

if TYPE_CHECKING:
    from agent.doctor import Check
    from agent.fixes import Fixed

_COLOURS = {"ok": "32", "info": "36", "warn": "33", "fail": "1;31"}
_MAX_WIDTH = 120
_LABEL_WIDTH = 25
_INDENT = 2 + 4 + 2 + _LABEL_WIDTH

_EPILOG = """\
ok: as it should be. info: good to know. warn: works with less, or worse. fail: `agent run` cannot work here.
exit codes: 0 `agent run` can work on this host, 2 no such interface, 3 it cannot, 5 something was not fixed
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare `agent doctor`."""
    parser = subparsers.add_parser(
        "doctor",
        help="check what this host can and cannot do, each with cause and remedy",
        description="Check privileges, kernel, loaders, clocks and CPUs, and one interface if it is named. "
        "Nothing is changed without --fix.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-i", "--interface", dest="ifname", metavar="IF", help="check this interface too")
    parser.add_argument("--netns", metavar="NAME", help="network namespace that the interface is in")
    parser.add_argument(
        "--consumer",
        dest="consumers",
        action="append",
        default=[],
        metavar="PID|NAME",
        help="a program that the packets are for: check its CPUs and memory too; repeat for several",
    )
    parser.add_argument(
        "--fix",
        action="store_true",
        help="change what is safe, until `agent restore`: slow frequency governors now; an idle limit "
        "(/dev/cpu_dma_latency) and memory on the NIC's NUMA node in every `agent run`",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument(
        "--state-dir",
        type=Path,
        default=Path("/run/agent"),
        metavar="DIR",
        help="where journals are (default /run/agent)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the report; 0, or 3 if a check failed.

    Raises `UsageError` if there is no such interface, `UnsupportedError` where the kernel does not answer.
    """
    from agent.doctor import Context, run_checks, worst

    if args.netns is not None:
        from agent.ffi.netns import enter_netns

        enter_netns(args.netns)
    require_answers()
    consumers = _pids(args.consumers)
    fixed = _fix(args.state_dir) if args.fix else []
    checks = run_checks(Context(ifname=args.ifname, state_dir=args.state_dir, consumers=consumers))
    verdict = worst(checks)
    if args.json:
        answer = {"verdict": verdict, "checks": [asdict(check) for check in checks]}
        if args.fix:
            answer["fixed"] = [asdict(item) for item in fixed]
        print(json.dumps(answer))
    else:
        if args.fix:
            print("\n".join([*told(fixed), ""]))
        width = min(shutil.get_terminal_size((_MAX_WIDTH, 24)).columns, _MAX_WIDTH)
        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        print("\n".join(report(checks, max(width, 60), colour=colour)))
    if verdict == "fail":
        return UnsupportedError.exit_code
    return PartialError.exit_code if any(item.problem for item in fixed) else 0


def told(fixed: Iterable[Fixed]) -> Iterator[str]:
    """What `--fix` has changed, a line each."""
    yield "fixed"
    lines = [
        f"  {item.target}: {item.before or 'none'} → {item.after or 'none'}"
        + (f"  failed: {item.problem}" if item.problem else "")
        for item in fixed
    ]
    yield from map(printable, lines or ["  nothing: all that is safe to change is as it should be"])
    if lines:
        yield "  `agent restore` undoes it"


def _fix(state_dir: Path) -> list[Fixed]:
    """Apply the safe ones. Raises `UnsupportedError` without root, and what `apply_fixes` raises."""
    from agent.fixes import apply_fixes

    if os.geteuid() != 0:
        raise UnsupportedError("--fix changes settings of the host, which takes root", "run it by sudo")
    return apply_fixes(HostPaths(), state_dir)


def _pids(wanted: list[str]) -> tuple[int, ...]:
    """The consumers' process ids. Raises `UsageError` for one that does not run."""
    found = find_pids(HostPaths(), wanted)
    absent = [word for word, pids in found.items() if not pids]
    if absent:
        raise UsageError(f"no process {absent[0]!r} runs here", "name a process id or a program that runs")
    return tuple(sorted({pid for pids in found.values() for pid in pids}))


def report(checks: Iterable[Check], width: int, *, colour: bool) -> Iterator[str]:
    """The report's lines: groups, one check a line, below it why and what to do unless all is well."""
    counts = dict.fromkeys(_COLOURS, 0)
    for group, members in groupby(checks, key=lambda check: check.group):
        yield printable(group)
        for check in members:
            counts[check.severity] += 1
            mark = f"{check.severity:<4}"
            if colour:
                mark = f"\x1b[{_COLOURS[check.severity]}m{mark}\x1b[0m"
            first, *rest = _wrapped(check.found, width)
            yield f"  {mark}  {printable(check.name):<{_LABEL_WIDTH}}{first}"
            yield from _below(rest)
            if check.why and check.severity != "ok":
                yield from _below(_wrapped(check.why, width))
            if check.remedy and check.severity != "ok":
                yield from _below(_wrapped(f"→ {check.remedy}", width))
        yield ""
    yield ", ".join(f"{number} {severity}" for severity, number in counts.items() if number) + (
        ": `agent run` cannot work on this host" if counts["fail"] else ""
    )


def _below(lines: Iterable[str]) -> Iterator[str]:
    """Lines below a check's first one, under its text."""
    for line in lines:
        yield " " * _INDENT + line


def _wrapped(text: str, width: int) -> list[str]:
    room = max(20, width - _INDENT)
    lines = [printable(line) for line in text.splitlines()]
    return [part for line in lines for part in textwrap.wrap(line, room, break_on_hyphens=False)] or [""]
