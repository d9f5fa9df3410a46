"""How long BPF programs ran, as bpf_stats count it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from agent.ffi.bpf import prog_info


@dataclass(frozen=True, slots=True)
class ProgramTime:
    """Of some programs, summed."""

    ns: int
    runs: int

    def __sub__(self, other: ProgramTime) -> ProgramTime:
        return ProgramTime(self.ns - other.ns, self.runs - other.runs)


def program_time(prog_fds: Iterable[int]) -> ProgramTime:
    """So far; only what ran while bpf_stats were enabled is counted."""
    infos = [prog_info(fd) for fd in prog_fds]
    return ProgramTime(sum(info.run_time_ns for info in infos), sum(info.run_cnt for info in infos))
