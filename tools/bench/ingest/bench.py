"""One run: a side, phases of frames, and what became of each frame."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from agent.errors import AgentError
from tools.bench.agentprocess import AgentProcess
from tools.bench.ingest.model import write
from tools.bench.ingest.scenario import Phase, Scenario
from tools.testbed.namespace import netns_pair
from tools.testbed.testbed import online_cpus

_LEAD_NS = 400_000_000
_DRAIN_S = 0.5
_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Side:
    """A way to form batches: by a window of one's own, or, with `agent`, by the agent's where it has one."""

    name: str
    window: tuple[int, int]
    """(max_wait_us, max_items)."""
    rcvbuf_kib: int
    """0: the kernel's default."""
    agent: bool = False


@dataclass(frozen=True, slots=True)
class PhaseOutcome:
    """One phase of a run."""

    sent: int
    captured_ns: npt.NDArray[np.int64]
    """Of the inferred frames, from the first phase's beginning."""
    latency_ns: npt.NDArray[np.int64]
    """From a frame's capture until its batch was inferred."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run."""

    phases: tuple[PhaseOutcome, ...]
    cpu_percent: float
    """Of all CPUs: the service and, on its side, the agent."""
    late_p99_ns: float
    """How late the camera itself was: what it could not help, on this machine."""

    @property
    def latency_ns(self) -> npt.NDArray[np.int64]:
        """Of all inferred frames."""
        return np.concatenate([phase.latency_ns for phase in self.phases])

    @property
    def mean_ms(self) -> float:
        """Mean latency; infinite if nothing was inferred."""
        latency = self.latency_ns
        return float(latency.mean()) / 1e6 if len(latency) else float("inf")

    @property
    def p99_ms(self) -> float:
        """99th percentile of the latency; infinite if nothing was inferred."""
        latency = self.latency_ns
        return float(np.percentile(latency, 99)) / 1e6 if len(latency) else float("inf")

    @property
    def drops(self) -> float:
        """Share of the frames that were sent and never inferred."""
        sent = sum(phase.sent for phase in self.phases)
        return 1.0 - len(self.latency_ns) / sent


class IngestBench:
    """Two namespaces, a veth pair, a model, and the processes of a run at a time. A context manager.

    The camera is on the first CPU, the service on the last.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._stack = ExitStack()
        self._runs = itertools.count()
        cpus = online_cpus()
        self._cpus = {"sender": cpus[0], "consumer": cpus[-1]}
        self._n_cpus = len(cpus)

    def __enter__(self) -> Self:
        frame = self._scenario.frame
        try:
            self._directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="ingest-")))
            write(self._model, self._scenario.model, frame.channels, frame.height, frame.width)
            self._pair = self._stack.enter_context(netns_pair(mtu=frame.mtu))
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def _model(self) -> Path:
        return self._directory / "detector.onnx"

    def run(self, side: Side, phases: Sequence[Phase]) -> Outcome:
        """Send the frames of some phases after a warm-up like the first, and see what a side makes of them."""
        run = next(self._runs)
        with ExitStack() as stack:
            state_dir = self._directory / f"state-{run}"
            state_dir.mkdir()
            agent = None
            if side.agent:
                agent = stack.enter_context(
                    AgentProcess(self._pair.right, "cap0", state_dir, "--stamp", "none", "--batch")
                )
                agent.wait_for_hello()
            out = self._directory / f"done-{run}.npy"
            service = self._start_service(side, state_dir, out, stack)
            start_ns = time.monotonic_ns() + _LEAD_NS
            starts_ns = self._starts(phases, start_ns)
            due = [phase.times_ns(self._random(n)) + starts_ns[n] for n, phase in enumerate(phases)]
            warm_up = self._warm_up(phases[0], start_ns)
            camera = self._start_camera(np.concatenate([warm_up, *due]), stack)
            load = self._start_load(phases, starts_ns, stack)
            _sleep_until(starts_ns[0])
            cpu_ns = _cpu_ns(service.pid) + (agent.cpu_ns() if agent else 0)
            _sleep_until(starts_ns[-1])
            cpu_ns = _cpu_ns(service.pid) + (agent.cpu_ns() if agent else 0) - cpu_ns
            sent = _finished(camera, "the camera")
            time.sleep(_DRAIN_S)
            service.send_signal(signal.SIGTERM)
            _finished(service, "the service")
            load.wait(_TIMEOUT_S)
            if agent is not None and agent.stop() != 0:
                raise AgentError(f"the agent failed: {agent.said()}")
        span_ns = starts_ns[-1] - starts_ns[0]
        return Outcome(
            self._by_phase(np.load(out), len(warm_up), [len(times) for times in due], starts_ns[0]),
            100.0 * cpu_ns / span_ns / self._n_cpus,
            sent["late_p99_ns"],
        )

    # ---- the schedule ----------------------------------------------------------------------------------------

    def _random(self, phase: int) -> np.random.Generator:
        return np.random.default_rng((self._scenario.seed, phase))

    def _warm_up(self, phase: Phase, start_ns: int) -> npt.NDArray[np.int64]:
        calm = Phase("warm-up", self._scenario.warmup_s, phase.rate, phase.burst, phase.jitter_us, "none")
        return calm.times_ns(self._random(99)) + start_ns

    def _starts(self, phases: Sequence[Phase], start_ns: int) -> list[int]:
        """When each phase begins, and when the last one ends."""
        starts = [start_ns + round(self._scenario.warmup_s * 1e9)]
        for phase in phases:
            starts.append(starts[-1] + round(phase.seconds * 1e9))
        return starts

    @staticmethod
    def _by_phase(
        done: npt.NDArray[np.int64], warm_up: int, sent: Sequence[int], start_ns: int
    ) -> tuple[PhaseOutcome, ...]:
        outcomes = []
        first = warm_up
        for frames in sent:
            inside = done[(done[:, 0] >= first) & (done[:, 0] < first + frames)]
            outcomes.append(PhaseOutcome(frames, inside[:, 1] - start_ns, inside[:, 2] - inside[:, 1]))
            first += frames
        return tuple(outcomes)

    # ---- the processes ---------------------------------------------------------------------------------------

    def _start_service(
        self, side: Side, state_dir: Path, out: Path, stack: ExitStack
    ) -> subprocess.Popen[bytes]:
        frame = self._scenario.frame
        process = self._python(
            "service", True, stack,
            "--model", self._model, "--shape", frame.channels, frame.height, frame.width,
            "--window", *side.window, "--waiting", self._scenario.waiting_frames,
            "--rcvbuf-kib", side.rcvbuf_kib, "--state-dir", state_dir, "--cpu", self._cpus["consumer"],
            "--out", out,
        )  # fmt: skip
        assert process.stdout is not None
        if not process.stdout.readline():
            raise AgentError("the service did not start", "its stderr is above")
        return process

    def _start_camera(self, due: npt.NDArray[np.int64], stack: ExitStack) -> subprocess.Popen[bytes]:
        path = self._directory / "due.npy"
        np.save(path, due)
        frame = self._scenario.frame
        return self._python(
            "camera", False, stack,
            "--to", self._pair.right_ip, "--due", path, "--frame-bytes", frame.size,
            "--packet-bytes", frame.packet_bytes, "--cpu", self._cpus["sender"],
        )  # fmt: skip

    def _start_load(
        self, phases: Sequence[Phase], starts_ns: Sequence[int], stack: ExitStack
    ) -> subprocess.Popen[bytes]:
        schedule = [
            [starts_ns[n], starts_ns[n + 1], self._cpus[phase.load]]
            for n, phase in enumerate(phases)
            if phase.load != "none"
        ]
        return self._python(
            "load", False, stack,
            "--schedule", json.dumps(schedule), "--percent", self._scenario.load_percent,
            "--period-us", self._scenario.load_period_us,
        )  # fmt: skip

    def _python(
        self, module: str, receives: bool, stack: ExitStack, *args: object
    ) -> subprocess.Popen[bytes]:
        """A module of this package as a process; it is killed with the stack if it still runs then."""
        namespace = self._pair.right if receives else self._pair.left
        real_time = ["chrt", "--rr", str(self._scenario.priorities[module])]
        command = [*real_time, sys.executable, "-m", f"tools.bench.ingest.{module}", *map(str, args)]
        process = namespace.popen(command, stdout=subprocess.PIPE)
        stack.callback(_end, process)
        return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def _finished(process: subprocess.Popen[bytes], name: str) -> dict[str, Any]:
    """What a process printed in its last line, when it has ended."""
    said, _ = process.communicate(timeout=_TIMEOUT_S)
    if process.returncode != 0:
        raise AgentError(f"{name} ended with exit code {process.returncode}", "its stderr is above")
    last: dict[str, Any] = json.loads(said.splitlines()[-1])
    return last


def _cpu_ns(pid: int) -> int:
    return time.clock_gettime_ns(~pid << 3 | 2)  # clock_getcpuclockid(3) on Linux: CPUCLOCK_SCHED


def _sleep_until(mono_ns: int) -> None:
    time.sleep(max(0.0, (mono_ns - time.monotonic_ns()) / 1e9))
