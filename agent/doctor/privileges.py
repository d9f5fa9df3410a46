"""What this process may do, and what the host keeps it from doing."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path

from agent.control.journal import HOST_SCOPE
from agent.doctor.check import Context, Finding, NotChecked, Table
from agent.doctor.mounts import mounts
from agent.host.paths import HostPaths, read_int, read_text

_CAPABILITY_BITS = {
    "CAP_DAC_OVERRIDE": 1,
    "CAP_NET_ADMIN": 12,
    "CAP_SYS_RAWIO": 17,
    "CAP_SYS_ADMIN": 21,
    "CAP_SYS_NICE": 23,
    "CAP_PERFMON": 38,
    "CAP_BPF": 39,
}
_NEEDED = ("CAP_NET_ADMIN", "CAP_SYS_ADMIN", "CAP_PERFMON", "CAP_BPF")
_MEMCG_ACCOUNTING = (5, 11)


@dataclass(frozen=True, slots=True)
class Credentials:
    """What `/proc/self/status` says of this process."""

    uid: int
    """The effective one."""
    effective: int
    """Capabilities, bit by bit (capabilities(7))."""
    fields: dict[str, str]

    def has(self, capability: str) -> bool:
        """Whether a capability is in effect."""
        return bool(self.effective >> _CAPABILITY_BITS[capability] & 1)


def credentials(paths: HostPaths) -> Credentials:
    """Who this process is. Raises `NotChecked` where that cannot be read."""
    status = read_text(paths.proc / "self/status")
    if status is None:
        raise NotChecked(f"{paths.proc}/self/status cannot be read")
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return Credentials(int(fields["Uid"].split()[1]), int(fields["CapEff"], 16), fields)


def privileges(context: Context) -> Finding:
    """Root, and the capabilities that root may have been stripped of."""
    who = credentials(context.paths)
    missing = [name for name in _NEEDED if not who.has(name)]
    if who.uid != 0:
        return Finding(
            "fail",
            f"this process runs as uid {who.uid}",
            "loading BPF programs and writing IRQ and queue settings take root",
            "run it by sudo",
        )
    if missing:
        return Finding(
            "fail",
            f"root without {', '.join(missing)}",
            "a container or a unit file has taken these capabilities away",
            f"grant them: `docker run --cap-add …`, `securityContext.capabilities.add` in a pod, or "
            f"CapabilityBoundingSet= in the unit ({' '.join(missing)})",
        )
    if not who.has("CAP_SYS_NICE"):
        return Finding(
            "info",
            f"root with {', '.join(_NEEDED)}, without CAP_SYS_NICE",
            "threads of others cannot be moved: neither NAPI threads nor a consumer (--pin-consumer)",
            "grant CAP_SYS_NICE too",
        )
    return Finding("ok", f"root with {', '.join(_NEEDED)}")


def lockdown(context: Context) -> Finding:
    """Kernel lockdown, which Secure Boot switches on in many distributions."""
    text = read_text(context.paths.sys / "kernel/security/lockdown")
    if text is None:
        return Finding("ok", "the kernel has no lockdown, or securityfs is not mounted")
    mode = text.partition("[")[2].partition("]")[0]
    if mode == "confidentiality":
        return Finding(
            "warn",
            "the kernel is locked down: confidentiality",
            "BPF programs may not read kernel memory, and tracing is restricted; loads fail with a bare EPERM",
            "boot with lockdown=integrity, or without Secure Boot",
        )
    return Finding("ok", f"lockdown: {mode or text}")


def memlock(context: Context) -> Finding:
    """RLIMIT_MEMLOCK, which error messages blame though it has not mattered for BPF since 5.11."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    size = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft >> 10} KiB"
    if context.kernel >= _MEMCG_ACCOUNTING:
        return Finding(
            "ok", f"{size}; BPF memory is charged to the cgroup since 5.11, so this limit is not the cause"
        )
    if soft == resource.RLIM_INFINITY or soft >= 64 << 20:
        return Finding("ok", size)
    return Finding(
        "fail",
        f"RLIMIT_MEMLOCK is {size}, on a kernel before 5.11",
        "BPF maps are charged against it, and loading fails with EPERM",
        "`ulimit -l unlimited`, or LimitMEMLOCK=infinity in the unit",
    )


def perf_paranoid(context: Context) -> Finding:
    """perf_event_paranoid, which root with CAP_PERFMON passes."""
    level = read_int(context.paths.proc / "sys/kernel/perf_event_paranoid")
    if level is None:
        return Finding(
            "fail",
            "kernel.perf_event_paranoid does not exist: the kernel has no perf events",
            "window records leave the kernel through perf ring buffers",
            "use a kernel with CONFIG_PERF_EVENTS=y",
        )
    return Finding("ok", f"{level}; it binds only processes without CAP_PERFMON")


def bpffs(context: Context) -> Finding:
    """A mounted BPF file system, which only attachments without a running agent need."""
    if any(mount.fstype == "bpf" for mount in mounts(context.paths)):
        return Finding("ok", "mounted")
    return Finding(
        "info",
        "no bpffs is mounted",
        "`agent bpf attach` pins its links there; `agent run` does not need it",
        "none needed: `agent bpf attach` mounts it at /sys/fs/bpf",
    )


def leftovers(context: Context) -> Finding:
    """Journals of killed runs, and agents that run now."""
    running: list[str] = []
    left: list[str] = []
    fixed = False
    for journal in sorted(context.state_dir.glob("*.journal")):
        scope = journal.name.removesuffix(".journal")
        if scope == HOST_SCOPE.name:
            fixed = True
            continue
        pid = _owner(journal)
        alive = pid is not None and (context.paths.proc / str(pid)).exists()
        (running if alive else left).append(f"{scope} (pid {pid})" if alive else scope)
    if left:
        return Finding(
            "warn",
            f"journal of a run that did not end by itself: {', '.join(left)}",
            "settings that it changed may still be in force",
            "`agent restore` puts them back",
        )
    if fixed:
        return Finding(
            "info",
            "; ".join(
                ["`agent doctor --fix` is in force", *(f"an agent runs on {name}" for name in running)]
            ),
            "what it changed stays until it is undone",
            "`agent restore` undoes it",
        )
    if running:
        return Finding("info", f"an agent runs on {', '.join(running)}", "there is one agent an interface")
    return Finding("ok", "no journal is left, no agent runs")


def _owner(journal: Path) -> int | None:
    """The pid in a journal's first line; None where that is torn or of another format."""
    import json

    try:
        pid = json.loads(journal.read_text().partition("\n")[0])["pid"]
    except (ValueError, KeyError, TypeError, FileNotFoundError):
        return None
    return pid if isinstance(pid, int) else None


CHECKS: Table = (
    ("root and capabilities", privileges),
    ("lockdown", lockdown),
    ("memlock limit", memlock),
    ("perf events", perf_paranoid),
    ("bpffs", bpffs),
    ("other runs", leftovers),
)
