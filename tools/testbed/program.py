"""The testbed's C programs as children: started in a namespace, ended by SIGTERM, JSON lines read back."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from typing import Any

from agent.errors import AgentError
from tools.testbed.namespace import Namespace, stop

_READY_TIMEOUT_S = 5.0


class Program:
    """A running program that prints JSON lines, the last one when it ends.

    `args[0]` is its path. With `wait_ready` the constructor returns when the first line is there (`ready` holds it).
    Its output goes to an unnamed file, so that it never waits for us.
    """

    def __init__(self, namespace: Namespace, args: list[str], wait_ready: bool = False) -> None:
        self.name = os.path.basename(args[0])  # noqa: PTH119
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process: subprocess.Popen[bytes] | None = None
        self.ready: dict[str, Any] = {}
        try:
            self._process = namespace.popen(args, stdout=self._output, stderr=self._errors)
            if wait_ready:
                self.ready = self._wait_ready()
        except BaseException:
            self.close()
            raise

    def _wait_ready(self) -> dict[str, Any]:
        assert self._process is not None
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while True:
            line, newline, _ = os.pread(self._output.fileno(), 4096, 0).partition(b"\n")
            if newline:
                first: dict[str, Any] = json.loads(line)
                return first
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AgentError(f"the testbed's {self.name} did not start: {self._said()}")
            time.sleep(0.002)

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip() or "it said nothing"

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    def stop(self) -> list[dict[str, Any]]:
        """End it and return the lines that it printed, decoded; raise `AgentError` if it failed."""
        assert self._process is not None
        try:
            code = stop(self._process)
            if code != 0:
                raise AgentError(f"the testbed's {self.name} ended with exit code {code}: {self._said()}")
            self._output.seek(0)
            return [json.loads(line) for line in self._output]
        finally:
            self.close()

    def close(self) -> None:
        """End it without asking for its figures; nothing happens if it has ended."""
        if self._process is not None:
            stop(self._process)
        self._output.close()
        self._errors.close()
