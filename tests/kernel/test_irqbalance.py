"""A real irqbalance, which sees a copy of /proc/irq: none of this machine's interrupts moves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a mount namespace"),
    pytest.mark.skipif(shutil.which("irqbalance") is None, reason="irqbalance is not installed"),
]

# In a mount namespace of its own: $1 is an empty directory, $2 the Python program below, $3 its interpreter.
_APART = """
set -e
mount --make-rprivate /
mount -t tmpfs none "$1"
mkdir "$1/irq" "$1/run"
cp -r /proc/irq/. "$1/irq/" 2>/dev/null || true
mount --bind "$1/irq" /proc/irq
mount --bind "$1/run" /run
mkdir /run/irqbalance
touch /proc/irq/copied
irqbalance --foreground -t 1 >&2 &
daemon=$!
"$3" -c "$2" "$daemon" "$1"
kill "$daemon"
wait "$daemon" || true
"""
_OWN = """
import json, sys, time
from pathlib import Path
from agent.control.journal import Journal, Scope, netns_inode
from agent.control.settings import kind_of
from agent.host.napi import read_thread
from agent.host.paths import HostPaths
from agent.irqbalance import BansSetting, Irqbalance

pid, directory = int(sys.argv[1]), Path(sys.argv[2])
target = BansSetting.target(pid, read_thread(Path(f"/proc/{pid}"))[0])
kind = kind_of("irqbalance-bans")
deadline = time.monotonic() + 20
while not Path(f"/run/irqbalance/irqbalance{pid}.sock").exists() and time.monotonic() < deadline:
    time.sleep(0.05)
seen = [kind.read(target).decode()]
numbers = sorted(int(entry.name) for entry in Path("/proc/irq").iterdir() if entry.name.isdigit())[-2:]
with Journal(directory / "state", Scope("lo", 1, netns_inode())) as journal:
    notes = Irqbalance(HostPaths(), numbers, journal).follow(0)
    time.sleep(1.5)  # it balances once
    seen.append(kind.read(target).decode())
seen.append(kind.read(target).decode())
print(json.dumps({"seen": seen, "irqs": numbers, "notes": notes}))
"""


def test_a_real_irqbalance_leaves_our_interrupts_alone_and_gets_them_back(tmp_path: Path) -> None:
    """Its own answer, before, while they are ours, and after."""
    apart = tmp_path / "apart"
    apart.mkdir()
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", _APART, "sh", str(apart), _OWN, sys.executable],
        stdout=subprocess.PIPE,
        check=True,
        timeout=60,
    )
    assert not Path("/proc/irq/copied").exists()
    told = json.loads(done.stdout)
    ours = " ".join(map(str, told["irqs"])) + "\n"
    assert told["seen"] == ["none\n", ours, "none\n"]
    assert "leaves IRQ" in told["notes"][0]
