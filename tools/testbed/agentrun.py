"""The agent as a child process on the testbed: `agent run`, with its telemetry in a pipe."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

import psutil

from agent.errors import AgentError, PartialError
from agent.telemetry.decode import Decoder
from agent.telemetry.readable import Readable
from tools.testbed.evidence import Evidence
from tools.testbed.testbed import Testbed

_START_TIMEOUT_S = 30.0
_END_TIMEOUT_S = 20.0
_CLOCK_LINE_EVERY_NS = 2_000_000_000
# Frames that come all the time, and would drown what happens.
_NOT_SHOWN = ("windows", "inputs", "delay", "irq", "steering", "health")


class AgentRun:
    """The agent as a child process: its telemetry goes to `evidence`, notable frames to stderr as they come."""

    def __init__(self, bed: Testbed, seconds: float, state_dir: str, evidence: Evidence) -> None:
        self._evidence = evidence
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "agent", "run", "-i", bed.cap_if, "--netns", bed.cap.name,
                "--seconds", str(seconds), "--stamp", "trailer", "--state-dir", state_dir,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
        )  # fmt: skip
        self._watched = psutil.Process(self._process.pid)
        self._said_hello = threading.Event()
        self._fault: AgentError | None = None
        self._reader = threading.Thread(target=self._read, name="telemetry", daemon=True)
        self._reader.start()
        self.rss_bytes = 0
        self._first: tuple[float, float] | None = None
        self._last = (0.0, 0.0)

    def _read(self) -> None:
        assert self._process.stdout is not None
        decoder, readable, next_clock_line = Decoder(), Readable(), 0
        try:
            # read1: whatever is there, so that the progress is not late by a buffer.
            while data := self._process.stdout.read1(1 << 16):  # type: ignore[attr-defined]
                for frame in decoder.feed(data):
                    kind = frame["t"]
                    self._evidence.add(frame, decoder.records(frame) if kind == "windows" else None)
                    line = readable.line(frame) if kind not in _NOT_SHOWN else ""
                    if kind == "clock":
                        if not frame["tags"] and frame["mono_ns"] < next_clock_line:
                            continue
                        next_clock_line = frame["mono_ns"] + _CLOCK_LINE_EVERY_NS
                    elif kind == "hello":
                        self._said_hello.set()
                    if line:
                        print(line, file=sys.stderr, flush=True)
            decoder.finish()
        except AgentError as error:
            self._fault = error
            self._process.terminate()

    def wait_for_hello(self) -> None:
        """Return when the agent has attached and says so. Raises `PartialError` if it ends or takes too long."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._said_hello.wait(0.02):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._reader.join(1)
                raise PartialError(f"the agent did not start{self._how_it_ended()}:\n{self.stderr()}")

    def sample(self) -> None:
        """Look at the process from outside: CPU time and memory."""
        with contextlib.suppress(psutil.NoSuchProcess):
            times = self._watched.cpu_times()
            self._last = (time.monotonic(), times.user + times.system)
            self._first = self._first or self._last
            self.rss_bytes = max(self.rss_bytes, self._watched.memory_info().rss)

    def ended(self) -> bool:
        """Whether the process is gone."""
        return self._process.poll() is not None

    def finish(self) -> int:
        """Wait for its end and return the exit code. Raises `PartialError` if its telemetry is damaged."""
        try:
            code = self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise PartialError(f"the agent did not end in time:\n{self.stderr()}") from None
        self._reader.join()
        if self._fault is not None:
            raise PartialError(f"the agent's telemetry can't be read: {self._fault}\n{self.stderr()}")
        return code

    @property
    def seconds(self) -> float:
        """From the first sample to the last."""
        return self._last[0] - self._first[0] if self._first else 0.0

    @property
    def cpu_percent(self) -> float:
        """Of one core, from the first sample to the last."""
        return 100 * (self._last[1] - self._first[1]) / self.seconds if self._first and self.seconds else 0.0

    def _how_it_ended(self) -> str:
        code = self._process.poll()
        if code is None:
            return f" within {_START_TIMEOUT_S:g} s"
        return f", killed by {signal.Signals(-code).name}" if code < 0 else f", exit code {code}"

    def stderr(self) -> str:
        """What it said on stderr."""
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace").strip() or "(it said nothing)"

    def close(self) -> None:
        """End it, if it hasn't ended: by SIGTERM so that it restores what it changed."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._reader.join()
        self._stderr.close()
