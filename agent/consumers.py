"""The consumers that `agent run` was told of: where their threads are, and keeping them off the CPUs of the packets.

Where a consumer's thread is bound to a CPU, the plan keeps packets away from there. With `--pin-consumer` the threads
move too: off the CPUs that process packets, and onto the NIC's NUMA node.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass

from agent.control.journal import Journal
from agent.control.settings import Setting, ThreadAffinitySetting, is_gone, kind_of
from agent.errors import UsageError
from agent.host.consumers import ConsumerThread, consumer_threads, find_pids
from agent.host.cpus import CpuTopology
from agent.host.masks import CpuMask
from agent.host.napi import read_thread
from agent.host.paths import HostPaths

_THREADS_NS = 2_000_000_000
# Looking for names reads every process.
_NAMES_NS = 10_000_000_000
# The packets' CPUs have to be these for so long before a thread moves out of their way.
_SETTLED_NS = 2_000_000_000
_KIND = "consumer-affinity"


class Consumers:
    """The threads of the named programs, looked up again from time to time."""

    def __init__(self, paths: HostPaths, wanted: Sequence[str]) -> None:
        """Raises `UsageError` for a process id that is not there; a name may start to run later."""
        self._paths = paths
        self._wanted = tuple(wanted)
        self._names_ns = self._threads_ns = -_NAMES_NS
        self._pids: tuple[int, ...] = ()
        self._told = False
        self.threads: tuple[ConsumerThread, ...] = ()
        self._notes: list[str] = []
        self._started: dict[str, int] = {}
        """Process id as given → when it started: the number may be another process's later."""
        for word in filter(str.isdigit, wanted):
            thread = read_thread(paths.proc / word)
            if thread is None:
                raise UsageError(
                    f"--consumer {word}: there is no such process", "name one that runs, or a program"
                )
            self._started[word] = thread[0]

    def follow(self, now_ns: int) -> dict[int, CpuMask]:
        """Thread id → CPUs that it may run on, as of two seconds ago at the most."""
        if not self._wanted:
            return {}
        if now_ns - self._names_ns >= _NAMES_NS:
            self._names_ns, self._threads_ns = now_ns, -_NAMES_NS
            self._look()
        if now_ns - self._threads_ns >= _THREADS_NS:
            self._threads_ns = now_ns
            self.threads = consumer_threads(self._paths, self._pids)
        return {thread.tid: thread.affinity for thread in self.threads}

    def take_notes(self) -> list[str]:
        """What was found or lost since the last call, for people."""
        notes, self._notes = self._notes, []
        return notes

    def _look(self) -> None:
        found = find_pids(self._paths, self._wanted)
        for word, start_ticks in self._started.items():
            thread = read_thread(self._paths.proc / word)
            if thread is None or thread[0] != start_ticks:
                found[word] = ()
        pids = tuple(sorted({pid for group in found.values() for pid in group}))
        if pids != self._pids or not self._told:
            self._told = True
            for word, group in found.items():
                shown = f"pid {', '.join(map(str, group))}" if group else "does not run now"
                self._notes.append(f"consumer {word}: {shown}")
        self._pids = pids


@dataclass(slots=True)
class _Pin:
    """Where a thread was put."""

    original: CpuMask
    latest: CpuMask
    ever: set[CpuMask]
    """All that it was given: what is known of it now may be some seconds old."""


class ConsumerPins:
    """Moves consumers' threads out of the packets' way, journaled: the journal's restoring puts them back."""

    def __init__(self, topology: CpuTopology, node: int | None, journal: Journal) -> None:
        """`node` is the NIC's; None where it is unknown, or the host has one."""
        self._topology = topology
        self._node = node if topology.nodes > 1 else None
        self._journal = journal
        self._serving = CpuMask()
        self._since_ns = 0
        self._pins: dict[str, _Pin] = {}
        self._refused: set[str] = set()

    def follow(self, threads: Sequence[ConsumerThread], serving: CpuMask, now_ns: int) -> list[str]:
        """Keep the threads off the CPUs that process packets now; returns what was done, for people.

        Nothing moves until those CPUs have been the same for a while.
        """
        if serving != self._serving:
            self._serving, self._since_ns = serving, now_ns
        if not serving or now_ns - self._since_ns < _SETTLED_NS:
            return []
        return [note for thread in threads if (note := self._move(thread))]

    def place(self, original: CpuMask, serving: CpuMask) -> CpuMask:
        """The CPUs for a thread that may run on `original`; empty where there are none for it.

        Those of the NIC's node that process no packets, nor share a core with one that does, as far as there are any;
        within `original`, unless that is nothing but the packets' CPUs.
        """
        usable = self._topology.usable
        near = usable
        if self._node is not None:
            near = CpuMask.of(cpu for cpu in usable if self._topology.node_of(cpu) == self._node)
        siblings = CpuMask()
        for cpu in serving:
            known = self._topology.cpus.get(cpu)
            siblings |= known.siblings if known else CpuMask()
        wishes = [near - serving - siblings, near - serving, usable - serving - siblings, usable - serving]
        for wish in wishes:
            if wish & original:
                return wish & original
        # What is left of it are isolated CPUs, which it was given on purpose; or it was bound to the packets' CPUs.
        return (original - serving) or next((wish for wish in wishes if wish), CpuMask())

    def _move(self, thread: ConsumerThread) -> str:
        target = ThreadAffinitySetting.target(thread.name, thread.tid, thread.start_ticks)
        if target in self._refused:
            return ""
        pin = self._pins.get(target) or _Pin(thread.affinity, thread.affinity, {thread.affinity})
        who = f"thread {thread.tid} ({thread.name})"
        if thread.affinity not in pin.ever:
            self._refused.add(target)
            return f"{who} was moved by somebody else: it is left to them"
        mask = self.place(pin.original, self._serving)
        if not mask or mask == pin.latest:
            return ""
        try:
            _write(self._journal, target, mask)
        except UsageError as error:  # a full disk ends no capture
            self._refused.add(target)
            return error.what
        except OSError as error:
            if is_gone(error):
                return ""
            self._refused.add(target)
            return f"{who} cannot be moved: {os.strerror(error.errno or errno.EIO)}"
        before, pin.latest = pin.latest, mask
        pin.ever.add(mask)
        self._pins[target] = pin
        return f"{who} moved from CPUs {before} to {mask}"


def _write(journal: Journal, target: str, mask: CpuMask) -> None:
    kind = kind_of(_KIND)
    before, after = kind.read(target), mask.format_mask(1).encode() + b"\n"
    journal.record(Setting(_KIND, target, namespaced=False), before, after)
    kind.write(target, after)
