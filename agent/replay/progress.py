"""How far a long replay is, on stderr."""

from __future__ import annotations

import os
import sys
import time
from typing import BinaryIO

from agent.telemetry.figures import count

_FIRST_AFTER_S = 2.0
_PERIOD_S = 0.5
# The clock is read every so many rows: a row takes some 100 µs.
_ROWS_BETWEEN = 512


class Progress:
    """One line that is written over itself on a terminal, a line every ten seconds where it was asked for elsewhere."""

    def __init__(self, file: BinaryIO, *, wanted: bool) -> None:
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self._terminal = sys.stderr.isatty()
        self._on = wanted or self._terminal
        self._period_s = _PERIOD_S if self._terminal else 10.0
        self._start_s = time.monotonic()
        self._due_s = self._start_s + _FIRST_AFTER_S
        self._rows = 0
        self._shown = False

    def step(self) -> None:
        """Count a row."""
        self._rows += 1
        if self._on and self._rows % _ROWS_BETWEEN == 0 and time.monotonic() >= self._due_s:
            self._show()

    def close(self) -> None:
        """Take the line away from a terminal."""
        if self._shown and self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def _show(self) -> None:
        now_s = time.monotonic()
        self._due_s = now_s + self._period_s
        spent_s = now_s - self._start_s
        text = f"{count(self._rows)} rows, {count(self._rows / spent_s)}/s"
        if self._size:
            # What was read ahead is not done yet, but it is a few KiB.
            share = min(1.0, self._file.tell() / self._size)
            left_s = spent_s * (1.0 - share) / max(share, 1e-6)
            text = f"{100 * share:.0f} %, {text}, {left_s:.0f} s left"
        begin, end = ("\r\x1b[K", "") if self._terminal else ("", "\n")
        print(f"{begin}replay: {text}", end=end, file=sys.stderr, flush=True)
        self._shown = True
