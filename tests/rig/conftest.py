"""What holds for all tests in the guest: they run nowhere else, and everything takes longer."""

from __future__ import annotations

import os
import sys

import pytest

from tests.kernel import agent_run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip everything outside of the guest: it would load drivers and change the machine's own NIC."""
    if "RIG" not in os.environ:
        anywhere = "test_kernel.py" if "KERNEL_SURVEY" in os.environ else None
        for item in items:
            if item.path.name == anywhere:
                continue
            item.add_marker(pytest.mark.skip(reason="runs in the guest only: make test-rig"))


if "RIG" in os.environ:
    agent_run.AGENT = (sys.executable, "-m", "tests.rig.slow_agent")
# Software emulation is some 14 times slower, and the verifier walks 100,000 instructions.
agent_run.TIMEOUT_S = 150.0
