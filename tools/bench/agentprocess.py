"""`agent run` as a process of its own on the testbed, looked at from outside."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from agent.errors import AgentError
from agent.ffi.bpf import prog_by_id
from agent.telemetry.decode import Decoder
from tools.bench.programtime import ProgramTime, program_time
from tools.testbed import Namespace

_START_S = 30.0
_END_S = 20.0
# Mapped kernel memory that newer kernels leave out of RSS.
_KERNEL_MAPPINGS = ("anon_inode:[perf_event]", "anon_inode:bpf-map")


@dataclass(frozen=True, slots=True)
class Memory:
    """A process's memory in KiB: most ever resident, and what is resident now."""

    peak_rss: int
    pss: int
    uss: int
    unseen: int
    """Rings and BPF maps that are mapped but not counted in RSS."""


class AgentProcess:
    """`agent run` on one interface. A context manager: it is killed if it still runs at the end.

    `on_frame` is called with every telemetry frame, in the reader's thread; without it, frames behind the first are
    read and thrown away.
    """

    def __init__(
        self,
        namespace: Namespace,
        ifname: str,
        state_dir: Path,
        *arguments: str,
        on_frame: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self._on_frame = on_frame
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "agent", "run", "-i", ifname, "--netns", namespace.name,
                "--state-dir", str(state_dir), *arguments,
            ],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._errors,
        )  # fmt: skip
        self._hello = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        decoder = Decoder()
        while data := stdout.read1(1 << 16):  # type: ignore[attr-defined]
            if self._on_frame is None and self._hello.is_set():
                continue
            for frame in decoder.feed(data):
                self._hello.set()
                if self._on_frame is not None:
                    self._on_frame(frame)

    def wait_for_hello(self) -> None:
        """Return when its programs are attached. Raises `AgentError` if it ends before, or takes too long."""
        deadline = time.monotonic() + _START_S
        while not self._hello.wait(0.01):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AgentError(f"the agent did not start: {self.said()}")

    def said(self) -> str:
        """Its stderr."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip() or "(nothing)"

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def cpu_ns(self) -> int:
        """CPU time of all its threads, ns."""
        return time.clock_gettime_ns(~self.pid << 3 | 2)  # clock_getcpuclockid(3) on Linux: CPUCLOCK_SCHED

    def program_time(self) -> ProgramTime:
        """Run time of the BPF programs that it holds, as bpf_stats count it."""
        ids = set()
        for entry in Path(f"/proc/{self.pid}/fdinfo").iterdir():
            found = re.search(r"^prog_id:\t(\d+)$", entry.read_text(), re.M)
            if found:
                ids.add(int(found[1]))
        with contextlib.ExitStack() as stack:
            return program_time([stack.enter_context(prog_by_id(prog_id)) for prog_id in ids])

    def memory(self) -> Memory:
        """How much memory it takes."""
        status = _kib_fields(Path(f"/proc/{self.pid}/status").read_text())
        rollup = _kib_fields(Path(f"/proc/{self.pid}/smaps_rollup").read_text())
        unseen = 0
        for mapping in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path(f"/proc/{self.pid}/smaps").read_text()):
            head, _, fields = mapping.partition("\n")
            if head.endswith(_KERNEL_MAPPINGS):
                sizes = _kib_fields(fields)
                unseen += sizes["Size"] - sizes["Rss"]
        return Memory(
            peak_rss=status["VmHWM"],
            pss=rollup["Pss"],
            uss=rollup["Private_Clean"] + rollup["Private_Dirty"],
            unseen=unseen,
        )

    def signal(self, number: int) -> None:
        """Send it a signal; nothing happens if it has ended."""
        self._process.send_signal(number)

    def wait(self) -> int:
        """Wait for its end, all frames read; returns the exit code, -9 after SIGKILL."""
        code = self._process.wait(_END_S)
        self._reader.join(_END_S)
        return code

    def stop(self) -> int:
        """End it by SIGTERM; returns the exit code."""
        self._process.terminate()
        return self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.running:
            self._process.kill()
        self._process.wait()
        self._reader.join(_END_S)
        self._errors.close()


def _kib_fields(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.M)}
