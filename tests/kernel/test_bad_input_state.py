"""Journals of others, of earlier boots and of killed runs, and state directories that cannot be used."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.agent_run import AgentRun, agent
from tools.testbed.namespace import VethPair

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and BPF"),
]

RPS = Path("/sys/class/net/cap0/queues/rx-0/rps_cpus")
# An agent that dies between a change and its undoing.
KILLED_AGENT = """\
import os, signal, sys
from pathlib import Path
from agent.control.journal import Journal, this_scope
from agent.control.settings import Setting

path, state_dir = Path(sys.argv[1]), Path(sys.argv[2])
journal = Journal(state_dir, this_scope("cap0"))
before = path.read_bytes()
journal.record(Setting("file", str(path), True), before, b"1\\n")
path.write_bytes(b"1\\n")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def journal(pair: VethPair, tmp_path: Path) -> Iterator[Path]:
    """The journal of an agent that was killed with a changed setting in force."""
    before = pair.right.read(RPS)
    command = [sys.executable, "-c", KILLED_AGENT, str(RPS), str(tmp_path)]
    pair.right.popen(command).wait(30)
    (file,) = tmp_path.iterdir()
    yield file
    pair.right.write(RPS, before)


def test_a_killed_runs_journal_blocks_the_next(pair: VethPair, journal: Path) -> None:
    """Exit 4 naming the remedy until `agent restore` has put the value back; then a run starts."""
    changed = pair.right.read(RPS)
    with AgentRun(pair.right, journal.parent) as run:
        assert run.wait() == 4
        assert "`agent restore`" in run.said()
    assert pair.right.read(RPS) == changed
    restored = agent("restore", "--state-dir", str(journal.parent))
    assert restored.returncode == 0, restored.stderr
    assert int(pair.right.read(RPS), 16) == 0
    assert not journal.exists()
    with AgentRun(pair.right, journal.parent) as run:
        assert run.started().stop() == 0


def test_a_torn_last_line_is_no_change(pair: VethPair, journal: Path) -> None:
    """A line that the crash cut off was not acted upon: the complete ones are restored."""
    with journal.open("ab") as file:
        file.write(b'{"seq":1,"kind":"file","target":"/sys/class/net/cap0/que')
    with AgentRun(pair.right, journal.parent) as run:
        assert run.wait() == 4
    restored = agent("restore", "--json", "--state-dir", str(journal.parent))
    assert restored.returncode == 0, restored.stderr
    assert [item["outcome"] for item in json.loads(restored.stdout)["restored"]] == ["restored"]
    assert not journal.exists()


def test_a_journal_of_an_earlier_boot_is_discarded(pair: VethPair, journal: Path) -> None:
    """Its settings ended with that boot: the run starts, notes it, and writes none of them."""
    changed = pair.right.read(RPS)
    header, rest = journal.read_bytes().split(b"\n", 1)
    older = json.loads(header) | {"boot_id": "00000000-0000-0000-0000-000000000000"}
    journal.write_bytes(json.dumps(older).encode() + b"\n" + rest)
    with AgentRun(pair.right, journal.parent) as run:
        run.started()
        assert run.stop() == 0
        assert "a journal of an earlier boot was discarded" in run.notes()
    assert pair.right.read(RPS) == changed
    assert not journal.exists()


def test_a_file_that_is_no_journal_is_left_for_the_user(pair: VethPair, journal: Path) -> None:
    """Exit 5, what is wrong with it, and it stays."""
    journal.write_bytes(b"this is something else\n")
    with AgentRun(pair.right, journal.parent) as run:
        assert run.wait() == 5
        assert "a journal cannot be read" in run.said()
    assert journal.read_bytes() == b"this is something else\n"


def test_a_second_agent_on_the_interface_is_refused(pair: VethPair, tmp_path: Path) -> None:
    """Exit 4 with the first one's pid; the first goes on."""
    with AgentRun(pair.right, tmp_path) as first:
        first.started()
        with AgentRun(pair.right, tmp_path) as second:
            assert second.wait() == 4
            assert f"pid {first.process.pid}" in second.said()
            assert "remedy" in second.said()
        restore = agent("restore", "--state-dir", str(tmp_path))
        assert restore.returncode == 4
        assert first.stop() == 0


def test_a_state_directory_that_is_a_file_is_named(pair: VethPair, tmp_path: Path) -> None:
    """Exit 2, the path and the cause, no traceback."""
    file = tmp_path / "file"
    file.touch()
    for state_dir in (file, file / "below"):
        with AgentRun(pair.right, state_dir) as run:
            assert run.wait() == 2
            assert str(state_dir) in run.said()
            assert "remedy" in run.said()


def test_a_read_only_state_directory_is_named(pair: VethPair, tmp_path: Path) -> None:
    """On a read-only file system nothing could be journaled, so nothing is begun."""
    mount = f'mount -t tmpfs -o ro,mode=755 none {tmp_path} && exec "$@"'
    before = ("unshare", "--mount", "sh", "-c", mount, "sh")
    with AgentRun(pair.right, tmp_path, before=before) as run:
        assert run.wait() == 2
        assert "Read-only file system" in run.said()
        assert "--state-dir" in run.said()


def test_restore_without_a_state_directory_has_nothing_to_do(tmp_path: Path) -> None:
    """Exit 0, in words and as JSON."""
    where = ("--state-dir", str(tmp_path / "nothing"))
    done = agent("restore", *where)
    assert done.returncode == 0
    assert b"nothing to restore" in done.stdout
    assert json.loads(agent("restore", "--json", *where).stdout) == {"restored": []}
