"""`agent doctor --fix`: journaled before each change, held by runs, and undone by `agent restore`."""

from __future__ import annotations

import contextlib
import json
import os
import struct
from pathlib import Path

import pytest

from agent.control.journal import HOST_SCOPE, Journal, restore
from agent.control.settings import Setting, kind_of
from agent.doctor import privileges
from agent.errors import ConflictError
from agent.fixes import IDLE_LIMIT_US, Fixed, IdleLimit, apply_fixes, binds_memory
from tests.unit.test_doctor import context
from tests.unit.test_doctor import host as host
from tests.unit.test_host_model import FixtureHost


def policy(
    host: FixtureHost, number: int, governor: str, driver: str = "acpi-cpufreq", more: str = ""
) -> Path:
    """Write a frequency policy; returns its governor's file."""
    directory = host.paths.cpu / f"cpufreq/policy{number}"
    host.file(directory / "scaling_governor", governor + "\n")
    host.file(directory / "scaling_driver", driver + "\n")
    host.file(directory / "scaling_available_governors", f"{governor} {more or 'performance'}\n")
    return directory / "scaling_governor"


def idle_state(host: FixtureHost, latency_us: int) -> None:
    """Write an idle state."""
    state = host.paths.cpu / "cpu0/cpuidle/state3"
    for name, text in (("latency", str(latency_us)), ("name", "C6"), ("disable", "0")):
        host.file(state / name, text + "\n")


def two_nodes(host: FixtureHost) -> None:
    """Write two NUMA nodes."""
    for node, cpulist in ((0, "0-1"), (1, "2-3")):
        host.file(host.paths.sys / f"devices/system/node/node{node}/cpulist", cpulist + "\n")


def open_files() -> set[str]:
    """The paths of what this process has open."""
    found = set()
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the listing's own
            found.add(str(fd.readlink()))
    return found


@pytest.fixture
def state(host: FixtureHost) -> Path:
    """The state directory, where `context` looks too."""
    return host.paths.proc.parent / "run"


def test_slow_governors_are_set_and_put_back(host: FixtureHost, state: Path) -> None:
    """Only the slow ones that have a faster one: a hint to the hardware, and a driver without choice, are left."""
    slow, fast = policy(host, 0, "ondemand"), policy(host, 1, "performance")
    hint, stuck = (
        policy(host, 2, "powersave", "intel_pstate"),
        policy(host, 3, "conservative", more="userspace"),
    )
    (done,) = apply_fixes(host.paths, state)
    assert done == Fixed("frequency", str(slow), "ondemand", "performance", "")
    files = (slow, fast, hint, stuck)
    assert [file.read_text() for file in files] == [
        "performance\n",
        "performance\n",
        "powersave\n",
        "conservative\n",
    ]
    (item,) = restore(state, paths=host.paths)
    assert item.outcome == "restored"
    assert slow.read_text() == "ondemand\n"
    assert not list(state.glob("*.journal"))


def test_fixing_twice_keeps_the_first_value(host: FixtureHost, state: Path) -> None:
    """What is fixed already is not done again, and what comes later is put back with it."""
    first = policy(host, 0, "ondemand")
    apply_fixes(host.paths, state)
    assert apply_fixes(host.paths, state) == []
    second = policy(host, 1, "conservative")
    assert [item.before for item in apply_fixes(host.paths, state)] == ["conservative"]
    assert {item.outcome for item in restore(state, paths=host.paths)} == {"restored"}
    assert (first.read_text(), second.read_text()) == ("ondemand\n", "conservative\n")


def test_nothing_to_fix_leaves_nothing(host: FixtureHost, state: Path) -> None:
    """No journal, no file."""
    policy(host, 0, "performance")
    idle_state(host, 10)
    assert apply_fixes(host.paths, state) == []
    assert not state.exists()


def test_a_governor_that_somebody_changed_since_is_left(host: FixtureHost, state: Path) -> None:
    """As with every other setting."""
    file = policy(host, 0, "ondemand")
    apply_fixes(host.paths, state)
    file.write_text("userspace\n")
    (item,) = restore(state, paths=host.paths)
    assert item.outcome == "changed_by_others"
    assert file.read_text() == "userspace\n"


def test_a_policy_that_refuses_is_told_and_the_rest_goes_on(
    host: FixtureHost, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver's EBUSY is a fact of that policy alone."""
    refusing, willing = policy(host, 0, "ondemand"), policy(host, 1, "ondemand")
    kind = kind_of("file")
    write = type(kind).write

    def busy(self: object, target: str, value: bytes) -> None:
        if target == str(refusing):
            raise OSError(16, os.strerror(16))
        write(kind, target, value)

    monkeypatch.setattr(type(kind), "write", busy)
    problems = [item.problem for item in apply_fixes(host.paths, state)]
    assert problems == [os.strerror(16), ""]
    assert willing.read_text() == "performance\n"


def test_the_idle_limit_is_held_by_runs_until_restored(
    host: FixtureHost, state: Path, tmp_path: Path
) -> None:
    """The device gets the limit as a 32 bit number, and is let go within the next look after `agent restore`."""
    device = tmp_path / "cpu_dma_latency"
    device.write_bytes(b"")
    limit = IdleLimit(state, device)
    assert limit.follow() == ""
    idle_state(host, 133)
    (done,) = apply_fixes(host.paths, state)
    assert (done.name, done.after) == ("idle states", str(IDLE_LIMIT_US))
    assert "not used while this runs" in limit.follow()
    assert device.read_bytes() == struct.pack("=i", IDLE_LIMIT_US)
    assert str(device) in open_files()
    assert limit.follow() == ""
    restore(state, paths=host.paths)
    assert "released" in limit.follow()
    assert str(device) not in open_files()


def test_a_host_without_the_device_is_told_once(host: FixtureHost, state: Path, tmp_path: Path) -> None:
    """The run goes on without."""
    idle_state(host, 133)
    apply_fixes(host.paths, state)
    limit = IdleLimit(state, tmp_path / "nothing")
    assert "cannot be held" in limit.follow()
    assert limit.follow() == ""


def test_memory_policy_is_told_to_runs_on_hosts_of_several_nodes(host: FixtureHost, state: Path) -> None:
    """With one node there is nothing to bind."""
    assert apply_fixes(host.paths, state) == []
    two_nodes(host)
    assert [item.name for item in apply_fixes(host.paths, state)] == ["memory policy"]
    assert binds_memory(state)
    restore(state, paths=host.paths)
    assert not binds_memory(state)


def test_only_known_files_are_written_from_the_hosts_journal(host: FixtureHost, state: Path) -> None:
    """Restoring runs as root: a journal cannot make it write or remove anything else."""
    victim = host.paths.proc.parent / "fixes/passwd"
    host.file(victim, "root\n")
    elsewhere = host.paths.cpu / "online"
    journal = Journal(state, HOST_SCOPE, host.paths)
    for kind, path in (("run-default", victim), ("file", elsewhere)):
        journal.record(Setting(kind, str(path), namespaced=False), b"", path.read_bytes())
    journal.leave()
    assert [item.outcome for item in restore(state, paths=host.paths)] == ["failed", "failed"]
    assert victim.read_text() == "root\n"
    assert elsewhere.read_text() == "0-3\n"


def test_fixes_in_force_are_no_leftover_of_a_crash(host: FixtureHost, state: Path) -> None:
    """The doctor says that they are in force, and how they end."""
    policy(host, 0, "ondemand")
    apply_fixes(host.paths, state)
    finding = privileges.leftovers(context(host))
    assert finding.severity == "info"
    assert "--fix` is in force" in finding.found
    assert "agent restore" in finding.remedy


def test_two_doctors_at_once_do_not_mix(host: FixtureHost, state: Path) -> None:
    """The second is told who is at work."""
    policy(host, 0, "ondemand")
    journal = Journal(state, HOST_SCOPE, host.paths)
    with pytest.raises(ConflictError, match="host@0"):
        apply_fixes(host.paths, state)
    journal.leave()
    assert not list(state.glob("*.journal"))


def test_the_journals_head_says_what_it_is(host: FixtureHost, state: Path) -> None:
    """An interface called `host` has another name there: no namespace has the inode 0."""
    policy(host, 0, "ondemand")
    apply_fixes(host.paths, state)
    header = json.loads((state / "host@0.journal").read_text().splitlines()[0])
    assert (header["ifname"], header["netns_inode"]) == ("host", 0)
