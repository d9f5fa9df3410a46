"""The testbed with loads that move, and one run of a side on it."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from agent.errors import AgentError
from agent.host.napi import NapiThread, napi_threads
from agent.host.paths import HostPaths
from tools.bench.agentprocess import AgentProcess
from tools.bench.control.scenario import (
    BURN_US,
    DEFAULTS,
    FLOWS,
    NOISE_BURST,
    NOISE_FIFO,
    NOISE_PPS,
    QUEUES,
    RATE_PPS,
    SETTLE_S,
    SLICE_MS,
    Phase,
    Setting,
)
from tools.testbed.ipis import IpiCount
from tools.testbed.namespace import Namespace, stop
from tools.testbed.testbed import ConsumerReport, Testbed

_AGENT_SETTLE_S = 3.0


@dataclass(frozen=True, slots=True)
class Span:
    """One phase as it was run."""

    phase: Phase
    start_ns: int
    """When its loads were in place, mono."""
    end_ns: int
    setting_start: Setting
    setting_end: Setting


@dataclass(frozen=True, slots=True)
class Run:
    """What one side showed over a sequence of phases."""

    spans: list[Span]
    consumer: ConsumerReport
    frames: list[dict[str, Any]] = field(default_factory=list)
    """The agent's events; empty for the other sides."""
    cpu_share: float = 0.0
    """CPU time of the agent's process over wall time."""


class Scene:
    """Traffic, consumer and both loads, running. A context manager: leaves nothing behind."""

    def __init__(self) -> None:
        self._bed = Testbed(
            queues=QUEUES,
            rate_pps=RATE_PPS,
            flows=FLOWS,
            burn_us=BURN_US,
            noise_pps=NOISE_PPS,
            noise_fifo=NOISE_FIFO,
            noise_burst=NOISE_BURST,
            slice_ms=SLICE_MS,
        )
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._set_up()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _set_up(self) -> None:
        bed = self._stack.enter_context(self._bed)
        if bed.noise_cpu == bed.sender_cpu:
            raise AgentError("one CPU is online: there is nothing to choose")
        self._cpus = (bed.sender_cpu, bed.noise_cpu)
        self._state_dir = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="agent-bench-")))
        # veth polls by NAPI, and so in threads, only what GRO may merge, or XDP sees: all of it on all sides.
        _ethtool(bed.cap, bed.cap_if, "gro", "on")
        _ethtool(bed.gen, bed.gen_if, "tso", "off")
        bed.cap.write(Path(f"/sys/class/net/{bed.cap_if}/threaded"), b"1")
        self._threads = self._find_threads()
        self._hog = subprocess.Popen(["sh", "-c", "while :; do :; done"])
        self._stack.callback(stop, self._hog)
        bed.start_noise()
        self.place(Phase(1, 1))

    def _find_threads(self) -> tuple[NapiThread, ...]:
        threads = napi_threads(HostPaths(), self._bed.cap_if)
        if len(threads) != QUEUES:
            raise AgentError(f"{len(threads)} polling threads of {self._bed.cap_if}, {QUEUES} were expected")
        return threads

    # ---- what is set and where the loads are -----------------------------------------------------------------

    def place(self, phase: Phase) -> int:
        """Move the loads; returns when they were in place, mono ns."""
        self._bed.move_noise(self._cpus[phase.kernel])
        os.sched_setaffinity(self._hog.pid, {self._cpus[phase.user]})
        return time.monotonic_ns()

    def set(self, setting: Setting) -> None:
        """Pin the polling threads."""
        for thread, parts in zip(self._threads, setting, strict=True):
            os.sched_setaffinity(thread.pid, {self._cpus[part] for part in parts})

    def setting(self) -> Setting:
        """Where the polling threads may run now."""
        part = {cpu: number for number, cpu in enumerate(self._cpus)}
        return tuple(
            frozenset(part[cpu] for cpu in os.sched_getaffinity(thread.pid) if cpu in part)
            for thread in self._threads
        )

    # ---- runs ------------------------------------------------------------------------------------------------

    def run_static(self, phases: Sequence[Phase], settings: Sequence[Setting], phase_s: float) -> Run:
        """The phases with a setting for each, set as the load moves."""
        self.set(settings[0])
        self.place(phases[0])
        self._bed.start_consumer()
        self._bed.start_traffic()
        time.sleep(SETTLE_S)
        spans = [self._span(phase, phase_s, setting) for phase, setting in zip(phases, settings, strict=True)]
        report = self._end_traffic()
        self.set(DEFAULTS)
        return Run(spans, report)

    def run_agent(self, phases: Sequence[Phase], phase_s: float) -> Run:
        """The phases under `agent run`, which starts from the kernel's defaults."""
        frames: list[dict[str, Any]] = []

        def keep(frame: dict[str, Any]) -> None:
            if frame["t"] in ("plan", "change", "effect", "conflict"):
                frames.append(frame)

        self.set(DEFAULTS)
        self.place(phases[0])
        arguments = ("--stamp", "trailer")
        with AgentProcess(
            self._bed.cap, self._bed.cap_if, self._state_dir, *arguments, on_frame=keep
        ) as agent:
            self._pause(True)
            try:
                agent.wait_for_hello()
            finally:
                self._pause(False)
            self._bed.start_consumer()
            self._bed.start_traffic()
            time.sleep(_AGENT_SETTLE_S)
            cpu_ns, began_ns = agent.cpu_ns(), time.monotonic_ns()
            spans = [self._span(phase, phase_s, None) for phase in phases]
            cpu_share = (agent.cpu_ns() - cpu_ns) / (time.monotonic_ns() - began_ns)
            report = self._end_traffic()
            if not agent.running:
                raise AgentError(f"the agent ended before it was told to: {agent.said()}")
            agent.stop()
        if self.setting() != DEFAULTS:
            raise AgentError("the agent did not put the polling threads' CPUs back")
        return Run(spans, report, frames, cpu_share)

    def run_aside(self, seconds: float) -> int:
        """How many interrupts the agent sends to the other CPU while all packets, and itself, are on the first.

        Those that find it idle count. The agent observes only: a queue that it moved would make the other one serve.
        Who reads its telemetry is on the first CPU too, since a write wakes the reader where that is. Raises
        `UnsupportedError` where the kernel cannot tell who sends them (before Linux 6.4).
        """
        self.set((frozenset({0}),) * QUEUES)
        self._pause(True)
        allowed = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {self._cpus[0]})  # and so all that is started from here
        try:
            with AgentProcess(
                self._bed.cap, self._bed.cap_if, self._state_dir, "--stamp", "trailer", "--observe"
            ) as agent:
                agent.wait_for_hello()
                self._bed.start_consumer()
                self._bed.start_traffic()
                time.sleep(_AGENT_SETTLE_S)
                with IpiCount(agent.pid) as ipis:
                    before = ipis.sent()
                    time.sleep(seconds)
                    sent = int((ipis.sent() - before)[self._cpus[1]])
                self._end_traffic()
                agent.stop()
        finally:
            os.sched_setaffinity(0, allowed)
            self._pause(False)
            self.set(DEFAULTS)
        return sent

    def _pause(self, paused: bool) -> None:
        """Hold both loads: how long a program takes to start under them is not the question."""
        self._bed.pause_noise(paused)
        os.kill(self._hog.pid, signal.SIGSTOP if paused else signal.SIGCONT)

    def _end_traffic(self) -> ConsumerReport:
        self._bed.stop_traffic()
        return self._bed.stop_consumer()

    def _span(self, phase: Phase, seconds: float, setting: Setting | None) -> Span:
        before = self.setting()
        start_ns = self.place(phase)
        if setting is not None:
            self.set(setting)
        time.sleep(seconds)
        return Span(phase, start_ns, time.monotonic_ns(), before, self.setting())


def _ethtool(namespace: Namespace, ifname: str, feature: str, value: str) -> None:
    done = namespace.popen(["ethtool", "-K", ifname, feature, value], stderr=subprocess.DEVNULL).wait()
    if done != 0:
        raise AgentError(f"{ifname} does not take {feature} {value}: `ethtool -K` gave {done}")
