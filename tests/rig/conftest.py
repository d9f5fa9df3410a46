"""What holds for all tests in the guest: they run nowhere else, and everything takes longer."""

from __future__ import annotations

import os
import sys

import pytest

from tests.kernel import agent_run


def pytest_addoption(parser: pytest.Parser) -> None:
    """What `make test-rig ARGS=--all` gives."""
    parser.addoption("--all", action="store_true", help="the tests that take minutes as well")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip everything outside of the guest: it would load drivers and change the machine's own NIC.

    In it, skip what takes minutes unless it is asked for.
    """
    if "RIG" in os.environ and not config.getoption("--all", False):
        for item in items:
            if item.get_closest_marker("minutes"):
                item.add_marker(pytest.mark.skip(reason="takes minutes: make test-rig ARGS=--all"))
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
