"""A bad example: e1000e announces stamps for all packets and a PHC, stamps none, and its PHC runs 1.5 % fast."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.agent_run import agent

pytestmark = pytest.mark.minutes

MAC = "52:54:00:00:00:03"
REFUSED = "% fast, which no oscillator does: refused as a time source"


@pytest.fixture(scope="module")
def ifname() -> Iterator[str]:
    """Its interface, up, for as long as the tests run."""
    subprocess.run(["modprobe", "e1000e"], check=True, timeout=60)
    for address in Path("/sys/class/net").glob("eth*/address"):
        if address.read_text().strip() == MAC:
            subprocess.run(["ip", "link", "set", address.parent.name, "up"], check=True, timeout=60)
            yield address.parent.name
            break
    else:
        pytest.fail("the driver made no interface")
    subprocess.run(["rmmod", "e1000e"], check=True, timeout=60)


def test_it_is_refused_as_a_time_source(ifname: str, tmp_path: Path) -> None:
    """Stamps asked for by name: exit code 3, the clock, how fast it runs, and what to use instead."""
    done = agent("run", "-i", ifname, "--state-dir", str(tmp_path), "--stamp", "skb", "--seconds", "1")
    said = done.stderr.decode()
    assert done.returncode == 3, said
    assert REFUSED in said
    assert "--stamp none" in said


def test_the_doctor_warns_of_it(ifname: str) -> None:
    """What `agent run` takes is software delays, and the reason is the clock."""
    done = agent("doctor", "-i", ifname, "--json")
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    takes = checks["agent run takes"]
    assert takes["severity"] == "warn"
    assert REFUSED in takes["found"]
    assert "e1000e" in checks["link"]["found"]
