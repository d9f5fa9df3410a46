"""Threaded NAPI: whether an interface polls in kernel threads, which threads those are, and where they may run."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from agent.host.masks import CpuMask
from agent.host.paths import HostPaths, read_text


@dataclass(frozen=True, slots=True)
class NapiThread:
    """One kernel thread `napi/IF-ID`. `start_ticks` tells it from a later thread with the same pid."""

    pid: int
    name: str
    napi_id: int
    start_ticks: int
    affinity: CpuMask


def is_threaded(paths: HostPaths, ifname: str) -> bool | None:
    """Whether NAPI polling of the interface is threaded; None where the kernel cannot say (before 5.12)."""
    text = read_text(paths.net(ifname) / "threaded")
    # 2 is busy-poll threading (6.19 and later), threaded as well.
    return None if text is None else text != "0"


def napi_threads(paths: HostPaths, ifname: str) -> tuple[NapiThread, ...]:
    """The polling threads of an interface by ascending NAPI id; empty where polling is not threaded."""
    prefix = f"napi/{ifname}-"
    found = []
    for entry in _pid_directories(paths.proc):
        name = read_text(entry / "comm")
        if name is None or not name.startswith(prefix) or not name[len(prefix) :].isdigit():
            continue
        thread = read_thread(entry)
        if thread is not None:
            found.append(NapiThread(int(entry.name), name, int(name[len(prefix) :]), *thread))
    return tuple(sorted(found, key=lambda thread: thread.napi_id))


def read_thread(directory: Path) -> tuple[int, CpuMask] | None:
    """(start time in ticks since boot, affinity) of a thread's `/proc` directory; None when it is gone."""
    stat = read_text(directory / "stat")
    status = read_text(directory / "status")
    if stat is None or status is None:
        return None
    # The name, in parentheses, may hold spaces and parentheses: fields count from the last one. Field 22 is the start.
    start_ticks = int(stat[stat.rindex(")") + 2 :].split()[19])
    for line in status.splitlines():
        if line.startswith("Cpus_allowed:"):
            return start_ticks, CpuMask.parse_mask(line.partition(":")[2])
    return start_ticks, CpuMask()


def _pid_directories(proc: Path) -> list[Path]:
    try:
        with os.scandir(proc) as entries:
            return [Path(entry.path) for entry in entries if entry.name.isdigit()]
    except OSError:
        return []
