"""`agent restore`: put back what a killed run left changed."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "restore",
        help="put back what a killed run left changed",
        description="Put every setting that a killed or crashed `agent run` left changed, or `agent doctor --fix` "
        "changed, back to its value from before, byte for byte, from its journal. A value that somebody else changed "
        "since is reported and left, unless forced. Journals of an earlier boot are discarded: those settings ended "
        "with that boot.",
        epilog="exit codes: 0 everything is back (also when there was nothing to do), 4 an agent still runs, "
        "5 something was left as it is",
    )
    parser.add_argument(
        "-i", "--interface", dest="ifname", metavar="IF", help="only this interface (default: all)"
    )
    parser.add_argument(
        "--force", action="store_true", help="overwrite values that somebody else changed since"
    )
    parser.add_argument(
        "--discard",
        action="store_true",
        help="leave values that somebody else changed since or that cannot be written any more, and forget them",
    )
    parser.add_argument(
        "--state-dir",
        type=Path,
        default=Path("/run/agent"),
        metavar="DIR",
        help="journals (default /run/agent)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Restore, report each setting; raises `ConflictError` or `PartialError` when something is left."""
    # These register their kinds of settings with the journal.
    import agent.control.coalesce
    import agent.fixes
    import agent.irqbalance
    import agent.stamping
    import agent.tc  # noqa: F401
    from agent.control.journal import require_complete, restore
    from agent.telemetry.figures import printable

    results = restore(args.state_dir, args.force, args.ifname, args.discard)
    if args.json:
        items = [
            {
                "scope": item.scope,
                "kind": item.kind,
                "target": item.target,
                "outcome": item.outcome,
                "wanted": item.wanted.decode(errors="replace"),
                "found": item.found.decode(errors="replace"),
                "reason": item.reason,
            }
            for item in results
        ]
        json.dump({"restored": items}, sys.stdout)
        print()
    elif not results:
        of = f" of {args.ifname}" if args.ifname else ""
        print(f"nothing to restore: no journal{of} in {args.state_dir}")
    else:
        for item in results:
            if item.outcome == "owner_running":  # the error below tells it
                continue
            value = f" = {item.wanted.decode(errors='replace').strip()}" if item.outcome == "restored" else ""
            reason = f"  ({item.reason})" if item.reason else ""
            # A damaged journal may hold anything, control sequences too.
            print(printable(f"{item.outcome:<17} {item.target or item.scope}{value}{reason}"))
    require_complete(results)
    return 0
