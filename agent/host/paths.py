"""Where the kernel's file trees are mounted, so that a tree written by a test can stand in for a host."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class HostPaths:
    """The roots below which everything about the host is read and written."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")

    @property
    def is_live(self) -> bool:
        """These are this machine's own trees, so that netlink speaks about the same host."""
        return self.proc == Path("/proc") and self.sys == Path("/sys")

    def net(self, ifname: str) -> Path:
        """The sysfs directory of an interface."""
        return self.sys / "class/net" / ifname

    def irq(self, number: int) -> Path:
        """The procfs directory of an interrupt."""
        return self.proc / "irq" / str(number)

    @property
    def cpu(self) -> Path:
        """The sysfs directory of all CPUs."""
        return self.sys / "devices/system/cpu"


def read_text(path: Path) -> str | None:
    """The stripped text of a small kernel file; None where the kernel has no such file or no answer.

    A missing file, a vanished device (ENODEV), a query that the driver does not implement (EOPNOTSUPP, EINVAL)
    and a listed but unreadable attribute (ENOENT) all mean the same to the host model: the fact is unknown.
    Being refused (EACCES, EPERM) is not that, and is raised.
    """
    try:
        return path.read_text(errors="surrogateescape").strip()
    except PermissionError:
        raise
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    """The decimal number in a small kernel file; None where there is none."""
    text = read_text(path)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        return None
