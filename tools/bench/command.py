"""What the bench commands have in common: flags, how measurements are run, what becomes of figures, exit codes."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from agent.errors import AgentError, UsageError
from tools.bench import report
from tools.bench.figure import Effort, Figure


def parser(
    module: str, description: str, *, quick: str, saved: str = "a page and its JSON"
) -> argparse.ArgumentParser:
    """The flags of every bench; `quick` says what --quick gives, `saved` what --save writes."""
    flags = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    flags.add_argument("--quick", action="store_true", help=quick)
    flags.add_argument("--json", type=Path, metavar="FILE", help="everything as JSON")
    flags.add_argument("--save", action="store_true", help=f"write {saved} to docs/results/")
    flags.add_argument("--strict", action="store_true", help="exit code 1 if a target is missed")
    return flags


def add_choice(flags: argparse.ArgumentParser) -> None:
    """The flags of a bench of several measurements."""
    flags.add_argument("--only", metavar="NAME[,NAME]", help="these measurements (default: all)")
    flags.add_argument("--list", action="store_true", help="list the measurements and do nothing")


def chosen(only: str | None, known: Iterable[str]) -> list[str]:
    """The measurements that `--only` names, all without it. Raises `UsageError` for one that is not known."""
    names = list(known) if only is None else only.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"no measurement {', '.join(unknown)}", "--list shows them")
    return names


def run(
    names: Iterable[str], lines: Mapping[str, str], effort: Effort, measure: Callable[[str], list[Figure]]
) -> tuple[list[Figure], dict[str, str]]:
    """The figures, and why measurements could not be made: one doesn't cost the others. `lines` say what each is."""
    figures: list[Figure] = []
    missing: dict[str, str] = {}
    for name in names:
        effort.say(f"{name}: {lines[name]}")
        start = time.monotonic()
        try:
            figures += measure(name)
        except AgentError as error:
            effort.say(f"{name}: {error}")
            missing[name] = error.what
        else:
            effort.say(f"{name}: {time.monotonic() - start:.0f} s")
    return figures, missing


def tell(
    args: argparse.Namespace,
    facts: dict[str, Any],
    figures: list[Figure],
    missing: Mapping[str, str] | None = None,
    *,
    suffix: str = "",
) -> Path | None:
    """Print the figures, and write what `--json` and `--save` ask for; returns the page that was saved."""
    missing = missing or {}
    print(report.table(figures, missing))
    if args.json is not None:
        text = json.dumps(report.as_json(facts, figures, missing), indent=1, ensure_ascii=False)
        args.json.write_text(text + "\n")
    if not args.save:
        return None
    page = report.save(facts, figures, missing, suffix=suffix)
    print(f"written: {page}")
    return page


def exit_code(args: argparse.Namespace, figures: list[Figure]) -> int:
    """1 with `--strict` if a target is missed, else 0."""
    return 1 if args.strict and not all(figure.reached for figure in figures) else 0


def end(name: str, main: Callable[[], int]) -> NoReturn:
    """Run a bench and exit; what it cannot do is said on stderr, with its exit code."""
    try:
        sys.exit(main())
    except AgentError as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        sys.exit(130)
