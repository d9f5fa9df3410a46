"""A real PTP daemon steers the clock that the agent follows: its filter stays, its steering is no jump and no drift."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from agent.clock.trust import CLOCK_JUMPS
from agent.ffi.hwtstamp import HwtstampConfig, hwtstamp_config
from tests.kernel.agent_run import AgentRun
from tests.rig.testnic import CAPTURED, FAR, REPOSITORY, Wire
from tools.testbed.namespace import Namespace, stop

PTP4L = REPOSITORY / "build/rig/host/usr/sbin/ptp4l"
LOCKED = " s2 "


def _daemon(namespace: Namespace, ifname: str, where: Path, *role: str) -> subprocess.Popen[bytes]:
    """ptp4l over Ethernet on an interface; what it says goes into `where`/IF.log.

    Its check of the clock's sanity is off: in an emulated machine that others share, it is late itself.
    """
    command = [str(PTP4L), "-i", ifname, "-2", "-m", "-q", "--sanity_freq_limit", "0", *role]
    command += ["--logAnnounceInterval", "-1", "--announceReceiptTimeout", "3"]
    command += ["--uds_address", str(where / f"{ifname}.sock"), "--tx_timestamp_timeout", "500"]
    with (where / f"{ifname}.log").open("wb") as log:
        return namespace.popen(command, stdout=log, stderr=log)


def _filter(wire: Wire) -> HwtstampConfig | None:
    return wire.here.call(lambda: hwtstamp_config(CAPTURED))


def _until_locked(log: Path, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while log.read_text().count(LOCKED) < 4:
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)


@pytest.mark.minutes
@pytest.mark.skipif(not PTP4L.exists(), reason="linuxptp is not unpacked")
def test_a_slave_beside_the_agent(tmp_path: Path) -> None:
    """ptp4l locks 20 ppm and goes on steering: the offset stays within its bound, its filter is never touched."""
    with Wire() as wire:
        wire.clock.set("rate_ppt", 20_000_000)
        wire.send(300)
        daemons = [
            _daemon(wire.far, FAR, tmp_path, "--priority1", "100"),
            _daemon(wire.here, CAPTURED, tmp_path, "-s"),
        ]
        try:
            _until_locked(tmp_path / f"{CAPTURED}.log")
            theirs = _filter(wire)
            flags = ("--stamp", "skb", "--deny", "irq,rps,xps,napi")
            with AgentRun(wire.here, tmp_path / "state", *flags, interfaces=(CAPTURED,)) as run:
                run.wait_for("clock", lambda frame: frame["state"] == "tracking")
                target = len(run.of_kind("clock")) + 40
                run.wait_until(lambda: len(run.of_kind("clock")) >= target)
                beside = _filter(wire)
                truth = wire.clock.truth()
                assert run.stop() == 0, run.said()
            assert [daemon.poll() for daemon in daemons] == [None, None]
        finally:
            for daemon in daemons:
                stop(daemon)
        after = _filter(wire)
    assert theirs is not None
    assert theirs.rx_on
    assert (beside, after) == (theirs, theirs)
    assert "is left as it is" in run.notes()
    assert "another program steers" in run.notes()
    assert run.counters(CAPTURED)["phc_adjustments"] >= 5
    tracked = [frame for frame in run.of_kind("clock") if frame["state"] == "tracking"][5:]
    assert not {tag["kind"] for frame in tracked for tag in frame["tags"]} & CLOCK_JUMPS
    errors = [abs(f["offset_ns"] - truth.offset_ns(f["mono_ns"])) for f in tracked]
    inside = [error <= frame["bound_ns"] for error, frame in zip(errors, tracked, strict=True)]
    assert np.mean(inside) >= 0.95
    assert run.of_kind("ptp"), "the Announces on the wire are told"
