"""Other programs on the host that own what the agent measures or changes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from agent.host.paths import HostPaths, read_text

OTHER_OWNERS = ("irqbalance", "tuned", "irqd", "tuna")
"""Programs that set interrupts' affinities or queues, by the names of their processes."""


def running(paths: HostPaths, names: Collection[str]) -> dict[str, list[int]]:
    """The pids of the processes with these names (as /proc/PID/comm has them); names without one are left out."""
    found: dict[str, list[int]] = {}
    for comm in paths.proc.glob("[0-9]*/comm"):
        try:
            name = comm.read_text().strip()
        except OSError:  # ended meanwhile
            continue
        if name in names:
            found.setdefault(name, []).append(int(comm.parent.name))
    return {name: sorted(found[name]) for name in sorted(found)}


def holders(paths: HostPaths, prefixes: Sequence[str]) -> dict[str, list[int]]:
    """The processes that have a file below one of these paths open, by name; those of others need root."""
    found: dict[str, list[int]] = {}
    for process in paths.proc.glob("[0-9]*"):
        try:
            is_held = any(str(fd.readlink()).startswith(tuple(prefixes)) for fd in (process / "fd").iterdir())
        except OSError:  # ended meanwhile, or is another user's
            continue
        if is_held:
            found.setdefault(read_text(process / "comm") or "?", []).append(int(process.name))
    return {name: sorted(found[name]) for name in sorted(found)}


def named(processes: dict[str, list[int]]) -> str:
    """`ptp4l (pid 812), chronyd (pid 640)`."""
    return ", ".join(f"{name} (pid {' '.join(map(str, pids))})" for name, pids in processes.items())
