"""The CPUs of the host: which exist, which run, which are kept free, and how they are grouped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agent.host.masks import CpuMask
from agent.host.paths import HostPaths, read_int, read_text


@dataclass(frozen=True, slots=True)
class Cpu:
    """One possible CPU. What sysfs does not tell (offline, or a host without topology) is None or empty."""

    id: int
    online: bool
    isolated: bool
    """Kept out of the scheduler's domains (`isolcpus`, cpuset partitions) or of its tick (`nohz_full`)."""
    node: int | None
    package: int | None
    core: int | None
    siblings: CpuMask
    """Hardware threads of the same core, this one included; empty where unknown."""
    capacity: float = 1.0
    """How fast it can be, the fastest being 1: efficiency cores of hybrid CPUs are slower. 1 where unknown."""


@dataclass(frozen=True, slots=True)
class CpuTopology:
    """All possible CPUs by id. Ids may have holes, and more may be possible than are online."""

    cpus: dict[int, Cpu]
    possible: CpuMask
    online: CpuMask
    isolated: CpuMask
    nohz_full: CpuMask

    @property
    def usable(self) -> CpuMask:
        """Online CPUs that nobody keeps free: where the agent may put work that was not there before."""
        return self.online - self.isolated - self.nohz_full

    @property
    def width(self) -> int:
        """One more than the highest possible CPU id: how wide the kernel prints a mask."""
        return self.possible.bits.bit_length()

    @property
    def nodes(self) -> int:
        """How many NUMA nodes have CPUs; 0 where unknown."""
        return len({cpu.node for cpu in self.cpus.values() if cpu.node is not None})

    def node_of(self, cpu: int) -> int | None:
        """The NUMA node of a CPU; None where unknown."""
        known = self.cpus.get(cpu)
        return known.node if known else None


def read_cpus(paths: HostPaths) -> CpuTopology:
    """The topology below `paths.sys`; without any CPU directory, one CPU 0 of which nothing is known."""
    root = paths.cpu
    online = _list(root / "online")
    possible = _list(root / "possible") | _list(root / "present") | online
    if not possible:
        possible = CpuMask.of(
            int(entry.name[3:]) for entry in _entries(root, "cpu") if entry.name[3:].isdigit()
        ) or CpuMask(1)
    if not online:
        online = possible
    isolated = _list(root / "isolated") | _list(paths.sys / "fs/cgroup/cpuset.cpus.isolated")
    nohz_full = _list(root / "nohz_full")
    nodes = _nodes(paths)
    capacities = _capacities(root, possible)
    cpus = {
        cpu: Cpu(
            id=cpu,
            online=cpu in online,
            isolated=cpu in isolated or cpu in nohz_full,
            node=nodes.get(cpu),
            package=_known(read_int(root / f"cpu{cpu}/topology/physical_package_id")),
            core=_known(read_int(root / f"cpu{cpu}/topology/core_id")),
            siblings=_siblings(root / f"cpu{cpu}/topology"),
            capacity=capacities.get(cpu, 1.0),
        )
        for cpu in possible
    }
    return CpuTopology(cpus, possible, online, isolated, nohz_full)


def _list(path: Path) -> CpuMask:
    text = read_text(path)
    return CpuMask.parse_list(text) if text else CpuMask()


def _siblings(topology: Path) -> CpuMask:
    # core_cpus_list since 5.3; thread_siblings_list is its older name.
    return _list(topology / "core_cpus_list") or _list(topology / "thread_siblings_list")


def _capacities(root: Path, possible: CpuMask) -> dict[int, float]:
    """By the scheduler's own figure (arm64, RISC-V), else by the firmware's (ACPI CPPC); empty where all are equal."""
    for name in ("cpu_capacity", "acpi_cppc/highest_perf"):
        if read_int(root / f"cpu{min(possible)}" / name) is None:
            continue
        found = {cpu: value for cpu in possible if (value := read_int(root / f"cpu{cpu}" / name))}
        most = max(found.values(), default=0)
        if most > min(found.values(), default=0):
            return {cpu: value / most for cpu, value in found.items()}
    return {}


def _nodes(paths: HostPaths) -> dict[int, int]:
    nodes: dict[int, int] = {}
    for entry in _entries(paths.sys / "devices/system/node", "node"):
        if entry.name[4:].isdigit():
            for cpu in _list(entry / "cpulist"):
                nodes[cpu] = int(entry.name[4:])
    return nodes


def _entries(directory: Path, prefix: str) -> list[Path]:
    try:
        return [entry for entry in directory.iterdir() if entry.name.startswith(prefix)]
    except OSError:
        return []


def _known(number: int | None) -> int | None:
    """None for −1, by which firmware says that it does not know."""
    return None if number is None or number < 0 else number
