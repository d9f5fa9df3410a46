"""The whole scene: sender, switch with a simulated PHC, capture host with a consumer, and background load.

    gen namespace                            cap namespace
    trafficgen ─► gen0 ─ stamp_egress ═════► cap0 ─► (agent) ─► RPS ─► stack ─► consumer
    trafficgen ─► noise0 ══════════════════► noise1 ─ burn_ingress

Packets on veth are received on the CPU that sent them, unless RPS moves them. The sender is pinned to the first CPU,
the background load to the last, and a "static tuning" (`rps_cpu`) steers the capture interface's packets to that
last CPU: right when somebody chose it, wrong since the load came.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from agent.errors import AgentError
from tools.testbed.bpfobject import TCX_EGRESS, TCX_INGRESS, TestbedObject
from tools.testbed.build import built
from tools.testbed.namespace import Namespace, VethPair, add_veth, sweep_stale
from tools.testbed.program import Program
from tools.testbed.simphc import PHC_DTYPE, SimulatedPhc

CONFIG_DTYPE = np.dtype(
    [
        ("port", "<u2"), ("flows", "<u2"), ("queues", "<u2"), ("device_id", "<u2"),
        ("port_id", "u1"), ("pad", "u1", (7,)), ("burn_ns", "<u8"),
    ]
)  # fmt: skip
COUNTERS_DTYPE = np.dtype([("stamped", "<u8"), ("failed", "<u8"), ("burned", "<u8")])

PORT = 20000
SECOND_PORT = 21000
NOISE_PORT = 30000
CONSUMER_FIFO = 20
SENDER_FIFO = 10
_SUB_BITS = 5  # consumer.c, bucket_of


def bucket_middle_ns(bucket: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The delay in the middle of the consumer's histogram buckets, ns."""
    index = np.asarray(bucket, dtype=np.int64)
    shift = np.maximum((index >> _SUB_BITS) - 1, 0)
    low = (index - (shift << _SUB_BITS)) << shift
    middle: npt.NDArray[np.float64] = low + ((1 << shift) - 1) / 2
    return middle


@dataclass(frozen=True, slots=True)
class Slice:
    """The consumer's delays in one span (100 ms): counts by bucket."""

    mono_ns: int
    length_ns: int
    n: int
    buckets: npt.NDArray[np.int64]  # shape (k, 2): bucket, count


def quantiles_us(slices: list[Slice], *quantiles: float) -> list[float]:
    """Quantiles of the delay over some slices, us (within 2 %); NaN where there was no packet."""
    parts = [s.buckets for s in slices if s.n]
    if not parts:
        return [float("nan")] * len(quantiles)
    all_buckets = np.concatenate(parts)
    counts = np.bincount(all_buckets[:, 0], weights=all_buckets[:, 1])
    cumulative = np.cumsum(counts)
    at = np.searchsorted(cumulative, np.asarray(quantiles) * cumulative[-1], side="left")
    result: list[float] = (bucket_middle_ns(at) / 1000).tolist()
    return result


@dataclass(frozen=True, slots=True)
class ConsumerReport:
    """What the receiving application saw, by its own clock."""

    slices: list[Slice]
    received: int
    lost: int
    reordered: int

    def quantiles_us(self, start_mono_ns: int, end_mono_ns: int, *quantiles: float) -> list[float]:
        """Delay quantiles over the slices that lie wholly within a span, us."""
        inside = [
            s for s in self.slices if s.mono_ns >= start_mono_ns and s.mono_ns + s.length_ns <= end_mono_ns
        ]
        return quantiles_us(inside, *quantiles)

    def timeline_us(self, start_mono_ns: int, step_ns: int, steps: int, quantile: float) -> list[float]:
        """One quantile of the delay for each step of time, us; a slice counts where it begins."""
        by_step: list[list[Slice]] = [[] for _ in range(steps)]
        for piece in self.slices:
            step = (piece.mono_ns - start_mono_ns) // step_ns
            if 0 <= step < steps:
                by_step[step].append(piece)
        return [quantiles_us(pieces, quantile)[0] for pieces in by_step]


def online_cpus() -> list[int]:
    """The CPUs that this process may use, ascending."""
    return sorted(os.sched_getaffinity(0))


@dataclass(slots=True)
class Testbed:
    """Context manager: everything is set up, attached and stamped on entry, nothing is left on exit.

    Traffic, consumer and noise start when they are told to. `drift_ppb`, `wander_ppb_per_sqrt_s`, `jump_ns`,
    `jump_at_s`: see `SimulatedPhc`. `rps_cpu`: where the static tuning steers the capture interface's packets
    (None: RPS off). `burn_us` × `noise_pps` is the softirq share that the noise takes of its CPU. `slice_ms`: how
    finely the consumer tells its delays over time. `noise_fifo`: real-time priority of the noise's sender (0: none),
    with which it is sent on time whatever else its CPU does. `noise_burst`: largest number of its packets that come at
    once; from 2 on they all come in bursts, of any size up to this.
    Raises `UnsupportedError` when not root, `AgentError` when the kernel refuses a part.
    """

    __test__ = False  # for pytest: no test class

    queues: int = 4
    rate_pps: float = 20_000
    flows: int = 16
    payload_bytes: int = 64
    drift_ppb: int = 12_000
    wander_ppb_per_sqrt_s: float = 5.0
    jump_ns: int = 0
    jump_at_s: float = 0.0
    seed: int = 1
    rps_cpu: int | None = None
    burn_us: int = 150
    noise_pps: float = 4500
    device_id: int = 7
    port_id: int = 3
    mtu: int = 1500
    slice_ms: int = 100
    noise_fifo: int = 0
    noise_burst: int = 1

    gen: Namespace = field(init=False)
    cap: Namespace = field(init=False)
    pair: VethPair = field(init=False)
    noise_pair: VethPair = field(init=False)
    phc: SimulatedPhc = field(init=False)
    sender_cpu: int = field(init=False)
    consumer_cpu: int = field(init=False)
    noise_cpu: int = field(init=False)
    _counters: npt.NDArray[np.void] = field(init=False)
    _cleanup: contextlib.ExitStack = field(init=False)
    _second: bool = field(init=False, default=False)
    _binaries: dict[str, Path] = field(init=False)
    _programs: dict[str, Program] = field(init=False)

    gen_if = "gen0"
    cap_if = "cap0"

    def __enter__(self) -> Self:
        cpus = online_cpus()
        self.sender_cpu = self.consumer_cpu = cpus[0]
        self.noise_cpu = cpus[-1]
        self._programs = {}
        self._cleanup = contextlib.ExitStack()
        try:
            self._set_up()
        except BaseException:
            self._cleanup.close()
            raise
        return self

    def _set_up(self) -> None:
        sweep_stale()
        trafficgen, consumer, objectfile = built(
            "testbed/trafficgen", "testbed/consumer", "bpf/testbed.bpf.o"
        )
        self._binaries = {"trafficgen": trafficgen, "consumer": consumer}
        self.gen = self._cleanup.enter_context(Namespace("gen"))
        self.cap = self._cleanup.enter_context(Namespace("cap"))
        self.pair = add_veth(
            self.gen, self.cap, self.gen_if, self.cap_if, net=0, queues=self.queues, mtu=self.mtu
        )
        self.noise_pair = add_veth(self.gen, self.cap, "noise0", "noise1", net=1, queues=1)

        programs, self.phc = self._switch(objectfile, PORT, self.device_id, self.drift_ppb, self.seed)
        programs.map("tb_config", CONFIG_DTYPE)["burn_ns"] = self.burn_us * 1000
        self._counters = programs.map("tb_counters", COUNTERS_DTYPE)
        self.cap.call(lambda: programs.attach("burn_ingress", socket.if_nametoindex("noise1"), TCX_INGRESS))
        if self.rps_cpu is not None:
            self.set_rps(1 << self.rps_cpu)
        self._cleanup.callback(self._stop_all)

    def _switch(
        self, objectfile: Path, port: int, device_id: int, drift_ppb: int, seed: int
    ) -> tuple[TestbedObject, SimulatedPhc]:
        """A switch that stamps the flows from a port on, by a clock of its own that runs from now."""
        programs = TestbedObject(objectfile)
        self._cleanup.callback(programs.close)
        config = programs.map("tb_config", CONFIG_DTYPE)
        config["port"], config["flows"], config["queues"] = port, self.flows, self.queues
        config["device_id"], config["port_id"] = device_id, self.port_id
        jump = (self.jump_ns, self.jump_at_s) if port == PORT else (0, 0.0)
        phc = SimulatedPhc(
            programs.map("tb_phc", PHC_DTYPE), drift_ppb, self.wander_ppb_per_sqrt_s, *jump, seed
        )
        phc.start()
        self._cleanup.callback(phc.close)
        self.gen.call(lambda: programs.attach("stamp_egress", socket.if_nametoindex(self.gen_if), TCX_EGRESS))
        return programs, phc

    def add_switch(self, device_id: int, drift_ppb: int) -> SimulatedPhc:
        """A second switch in front of the same interface, with its own clock; returns that clock.

        Its traffic comes from a sender of its own, as fast as the first one's, and starts with it.
        """
        (objectfile,) = built("bpf/testbed.bpf.o")
        _, phc = self._switch(objectfile, SECOND_PORT, device_id, drift_ppb, self.seed + 1)
        self._second = True
        return phc

    def __exit__(self, *exc: object) -> None:
        self._cleanup.close()

    # Settings of the capture interface

    def set_rps(self, mask: int) -> None:
        """Steer the packets of all its receive queues to the CPUs in `mask` (bit n: CPU n; 0: RPS off)."""
        words = [f"{mask >> shift & 0xFFFFFFFF:08x}" for shift in range(0, max(1, mask.bit_length()), 32)]
        for queue in range(self.queues):
            path = Path(f"/sys/class/net/{self.cap_if}/queues/rx-{queue}/rps_cpus")
            self.cap.write(path, ",".join(reversed(words)).encode())

    def settings(self) -> dict[str, bytes]:
        """Every steering setting of the capture interface, byte for byte, by path."""

        def snapshot() -> dict[str, bytes]:
            base = Path(f"/sys/class/net/{self.cap_if}")
            paths = [base / name for name in ("threaded", "napi_defer_hard_irqs", "gro_flush_timeout")]
            for pattern in ("rx-*/rps_cpus", "rx-*/rps_flow_cnt", "tx-*/xps_cpus", "tx-*/xps_rxqs"):
                paths += sorted((base / "queues").glob(pattern))
            found = {}
            for path in paths:
                # Listed, yet without content: xps_* of a device with one queue.
                with contextlib.suppress(FileNotFoundError, OSError):
                    found[str(path)] = path.read_bytes()
            return found

        return self.cap.call(snapshot)

    # Programs

    def _start(self, role: str, namespace: Namespace, args: list[str], wait_ready: bool = False) -> None:
        if role in self._programs:
            raise AgentError(f"the testbed's {role} is already running")
        self._programs[role] = Program(namespace, args, wait_ready)

    def _stop_all(self) -> None:
        for program in self._programs.values():
            program.close()
        self._programs.clear()

    def _sender_args(self, pair: VethPair, port: int, flows: int, rate: float, cpu: int) -> list[str]:
        return [
            str(self._binaries["trafficgen"]),
            "--dst", pair.right_ip, "--port", str(port), "--flows", str(flows), "--rate", str(rate),
            "--payload", str(self.payload_bytes), "--seed", str(self.seed), "--cpu", str(cpu),
        ]  # fmt: skip

    def start_consumer(self) -> None:
        """Start the receiving application and wait until its sockets are open."""
        self._start(
            "consumer",
            self.cap,
            [
                str(self._binaries["consumer"]),
                "--port", str(PORT), "--flows", str(self.flows),
                "--cpu", str(self.consumer_cpu), "--fifo", str(CONSUMER_FIFO),
                "--slice-ms", str(self.slice_ms),
            ],
            wait_ready=True,
        )  # fmt: skip

    def stop_consumer(self) -> ConsumerReport:
        """End the receiving application and return what it saw."""
        _ready, *slices, totals = self._programs.pop("consumer").stop()
        return ConsumerReport(
            [
                Slice(
                    s["mono_ns"], s["length_ns"], s["n"], np.array(s["hist"], dtype=np.int64).reshape(-1, 2)
                )
                for s in slices
            ],
            totals["received"],
            totals["lost"],
            totals["reordered"],
        )

    def start_traffic(self, seconds: float = 0) -> None:
        """Start the sender (`seconds` = 0: until stopped)."""
        for role, port in (("sender", PORT), ("second sender", SECOND_PORT))[: 1 + self._second]:
            args = self._sender_args(self.pair, port, self.flows, self.rate_pps, self.sender_cpu)
            self._start(role, self.gen, [*args, "--fifo", str(SENDER_FIFO), "--seconds", str(seconds)])

    def stop_traffic(self) -> dict[str, Any]:
        """End the sender; return the first one's figures: sent, failed, schedule_resets, seconds."""
        if self._second:
            self._programs.pop("second sender").stop()
        return self._programs.pop("sender").stop()[-1]

    def start_noise(self) -> None:
        """Start the background load on the noise CPU."""
        args = self._sender_args(self.noise_pair, NOISE_PORT, 1, self.noise_pps, self.noise_cpu)
        bursts = ["--burst", str(self.noise_burst), "--burst-percent", "100" if self.noise_burst > 1 else "0"]
        self._start("noise", self.gen, [*args, *bursts, "--fifo", str(self.noise_fifo)])

    def move_noise(self, cpu: int) -> None:
        """Take the background load to another CPU, at once."""
        os.sched_setaffinity(self._programs["noise"].pid, {cpu})

    def pause_noise(self, paused: bool) -> None:
        """Hold the background load, or let it go on."""
        os.kill(self._programs["noise"].pid, signal.SIGSTOP if paused else signal.SIGCONT)

    def stop_noise(self) -> dict[str, Any]:
        """End the background load; return its sender's figures."""
        return self._programs.pop("noise").stop()[-1]

    def counters(self) -> dict[str, int]:
        """Packets stamped, frames that could not be lengthened, noise packets burned."""
        return {name: int(self._counters[name][0]) for name in ("stamped", "failed", "burned")}
