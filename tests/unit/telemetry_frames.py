"""Frames of a small run, for the tests of what writes, reads and shows them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from agent.clock import ClockModel, ClockReport, Prediction, Tag
from agent.clock.alignment import Aligned, ClockName
from agent.clock.interface import TickInputs
from agent.clock.ptp import PtpWatch
from agent.consumerwaits import ConsumerWait, ConsumerWaits
from agent.control.actuators import Target
from agent.control.events import ChangeEvent, ConflictEvent, EffectEvent, Event, PlanEvent
from agent.control.plan import Change
from agent.control.quantiles import Figures
from agent.control.settings import Setting
from agent.ffi.clocks import ClockPairs, Steering
from agent.ffi.records import WINDOW_DRIFT_VALID, WINDOW_DTYPE
from agent.host.activity import CpuActivity, IrqActivity, IrqRate
from agent.host.sockdiag import SocketCounts
from agent.telemetry.encode import Encoder, pack
from agent.telemetry.schema import Frame, HostFacts, InterfaceFacts, InterfaceHealth, SinkHealth

START_NS = 5_000_000_000_000
REALTIME_NS = 1_790_000_000_123_456_789
HOST: HostFacts = {"hostname": "cap", "kernel": "6.18.0", "machine": "x86_64", "boot_id": "b"}
RPS_FILE = "/sys/class/net/eth1/queues/rx-0/rps_cpus"
INTERFACE: InterfaceFacts = {
    "ifname": "eth1",
    "ifindex": 3,
    "driver": "veth",
    "rx_queues": 2,
    "hook": "xdp",
    "stamp": "trailer",
    "loader": "libbpf",
    "reasons": ["stamp trailer: asked for"],
}
SINK: SinkHealth = {
    "written_frames": 9,
    "written_bytes": 900,
    "dropped_frames": 0,
    "dropped_bytes": 0,
    "queued_bytes": 0,
}


def hello(encoder: Encoder, mono_ns: int = START_NS, **changed: Any) -> Frame:
    """The hello frame."""
    facts: dict[str, Any] = {
        "host": HOST,
        "interfaces": [INTERFACE],
        "window_ns": 1_000_000,
        "tick_ns": 100_000_000,
        "observe": False,
        "window_dtype": WINDOW_DTYPE,
    }
    return encoder.hello(mono_ns, REALTIME_NS, **(facts | changed))


def irq_activity() -> IrqActivity:
    """One CPU in softirq for a tenth of its time, and one interrupt."""
    busy = CpuActivity(0.01, 0.1, {"net_rx": 0.09, "timer": 0.01}, 2_000.0, 45_000.0, 900.0, 12.5, 0.25)
    quiet = CpuActivity(0.0, 0.001, {"timer": 0.001}, math.nan, math.nan, 0.0, 0.0, 0.0)
    return IrqActivity(0.6, {0: quiet, 1: busy}, {31: IrqRate(850.0, 0.01)})


def consumer_waits() -> ConsumerWaits:
    """One that reads at the tracepoint, and one that only its socket tells of."""
    return ConsumerWaits(
        0.6,
        (
            ConsumerWait(812, "feed", 1_200, 0, 9_000.0, 61_000.0, SocketCounts(1, 2_304, packet=7)),
            ConsumerWait(900, "sink", 0, 0, math.nan, math.nan, SocketCounts(2, 0)),
        ),
        7,
    )


def windows(n: int = 4) -> npt.NDArray[np.void]:
    """`n` closed windows of two queues, 10 packets each."""
    records = np.zeros(n, dtype=WINDOW_DTYPE)
    records["seq"] = np.arange(n)
    records["queue"] = np.arange(n) % 2
    records["open_mono_ns"] = START_NS + 1_000_000 * np.arange(n)
    records["last_mono_ns"] = records["open_mono_ns"] + 900_000
    records["first"]["hw_ns"] = REALTIME_NS
    records["n"] = records["n_stamped"] = records["n_delay"] = 10
    records["delay_sum_ns"] = 10 * 5_000
    records["delay_min_ns"] = 3_000
    records["delay_max_ns"] = 9_000
    records["flags"] = WINDOW_DRIFT_VALID
    records["drift_mono_ppb"] = 12_000
    records["drift_baseline_ns"] = 4_000_000_000
    return records


def report(**changed: Any) -> ClockReport:
    """A trailer clock's report with one jump."""
    facts: dict[str, Any] = {
        "key": 0x0203,
        "state": "relative",
        "mono_ns": START_NS + 10,
        "offset_ns": START_NS - REALTIME_NS,
        "sigma_ns": 12.5,
        "bound_ns": 20_100.0,
        "drift_mono_ppb": 11_980.0,
        "drift_raw_ppb": 12_010.0,
        "drift_sigma_ppb": 8.0,
        "drift_bound_ppb": 20.0,
        "tags": (Tag("phase_step", START_NS, 250_000, "the clock was stepped"),),
        "model": ClockModel(START_NS, REALTIME_NS, -13_000, 40, START_NS + 2_000_000_000, 1),
        "predictions": (Prediction(0.1, START_NS - REALTIME_NS + 1200, 14.0, 20_140.0),),
        "samples": 812,
        "timescale": "utc",
        "reason": "",
        "kernel_drift_ppb": 12_100.0,
        "kernel_drift_baseline_ns": 4_000_000_000,
    }
    return ClockReport(**(facts | changed))


def inputs() -> TickInputs:
    """What a tick without a PHC was fed."""
    at = START_NS + np.arange(5)
    zeros = np.zeros(5, dtype=np.int64)
    pairs = ClockPairs(at, at, at + REALTIME_NS, at + REALTIME_NS, zeros, zeros, zeros)
    return TickInputs(START_NS + 5, pairs, Steering(-12.5, 10_000, 0, 2, 64, 500, 20, 37), None)


def ptp_watch() -> PtpWatch:
    """One domain with a good time source."""
    watch = PtpWatch()
    watch.hear(START_NS, announce())
    watch.look(START_NS)
    return watch


def announce(
    grandmaster: int = 0x001B19FFFE0A0B0C,
    *,
    source: int = 0x001B19FFFE0A0B0C,
    clock_class: int = 6,
    priority1: int = 128,
    domain: int = 24,
    utc_offset_s: int | None = 37,
    steps_removed: int = 1,
) -> bytes:
    """An Announce message by the byte positions of IEEE 1588-2019, 13.3 and 13.5, every second."""
    message = bytearray(64)
    message[0], message[1], message[4] = 0x0B, 0x12, domain
    message[2:4] = (64).to_bytes(2, "big")
    message[7] = 0x08 | 0x10 | (0x04 if utc_offset_s is not None else 0)
    message[20:28], message[28:30] = source.to_bytes(8, "big"), (1).to_bytes(2, "big")
    message[32] = 5
    message[44:46] = (utc_offset_s or 0).to_bytes(2, "big", signed=True)
    message[47], message[48], message[49], message[52] = priority1, clock_class, 0x21, 128
    message[50:52] = (0x4E5D).to_bytes(2, "big")
    message[53:61] = grandmaster.to_bytes(8, "big")
    message[61:63] = steps_removed.to_bytes(2, "big")
    message[63] = 0x20
    return bytes(message)


def interface_health(**counters: int) -> InterfaceHealth:
    """Counters of a run without losses."""
    return {
        "ifname": "eth1",
        "hook": "xdp",
        "stamp": "trailer",
        "counters": {"packets": 1000, "produced": 40, "drained": 40, "lost": 0} | counters,
    }


def health(encoder: Encoder, mono_ns: int = START_NS + 1_000_000_000, **changed: Any) -> Frame:
    """A health frame of a run without trouble."""
    facts: dict[str, Any] = {
        "span_ns": 1_000_000_000,
        "level": "full",
        "reason": "",
        "cpu_percent": 1.25,
        "rss_bytes": 70 << 20,
        "tick_overruns": 0,
        "tick_max_ns": 3_000_000,
        "interfaces": [interface_health()],
        "host_drops": {"softnet": 0, "socket": 0, "interface": 0, "ring": 0, "tcp_out_of_order": 0},
        "sink": SINK,
        "notes": [],
    }
    return encoder.health(mono_ns, **(facts | changed))


def goodbye(encoder: Encoder) -> Frame:
    """The end of a run by SIGINT."""
    return encoder.goodbye(
        START_NS + 3_000_000_000,
        reason="SIGINT",
        exit_code=0,
        interfaces=[interface_health()],
        restored=[{"target": RPS_FILE, "outcome": "restored", "reason": ""}],
        sink=SINK,
    )


def run_of_frames() -> list[Frame]:
    """One frame of every type, in an order that a run may have."""
    encoder = Encoder()
    target = Target("rps", "eth1", 0, Setting("file", RPS_FILE, namespaced=True))
    wanted = Change(target, (0,), b"0\n", b"2", 1, None, None)
    events: list[Event] = [
        PlanEvent(
            START_NS + 30,
            "eth1",
            1,
            decided_by="assignment",
            reason="queue 0 waits behind CPU 0's softirq load",
            applied=True,
            now_p99_ns=90_000.0,
            predicted_p99_ns=12_000.0,
            changes=(wanted,),
        ),
        ChangeEvent(START_NS + 40, "eth1", 1, "rps", RPS_FILE, (0,), "0", "2", "applied", "2", ""),
        EffectEvent(
            START_NS + 50,
            "eth1",
            1,
            "kept",
            "p99 is better beyond noise",
            before=Figures(1000, 4e3, 3.9e3, 4.1e3, 90e3, 80e3, 99e3),
            after=Figures(1000, 3e3, 2.9e3, 3.1e3, 10e3, 9e3, 12e3),
            predicted_p99_ns=12_000.0,
            lost_before=0,
            lost_after=0,
        ),
        ConflictEvent(START_NS + 60, "eth1", RPS_FILE, "2", "3", "irqbalance"),
    ]
    return [
        hello(encoder),
        *encoder.windows(START_NS + 5, "eth1", windows()),
        encoder.inputs("eth1", None, inputs()),
        encoder.clock("eth1", "trailer", report()),
        encoder.delay(
            START_NS + 20,
            "eth1",
            100_000_000,
            [
                {"queue": 0, "cpu": 1, "where": "hook", "n": 900, "p50_ns": 4_000.0, "p99_ns": 9_000.0},
                {"queue": 1, "cpu": 0, "where": "stack", "n": 9, "p50_ns": 40_000.0, "p99_ns": 90_000.0},
            ],
        ),
        encoder.irq(START_NS + 30, irq_activity()),
        encoder.consumers(START_NS + 30, consumer_waits()),
        *(encoder.event(event) for event in events),
        health(encoder),
        encoder.steering(
            START_NS + 1_000_000_000,
            Steering(12_345.5, 10_000, 0, 7, 0x2001, 0, 0, 37),
            3,
            [
                {
                    "ifname": "eth1",
                    "device": "/dev/ptp0",
                    "method": "extended against raw",
                    "pause_ns": 0,
                    "frequency_ppb": -1_250.25,
                    "max_adjustment_ppb": 62_499_999,
                }
            ],
        ),
        encoder.alignment(
            START_NS + 1_000_000_000,
            [
                Aligned(
                    ClockName("eth1", "trailer", 0x0203),
                    ClockName("eth1", "trailer", 0x0901),
                    START_NS + 900_000_000,
                    5_000_123,
                    20.0,
                    20_150.0,
                    -320.0,
                    25.0,
                    "",
                )
            ],
            0,
        ),
        encoder.ptp(START_NS + 1_000_000_000, "eth1", ptp_watch(), START_NS + 900_000_000),
        encoder.refclock(
            START_NS + 1_000_000_000,
            {
                "path": "/run/chrony/agent.sock",
                "ifname": "eth1",
                "trouble": "",
                "realtime_ns": REALTIME_NS,
                "ahead_ns": -1_234,
                "bound_ns": 812.5,
                "max_error_ns": 10_000,
                "sent": 17,
                "refused": 3,
                "failed": 0,
            },
        ),
        encoder.batch(
            START_NS + 1_000_000_000,
            {
                "page": "default",
                "max_wait_us": 700,
                "max_items": 12,
                "valid_until_mono_ns": START_NS + 2_000_000_000,
                "reason": "",
                "consumers": 2,
                "batches": 431,
                "missed": 0,
                "refused": 1,
                "items_per_s": 1_210.5,
                "expected_items_per_s": 1_250.0,
                "service_base_ns": 1_150_000.0,
                "service_item_ns": 240_000.0,
                "service_sigma_ns": 55_000.0,
                "delay_p99_ns": 90_000.0,
                "predicted_p99_ns": 6_400_000.0,
                "predicted_mean_ns": 3_100_000.0,
                "measured_items": 242,
                "measured_p99_ns": 6_150_000.0,
                "measured_mean_ns": 3_050_000.0,
                "target_p99_ns": 9_000_000,
                "min_rate": None,
            },
        ),
        goodbye(encoder),
    ]


def stream() -> bytes:
    """The bytes of `run_of_frames`."""
    return b"".join(pack(frame) for frame in run_of_frames())
