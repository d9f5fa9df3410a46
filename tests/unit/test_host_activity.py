"""What is said of CPUs' interrupts and softirqs, and how it is computed from two looks at the counters."""

from __future__ import annotations

import math

import numpy as np
import pytest

from agent.ffi.records import IRQ_CPU_DTYPE, IRQ_LINE_DTYPE, hist_bucket, hist_edges_ns
from agent.host.activity import SOFTIRQ_NAMES, CpuActivity, IrqActivity, IrqRate, traced, why_slow
from agent.host.load import CpuLoad, CpuShare
from agent.irqtrace import Snapshot, difference
from agent.telemetry.encode import Encoder
from agent.telemetry.readable import Readable
from tests.unit import telemetry_frames as sample

NET_RX = SOFTIRQ_NAMES.index("net_rx")


def snapshot(mono_ns: int, cpus: int = 3, lines: int = 2) -> Snapshot:
    """Counters that are all zero."""
    return Snapshot(mono_ns, np.zeros(cpus, IRQ_CPU_DTYPE), np.zeros(lines, IRQ_LINE_DTYPE))


def test_shares_and_rates_are_of_the_span() -> None:
    """Half a second: 100 ms of NET_RX are a fifth, 50 interrupts are 100 a second."""
    before, now = snapshot(10**9), snapshot(1_500_000_000)
    cpu = now.cpus[1]
    cpu["irq_ns"], cpu["irqs"] = 5_000_000, 50
    cpu["softirq_ns"][NET_RX], cpu["softirqs"][NET_RX] = 100_000_000, 40
    cpu["polls"], cpu["polled"], cpu["exhausted"] = 40, 1_000, 10
    now.lines[1]["count"], now.lines[1]["ns"] = 50, 5_000_000
    activity = difference(before, now, [30, 31])
    assert activity.seconds == 0.5
    assert set(activity.cpus) == {1}
    seen = activity.cpus[1]
    assert seen.irq == pytest.approx(0.01)
    assert seen.softirq == seen.net_rx == pytest.approx(0.2)
    assert seen.polls_per_s == pytest.approx(80)
    assert seen.packets_per_poll == pytest.approx(25)
    assert seen.exhausted == pytest.approx(0.25)
    assert activity.irqs == {31: IrqRate(100.0, 0.01)}


def test_the_wait_is_that_of_the_span_alone() -> None:
    """Only what the histogram grew by counts, also when a bucket wrapped; without NET_RX there is no wait."""
    before, now = snapshot(0), snapshot(10**9)
    early, late = int(hist_bucket(1_000)), int(hist_bucket(80_000))
    before.cpus[0]["rx_wait"]["bucket"][early] = now.cpus[0]["rx_wait"]["bucket"][early] = 10**6
    before.cpus[0]["rx_wait"]["bucket"][late] = 2**32 - 60
    now.cpus[0]["rx_wait"]["bucket"][late] = 40
    now.cpus[:2]["softirqs"][:, NET_RX] = 100
    activity = difference(before, now, [30, 31])
    edges = hist_edges_ns()
    assert edges[late] <= activity.cpus[0].wait_p50_ns <= activity.cpus[0].wait_p99_ns <= edges[late + 1]
    assert math.isnan(activity.cpus[1].wait_p99_ns)


def test_idle_host_has_no_rows() -> None:
    """CPUs and interrupts on which nothing happened are left out."""
    activity = difference(snapshot(0), snapshot(10**9), [30, 31])
    assert not activity.cpus
    assert not activity.irqs


def test_a_slow_queue_is_explained_by_its_cpus() -> None:
    """The busiest of the CPUs that serve it first; others of the host are not named."""
    activity = sample.irq_activity()
    words = why_slow(activity, [0, 1], [31, 99])
    assert words.startswith("CPU 1: 10% in softirq (net_rx 9%, timer 1%), 1.0% in interrupts")
    assert "NET_RX waits 45.0 us (p99)" in words
    assert "25% of polls left packets behind" in words
    assert words.endswith("IRQ 31 850/s")
    assert "CPU 1" not in why_slow(activity, [0])
    assert why_slow(activity, [7]) == ""


def test_traced_shares_replace_sampled_ones() -> None:
    """Softirqs and interrupts as traced, other work as it was; a CPU on which none ran has none."""
    sampled = CpuLoad(
        0.1,
        {
            0: CpuShare(idle=0.4, user=0.3, softirq=0.2, irq=0.0, busy=0.5),
            1: CpuShare(idle=0.9, user=0.0, softirq=0.1, irq=0.0, busy=0.1, dropped=3),
            2: CpuShare(idle=0.0, user=0.9, softirq=0.1, irq=0.0, busy=1.0),
        },
    )
    quiet = (math.nan, math.nan, 0.0, 0.0, 0.0)
    activity = IrqActivity(
        0.1,
        {
            0: CpuActivity(0.05, 0.1, {"net_rx": 0.1}, *quiet),
            2: CpuActivity(0.0, 0.4, {"net_rx": 0.4}, *quiet),
        },
    )
    cpus = traced(sampled, activity).cpus
    assert (cpus[0].softirq, cpus[0].irq) == (0.1, 0.05)
    assert cpus[0].busy == cpus[0].idle == pytest.approx(0.45)
    assert (cpus[1].softirq, cpus[1].busy, cpus[1].dropped) == (0.0, 0.0, 3)
    assert (cpus[2].busy, cpus[2].idle) == (1.0, 0.0)
    for none in (None, IrqActivity(0.0)):
        assert traced(sampled, none) is sampled


def test_the_frame_has_the_busiest_first_and_no_nan() -> None:
    """What was not seen is nil."""
    frame = Encoder().irq(5, sample.irq_activity())
    assert [row["cpu"] for row in frame["cpus"]] == [1, 0]
    assert frame["cpus"][1]["rx_wait_p99_ns"] is None
    assert frame["span_ns"] == 600_000_000
    assert "cpu1 irq 1.0% softirq 10.0%" in Readable().line(dict(frame))


def test_more_cpus_than_a_frame_takes_are_counted() -> None:
    """A frame stays bounded on any host."""
    row = CpuActivity(0.0, 0.1, {"timer": 0.1}, math.nan, math.nan, 0.0, 0.0, 0.0)
    frame = Encoder().irq(5, IrqActivity(1.0, dict.fromkeys(range(5_000), row), {}))
    assert (len(frame["cpus"]), frame["omitted"]) == (128, 4_872)
