"""The testbed's scene: steering to the loaded CPU hurts, steering away helps; other receivers get everything."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from agent.errors import AgentError
from tools.testbed import Testbed, sweep_stale
from tools.testbed.receivers import PacketReceiver, XskReceiver
from tools.testbed.testbed import online_cpus

from .conftest import MakePair, MakeTestbed

pytestmark = pytest.mark.kernel

two_cpus = pytest.mark.skipif(len(online_cpus()) < 2, reason="one CPU: there is no other to steer to")


def span(seconds: float) -> tuple[int, int]:
    """Sleep; the span in mono ns."""
    start = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    time.sleep(seconds)
    return start, time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def open_namespaces() -> set[str]:
    """The names of this process's namespaces."""
    return {path.name for path in Path("/run/netns").glob(f"agt-*-{os.getpid()}-*")}


@two_cpus
def test_steering_away_from_the_loaded_cpu_cuts_the_delay(testbed: MakeTestbed) -> None:
    """By the consumer's own clock, p99 is at least 3 times better once RPS leaves the loaded CPU."""
    bed = testbed(rps_cpu=online_cpus()[-1])
    bed.start_consumer()
    bed.start_traffic()
    bed.start_noise()
    spans = []
    for _ in range(2):
        bed.set_rps(1 << bed.noise_cpu)
        spans.append(span(0.6))
        bed.set_rps(0)
        spans.append(span(0.6))
    sent = bed.stop_traffic()["sent"]
    report = bed.stop_consumer()
    p99 = [report.quantiles_us(*s, 0.99)[0] for s in spans]
    assert min(p99[0], p99[2]) > 3 * min(p99[1], p99[3])
    assert report.received == sent
    assert report.lost == 0


def test_settings_show_the_static_tuning(testbed: MakeTestbed) -> None:
    """The snapshot holds every steering file of the capture interface, as the namespace sees it."""
    bed = testbed(queues=2, rps_cpu=0)
    settings = bed.settings()
    assert settings["/sys/class/net/cap0/queues/rx-1/rps_cpus"].strip(b"0,\n") == b"1"
    assert {Path(path).name for path in settings} >= {"rps_cpus", "rps_flow_cnt", "xps_cpus", "threaded"}


def test_packet_receiver_gets_every_frame_with_its_trailer(testbed: MakeTestbed) -> None:
    """A TPACKET_V3 receiver counts as many frames as were sent, each longer than its IP packet."""
    bed = testbed(rate_pps=5000)
    with PacketReceiver(bed.cap, bed.cap_if) as receiver:
        bed.start_traffic()
        time.sleep(0.3)
        sent = bed.stop_traffic()
        totals = receiver.stop()
    assert totals.dropped == 0
    assert totals.received == totals.with_trailer == bed.counters()["stamped"] > 0
    assert sent["sent"] <= totals.received


def test_xsk_receiver_takes_everything(testbed: MakeTestbed) -> None:
    """An AF_XDP receiver gets all frames, and the stack none."""
    bed = testbed(rate_pps=5000)
    bed.start_consumer()
    with XskReceiver(bed.cap, bed.cap_if, queues=4) as receiver:
        bed.start_traffic()
        time.sleep(0.3)
        sent = bed.stop_traffic()["sent"]
        totals = receiver.stop()
    assert totals.received == sent
    assert totals.dropped == 0
    assert bed.stop_consumer().received == 0


def test_receiver_on_a_missing_interface_says_so(netns_pair: MakePair) -> None:
    """A program that can't start is an error with what it said."""
    pair = netns_pair()
    with pytest.raises(AgentError, match="nosuch"):
        PacketReceiver(pair.right, "nosuch")


def test_nothing_is_left_after_a_failure() -> None:
    """An exception inside the testbed leaves no namespace and no program behind."""
    program = 0
    with pytest.raises(RuntimeError), Testbed(queues=1) as bed:  # noqa: PT012
        bed.start_traffic()
        program = bed._programs["sender"].pid
        assert open_namespaces()
        raise RuntimeError
    assert not open_namespaces()
    assert not Path(f"/proc/{program}").exists()


def has_ended(pid: int) -> bool:
    """It is gone, or only waits for the machine's first process to notice."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def test_a_killed_testbed_is_swept_up() -> None:
    """After SIGKILL the programs end by themselves, and the next start deletes the namespaces."""
    script = (
        "import sys, time\nfrom tools.testbed import Testbed\n"
        "with Testbed(queues=1, rate_pps=1000) as bed:\n"
        "    bed.start_traffic()\n    print(bed.cap.name, bed._programs['sender'].pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child.stdout:
        name, sender = child.stdout.readline().split()
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert Path(f"/run/netns/{name}").exists()
    assert name in sweep_stale()
    assert not Path(f"/run/netns/{name}").exists()
    deadline = time.monotonic() + 10
    while not has_ended(int(sender)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert has_ended(int(sender))
