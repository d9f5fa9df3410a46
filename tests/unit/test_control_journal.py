"""The journal: every change on disk before it is made, and put back whatever happened in between."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import agent.stamping
import agent.tc  # noqa: F401 - they register their kinds of settings
from agent.control.journal import Journal, Restored, Scope, netns_inode, require_complete, restore
from agent.control.settings import Setting, kind_of
from agent.errors import ConflictError, PartialError, UsageError
from agent.host.paths import HostPaths


class FixtureJournal:
    """A state directory, a boot, and one interface with settings in a file tree."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / "state"
        self.paths = HostPaths(root / "proc", root / "sys")
        self.scope = Scope("veth0", 7, netns_inode())
        self.boot("boot-1")
        self.file("ifindex", "7\n")

    def boot(self, boot_id: str) -> None:
        path = self.paths.proc / "sys/kernel/random/boot_id"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(boot_id + "\n")

    def file(self, name: str, text: str) -> Setting:
        path = self.paths.net("veth0") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return Setting("file", str(path), namespaced=True)

    def value(self, setting: Setting) -> str:
        return Path(setting.target).read_text()

    def journal(self) -> Journal:
        return Journal(self.state, self.scope, self.paths)

    def set(self, journal: Journal, setting: Setting, value: str) -> None:
        """As an actuator does it."""
        journal.record(setting, Path(setting.target).read_bytes(), value.encode())
        Path(setting.target).write_text(value)

    def die(self, journal: Journal) -> None:
        """The lock goes away with the process; the file stays."""
        os.close(journal._fd)
        journal._fd = -1

    def left_changed(self, name: str) -> Setting:
        """What a killed run left at 1 and the journal has at 3."""
        setting = self.file(name, "3\n")
        journal = self.journal()
        self.set(journal, setting, "1")
        self.die(journal)
        return setting

    def restore(self, *, force: bool = False, discard: bool = False) -> list[Restored]:
        return restore(self.state, force, discard=discard, paths=self.paths)

    def files(self) -> list[str]:
        return sorted(path.name for path in self.state.iterdir())


@pytest.fixture
def fixture(tmp_path: Path) -> FixtureJournal:
    """An interface with nothing changed yet."""
    return FixtureJournal(tmp_path)


def outcomes(restored: list[Restored]) -> list[str]:
    """The outcomes alone."""
    return [item.outcome for item in restored]


def test_restore_puts_back_every_byte_and_removes_the_journal(fixture: FixtureJournal) -> None:
    """Several changes to several settings end with the bytes of before."""
    a, b = fixture.file("a", "ffffff,effffffe\n"), fixture.file("b", "0\n")
    journal = fixture.journal()
    for setting, value in ((a, "1"), (b, "2"), (a, "4")):
        fixture.set(journal, setting, value)
    fixture.die(journal)
    assert outcomes(fixture.restore()) == ["restored", "restored"]
    assert (fixture.value(a), fixture.value(b)) == ("ffffff,effffffe\n", "0\n")
    assert fixture.files() == []


def test_a_journal_is_on_disk_before_the_write(fixture: FixtureJournal) -> None:
    """Recorded and then killed, before the write: there is nothing to put back, and that is no error."""
    a = fixture.file("a", "3\n")
    journal = fixture.journal()
    journal.record(a, b"3\n", b"1")
    fixture.die(journal)
    assert outcomes(fixture.restore()) == ["unchanged"]
    assert fixture.value(a) == "3\n"


@pytest.mark.parametrize("after_write", [False, True])
def test_a_process_killed_between_journal_and_write(fixture: FixtureJournal, after_write: bool) -> None:
    """SIGKILL, the real one, on either side of the write."""
    a = fixture.file("a", "3\n")
    pid = os.fork()
    if pid == 0:
        try:
            journal = fixture.journal()
            journal.record(a, b"3\n", b"1\n")
            if after_write:
                Path(a.target).write_text("1\n")
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert outcomes(fixture.restore()) == ["restored" if after_write else "unchanged"]
    assert fixture.value(a) == "3\n"


def test_a_torn_last_line_was_never_acted_on(fixture: FixtureJournal) -> None:
    """The file ends in the middle of a line: what stands before it counts."""
    a = fixture.file("a", "3\n")
    journal = fixture.journal()
    fixture.set(journal, a, "1")
    os.write(journal._fd, b'{"seq":1,"kind":"file","target":"/')
    fixture.die(journal)
    assert outcomes(fixture.restore()) == ["restored"]
    assert fixture.value(a) == "3\n"


def test_a_torn_first_line_means_nothing_was_changed(fixture: FixtureJournal) -> None:
    """Killed while the header was written: the file just goes away."""
    fixture.state.mkdir()
    (fixture.state / f"{fixture.scope.name}.journal").write_text('{"agent_jour')
    assert fixture.restore() == []
    assert fixture.files() == []


def test_a_journal_of_an_earlier_boot_is_discarded_unwritten(fixture: FixtureJournal) -> None:
    """Its values belong to another life of the host."""
    a = fixture.left_changed("a")
    fixture.boot("boot-2")
    restored = fixture.restore()
    assert outcomes(restored) == ["previous_boot"]
    require_complete(restored)
    assert fixture.value(a) == "1"
    assert fixture.files() == []


def test_starting_over_an_earlier_boots_journal_says_so(fixture: FixtureJournal) -> None:
    """A run starts, and notes what it discarded."""
    journal = fixture.journal()
    fixture.set(journal, fixture.file("a", "3\n"), "1")
    fixture.die(journal)
    fixture.boot("boot-2")
    with fixture.journal() as again:
        assert "earlier boot" in again.notes[0]


def test_what_somebody_changed_since_is_left_to_them(fixture: FixtureJournal) -> None:
    """Neither our value nor the one before: reported, kept in the journal, and overwritten only by force."""
    a, b = fixture.file("a", "3\n"), fixture.file("b", "3\n")
    journal = fixture.journal()
    fixture.set(journal, a, "1")
    fixture.set(journal, b, "1")
    fixture.die(journal)
    Path(a.target).write_text("2\n")
    restored = fixture.restore()
    assert sorted(outcomes(restored)) == ["changed_by_others", "restored"]
    assert (fixture.value(a), fixture.value(b)) == ("2\n", "3\n")
    with pytest.raises(PartialError, match="was not put back"):
        require_complete(restored)
    assert "restored" in outcomes(fixture.restore(force=True))
    assert fixture.value(a) == "3\n"
    assert fixture.files() == []


def test_discard_leaves_their_value_and_forgets(fixture: FixtureJournal) -> None:
    """The user decides for the other side: nothing is written, and the next run may start."""
    a = fixture.left_changed("a")
    Path(a.target).write_text("2\n")
    fixture.restore(discard=True)
    assert fixture.value(a) == "2\n"
    assert fixture.files() == []


def test_discard_forgets_what_cannot_be_written_any_more(fixture: FixtureJournal) -> None:
    """A file that refuses every write would block each next run."""
    a = fixture.left_changed("a")
    Path(a.target).unlink()
    Path(a.target).mkdir()
    assert outcomes(fixture.restore()) == ["failed"]
    assert fixture.files() != []
    fixture.restore(discard=True)
    assert fixture.files() == []


def test_the_kernels_own_spelling_is_still_our_value(fixture: FixtureJournal) -> None:
    """`1` was written and `00000000,00000001` is read: nobody changed it."""
    a = fixture.file("a", "00000000,00000003\n")
    journal = fixture.journal()
    fixture.set(journal, a, "1")
    Path(a.target).write_text("00000000,00000001\n")
    fixture.die(journal)
    assert outcomes(fixture.restore()) == ["restored"]
    assert fixture.value(a) == "00000000,00000003\n"


def test_a_value_set_by_others_between_our_changes_is_the_one_to_put_back(fixture: FixtureJournal) -> None:
    """The newest foreign value is what we found, not the one before it."""
    a = fixture.file("a", "3\n")
    journal = fixture.journal()
    fixture.set(journal, a, "1\n")
    Path(a.target).write_text("f\n")
    fixture.set(journal, a, "2\n")
    assert outcomes(journal.restore()) == ["restored"]
    assert fixture.value(a) == "f\n"


def test_a_write_that_the_kernel_refused_does_not_hide_the_first_value(fixture: FixtureJournal) -> None:
    """3 → 1, then a refused write, then 1 → 2: 3 is put back."""
    a = fixture.file("a", "3\n")
    journal = fixture.journal()
    fixture.set(journal, a, "1\n")
    journal.record(a, b"1\n", b"8\n")
    fixture.set(journal, a, "2\n")
    journal.restore()
    assert fixture.value(a) == "3\n"


def test_a_vanished_setting_is_gone_and_no_error(fixture: FixtureJournal) -> None:
    """The interface was deleted while we ran."""
    a = fixture.left_changed("a")
    Path(a.target).unlink()
    restored = fixture.restore()
    assert outcomes(restored) == ["gone"]
    require_complete(restored)
    assert fixture.files() == []


def test_another_interface_with_the_same_name_is_not_touched(fixture: FixtureJournal) -> None:
    """Deleted and made again: the index differs, and the values belong to the old one."""
    a = fixture.left_changed("a")
    fixture.file("ifindex", "8\n")
    assert outcomes(fixture.restore()) == ["gone"]
    assert fixture.value(a) == "1"


def test_a_running_agent_keeps_its_scope(fixture: FixtureJournal) -> None:
    """Neither a second agent nor `agent restore` takes it."""
    a = fixture.file("a", "3\n")
    with fixture.journal() as journal:
        fixture.set(journal, a, "1")
        with pytest.raises(ConflictError, match="owns veth0"):
            fixture.journal()
        restored = fixture.restore()
        assert outcomes(restored) == ["owner_running"]
        with pytest.raises(ConflictError):
            require_complete(restored)
        assert fixture.value(a) == "1"
    assert fixture.value(a) == "3\n"
    assert fixture.files() == []


def test_a_new_run_does_not_start_over_unrestored_changes(fixture: FixtureJournal) -> None:
    """It says how to put them back."""
    journal = fixture.journal()
    fixture.set(journal, fixture.file("a", "3\n"), "1")
    fixture.die(journal)
    with pytest.raises(ConflictError) as caught:
        fixture.journal()
    assert "agent restore" in caught.value.remedy


def test_a_file_that_is_no_journal_is_reported_and_kept(fixture: FixtureJournal) -> None:
    """Another version's or a damaged file: the user is told, nothing is written."""
    fixture.state.mkdir()
    (fixture.state / "eth0@1.journal").write_text('{"agent_journal":99}\n')
    restored = fixture.restore()
    assert outcomes(restored) == ["failed"]
    with pytest.raises(PartialError):
        require_complete(restored)
    assert fixture.files() == ["eth0@1.journal"]


def test_settings_of_a_namespace_that_is_gone_are_gone_with_it(fixture: FixtureJournal) -> None:
    """But those of the whole host, as IRQs are, are put back."""
    a = fixture.file("a", "3\n")
    irq = fixture.paths.irq(24) / "smp_affinity_list"
    irq.parent.mkdir(parents=True)
    irq.write_text("3\n")
    fixture.scope = Scope("veth0", 7, 1, "agt-no-such-namespace")
    journal = fixture.journal()
    fixture.set(journal, a, "1")
    fixture.set(journal, Setting("file", str(irq), namespaced=False), "1")
    fixture.die(journal)
    assert sorted(outcomes(fixture.restore())) == ["gone", "restored"]
    assert irq.read_text() == "3\n"
    assert fixture.value(a) == "1"


def test_only_the_named_interface_is_restored(fixture: FixtureJournal) -> None:
    """By its name or by the scope's."""
    fixture.left_changed("a")
    assert restore(fixture.state, scope="veth1", paths=fixture.paths) == []
    assert outcomes(restore(fixture.state, scope="veth0", paths=fixture.paths)) == ["restored"]


def test_a_kind_of_a_later_version_is_left_and_said(fixture: FixtureJournal) -> None:
    """What we cannot undo is reported, the rest is put back."""
    a = fixture.file("a", "3\n")
    journal = fixture.journal()
    fixture.set(journal, a, "1")
    journal.record(Setting("from-the-future", "x", False), b"", b"1")
    fixture.die(journal)
    assert sorted(outcomes(fixture.restore())) == ["failed", "restored"]
    assert fixture.value(a) == "3\n"


@given(value=st.binary(max_size=64))
@settings(max_examples=30)
def test_any_bytes_survive_the_file(tmp_path_factory: pytest.TempPathFactory, value: bytes) -> None:
    """Values are stored exactly, whatever is in them."""
    fixture = FixtureJournal(tmp_path_factory.mktemp("journal"))
    a = fixture.file("a", "")
    Path(a.target).write_bytes(value)
    journal = fixture.journal()
    fixture.set(journal, a, "something that nobody else wrote")
    fixture.die(journal)
    fixture.restore()
    assert Path(a.target).read_bytes() == value


def test_thread_affinity_is_put_back() -> None:
    """A thread is named by number and start time; its mask comes back as it was."""
    kind = kind_of("thread-affinity")
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    try:
        start = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[19])
        name = Path(f"/proc/{child}/comm").read_text().strip()
        target = f"{name}:{child}:{start}"
        before = kind.read(target)
        kind.write(target, b"1")
        assert kind.read(target) == b"1\n"
        kind.write(target, before)
        assert kind.read(target) == before
        with pytest.raises(ProcessLookupError):
            kind.read(f"{name}:{child}:{start + 1}")
        with pytest.raises(ProcessLookupError):
            kind.read(f"another:{child}:{start}")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize(
    "target", ["/elsewhere", "/sys/class/net/veth0/../../../elsewhere", "/sys/class/net/veth1/a"]
)
@pytest.mark.parametrize("force", [False, True])
def test_a_doctored_journal_writes_no_file_but_the_interfaces_own(
    fixture: FixtureJournal, target: str, force: bool
) -> None:
    """Whatever a journal names: files outside the interface's directory stay as they are, and that is said."""
    path = Path(f"{fixture.root}{target}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("1")
    journal = fixture.journal()
    journal.record(Setting("file", str(path), namespaced=True), b"3\n", b"1")
    fixture.die(journal)
    assert outcomes(fixture.restore(force=force)) == ["failed"]
    assert path.read_text() == "1"


def test_a_link_below_the_interface_leads_to_no_other(fixture: FixtureJournal) -> None:
    """In sysfs `veth0/subsystem` is a link to the directory of all interfaces."""
    other = fixture.paths.net("veth1") / "mtu"
    other.parent.mkdir()
    other.write_text("1")
    (fixture.paths.net("veth0") / "subsystem").symlink_to("..")
    journal = fixture.journal()
    target = f"{fixture.paths.net('veth0')}/subsystem/veth1/mtu"
    journal.record(Setting("file", target, namespaced=True), b"3\n", b"1")
    fixture.die(journal)
    assert outcomes(fixture.restore()) == ["failed"]
    assert other.read_text() == "1"


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        ("thread-affinity", "sshd:1:1"),
        ("thread-affinity", "napi/veth1-5:1:1"),
        ("clsact", "8:ingress:1"),
        ("hwtstamp", "veth1"),
    ],
)
def test_a_doctored_journal_touches_nothing_of_others(
    fixture: FixtureJournal, kind: str, target: str
) -> None:
    """Threads, filters and stamping that are not this interface's are left alone, and that is said."""
    journal = fixture.journal()
    journal.record(Setting(kind, target, namespaced=True), b"1", b"2")
    fixture.die(journal)
    (restored,) = fixture.restore()
    assert restored.outcome == "failed"
    assert "nothing else is written" in restored.reason


def test_values_that_make_no_sense_are_reported(fixture: FixtureJournal) -> None:
    """Two changes of one thread whose masks are none: compared, refused, and no traceback."""
    journal = fixture.journal()
    for _ in range(2):
        journal.record(Setting("thread-affinity", "napi/veth0-1:1:x", namespaced=True), b"x", b"y")
    fixture.die(journal)
    assert outcomes(fixture.restore()) == ["failed"]


def test_a_start_over_changes_of_a_later_version_is_a_conflict(fixture: FixtureJournal) -> None:
    """It cannot be undone by this version, and is not forgotten either."""
    journal = fixture.journal()
    journal.record(Setting("from-the-future", "x", False), b"", b"1")
    fixture.die(journal)
    with pytest.raises(ConflictError, match="left 1 changed"):
        fixture.journal()


def test_a_pipe_under_a_journals_name_is_reported(fixture: FixtureJournal) -> None:
    """It is neither waited for nor read."""
    fixture.state.mkdir()
    os.mkfifo(fixture.state / "veth0@1.journal")
    (restored,) = fixture.restore()
    assert restored.outcome == "failed"
    assert "not a regular file" in restored.reason


def test_discard_removes_a_damaged_journal(fixture: FixtureJournal) -> None:
    """As its remedy says."""
    fixture.left_changed("a")
    (path,) = fixture.state.iterdir()
    path.write_text("damaged\n")
    (restored,) = fixture.restore()
    assert "--discard" in restored.reason
    fixture.restore(discard=True)
    assert fixture.files() == []


def test_a_journal_that_cannot_be_begun_leaves_no_file(
    fixture: FixtureJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk the empty file would stay behind."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(UsageError, match="No space"):
        fixture.journal()
    assert fixture.files() == []


def test_a_state_directory_that_was_removed_meanwhile_ends_no_run(fixture: FixtureJournal) -> None:
    """Everything is put back from what the running agent knows, and it closes in peace."""
    a = fixture.file("a", "3\n")
    journal = fixture.journal()
    fixture.set(journal, a, "1")
    shutil.rmtree(fixture.state)
    journal.close(journal.restore())
    assert fixture.value(a) == "3\n"


def test_restoring_from_a_directory_that_cannot_be_is_a_usage_error(fixture: FixtureJournal) -> None:
    """Such as one whose name is too long."""
    with pytest.raises(UsageError, match="cannot be read"):
        restore(fixture.root / ("x" * 300), paths=fixture.paths)


@pytest.mark.parametrize(
    "change", [{"target": 5}, {"target": "a\0"}, {"kind": []}, {"seq": "a"}, {"before": 3}]
)
def test_an_entry_of_another_shape_is_reported(fixture: FixtureJournal, change: dict[str, object]) -> None:
    """JSON that is no entry of ours makes the journal unreadable; the reason names the file to remove."""
    journal = fixture.journal()
    journal.record(fixture.file("a", "1\n"), b"3\n", b"1")
    fixture.die(journal)
    (path,) = fixture.state.iterdir()
    header, entry = path.read_text().splitlines()
    path.write_text(f"{header}\n{json.dumps(json.loads(entry) | change)}\n")
    (restored,) = fixture.restore()
    assert restored.outcome == "failed"
    assert str(path) in restored.reason


@pytest.mark.parametrize(
    "change",
    [
        {"ifname": 3},
        {"ifname": "../x"},
        {"ifname": ".."},
        {"ifname": "\ud800"},
        {"netns": []},
        {"boot_id": None},
        {"netns_inode": "1"},
    ],
)
def test_a_header_of_another_shape_is_reported(fixture: FixtureJournal, change: dict[str, object]) -> None:
    """So does a first line whose fields are not what they have to be, and nothing is written."""
    a = fixture.left_changed("a")
    (path,) = fixture.state.iterdir()
    header, entry = path.read_text().splitlines()
    path.write_text(f"{json.dumps(json.loads(header) | change)}\n{entry}\n")
    assert outcomes(fixture.restore()) == ["failed"]
    assert fixture.value(a) == "1"


def test_a_value_that_its_kind_cannot_read_is_reported(fixture: FixtureJournal) -> None:
    """An entry of a known kind with a senseless target fails alone, and the rest is put back."""
    a = fixture.file("a", "3\n")
    journal = fixture.journal()
    fixture.set(journal, a, "1")
    journal.record(Setting("thread-affinity", "napi/veth0-x", namespaced=True), b"3\n", b"1")
    fixture.die(journal)
    assert sorted(outcomes(fixture.restore())) == ["failed", "restored"]


def test_a_state_directory_that_others_may_write_to_is_refused(fixture: FixtureJournal) -> None:
    """Neither kept nor restored from: what stands there is written as root."""
    fixture.state.mkdir()
    fixture.state.chmod(0o777)
    with pytest.raises(UsageError, match="written by others"):
        fixture.journal()
    with pytest.raises(UsageError, match="written by others"):
        fixture.restore()


@pytest.mark.parametrize("name", ["file", "file/below", "x" * 300])
def test_a_directory_that_cannot_be_is_a_usage_error(fixture: FixtureJournal, name: str) -> None:
    """A file in its place, or a name that cannot be: said with the directory."""
    (fixture.root / "file").write_text("")
    with pytest.raises(UsageError, match="no journal can be kept"):
        Journal(fixture.root / name, fixture.scope, fixture.paths)


def test_a_journal_that_is_a_link_is_not_followed(fixture: FixtureJournal) -> None:
    """A link under a journal's name could make us truncate any file."""
    victim = fixture.root / "victim"
    victim.write_text("precious")
    fixture.state.mkdir()
    (fixture.state / f"{fixture.scope.name}.journal").symlink_to(victim)
    with pytest.raises(UsageError):
        fixture.journal()
    assert outcomes(fixture.restore()) == ["failed"]
    assert victim.read_text() == "precious"


def test_a_line_that_did_not_fit_leaves_no_part_behind(
    fixture: FixtureJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a full disk the next line does not continue the torn one: every change stays readable."""
    a, b = fixture.file("a", "3\n"), fixture.file("b", "3\n")
    journal = fixture.journal()
    fixture.set(journal, a, "1")
    with monkeypatch.context() as patch:
        write = os.write
        patch.setattr(os, "write", lambda fd, data: write(fd, data[:10]))
        with pytest.raises(UsageError, match="No space"):
            journal.record(b, b"3\n", b"1")
    fixture.set(journal, b, "1")
    fixture.die(journal)
    assert outcomes(fixture.restore()) == ["restored", "restored"]


def test_an_interface_that_was_renamed_gets_its_values_back(fixture: FixtureJournal) -> None:
    """The journal knows the interface by its index too: under its new name the old value is put back."""
    setting = fixture.file("queues/rx-0/rps_cpus", "0\n")
    journal = fixture.journal()
    fixture.set(journal, setting, "2\n")
    fixture.die(journal)
    fixture.paths.net("veth0").rename(fixture.paths.net("wan0"))
    assert outcomes(fixture.restore()) == ["restored"]
    assert (fixture.paths.net("wan0") / "queues/rx-0/rps_cpus").read_text() == "0\n"


def test_a_name_that_another_interface_has_now_is_left_alone(fixture: FixtureJournal) -> None:
    """Where the interface was renamed and another took its name, only the renamed one is written."""
    setting = fixture.file("queues/rx-0/rps_cpus", "0\n")
    journal = fixture.journal()
    fixture.set(journal, setting, "2\n")
    fixture.die(journal)
    fixture.paths.net("veth0").rename(fixture.paths.net("wan0"))
    other = fixture.file("queues/rx-0/rps_cpus", "2\n")
    fixture.file("ifindex", "9\n")
    assert outcomes(fixture.restore()) == ["restored"]
    assert fixture.value(other) == "2\n"


def test_the_process_inside_a_namespace_never_returns_into_the_callers_code(fixture: FixtureJournal) -> None:
    """Any fault in it, an unexpected one too, becomes the reason; only one process comes back."""

    def enter(_: str) -> None:
        raise RuntimeError("a fault of another kind")

    journal = fixture.journal()
    fixture.set(journal, fixture.file("a", "3\n"), "1")
    fixture.die(journal)
    (path,) = fixture.state.iterdir()
    inode = Path("/proc/self/ns/mnt").stat().st_ino
    header, entry = path.read_text().splitlines()
    header = json.dumps(json.loads(header) | {"netns_inode": inode, "netns": "/proc/self/ns/mnt"})
    path.write_text(f"{header}\n{entry}\n")
    before = os.getpid()
    (restored,) = restore(fixture.state, enter_netns=enter, paths=fixture.paths)
    assert os.getpid() == before
    assert restored.outcome == "failed"
    assert "a fault of another kind" in restored.reason
