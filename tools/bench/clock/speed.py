"""How fast `agent replay --json` goes through a recording, the program's start included."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from agent.errors import AgentError, UnsupportedError
from tools.bench.clock import catalog
from tools.bench.clock.session import Session
from tools.bench.clock.traces import Trace
from tools.bench.figure import Figure, min_to_max

_TRACE = "tcxo-one-sided-10hz"
_REPLAY = [sys.executable, "-m", "agent", "replay"]


def measure(session: Session) -> list[Figure]:
    """Samples/s of the whole command with all experts, its lines thrown away. UnsupportedError without a command."""
    if subprocess.run([*_REPLAY, "--help"], capture_output=True, check=False).returncode != 0:
        raise UnsupportedError("`agent replay` isn't there", "measure again once it is")
    trace = catalog.trace(_TRACE)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "recording.csv"
        file.write_text(as_csv(trace))
        rates = [len(trace) / _seconds(file) for _ in range(session.effort.repeat(3, 1))]
    value = float(np.median(rates))
    what = "samples/s of `agent replay --json`, all experts, start and reading included"
    detail = {"samples": len(trace), "trace": _TRACE}
    return [
        Figure(
            "replay-speed", what, value, "samples/s", 2000, "at least", min_to_max(rates), len(rates), detail
        )
    ]


def _seconds(file: Path) -> float:
    start = time.monotonic()
    done = subprocess.run(
        [*_REPLAY, str(file), "--json"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise AgentError(f"`agent replay` left with {done.returncode}: {done.stderr.strip()}")
    return time.monotonic() - start


def as_csv(trace: Trace) -> str:
    """The trace in the format that `agent replay` reads."""
    rows = zip(trace.local_ns.tolist(), trace.hw_ns.tolist(), trace.read_delay_ns.tolist(), strict=True)
    lines = [f"{local},{hw or ''},{delay or ''}" for local, hw, delay in rows]
    return "\n".join(["local_ns,hw_ns,read_delay_ns", *lines]) + "\n"
