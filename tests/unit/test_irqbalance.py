"""irqbalance: asked by its socket to leave interrupts alone, and given them back."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.control import settings
from agent.control.journal import Journal, Scope, netns_inode, restore
from agent.host.napi import read_thread
from agent.irqbalance import BansSetting, Irqbalance, format_irqs, parse_irqs
from tests.unit.test_host_model import FixtureHost

S = 10**9


class FakeIrqbalance:
    """Speaks irqbalance's protocol as its sock_handle() does, in a thread of this process."""

    def __init__(self, run: Path, banned: list[int]) -> None:
        self.banned = banned
        self.requests: list[str] = []
        self.deaf = False
        """It takes a list and goes on as before."""
        (run / "irqbalance").mkdir(parents=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(run / f"irqbalance/irqbalance{os.getpid()}.sock"))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.listen(1)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                data, ancillary, _, _ = connection.recvmsg(500, socket.CMSG_SPACE(12))
                ((_, kind, credentials),) = ancillary
                assert kind == socket.SCM_CREDENTIALS
                if struct.unpack("iII", credentials)[1] == os.geteuid():
                    self._answer(data.decode(), connection)

    def _answer(self, request: str, connection: socket.socket) -> None:
        self.requests.append(request)
        ban = "settings ban irqs "
        if request.startswith(ban) and not self.deaf:
            self.banned = [int(word) for word in request.removeprefix(ban).split() if word != "NONE"]
        elif request == "setup":
            irqs = "".join(f"IRQ {number} LOAD 1200 DIFF 30 CLASS 5 " for number in self.banned)
            connection.sendall(f"SLEEP 10 {irqs}BANNED 00000000,00000003".encode())

    def close(self) -> None:
        """No longer there; a second call does nothing."""
        if self._thread.is_alive():
            self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            self._thread.join()


@pytest.fixture
def host(tmp_path: Path) -> FixtureHost:
    """This process, by the name of irqbalance."""
    tree = FixtureHost(tmp_path)
    directory = tree.paths.proc / str(os.getpid())
    tree.file(directory / "comm", "irqbalance\n")
    for name in ("stat", "status"):
        tree.file(directory / name, Path(f"/proc/self/{name}").read_text())
    return tree


@pytest.fixture
def daemon(host: FixtureHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeIrqbalance]:
    """It was told by somebody to leave IRQ 7 alone."""
    run = tmp_path / "run"
    monkeypatch.setitem(settings._KINDS, "irqbalance-bans", BansSetting(host.paths.proc, run))
    fake = FakeIrqbalance(run, [7])
    yield fake
    fake.close()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """An open journal."""
    with Journal(tmp_path / "state", Scope("lo", 1, netns_inode())) as opened:
        yield opened


def test_our_interrupts_are_added_to_its_list_and_taken_off_again(
    host: FixtureHost, daemon: FakeIrqbalance, journal: Journal
) -> None:
    """What others had banned stays banned throughout."""
    (note,) = Irqbalance(host.paths, {31, 30}, journal).follow(0)
    assert daemon.banned == [7, 30, 31]
    assert note == f"irqbalance (pid {os.getpid()}) leaves IRQ 30 31 to the agent until it ends"
    assert [item.outcome for item in journal.restore()] == ["restored"]
    assert daemon.banned == [7]


def test_an_empty_list_comes_back_empty(host: FixtureHost, daemon: FakeIrqbalance, journal: Journal) -> None:
    """There is a word for it."""
    daemon.banned = []
    Irqbalance(host.paths, {30}, journal).follow(0)
    assert daemon.banned == [30]
    journal.restore()
    assert daemon.requests[-2:] == ["settings ban irqs NONE", "setup"]
    assert daemon.banned == []


def test_a_killed_agent_gives_them_back_by_restore(
    host: FixtureHost, daemon: FakeIrqbalance, tmp_path: Path
) -> None:
    """The list is journaled before it is sent."""
    state = tmp_path / "killed"
    killed = Journal(state, Scope("lo", 1, netns_inode()))
    Irqbalance(host.paths, {30}, killed).follow(0)
    os.close(killed._fd)
    assert [item.outcome for item in restore(state)] == ["restored"]
    assert daemon.banned == [7]


def test_a_list_that_somebody_changed_since_is_left_to_them(
    host: FixtureHost, daemon: FakeIrqbalance, journal: Journal
) -> None:
    """As every setting."""
    Irqbalance(host.paths, {30}, journal).follow(0)
    daemon.banned = [99]
    assert [item.outcome for item in journal.restore()] == ["changed_by_others"]
    assert daemon.banned == [99]
    daemon.banned = [7]


def test_it_is_asked_once_and_a_later_one_again(
    host: FixtureHost, daemon: FakeIrqbalance, journal: Journal
) -> None:
    """It may be restarted."""
    balance = Irqbalance(host.paths, {30}, journal)
    assert len(balance.follow(0)) == 1
    assert balance.follow(1 * S) == balance.follow(20 * S) == []
    stat = host.paths.proc / str(os.getpid()) / "stat"
    fields = stat.read_text().rsplit(")", 1)[1].split()
    fields[19] = str(int(fields[19]) + 5)
    stat.write_text(f"{os.getpid()} (irqbalance) {' '.join(fields)}\n")
    daemon.banned = []
    assert len(balance.follow(40 * S)) == 1
    assert daemon.banned == [30]


def test_without_own_it_is_told_of_and_not_asked(host: FixtureHost, daemon: FakeIrqbalance) -> None:
    """The policy then is to hold off."""
    (note,) = Irqbalance(host.paths, {30}, None).follow(0)
    assert "--own" in note
    assert daemon.requests == []


def test_nothing_is_said_where_no_interrupt_would_be_moved(host: FixtureHost) -> None:
    """A veth has none."""
    assert Irqbalance(host.paths, set(), None).follow(0) == []


def test_one_that_goes_on_as_before_is_told_of(
    host: FixtureHost, daemon: FakeIrqbalance, journal: Journal
) -> None:
    """The list is read back."""
    daemon.deaf = True
    (note,) = Irqbalance(host.paths, {30}, journal).follow(0)
    assert note.endswith("was asked to leave interrupts alone, and does not: 30")


def test_more_interrupts_than_it_reads_are_not_asked_for(
    host: FixtureHost, daemon: FakeIrqbalance, journal: Journal
) -> None:
    """A list cut off in the middle of a number would be another one."""
    (note,) = Irqbalance(host.paths, range(1000, 1100), journal).follow(0)
    assert "255 characters" in note
    assert daemon.banned == [7]


def test_one_without_a_socket_is_told_of(host: FixtureHost, daemon: FakeIrqbalance, journal: Journal) -> None:
    """The cause is named; the run goes on."""
    daemon.close()
    (note,) = Irqbalance(host.paths, {30}, journal).follow(0)
    assert "was not asked to leave interrupts alone: its socket does not answer" in note


def test_one_that_ended_is_gone(host: FixtureHost, daemon: FakeIrqbalance) -> None:
    """A later process with its number is another one."""
    thread = read_thread(host.paths.proc / str(os.getpid()))
    assert thread is not None
    with pytest.raises(ProcessLookupError):
        settings.kind_of("irqbalance-bans").read(BansSetting.target(os.getpid(), thread[0] + 1))


def test_values_are_sorted_numbers() -> None:
    """Read back they are the same."""
    assert format_irqs([31, 4, 31]) == b"4 31\n"
    assert format_irqs([]) == b"none\n"
    assert parse_irqs(b"4 31\n") == {4, 31}
    assert parse_irqs(b"none\n") == frozenset()
