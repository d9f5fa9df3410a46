"""`/proc/interrupts`: which interrupt belongs to whom, and how often it fired on which CPU.

The file is one line an interrupt and one column an *online* CPU: 38 MB on a host with 1,152 CPUs and 3,000
interrupts. Who wants names must not pay for counters, so the lines are cut at the end of their counters, found by
position, and the counters are parsed for the lines asked for only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

# The kernel prints each counter with "%10u " or " %10u"; a counter of 11 digits and more widens its column.
_COLUMN = 11
_TEXT = re.compile(rb"[^\d\s]")
_SPACES = re.compile(r"\s{2,}")
# "5-edge", "52953105-edge", "0 Edge", "27 Level": the hardware number and the flow type, when no action follows.
_HWIRQ = re.compile(r"\d+(?:-\w+|\s+(?:Edge|Level|None))?")


@dataclass(frozen=True, slots=True)
class Interrupt:
    """One numbered line: its handlers' names, and where its counters stand in the text."""

    number: int
    chip: str
    """Controller and flow type as printed, `PCI-MSI-edge` or `IR-PCI-MSI 524288-edge`."""
    actions: tuple[str, ...]
    """Handler names; several mean that devices share the line. Empty: requested by nobody."""
    _counters: slice = field(repr=False)

    @property
    def name(self) -> str:
        """The handlers as printed, joined by a comma."""
        return ", ".join(self.actions)


@dataclass(frozen=True, slots=True)
class Interrupts:
    """The parsed table. `cpus` are the ids of the columns: offline CPUs have none."""

    cpus: tuple[int, ...]
    by_number: dict[int, Interrupt]
    _text: bytes = field(repr=False)

    def counts(self, number: int) -> npt.NDArray[np.uint64]:
        """Interrupts since boot, uint64[len(cpus)], in the order of `cpus`. Raises `KeyError` for an unknown number."""
        fields = self._text[self.by_number[number]._counters].split()
        return np.array(fields, dtype=np.uint64)


def parse_interrupts(text: bytes) -> Interrupts:
    """Read the text of `/proc/interrupts`. Lines that are not numbered (NMI, LOC, ERR) are left out.

    Raises `ValueError` when the first line is no list of CPUs.
    """
    header_end = text.find(b"\n")
    header = text[: header_end if header_end >= 0 else len(text)].split()
    if not header or not all(name.startswith(b"CPU") and name[3:].isdigit() for name in header):
        raise ValueError("the first line of /proc/interrupts lists no CPUs")
    n_columns = len(header)
    table: dict[int, Interrupt] = {}
    # A table whose columns are narrower than the kernel prints them (squeezed by an editor) is cut word by word.
    skip = n_columns * _COLUMN if _has_kernel_columns(text, header_end, n_columns) else 0
    start = header_end + 1
    end = len(text)
    while 0 < start < end:
        stop = text.find(b"\n", start)
        if stop < 0:
            stop = end
        colon = text.find(b":", start, start + 24)
        label = text[start:colon].strip() if colon >= 0 else b""
        if label.isdigit():
            cut = _counters_end(text, colon + 1, stop, skip, n_columns)
            chip, actions = _describe(text[cut:stop].decode("utf-8", "replace"))
            number = int(label)
            table[number] = Interrupt(number, chip, actions, slice(colon + 1, cut))
        start = stop + 1
    return Interrupts(tuple(int(name[3:]) for name in header), table, text)


def _has_kernel_columns(text: bytes, header_end: int, n_columns: int) -> bool:
    stop = text.find(b"\n", header_end + 1)
    line = text[header_end + 1 : stop if stop >= 0 else len(text)]
    first = line.partition(b":")[2][: n_columns * _COLUMN]
    return len(first) == n_columns * _COLUMN and len(first.split()) <= n_columns


def _counters_end(text: bytes, start: int, stop: int, skip: int, n_columns: int) -> int:
    """Where the counters of a line end: before the first word that is no number, behind the fixed columns."""
    if skip:
        found = _TEXT.search(text, min(start + skip, stop), stop)
        if found is None:
            return stop
        # A controller may be named by its address ("209c000.gpio"): step back to the start of the word.
        word = max(text.rfind(b" ", start, found.start()), text.rfind(b"\t", start, found.start())) + 1
        return max(word, start)
    words = list(re.finditer(rb"\S+", text[start:stop]))[: n_columns + 1]
    return start + words[n_columns].start() if len(words) > n_columns else stop


def _describe(tail: str) -> tuple[str, tuple[str, ...]]:
    parts = [part for part in _SPACES.split(tail.strip()) if part]
    if len(parts) < 2 or _HWIRQ.fullmatch(parts[-1]):
        return " ".join(parts), ()
    actions = tuple(name.strip() for name in parts[-1].split(",") if name.strip())
    return " ".join(parts[:-1]), actions
