"""Programs that carry time between a PHC and the system clock by themselves.

Found by what they are and what they hold open: a process of one of these names with the clock's device among its
file descriptors. `ptp4l` and `ts2phc` are not among them: they keep a PHC right by a grandmaster or a pulse.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from agent.host.paths import HostPaths

_READS_ITSELF = (
    "it reads this clock itself (`refclock PHC` or `hwtimestamp`), so that one clock would count as two"
)
_CARRIES_TIME = (
    "it carries time between this clock and the system clock: two programs would steer the system clock, or the PHC "
    "would follow the very clock that it is to correct"
)
_PROGRAMS = {
    "chronyd": _READS_ITSELF,
    "ntpd": _READS_ITSELF,
    "phc2sys": _CARRIES_TIME,
    "sfptpd": _CARRIES_TIME,
    "ptpd": _CARRIES_TIME,
    "ptpd2": _CARRIES_TIME,
}
_COMMAND_CHARS = 120


class ClockConflicts:
    """Looks through the processes for one that holds `device` (`/dev/ptpN`), all at once or some on every tick."""

    def __init__(self, paths: HostPaths, device: Path) -> None:
        self._proc = paths.proc
        self._device = str(device)
        self._found: list[str] = []
        self._conflict = ""
        self._walk: Iterator[str] = iter(())

    def look(self) -> str:
        """Look at every process now; returns what conflicts and why, or "" if nothing does."""
        processes = self._processes()
        self._walk, self._found = iter(processes), []
        return self.look_on(len(processes) + 1)

    def look_on(self, processes: int) -> str:
        """Look at the next few processes; returns what the last whole round, or this one so far, has found."""
        for _ in range(processes):
            process = next(self._walk, None)
            if process is None:
                self._conflict = self._found[0] if self._found else ""
                self._walk, self._found = iter(self._processes()), []
                break
            self._look_at(process)
        return self._found[0] if self._found else self._conflict

    def _processes(self) -> list[str]:
        with os.scandir(self._proc) as entries:
            return [entry.name for entry in entries if entry.name.isdigit()]

    def _look_at(self, pid: str) -> None:
        try:
            name = _command_name(f"{self._proc}/{pid}/comm")
            if name not in _PROGRAMS:
                return
            process = self._proc / pid
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            who = f"{name} (pid {pid}: `{command[:_COMMAND_CHARS]}`)"
            if self._device in _open_files(process):
                self._found.append(f"{who} holds {self._device} open: {_PROGRAMS[name]}")
        except PermissionError:
            self._found.append(
                f"whether {who} holds {self._device} open cannot be seen: the agent needs CAP_SYS_PTRACE for that"
            )
        except OSError:  # ended meanwhile
            return


def _command_name(comm: str) -> str:
    # On every tick: pathlib's own way of reading takes four times as long as the file.
    fd = os.open(comm, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 64).decode(errors="replace").strip()
    finally:
        os.close(fd)


def _open_files(process: Path) -> set[str]:
    return {str(link.readlink()) for link in (process / "fd").iterdir()}
