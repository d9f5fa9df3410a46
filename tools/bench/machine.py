"""The facts of the machine and the software that a figure belongs to."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from agent import __version__

_ROOT = Path(__file__).resolve().parents[2]


def facts() -> dict[str, Any]:
    """CPU, cores, kernel, versions, date and commit, as JSON types."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    model = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", cpuinfo, re.M)
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": _commit(),
        "agent": __version__,
        "cpu": model[1] if model else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "hypervisor": "hypervisor" in cpuinfo,
        "kernel": platform.release(),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        "load_1min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "clang": _first_line("clang", "--version"),
        "iperf3": _first_line("iperf3", "--version"),
        "bcc": _bcc_version(),
    }


def _commit() -> str:
    revision = _first_line("git", "-C", str(_ROOT), "rev-parse", "--short=12", "HEAD")
    changed = _first_line("git", "-C", str(_ROOT), "status", "--porcelain", "--untracked-files=no")
    return f"{revision} with local changes" if revision and changed else revision


def _first_line(*command: str) -> str:
    """What a program says of itself; empty if it isn't there."""
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20).stdout
    except FileNotFoundError:
        return ""
    return said.splitlines()[0].strip() if said else ""


def _bcc_version() -> str:
    try:
        import bcc
    except ImportError:
        return ""
    return str(bcc.__version__)
