"""Programs attached without a running agent: their links pinned on a bpffs (`make bpf IF=…`, `make unload IF=…`)."""

from __future__ import annotations

from pathlib import Path

BPFFS = Path("/sys/fs/bpf")


def pin_directory(ifindex: int) -> Path:
    """Where the links of an interface are pinned; indexes count per network namespace, so that is in the name."""
    namespace = Path("/proc/self/ns/net").stat().st_ino
    return BPFFS / "agent" / f"{namespace}-{ifindex}"


def make_pin_directory(ifindex: int) -> Path:
    """The directory, made on the bpffs, which has to be mounted (`ensure_bpffs(BPFFS)`)."""
    directory = pin_directory(ifindex)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory


def unpin(ifindex: int) -> list[str]:
    """Detach what is pinned for an interface; returns the names of the programs, none if there was nothing."""
    directory = pin_directory(ifindex)
    if not directory.is_dir():
        return []
    from agent.ffi.attach import Link

    removed = []
    for pin in sorted(directory.iterdir()):
        # The kernel detaches an unlinked link some time later; a program attached until then would find its slot taken.
        with Link.from_pin(pin) as link:
            link.detach()
        pin.unlink()
        removed.append(pin.name)
    directory.rmdir()
    return removed
