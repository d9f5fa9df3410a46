"""The programs that the packets are for: which processes they are, where their threads may run, where their memory is.

All of it is read from procfs, so that a tree of files can stand in for a host.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from agent.host.masks import CpuMask
from agent.host.napi import read_thread
from agent.host.paths import HostPaths, read_text

# The kernel keeps 15 characters of a name (TASK_COMM_LEN).
_COMM_MAX = 15
_NODE_PAGES = re.compile(r"\bN(\d+)=(\d+)")
_PAGE_KB = re.compile(r"\bkernelpagesize_kB=(\d+)")


@dataclass(frozen=True, slots=True)
class ConsumerThread:
    """One thread of a consumer. `start_ticks` tells it from a later thread with the same number."""

    pid: int
    tid: int
    name: str
    start_ticks: int
    affinity: CpuMask


def find_pids(paths: HostPaths, wanted: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """The processes that each word of `wanted` means, ascending: a process id, or a program's name.

    A name is matched with what the kernel calls the process, and with the file name of the program that was started
    where that is longer than the kernel keeps. Words that mean no process have an empty tuple. This process is none.
    """
    words = list(wanted)
    found: dict[str, list[int]] = {word: [] for word in words}
    for word in words:
        if word.isdigit() and (paths.proc / word / "stat").exists():
            found[word].append(int(word))
    names = [word for word in words if not word.isdigit()]
    if names:
        for entry in paths.proc.glob("[0-9]*"):
            if int(entry.name) == os.getpid():
                continue
            comm = read_text(entry / "comm")
            for name in names:
                if comm == name or (
                    comm == name[:_COMM_MAX] and _program(read_text(entry / "cmdline")) == name
                ):
                    found[name].append(int(entry.name))
    return {word: tuple(sorted(pids)) for word, pids in found.items()}


def consumer_threads(paths: HostPaths, pids: Iterable[int]) -> tuple[ConsumerThread, ...]:
    """The threads of the processes, by process and thread id; those that are gone are left out."""
    threads = []
    for pid in pids:
        tasks = paths.proc / str(pid) / "task"
        try:
            tids = sorted(int(entry.name) for entry in tasks.iterdir())
        except OSError:  # it ended meanwhile
            continue
        for tid in tids:
            name, thread = read_text(tasks / str(tid) / "comm"), read_thread(tasks / str(tid))
            if name is not None and thread is not None:
                threads.append(ConsumerThread(pid, tid, name, *thread))
    return tuple(threads)


def memory_by_node(paths: HostPaths, pid: int) -> dict[int, int]:
    """Bytes of a process's memory on each NUMA node, from `/proc/PID/numa_maps`; empty where that is not told.

    Only what was touched has a place. Raises `PermissionError` for another user's process.
    """
    amounts: dict[int, int] = {}
    for line in (read_text(paths.proc / str(pid) / "numa_maps") or "").splitlines():
        size = _PAGE_KB.search(line)
        page_bytes = int(size[1]) << 10 if size else 4096
        for node, pages in _NODE_PAGES.findall(line):
            amounts[int(node)] = amounts.get(int(node), 0) + int(pages) * page_bytes
    return amounts


def _program(cmdline: str | None) -> str:
    return (cmdline or "").partition("\0")[0].rpartition("/")[2]
