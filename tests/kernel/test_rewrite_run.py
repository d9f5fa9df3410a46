"""`agent run --rewrite-timestamps`: what an unmodified application sees by SO_TIMESTAMPNS, against the true clock."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import numpy as np
import pytest

from tests.kernel.agent_run import AgentRun
from tests.kernel.conftest import MakeTestbed
from tools.bench.ingest.receivetime import PAYLOAD, application, receive
from tools.testbed import Testbed
from tools.testbed.testbed import PORT

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and BPF"),
]

PLAIN_PORT = 25_000
FLAGS = ("--stamp", "trailer", "--rewrite-timestamps", "tai")


@pytest.fixture
def bed(testbed: MakeTestbed) -> Testbed:
    """A switch whose clock counts TAI and drifts by 12 ppm, one flow."""
    bed = testbed(queues=1, flows=1, rate_pps=2_000, drift_ppb=12_000, wander_ppb_per_sqrt_s=0.0)
    bed.start_traffic()
    return bed


def test_stamped_packets_show_their_hardware_time(bed: Testbed, tmp_path: Path) -> None:
    """1000 packets: the switch's stamp of each, to the accuracy with which its truth is known."""
    with AgentRun(bed.cap, tmp_path, *FLAGS) as run:
        run.wait_until(lambda: "receive timestamps are tai" in run.notes())
        with application(bed, PORT) as receiver:
            got = [receive(receiver) for _ in range(1_000)]
        assert run.stop() == 0
    truth = bed.phc.truth()
    sent_ns = np.array([PAYLOAD.unpack_from(data)[3] for data, _ in got])
    error_ns = np.array([stamp for _, stamp in got]) - truth.phc_ns(sent_ns)
    assert np.percentile(np.abs(error_ns), 99) <= 1_000
    assert run.counters()["rewritten"] > 1_000


def test_plain_packets_show_the_clocks_time(bed: Testbed, tmp_path: Path) -> None:
    """Without a stamp: between the true time of sending and of receiving, to 2 µs, although the clock drifts."""
    with AgentRun(bed.cap, tmp_path, *FLAGS) as run:
        run.wait_until(lambda: "receive timestamps are tai" in run.notes())
        sender = bed.gen.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        got = []
        with sender, application(bed, PLAIN_PORT) as receiver:
            for _ in range(300):
                before = time.monotonic_ns()
                sender.sendto(b"x" * 64, (bed.pair.right_ip, PLAIN_PORT))
                _, stamp = receive(receiver)
                got.append((before, time.monotonic_ns(), stamp))
        assert run.stop() == 0
    truth = bed.phc.truth()
    sent_ns, received_ns, stamps = np.array(got).T
    assert np.percentile(stamps - truth.phc_ns(sent_ns), 1) >= -2_000
    assert np.percentile(truth.phc_ns(received_ns) - stamps, 1) >= -2_000


def test_after_the_agent_the_kernels_time_is_back(bed: Testbed, tmp_path: Path) -> None:
    """The programs are gone with it, also after SIGKILL: CLOCK_REALTIME again, 37 s earlier than TAI."""
    with AgentRun(bed.cap, tmp_path, *FLAGS) as run:
        run.wait_until(lambda: "receive timestamps are tai" in run.notes())
        with application(bed, PORT) as receiver:
            _, stamp = receive(receiver)
            assert stamp - time.time_ns() > 30 * 10**9
            run.process.kill()
            run.process.wait()
            while receive(receiver)[1] - time.time_ns() > 30 * 10**9:
                pass
            _, stamp = receive(receiver)
            assert abs(stamp - time.time_ns()) < 5 * 10**9
