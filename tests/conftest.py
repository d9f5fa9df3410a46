"""What holds for all tests: the kernel has to be able to take part."""

from __future__ import annotations

import functools
import subprocess

import pytest

# A dump of the links takes the kernel's RTNL lock for some microseconds.
_PROBE = ("ip", "-o", "link", "show", "dev", "lo")
_PROBE_SECONDS = 20


@functools.cache
def rtnl_problem() -> str:
    """Why nothing about interfaces can be tested here; empty where all is well.

    After a crash inside the kernel its RTNL lock may be held for ever: every process that needs it hangs, and cannot
    even be killed. The probe is left behind in that case, since waiting for it would hang too.
    """
    try:
        probe = subprocess.Popen(_PROBE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except FileNotFoundError:
        return "iproute2 is not installed"
    try:
        probe.wait(_PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        probe.kill()
        return f"this kernel's RTNL lock is held for ever: `{' '.join(_PROBE)}` hangs (see dmesg; reboot)"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs RTNL where it is stuck, saying so, instead of hanging."""
    needing = [item for item in items if item.get_closest_marker("kernel") or item.get_closest_marker("rtnl")]
    if needing and (problem := rtnl_problem()):
        for item in needing:
            item.add_marker(pytest.mark.skip(reason=problem))
