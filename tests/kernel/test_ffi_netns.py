"""Entering a network namespace: in a process of its own, since there is no way back."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel import ffi_probe

pytestmark = pytest.mark.kernel

_REPORT = """
import json, os, sys
from agent.errors import AgentError
from agent.ffi.netns import enter_netns
before = [l.split()[4] for l in open("/proc/self/mountinfo")]
try:
    lost = enter_netns(sys.argv[1])
except AgentError as error:
    print(json.dumps({"error": str(error)}))
else:
    print(json.dumps({
        "lost": lost, "net": sorted(os.listdir("/sys/class/net")),
        "visible": [p for p in before if p.startswith("/sys/") and os.path.ismount(p)],
        "below_sys": [p for p in before if p.startswith("/sys/")],
    }))
"""


def enter(name: str) -> dict[str, list[str]]:
    """What a process sees that entered a namespace."""
    done = subprocess.run([sys.executable, "-c", _REPORT, name], capture_output=True, text=True, check=True)
    report: dict[str, list[str]] = json.loads(done.stdout)
    return report


def test_sysfs_shows_the_namespace_and_keeps_what_is_mounted_below() -> None:
    """The interfaces are the namespace's; cgroups and bpffs below /sys are still mounted."""
    with ffi_probe.inside_veth_pair() as pair:
        report = enter(pair.netns)
    assert {"inner", "outer", "lo"} <= set(report["net"])
    assert report["lost"] == []
    assert report["visible"] == report["below_sys"]


def test_the_caller_is_not_affected() -> None:
    """Mounts and namespaces of other processes stay as they were."""
    before = Path("/proc/self/ns/net").readlink(), Path("/proc/self/mountinfo").read_text()
    with ffi_probe.inside_veth_pair() as pair:
        enter(pair.netns)
    assert (Path("/proc/self/ns/net").readlink(), Path("/proc/self/mountinfo").read_text()) == before


@pytest.mark.parametrize("name", ["agt-ffi-no-such", "/dev/null"])
def test_what_is_no_namespace_is_named(name: str) -> None:
    """A missing name and a file of another kind give an error that names them."""
    assert name in str(enter(name)["error"])
