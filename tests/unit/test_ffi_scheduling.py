"""The agent gives way to whatever else wants its CPU."""

from __future__ import annotations

import subprocess
import sys

import pytest

_THEN = (
    "import os, threading; from agent.ffi.scheduling import give_way; gave = give_way(); seen = []; "
    "thread = threading.Thread(target=lambda: seen.append(os.getpriority(os.PRIO_PROCESS, 0))); "
    "thread.start(); thread.join(); print(gave, os.getpriority(os.PRIO_PROCESS, 0), *seen)"
)


@pytest.mark.parametrize(("began_at", "then"), [(0, "True 10 10"), (5, "False 5 5"), (19, "False 19 19")])
def test_threads_give_way_unless_they_were_started_with_a_niceness(began_at: int, then: str) -> None:
    """Whoever chose a niceness meant it."""
    command = ["nice", "-n", str(began_at), sys.executable, "-c", _THEN]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == then
