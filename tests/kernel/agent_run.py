"""`agent` as a process of its own, looked at from outside: its telemetry, its stderr, its exit code."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from agent.ffi.records import WINDOW_DTYPE, WindowArray
from agent.telemetry.decode import Decoder
from tools.testbed.namespace import Namespace

AGENT = (sys.executable, "-m", "agent")
TIMEOUT_S = 30.0

Frame = dict[str, Any]


def agent(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """An `agent` command that ends by itself."""
    return subprocess.run(
        [*AGENT, *arguments], capture_output=True, timeout=TIMEOUT_S, check=False, **options
    )


class AgentRun:
    """`agent run` in a namespace (None: this process's); its frames are collected as they come. A context manager.

    `inside` starts the process within the namespace's thread instead of naming the namespace by `--netns`;
    `before` is put before the command (`unshare`, `setpriv`, …).
    """

    def __init__(
        self,
        namespace: Namespace | None,
        state_dir: Path,
        *arguments: str,
        interfaces: Sequence[str] = ("cap0",),
        inside: bool = False,
        before: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        named = [word for name in interfaces for word in ("-i", name)]
        where = [] if inside or namespace is None else ["--netns", namespace.name]
        command = [*before, *AGENT, "run", *named, *where, "--state-dir", str(state_dir), *arguments]
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self.frames: list[Frame] = []
        self._windows: list[tuple[str, WindowArray]] = []
        self._news = threading.Condition()
        self._reading = threading.Event()
        self._reading.set()

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._stderr, env=env
            )

        self.process = namespace.call(start) if inside and namespace else start()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        decoder = Decoder()
        while data := self.process.stdout.read1(1 << 16):  # type: ignore[attr-defined]
            with self._news:
                for frame in decoder.feed(data):
                    self.frames.append(dict(frame))
                    if frame["t"] == "windows":
                        self._windows.append((frame["ifname"], decoder.records(frame).copy()))
                self._news.notify_all()
            self._reading.wait()

    def pause_reading(self) -> None:
        """Stop taking telemetry from the pipe."""
        self._reading.clear()

    def resume_reading(self) -> None:
        """Take telemetry again."""
        self._reading.set()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Return when the frames so far fulfil a condition. Fails when the agent ends before, or after a while."""
        deadline = time.monotonic() + TIMEOUT_S
        with self._news:
            while not condition():
                assert time.monotonic() < deadline, f"it did not happen in time; {self.said()}"
                ended = self.process.poll() is not None and not self._reader.is_alive()
                assert not ended or condition(), f"the agent ended: {self.said()}"
                self._news.wait(0.05)

    def wait_for(self, kind: str, condition: Callable[[Frame], bool] = lambda frame: True) -> Frame:
        """The first frame of a kind that fulfils a condition, waited for."""
        self.wait_until(lambda: any(condition(frame) for frame in self.of_kind(kind)))
        return next(frame for frame in self.of_kind(kind) if condition(frame))

    def started(self) -> Self:
        """Itself, when its programs are attached."""
        self.wait_for("hello")
        return self

    def of_kind(self, kind: str) -> list[Frame]:
        """The frames of a kind so far."""
        return [frame for frame in self.frames if frame["t"] == kind]

    def windows(self, ifname: str = "cap0") -> WindowArray:
        """The windows of an interface so far."""
        own = [records for name, records in list(self._windows) if name == ifname]
        return np.concatenate(own) if own else np.zeros(0, dtype=WINDOW_DTYPE)

    def packets(self, ifname: str = "cap0") -> int:
        """Packets in the windows of an interface so far."""
        return int(self.windows(ifname)["n"].sum())

    def notes(self) -> str:
        """Everything that its health frames noted, a line each."""
        return "\n".join(note for frame in self.of_kind("health") for note in frame["notes"])

    def counters(self, ifname: str = "cap0") -> dict[str, int]:
        """An interface's counters in the goodbye."""
        (goodbye,) = self.of_kind("goodbye")
        found: dict[str, int] = next(i["counters"] for i in goodbye["interfaces"] if i["ifname"] == ifname)
        return found

    def said(self) -> str:
        """Its stderr so far."""
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace")

    def wait(self) -> int:
        """The exit code, when it has ended and all frames are read; no traceback ever reaches a user."""
        code = self.process.wait(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        assert "Traceback" not in self.said(), self.said()
        return code

    def stop(self) -> int:
        """End it by SIGTERM; the exit code."""
        self.process.terminate()
        return self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reading.set()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(TIMEOUT_S)
        self._stderr.close()
