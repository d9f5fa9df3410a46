"""Up to the consumers that were named: how long packets wait for them behind the stack's entry, and what they drop.

The wait is seen where the kernel copies a packet at its tracepoint: AF_PACKET without a ring, TCP, raw sockets, UDP
that comes in several pieces. UDP in one piece, and packets in rings, are read without passing there: of such consumers
drops and what waits in their buffers are told.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from agent.errors import AgentError
from agent.ffi.bpf import ProgramSet, attach_tracepoint, load
from agent.ffi.clocks import clock_pairs
from agent.ffi.records import CONSUMERS_MAX, hist_quantile
from agent.host.consumers import ConsumerThread
from agent.host.paths import HostPaths
from agent.host.sockdiag import SocketCounts, socket_counts, socket_inodes

# A socket that is opened later is found so much later.
_SOCKETS_NS = 2_000_000_000
_SO_TIMESTAMPNS = 35
_PAIRS = 5


@dataclass(frozen=True, slots=True)
class ConsumerWait:
    """One consumer in a span."""

    pid: int
    name: str
    n: int
    """Packets that it read and whose wait is known."""
    undated: int
    """Others that it read."""
    p50_ns: float
    """From the stack's entry until it read them; NaN where none are known."""
    p99_ns: float
    sockets: SocketCounts
    """How many there are and what they hold now, and what they dropped in the span."""


@dataclass(frozen=True, slots=True)
class ConsumerWaits:
    """All consumers in a span."""

    seconds: float
    consumers: tuple[ConsumerWait, ...]
    queues_full: int
    """Packets dropped at full receive queues, of any process on the host; UDP's, which count their own, are not."""

    @property
    def waiting_bytes(self) -> int:
        """What their sockets hold now."""
        return sum(consumer.sockets.backlog_bytes for consumer in self.consumers)

    @property
    def ring_lost(self) -> int:
        """What their AF_PACKET and AF_XDP sockets dropped; UDP's are in the host's own count."""
        return sum(consumer.sockets.ring_lost for consumer in self.consumers)


class ConsumerTrace:
    """The programs at the tracepoints, and the sockets' own counts. A context manager: leaving it detaches.

    Only where consumers were named. Where the kernel refuses the programs, `note` says why and drops are told alone.
    """

    def __init__(self, paths: HostPaths) -> None:
        self._paths = paths
        self._stack = ExitStack()
        self._maps: tuple[npt.NDArray[Any], npt.NDArray[Any]] | None = None
        self._before_ns = 0
        self._seen: npt.NDArray[Any] | None = None
        self._queues_full = 0
        self._pids: tuple[int, ...] = ()
        self._sockets_ns = -_SOCKETS_NS
        self._inodes: dict[int, frozenset[int]] = {}
        self._counts: dict[int, SocketCounts] = {}
        self.note = ""

    def start(self) -> None:
        """Load and attach, as far as the kernel lets us."""
        try:
            with ExitStack() as stack:
                # While any socket asks for receive timestamps, the kernel dates packets as they enter the stack.
                dated = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                dated.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
                loaded = stack.enter_context(load("libbpf", ProgramSet("consumer")))
                waits, host = loaded.map("consumer_waits").mmap(), loaded.map("consumer_hosts").mmap()
                self._relate_clocks(host)
                for name, fd in loaded.programs.items():
                    stack.enter_context(attach_tracepoint(fd, name))
                self._maps = waits, host
                self._stack = stack.pop_all()
        except AgentError as error:
            self.note = f"how long packets wait for their consumers is not measured: {error.what}"

    def _relate_clocks(self, host: npt.NDArray[Any]) -> None:
        """Tell the programs how realtime stands to mono: that changes only where realtime is stepped."""
        pairs = clock_pairs(_PAIRS)
        best = pairs.best()
        host["realtime_minus_mono_ns"][0] = int(pairs.realtime_ns[best]) - int(pairs.mono_ns[best])

    def sample(self, threads: Sequence[ConsumerThread], mono_ns: int) -> ConsumerWaits:
        """What happened since the previous call, to these consumers' processes; nothing in the first."""
        names = {thread.pid: thread.name for thread in reversed(threads)}
        names = dict(sorted(names.items())[:CONSUMERS_MAX])
        sockets = self._sample_sockets(names, mono_ns)
        waits = self._sample_waits(tuple(names))
        seconds = (mono_ns - self._before_ns) / 1e9 if self._before_ns else 0.0
        self._before_ns = mono_ns
        full = 0
        if self._maps is not None:
            self._relate_clocks(self._maps[1])
            now = int(self._maps[1]["queues_full"][0])
            full, self._queues_full = now - self._queues_full, now
        return ConsumerWaits(
            seconds,
            tuple(_wait(pid, name, waits.get(pid), sockets[pid]) for pid, name in names.items()),
            full,
        )

    def _sample_waits(self, pids: tuple[int, ...]) -> dict[int, tuple[npt.NDArray[np.uint32], int]]:
        """Process → (growth of its histogram, packets that had no date)."""
        if self._maps is None:
            return {}
        waits = self._maps[0]
        if pids != self._pids:
            # Entries go on counting for whoever is written into them; the growth is of one process only.
            self._pids, self._seen = pids, None
            waits["pid"][: len(pids)] = pids
            waits["pid"][len(pids) :] = 0
        now, before = waits[: len(pids)].copy(), self._seen
        self._seen = now
        if before is None:
            return {}
        grown = now["wait"]["bucket"] - before["wait"]["bucket"]
        undated = now["undated"] - before["undated"]
        return {pid: (grown[i], int(undated[i])) for i, pid in enumerate(pids)}

    def _sample_sockets(self, pids: Mapping[int, str], mono_ns: int) -> dict[int, SocketCounts]:
        """Process → what its sockets dropped since the previous call; those found now begin with nothing."""
        if mono_ns - self._sockets_ns >= _SOCKETS_NS or not pids.keys() <= self._inodes.keys():
            self._sockets_ns = mono_ns
            self._inodes = {pid: socket_inodes(self._paths, pid) for pid in pids}
        now = socket_counts(frozenset().union(*self._inodes.values()))
        before, self._counts = self._counts, now
        grown = {}
        for pid in pids:
            total = SocketCounts()
            for inode in self._inodes[pid] & now.keys():
                total += _growth(before.get(inode, now[inode]), now[inode])
            grown[pid] = total
        return grown

    def stop(self) -> None:
        """Detach and free."""
        self._maps = None
        self._stack.close()

    def __enter__(self) -> ConsumerTrace:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _growth(before: SocketCounts, now: SocketCounts) -> SocketCounts:
    return SocketCounts(
        now.sockets,
        now.backlog_bytes,
        # sk_drops is 32 bits wide, and wraps.
        (now.udp - before.udp) & 0xFFFFFFFF,
        (now.packet - before.packet) & 0xFFFFFFFF,
        now.xdp_full - before.xdp_full,
        now.xdp_no_frame - before.xdp_no_frame,
        now.xdp_other - before.xdp_other,
    )


def _wait(
    pid: int, name: str, waits: tuple[npt.NDArray[np.uint32], int] | None, sockets: SocketCounts
) -> ConsumerWait:
    if waits is None:
        return ConsumerWait(pid, name, 0, 0, float("nan"), float("nan"), sockets)
    counts, undated = waits
    p50, p99 = (float(value) for value in hist_quantile(counts, (0.5, 0.99)))
    return ConsumerWait(pid, name, int(counts.sum()), undated, p50, p99, sockets)
