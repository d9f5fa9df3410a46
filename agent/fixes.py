"""What `agent doctor --fix` changes on a host, and what every run then holds: journaled, undone by `agent restore`.

Frequency governors are set at once. An idle limit lasts only as long as somebody holds /dev/cpu_dma_latency open, and
a memory policy is a process's own: of these a file in the state directory tells each `agent run` to do it, for as
long as the file is there.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agent.control.journal import HOST_SCOPE, Journal
from agent.control.settings import Setting, kind_of, register_kind
from agent.host.cpus import read_cpus
from agent.host.paths import HostPaths, read_int, read_text

SLOW_WAKE_US = 50
"""From here on an idle state's exit latency is worth a word."""
IDLE_LIMIT_US = 20
"""The exit latency that capture hosts are kept below."""
CPU_DMA_LATENCY = Path("/dev/cpu_dma_latency")

_DIRECTORY = "fixes"
_IDLE_LIMIT, _MEMBIND = "idle_limit_us", "membind"
_KIND = "run-default"
_FAST_GOVERNOR = "performance"
_SLOW_GOVERNORS = frozenset({"ondemand", "conservative", "powersave"})
# With these drivers `powersave` is a hint to the hardware, not the lowest frequency.
_HARDWARE_SCALED = frozenset({"intel_pstate", "amd-pstate-epp"})


class RunDefaultSetting:
    """A file below the state directory that runs look at; the empty value means that there is none."""

    def read(self, target: str) -> bytes:
        """The file's content."""
        try:
            return Path(target).read_bytes()
        except FileNotFoundError:
            return b""

    def write(self, target: str, value: bytes) -> None:
        """Write it, or remove it."""
        path = Path(target)
        if not value:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(mode=0o755, exist_ok=True)
        path.write_bytes(value)

    def same(self, a: bytes, b: bytes) -> bool:
        """Equal but for blanks."""
        return a.strip() == b.strip()

    def belongs(self, target: str, ifname: str, ifindex: int) -> bool:
        """One of the files that are known, and no other."""
        path = Path(target)
        return (
            ifname == HOST_SCOPE.ifname
            and path.parent.name == _DIRECTORY
            and path.name in (_IDLE_LIMIT, _MEMBIND)
        )


register_kind(_KIND, RunDefaultSetting())


@dataclass(frozen=True, slots=True)
class Fix:
    """One thing to change."""

    name: str
    setting: Setting
    value: bytes


@dataclass(frozen=True, slots=True)
class Fixed:
    """What became of one."""

    name: str
    target: str
    before: str
    after: str
    problem: str
    """Why it could not be done; empty where it is done."""


def slow_governors(paths: HostPaths) -> dict[Path, str]:
    """The policies (their `scaling_governor`) that serve the first packets after a pause at a low frequency."""
    slow = {}
    for policy in sorted((paths.cpu / "cpufreq").glob("policy*")):
        governor = read_text(policy / "scaling_governor")
        hint = governor == "powersave" and read_text(policy / "scaling_driver") in _HARDWARE_SCALED
        if governor in _SLOW_GOVERNORS and not hint:
            slow[policy / "scaling_governor"] = governor
    return slow


def exit_latencies_us(paths: HostPaths) -> dict[str, int] | None:
    """Idle state → µs that it takes to leave, of those in use, over all CPUs; None where the host shows none."""
    states = list(paths.cpu.glob("cpu[0-9]*/cpuidle/state[0-9]*"))
    if not states:
        return None
    exit_us: dict[str, int] = {}
    for state in states:
        if read_int(state / "disable") != 1:
            name = read_text(state / "name") or state.name
            exit_us[name] = max(exit_us.get(name, 0), read_int(state / "latency") or 0)
    return exit_us


def wanted_fixes(paths: HostPaths, state_dir: Path) -> Iterator[Fix]:
    """What is safe to change here, and would help a capture."""
    for path in slow_governors(paths):
        if _FAST_GOVERNOR in (read_text(path.parent / "scaling_available_governors") or "").split():
            setting = Setting("file", str(path), namespaced=False)
            yield Fix("frequency", setting, f"{_FAST_GOVERNOR}\n".encode())
    if max((exit_latencies_us(paths) or {}).values(), default=0) >= SLOW_WAKE_US:
        yield Fix("idle states", _run_default(state_dir, _IDLE_LIMIT), f"{IDLE_LIMIT_US}\n".encode())
    if read_cpus(paths).nodes > 1:
        yield Fix("memory policy", _run_default(state_dir, _MEMBIND), b"1\n")


def apply_fixes(paths: HostPaths, state_dir: Path) -> list[Fixed]:
    """Make the changes that are not made yet, each journaled before.

    Raises `ConflictError` where another `agent doctor --fix` is at work, `UsageError` where no journal can be kept.
    """
    fixes = list(wanted_fixes(paths, state_dir))
    if not fixes:
        return []
    journal = Journal(state_dir, HOST_SCOPE, paths)
    try:
        return [fixed for fix in fixes if (fixed := _apply(fix, journal)) is not None]
    finally:
        journal.leave()


def _apply(fix: Fix, journal: Journal) -> Fixed | None:
    kind, target = kind_of(fix.setting.kind), fix.setting.target
    before = after = b""
    problem = ""
    try:
        before = kind.read(target)
        if kind.same(before, fix.value):
            return None
        journal.record(fix.setting, before, fix.value)
        kind.write(target, fix.value)
        after = kind.read(target)
        if not kind.same(after, fix.value):
            problem = "it was accepted, but reads otherwise"
    except OSError as error:
        problem = error.strerror or str(error)
    return Fixed(fix.name, target, before.decode().strip(), after.decode().strip(), problem)


def binds_memory(state_dir: Path) -> bool:
    """Whether runs are to bind their memory to the NIC's node, as with `--membind`."""
    return (state_dir / _DIRECTORY / _MEMBIND).exists()


class IdleLimit:
    """Keeps CPUs from idle states that take too long to leave, while `agent doctor --fix` is in force."""

    def __init__(self, state_dir: Path, device: Path = CPU_DMA_LATENCY) -> None:
        self._wanted = state_dir / _DIRECTORY / _IDLE_LIMIT
        self._device = device
        self._fd = -1
        self._held_us: int | None = None
        self._refused = False

    def follow(self) -> str:
        """Hold the limit that is wanted now, or let go; returns what changed, for people, mostly nothing."""
        wanted_us = read_int(self._wanted)
        if wanted_us == self._held_us or self._refused:
            return ""
        self.close()
        if wanted_us is None:
            return "idle limit released: `agent restore` has undone it"
        try:
            self._fd = os.open(self._device, os.O_WRONLY | os.O_CLOEXEC)
            os.write(self._fd, struct.pack("=i", wanted_us))
        except OSError as error:
            self.close()
            self._refused = True
            return f"the idle limit cannot be held: {self._device}: {error.strerror}"
        self._held_us = wanted_us
        return f"idle states that take more than {wanted_us} us to leave are not used while this runs"

    def close(self) -> None:
        """Let go; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._held_us = -1, None


def _run_default(state_dir: Path, name: str) -> Setting:
    return Setting(_KIND, str(state_dir.absolute() / _DIRECTORY / name), namespaced=False)
