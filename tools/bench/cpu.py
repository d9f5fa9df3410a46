"""What the agent takes of a CPU beyond the per-packet cost, and its memory.

Three kinds of spans take turns under the same traffic, 4 queues busy: empty programs attached; the agent with windows
of 1 ms; the agent with windows of 1 s. In the last a packet costs what it always costs, and closing windows next to
nothing: its BPF time per packet is the per-packet cost.

    process   CPU time of the agent's threads
    windows   BPF run time with 1 ms windows - packets x the per-packet cost (from bpf_stats)
    softirq   receive softirq per packet with the agent - with empty programs - the difference of their BPF run
              times: what the agent adds there without it being in its programs
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from agent.ffi.bpf import enable_bpf_stats
from tools.bench.agentprocess import AgentProcess, Memory
from tools.bench.empties import empty_programs
from tools.bench.figure import Effort, Figure, median_with_bootstrap, min_to_max
from tools.bench.programtime import ProgramTime
from tools.bench.softirq import ReceiveSoftirq
from tools.testbed import Testbed

_RATE_PPS = 20_000
_SPAN_S = 6.0
_SETTLE_S = 2.5  # of the agent: the first windows, SciPy's import, the first plan
_BLOCKS = 6
# Changing nothing on the host: every span then carries the same traffic in the same way.
_ARGUMENTS = ("--observe", "--hook", "xdp", "--stamp", "trailer")
_CPU_LIMIT_PERCENT = 2.0
_RSS_LIMIT_MIB = 100.0


@dataclass(frozen=True, slots=True)
class _Span:
    """What grew in one span."""

    ns: int
    packets: int
    softirq_ns: int
    programs: ProgramTime
    process_ns: int


@dataclass(frozen=True, slots=True)
class _Block:
    """One span of each kind, close in time."""

    empty: _Span
    agent: _Span
    wide: _Span
    """The agent with windows of 1 s."""

    @property
    def packet_ns(self) -> float:
        """The per-packet cost."""
        return self.wide.programs.ns / self.wide.packets

    @property
    def percent(self) -> dict[str, float]:
        """The three parts, of one core."""
        agent, empty = self.agent, self.empty
        softirq_ns = agent.softirq_ns / agent.packets - empty.softirq_ns / empty.packets
        programs_ns = agent.programs.ns / agent.packets - empty.programs.ns / empty.packets
        parts = {
            "process": agent.process_ns,
            "windows": agent.programs.ns - agent.packets * self.packet_ns,
            "softirq": (softirq_ns - programs_ns) * agent.packets,
        }
        return {name: 100 * ns / agent.ns for name, ns in parts.items()}


class _Scene:
    """The testbed under traffic, with what counts on it."""

    def __init__(self, bed: Testbed, softirq: ReceiveSoftirq, state_dir: Path, span_s: float) -> None:
        self._bed = bed
        self._softirq = softirq
        self._state_dir = state_dir
        self._span_s = span_s
        self.memory: list[Memory] = []

    def _read(self, programs: Callable[[], ProgramTime], process_ns: Callable[[], int]) -> _Span:
        packets = self._bed.cap.read(Path(f"/sys/class/net/{self._bed.cap_if}/statistics/rx_packets"))
        return _Span(time.monotonic_ns(), int(packets), self._softirq.ns(), programs(), process_ns())

    def _span(self, programs: Callable[[], ProgramTime], process_ns: Callable[[], int]) -> _Span:
        before = self._read(programs, process_ns)
        time.sleep(self._span_s)
        after = self._read(programs, process_ns)
        return _Span(
            after.ns - before.ns,
            after.packets - before.packets,
            after.softirq_ns - before.softirq_ns,
            after.programs - before.programs,
            after.process_ns - before.process_ns,
        )

    def with_empty_programs(self) -> _Span:
        """A span of the other side."""
        with empty_programs(self._bed.cap, self._bed.cap_if) as programs:
            return self._span(programs, lambda: 0)

    def with_agent(self, window: str) -> _Span:
        """A span of the agent; its memory is kept if its windows are those of the figure."""
        with AgentProcess(
            self._bed.cap, self._bed.cap_if, self._state_dir, *_ARGUMENTS, "--window", window
        ) as agent:
            agent.wait_for_hello()
            time.sleep(_SETTLE_S)
            span = self._span(agent.program_time, agent.cpu_ns)
            if window == "1ms":
                self.memory.append(agent.memory())
            agent.stop()
            return span


def measure(effort: Effort) -> list[Figure]:
    """CPU beyond the per-packet cost, and the peak RSS of the same processes."""
    blocks = []
    with ExitStack() as stack:
        state_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agent-bench-")))
        stack.enter_context(enable_bpf_stats())
        softirq = ReceiveSoftirq()
        stack.callback(softirq.close)
        bed = stack.enter_context(Testbed(rate_pps=_RATE_PPS))
        bed.start_consumer()
        bed.start_traffic()
        scene = _Scene(bed, softirq, state_dir, 2.0 if effort.quick else _SPAN_S)
        for number in range(effort.repeat(_BLOCKS, 2)):
            empty = scene.with_empty_programs()
            # Which of the two comes next to the empty programs changes from block to block.
            order = ("1ms", "1s") if number % 2 == 0 else ("1s", "1ms")
            spans = {window: scene.with_agent(window) for window in order}
            blocks.append(_Block(empty, spans["1ms"], spans["1s"]))
            parts = {name: round(value, 2) for name, value in blocks[-1].percent.items()}
            effort.say(f"cpu: block {number + 1}: {parts} % of a core")
    return [_cpu_figure(blocks), _rss_figure(scene.memory)]


def _cpu_figure(blocks: list[_Block]) -> Figure:
    value, spread = median_with_bootstrap([sum(block.percent.values()) for block in blocks])

    def median(of: Callable[[_Block], float]) -> float:
        return float(np.median([of(block) for block in blocks]))

    return Figure(
        name="cpu",
        what="CPU beyond the per-packet cost, windows of 1 ms on 4 busy queues",
        value=value,
        unit="% of a core",
        target=_CPU_LIMIT_PERCENT,
        direction="at most",
        spread=spread,
        samples=len(blocks),
        detail={
            "process, %": median(lambda b: b.percent["process"]),
            "windows (BPF run time beyond the per-packet cost), %": median(lambda b: b.percent["windows"]),
            "softirq added that is not in BPF programs, %": median(lambda b: b.percent["softirq"]),
            "per-packet cost as bpf_stats count it, ns": median(lambda b: b.packet_ns),
            "BPF run time in all, %": median(lambda b: 100 * b.agent.programs.ns / b.agent.ns),
            "receive softirq per packet, empty programs, ns": median(
                lambda b: b.empty.softirq_ns / b.empty.packets
            ),
            "receive softirq per packet, agent, ns": median(lambda b: b.agent.softirq_ns / b.agent.packets),
            "packets/s": median(lambda b: b.agent.packets / b.agent.ns * 1e9),
            "how": f"agent run {' '.join(_ARGUMENTS)} against empty XDP and tc programs, spans of {_SPAN_S:g} s in "
            "turn; the per-packet cost is the agent's BPF run time per packet with windows of 1 s; process time from "
            "its CPU clock, softirq time from the softirq tracepoints",
        },
    )


def _rss_figure(memory: list[Memory]) -> Figure:
    values = [(sample.peak_rss + sample.unseen) / 1024 for sample in memory]
    return Figure(
        name="rss",
        what="peak resident memory of the agent, rings and mapped BPF maps included",
        value=max(values),
        unit="MiB",
        target=_RSS_LIMIT_MIB,
        direction="at most",
        spread=min_to_max(values),
        samples=len(values),
        detail={
            "peak RSS (VmHWM), MiB": max(sample.peak_rss for sample in memory) / 1024,
            "rings and maps that RSS leaves out, MiB": max(sample.unseen for sample in memory) / 1024,
            "PSS, MiB": max(sample.pss for sample in memory) / 1024,
            "USS, MiB": max(sample.uss for sample in memory) / 1024,
            "how": "the processes of the cpu figure, from /proc/PID/status, smaps and smaps_rollup",
        },
    )
