"""What the XDP program costs per packet, by BPF_PROG_RUN's own duration.

(product - empty) / (program that only reads bpf_ktime_get_ns - empty). The product is as `agent run` attaches it: its
clock model valid, so that every stamped packet's delay is computed and put into the histogram; windows of 1 ms closed
and drained meanwhile. A run repeats one packet 1000 times. The runs rotate over 64 flows on 4 queues, and each gets
a stamp of its own, so that delays are spread over the histogram; the sides take turns from run to run.

Every program is attached to an interface, the baseline's too: a test run of one that isn't makes the kernel rewrite
its XDP dispatcher (20 ms a run), and is called in another way.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agent.capture import Capture
from agent.clock.model import SHIFT, ClockModel, ModelWriter
from agent.ffi.bpf import ProgramSet, attach_xdp, load, prog_by_id, test_run, xdp_context, xdp_owner
from agent.options import RunOptions
from tools.bench.capturing import capture_on
from tools.bench.figure import Effort, Figure, median_with_bootstrap
from tools.testbed.namespace import Namespace, add_veth, sweep_stale

_REPEAT = 1000
_FLOWS = 64
_QUEUES = 4
# Before the next queue's turn: a window then closes every few thousand packets, as with four busy queues.
_RUNS_A_QUEUE = 16
_ROUNDS = 32  # of 64 runs per side: 2 million packets per side
_PAYLOAD_BYTES = 64
_DEVICE, _PORT = 7, 3
_CLOCK_KEY = _DEVICE << 8 | _PORT
_DRIFT_PPB = 12_000
_PHC_AHEAD_NS = 1_700_000_000_000_000_000
_DELAY_NS = (256, 10_000_000)
_TRAILER_BYTES = 16


@dataclass(frozen=True, slots=True)
class Side:
    """A program to be timed."""

    prog_fd: int
    ifindex: int
    """Of the interface that it is attached to, and that packets are made to come from."""


def frame(flow: int) -> bytearray:
    """A UDP packet of a flow, with room for the trailer behind it."""
    udp = struct.pack("!HHHH", 10_000 + flow, 20_000 + flow, 8 + _PAYLOAD_BYTES, 0) + bytes(_PAYLOAD_BYTES)
    ip = struct.pack(
        "!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, bytes((10, 77, 0, 1)), bytes((10, 77, 0, 2))
    )
    return bytearray(bytes(12) + b"\x08\x00" + ip + udp + bytes(_TRAILER_BYTES))


def stamp(packet: bytearray, hw_ns: int) -> None:
    """Write a Metamako trailer with a time."""
    seconds, nanoseconds = divmod(hw_ns, 1_000_000_000)
    struct.pack_into(
        "!IIIBHB", packet, len(packet) - _TRAILER_BYTES, 0, seconds, nanoseconds, 0, _DEVICE, _PORT
    )


def _model() -> ClockModel:
    now = time.monotonic_ns()
    adj = round(-_DRIFT_PPB * 1e-9 * (1 << SHIFT))
    return ClockModel(now, now + _PHC_AHEAD_NS, adj, SHIFT, now + 60_000_000_000, 0)


@contextlib.contextmanager
def _pinned() -> Iterator[int]:
    """Keep this thread on one CPU, the last that it may use; yields it."""
    before = os.sched_getaffinity(0)
    cpu = max(before)
    os.sched_setaffinity(0, {cpu})
    try:
        yield cpu
    finally:
        os.sched_setaffinity(0, before)


class Bench:
    """The four programs, loaded and attached, and what their windows said."""

    def __init__(self, baseline: dict[str, Side], captures: dict[str, Capture]) -> None:
        self._captures = captures
        self._frames = [frame(flow) for flow in range(_FLOWS)]
        self._model = _model()
        self.packets = dict.fromkeys(captures, 0)
        self.with_delay = dict.fromkeys(captures, 0)
        self._sides = dict(baseline)
        self._writers = {name: ModelWriter(capture.models) for name, capture in captures.items()}
        self._stack = contextlib.ExitStack()
        for name, capture in captures.items():
            owner = xdp_owner(capture.target.ifindex)
            assert owner is not None
            fd = self._stack.enter_context(prog_by_id(owner.prog_id))
            self._sides[name] = Side(fd, capture.target.ifindex)
        self.renew_models()

    def close(self) -> None:
        """Give back the program fds."""
        self._stack.close()

    def renew_models(self) -> None:
        """Keep the clock models valid, as the agent does each tick."""
        self._model = _model()
        for writer in self._writers.values():
            writer.write(_CLOCK_KEY, self._model)

    def round(self, delays_ns: npt.NDArray[np.int64]) -> dict[str, float]:
        """One run of each side for each delay; ns per packet, mean over the runs without each side's slowest tenth."""
        durations: dict[str, list[int]] = {name: [] for name in self._sides}
        for i, delay_ns in enumerate(delays_ns.tolist()):
            packet = self._frames[i % _FLOWS]
            for name, side in self._sides.items():
                context = xdp_context(
                    len(packet), ifindex=side.ifindex, rx_queue=i // _RUNS_A_QUEUE % _QUEUES
                )
                stamp(packet, self._model.phc_ns(time.monotonic_ns()) - delay_ns)
                run = test_run(side.prog_fd, bytes(packet), _REPEAT, context)
                durations[name].append(run.duration_ns)
        self._tick(len(delays_ns))
        return {name: _trimmed_mean(values) for name, values in durations.items()}

    def _tick(self, runs: int) -> None:
        """What the agent does on its tick: idle windows, rings, the sampling rate, the model."""
        for name, capture in self._captures.items():
            capture.flush_overdue(time.monotonic_ns())
            windows = capture.drain()
            self.packets[name] += int(windows["n"].sum())
            self.with_delay[name] += int(windows["n_delay"].sum())
            capture.adapt(runs * _REPEAT, 0.1)
        self.renew_models()

    def buckets_used(self) -> int:
        """Buckets of the delay histogram that hold anything."""
        grown = self._captures["trailer"].hook_delays()
        return int(np.count_nonzero(sum(grown.values()))) if grown else 0


def _trimmed_mean(durations: list[int]) -> float:
    """Interrupts lengthen some runs, and a mean is finer than the kernel's whole ns."""
    kept = sorted(durations)[: -max(1, len(durations) // 10)]
    return sum(kept) / len(kept)


def _measure_inside(namespace: Namespace, effort: Effort) -> list[Figure]:
    random = np.random.default_rng(1)
    with contextlib.ExitStack() as stack:
        baseline, captures = _attach(namespace, stack)

        def run() -> tuple[list[dict[str, float]], Bench, int]:
            with _pinned() as cpu:
                bench = Bench(baseline, captures)
                stack.callback(bench.close)
                bench.round(_delays_ns(random))
                bench.buckets_used()  # the first reading of a histogram is no growth
                return [bench.round(_delays_ns(random)) for _ in range(effort.repeat(_ROUNDS, 4))], bench, cpu

        # In the namespace's thread: the queues of a test run are those of the caller's interfaces.
        results, bench, cpu = namespace.call(run)
        buckets = bench.buckets_used()
    return [
        _figure(name, limit, results, bench, buckets, cpu)
        for name, limit in (("none", 1.3), ("trailer", 1.5))
    ]


def _attach(namespace: Namespace, stack: contextlib.ExitStack) -> tuple[dict[str, Side], dict[str, Capture]]:
    """Each of the four programs on an end of a veth pair."""
    for net in range(2):
        add_veth(namespace, namespace, f"base{net}", f"cap{net}", net, _QUEUES)
    captures = {}
    for name, ifname in (("none", "cap0"), ("trailer", "cap1")):
        options = RunOptions(interfaces=(ifname,), hook="xdp", stamp=name)
        captures[name] = stack.enter_context(capture_on(namespace, options))
    programs = stack.enter_context(load("libbpf", ProgramSet("bench", ("xdp_empty", "xdp_ktime"))))

    def attach(name: str, ifname: str) -> Side:
        ifindex = socket.if_nametoindex(ifname)
        stack.enter_context(attach_xdp(programs.prog_fd(f"xdp_{name}"), ifindex, "native"))
        return Side(programs.prog_fd(f"xdp_{name}"), ifindex)

    baseline = {
        name: namespace.call(functools.partial(attach, name, ifname))
        for name, ifname in (("empty", "base0"), ("ktime", "base1"))
    }
    return baseline, captures


def _delays_ns(random: np.random.Generator) -> npt.NDArray[np.int64]:
    low, high = np.log(_DELAY_NS)
    return np.exp(random.uniform(low, high, _FLOWS)).astype(np.int64)


def _figure(
    name: str, limit: float, rounds: list[dict[str, float]], bench: Bench, buckets: int, cpu: int
) -> Figure:
    ratios = [(r[name] - r["empty"]) / (r["ktime"] - r["empty"]) for r in rounds]
    value, spread = median_with_bootstrap(ratios)
    detail: dict[str, object] = {
        f"{side}_ns": float(np.median([r[side] for r in rounds])) for side in ("empty", "ktime", name)
    }
    detail["packets of each side"] = len(rounds) * _FLOWS * _REPEAT
    if name == "trailer":
        detail["packets with a delay"] = f"{bench.with_delay[name] / max(1, bench.packets[name]):.1%}"
        detail["histogram buckets used"] = buckets
    detail["how"] = (
        f"BPF_PROG_RUN's duration, runs of {_REPEAT}, {_FLOWS} flows on {_QUEUES} queues, a new stamp each run; "
        f"the sides take turns; means of rounds of {_FLOWS} runs without the slowest tenth; CPU {cpu}; windows of "
        "1 ms are closed meanwhile"
    )
    return Figure(
        name=f"packet, stamp {name}",
        what=f"XDP program's cost above an empty one, over that of reading the clock; stamp {name}",
        value=value,
        unit="",
        target=limit,
        direction="at most",
        spread=spread,
        samples=len(rounds),
        detail=detail,
    )


def measure(effort: Effort) -> list[Figure]:
    """The ratio for stamp none and for trailers."""
    sweep_stale()
    with Namespace("cap") as namespace:
        return _measure_inside(namespace, effort)
