"""Programs that carry time between a PHC and the system clock, found in a written /proc."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.clockconflicts import ClockConflicts
from agent.host.paths import HostPaths


class WrittenProc:
    """A /proc of processes that a test writes."""

    def __init__(self, root: Path) -> None:
        self.paths = HostPaths(proc=root / "proc", sys=root / "sys")
        self.paths.proc.mkdir()

    def process(self, pid: int, command: str, *files: str) -> Path:
        """A process with these files open."""
        path = self.paths.proc / str(pid)
        (path / "fd").mkdir(parents=True)
        (path / "comm").write_text(command.split()[0] + "\n")
        (path / "cmdline").write_bytes(b"\0".join(word.encode() for word in command.split()) + b"\0")
        for number, file in enumerate(files):
            (path / "fd" / str(number)).symlink_to(file)
        return path


@pytest.fixture
def proc(tmp_path: Path) -> WrittenProc:
    """An empty one."""
    return WrittenProc(tmp_path)


def conflicts_of(proc: WrittenProc) -> ClockConflicts:
    """For /dev/ptp0."""
    return ClockConflicts(proc.paths, Path("/dev/ptp0"))


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("phc2sys -s eth1 -O -37", "carries time"),
        ("phc2sys -s CLOCK_REALTIME -c eth1", "carries time"),
        ("chronyd -F 1", "count as two"),
        ("sfptpd -f /etc/sfptpd.conf", "carries time"),
    ],
)
def test_a_program_that_carries_the_time_of_this_clock_conflicts(
    proc: WrittenProc, command: str, why: str
) -> None:
    """It is named with its pid and command line, and why it must not be is said."""
    proc.process(1, "init")
    proc.process(812, command, "/dev/null", "/dev/ptp0")
    found = conflicts_of(proc).look()
    for part in (f"pid 812: `{command}`", "/dev/ptp0", why):
        assert part in found


@pytest.mark.parametrize(
    ("command", "device"),
    [
        ("phc2sys -s eth2", "/dev/ptp1"),
        ("chronyd -F 1", "socket:[77]"),
        ("ptp4l -i eth1 -s", "/dev/ptp0"),
        ("ts2phc -c eth1", "/dev/ptp0"),
        ("agent run -i eth1", "/dev/ptp0"),
    ],
)
def test_what_keeps_the_clock_right_or_has_another_is_none(
    proc: WrittenProc, command: str, device: str
) -> None:
    """A grandmaster's daemon, another PHC, a chronyd that doesn't read this one."""
    proc.process(640, command, device)
    assert conflicts_of(proc).look() == ""


def test_a_program_whose_files_cannot_be_seen_conflicts(
    proc: WrittenProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container without CAP_SYS_PTRACE nobody can say: then it is not done, and the capability is named."""
    proc.process(812, "phc2sys -a", "/dev/ptp1")
    listed = Path.iterdir

    def refuse(self: Path) -> object:
        if self.name == "fd":
            raise PermissionError
        return listed(self)

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert "CAP_SYS_PTRACE" in conflicts_of(proc).look()


def test_a_program_that_starts_later_is_found_a_few_processes_at_a_time(proc: WrittenProc) -> None:
    """Three processes on each look: found within a round of all of them, and forgotten within two when it ends."""
    for pid in range(100, 120):
        proc.process(pid, "worker")
    conflicts = conflicts_of(proc)
    assert conflicts.look() == ""
    started = proc.process(110_000, "phc2sys -a -r", "/dev/ptp0")
    looks = [conflicts.look_on(3) for _ in range(20)]
    assert looks[0] == ""
    assert all("phc2sys" in found for found in looks[-6:])
    (started / "comm").write_text("gone\n")
    assert [conflicts.look_on(3) for _ in range(20)][-1] == ""
