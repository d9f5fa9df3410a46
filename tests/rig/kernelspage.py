"""docs/kernels.md from what the surveys of the kernels left: `python -m tests.rig.kernelspage DIRECTORY PAGE`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.rig.survey import refusals

_HEAD = """\
# Kernels and loaders

Written by `make kernels` from what was seen, not by hand: each kernel runs `agent doctor --json`, `agent run` and both
loaders' programs, in the rig (docs/rig.md) or, as said below, on the machine itself.
"""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _version(survey: dict[str, Any]) -> tuple[int, ...]:
    return tuple(int(part) for part in survey["kernel"].split(".")[:2])


def page(surveys: list[dict[str, Any]], refused: dict[str, str]) -> str:
    """The whole page."""
    surveys = sorted(surveys, key=_version)
    head = ["", *(f"{s['kernel']} ({s['place']})" for s in surveys)]
    names = list(dict.fromkeys(name for s in surveys for name in s["facts"]))
    sources = list(dict.fromkeys(name for s in surveys for name in s["loaders"]))
    parts = [_HEAD, "## What works\n"]
    facts = [
        [name, *(s["facts"][name]["cell"] if name in s["facts"] else "" for s in surveys)] for name in names
    ]
    parts += [_table(head, facts), "\n## What degrades, and how it is announced\n"]
    for s in surveys:
        parts.append(f"### {s['kernel']}\n")
        lacking = {name: fact for name, fact in s["facts"].items() if not fact["has"] and fact["said"]}
        parts += [f"- {name}: {fact['cell']}. “{fact['said']}”" for name, fact in lacking.items()]
        parts.append("" if lacking else "Nothing.\n")
    parts += [
        "## Loaders\n",
        "The same packets through BPF_PROG_RUN: window records, counters and histograms of `bcc` against those of "
        "`libbpf`, moments masked.\n",
        _table(head, [[name, *(s["loaders"].get(name, "") for s in surveys)] for name in sources]),
        "\nWhat cannot be is said:\n",
        _table(["asked for", "answer"], [[name, text] for name, text in refused.items()]),
        "",
        "A device-bound program cannot be run by BPF_PROG_RUN: the records of `--stamp xdp` are not compared here.",
        "TX metadata of AF_XDP (6.8) is not used: the agent sends nothing.\n",
        "## Before 5.18\n",
        "The programs need the skb's hardware stamp (5.16), bpf_loop (5.17) and XDP with fragments (5.18). "
        "`agent doctor` says so by the version, and tries whether they load, as distributions take such things back. "
        "Debian's 5.10 in the rig (`--kernel 5.10`, 2026-12-03) loads the programs that trace interrupts, and refuses "
        "the capture programs at `skb->hwtstamp`: “invalid bpf_context access off=184 size=8”, after 78,897 "
        "instructions, which took the emulated CPU a minute. It is no part of the table: what needs the capture "
        "programs cannot be asked there.",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    files = sorted(Path(sys.argv[1]).glob("kernel-*.json"))
    Path(sys.argv[2]).write_text(page([json.loads(file.read_text()) for file in files], refusals()))
