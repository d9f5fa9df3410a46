"""How busy each CPU is and what was dropped where, as differences between two samples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from agent.host.cpus import CpuTopology
from agent.host.masks import CpuMask
from agent.host.paths import HostPaths, read_text


@dataclass(frozen=True, slots=True)
class CpuShare:
    """Where one CPU's time went, as shares of 1; and its softnet counters, as differences."""

    idle: float
    user: float
    softirq: float
    irq: float
    busy: float
    """All but idle, and but what the hypervisor took (steal)."""
    processed: int = 0
    dropped: int = 0
    squeezed: int = 0
    """Times that net_rx_action ran out of budget with work left."""
    flow_limited: int = 0


@dataclass(frozen=True, slots=True)
class Drops:
    """Packets lost, and put out of order, since the sample before, in this network namespace."""

    softnet: int = 0
    socket: int = 0
    """UDP receive buffer errors."""
    interface: int = 0
    """Receive drops, missed and FIFO errors of the watched interfaces."""
    ring: int = 0
    """By AF_PACKET and AF_XDP sockets of consumers; told by `ConsumerTrace`."""
    tcp_out_of_order: int = 0
    """TCP segments queued out of order (TCPOFOQueue)."""

    @property
    def lost(self) -> int:
        """All losses."""
        return self.softnet + self.socket + self.interface + self.ring


@dataclass(frozen=True, slots=True)
class CpuLoad:
    """One difference of samples. `seconds` is 0 and `cpus` is empty in the first, which has nothing before it."""

    seconds: float
    cpus: dict[int, CpuShare]
    drops: Drops = field(default_factory=Drops)


@dataclass(frozen=True, slots=True)
class _Snapshot:
    mono_ns: int
    times: dict[int, tuple[float, ...]]
    softnet: dict[int, tuple[int, int, int, int]]
    socket: int
    interface: int
    out_of_order: int


class LoadSampler:
    """Reads `/proc/stat` (through psutil), `softnet_stat`, `netstat`, `snmp` and the interfaces' drop counters.

    The counters below `/proc/net` are those of the calling thread's network namespace.
    """

    def __init__(self, paths: HostPaths, topology: CpuTopology, ifnames: Iterable[str] = ()) -> None:
        self._paths = paths
        self._topology = topology
        # /proc/net is the *process's* namespace (that of its first thread); thread-self is ours.
        own = paths.proc / "thread-self/net"
        self._net = own if own.exists() else paths.proc / "net"
        self._statistics = [paths.net(name) / "statistics" for name in ifnames]
        self._before: _Snapshot | None = None

    def sample(self, mono_ns: int) -> CpuLoad:
        """Shares and drops since the previous call. CPUs that went on- or offline in between are left out."""
        now = self._read(mono_ns)
        before, self._before = self._before, now
        if before is None or now.mono_ns <= before.mono_ns:
            return CpuLoad(0.0, {})
        cpus = {}
        for cpu, times in now.times.items():
            if cpu not in before.times:
                continue
            share = _share(before.times[cpu], times)
            if share is not None:
                soft = _difference(before.softnet.get(cpu), now.softnet.get(cpu))
                cpus[cpu] = CpuShare(*share, *soft)
        drops = Drops(
            softnet=sum(share.dropped for share in cpus.values()),
            socket=max(0, now.socket - before.socket),
            interface=max(0, now.interface - before.interface),
            tcp_out_of_order=max(0, now.out_of_order - before.out_of_order),
        )
        return CpuLoad((now.mono_ns - before.mono_ns) / 1e9, cpus, drops)

    def _read(self, mono_ns: int) -> _Snapshot:
        return _Snapshot(
            mono_ns=mono_ns,
            times=self._times(),
            softnet=_softnet(read_text(self._net / "softnet_stat") or ""),
            socket=_counter(read_text(self._net / "snmp"), "Udp", "RcvbufErrors"),
            interface=sum(_interface_drops(statistics) for statistics in self._statistics),
            out_of_order=_counter(read_text(self._net / "netstat"), "TcpExt", "TCPOFOQueue"),
        )

    def _times(self) -> dict[int, tuple[float, ...]]:
        psutil.PROCFS_PATH = str(self._paths.proc)
        # psutil lists online CPUs without their ids, in ascending order.
        rows = psutil.cpu_times(percpu=True)
        online = list(self._topology.online)
        if len(rows) != len(online):
            online = list(CpuMask.parse_list(read_text(self._paths.cpu / "online") or ""))
        if len(rows) != len(online):
            return {}
        return {
            cpu: (row.idle + row.iowait, row.user + row.nice, row.system, row.softirq, row.irq, row.steal)
            for cpu, row in zip(online, rows, strict=True)
        }


def _share(
    before: tuple[float, ...], now: tuple[float, ...]
) -> tuple[float, float, float, float, float] | None:
    # Idle and iowait may step back by a tick on tickless CPUs (proc_stat(5)): that is no time.
    idle, user, system, softirq, irq, steal = (max(0.0, b - a) for a, b in zip(before, now, strict=True))
    total = idle + user + system + softirq + irq + steal
    if total <= 0:
        return None
    busy = user + system + softirq + irq
    return idle / total, user / total, softirq / total, irq / total, busy / total


def _softnet(text: str) -> dict[int, tuple[int, int, int, int]]:
    """CPU → (processed, dropped, squeezed, flow limit). Since 5.10 the 13th column is the CPU's id."""
    rows = {}
    for position, line in enumerate(text.splitlines()):
        columns = [int(word, 16) for word in line.split()]
        if len(columns) >= 3:
            cpu = columns[12] if len(columns) > 12 else position
            rows[cpu] = (columns[0], columns[1], columns[2], columns[10] if len(columns) > 10 else 0)
    return rows


def _difference(
    before: tuple[int, int, int, int] | None, now: tuple[int, int, int, int] | None
) -> tuple[int, int, int, int]:
    if before is None or now is None:
        return 0, 0, 0, 0
    # The counters are 32 bits wide and wrap.
    processed, dropped, squeezed, limited = ((b - a) & 0xFFFFFFFF for a, b in zip(before, now, strict=True))
    return processed, dropped, squeezed, limited


def _interface_drops(statistics: Path) -> int:
    total = 0
    for counter in ("rx_dropped", "rx_missed_errors", "rx_fifo_errors"):
        text = read_text(statistics / counter)
        total += int(text) if text and text.isdigit() else 0
    return total


def _counter(text: str | None, prefix: str, name: str) -> int:
    """One figure of `/proc/net/snmp` or `netstat`: a line of names, then a line of values, both with the prefix.

    0 where the kernel does not count it.
    """
    lines = [line.split() for line in (text or "").splitlines() if line.startswith(prefix + ":")]
    if len(lines) < 2 or name not in lines[0]:
        return 0
    column = lines[0].index(name)
    return int(lines[1][column]) if column < len(lines[1]) else 0
