"""The shared page: what the agent publishes is what a consumer reads, and what cannot be believed is not."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.batch import BatchWindow, Window
from agent.batch import window as window_module
from agent.batch.layout import (
    CLOCKS,
    HEADER,
    MAGIC,
    PAGE_SIZE,
    PAGE_VERSION,
    WINDOW,
    PageError,
    PublishedClock,
    PublishedWindow,
    page_path,
    unpack_clocks,
)
from agent.batch.page import Page
from agent.batch.publisher import PagePublisher
from agent.errors import ConflictError, UnsupportedError

S = 1_000_000_000
DEFAULT = Window(750, 4)
UID = os.geteuid()


class Clock:
    """CLOCK_MONOTONIC as a test has it."""

    def __init__(self) -> None:
        self.now_ns = time.monotonic_ns()

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that consumers read."""
    clock = Clock()
    monkeypatch.setattr(window_module, "monotonic_ns", clock)
    return clock


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[PagePublisher]:
    """An agent's default page."""
    with PagePublisher(tmp_path, "default") as publisher:
        yield publisher


def consumer(state_dir: Path, page: str = "default") -> BatchWindow:
    """A consumer's view of the page of this test's agent."""
    return BatchWindow(page, default=DEFAULT, state_dir=state_dir, owner_uid=UID)


def published(now_ns: int, max_wait_us: int = 3_000, max_items: int = 32) -> PublishedWindow:
    """A window that holds for a second."""
    return PublishedWindow(now_ns, now_ns + S, max_wait_us, max_items)


def test_a_published_window_is_read(tmp_path: Path, publisher: PagePublisher, clock: Clock) -> None:
    """What the agent wrote last is what holds, until when it says."""
    window = consumer(tmp_path)
    for wait_us in (1_000, 2_000, 3_000):
        publisher.publish_window(published(clock.now_ns, wait_us))
        assert window.read() == Window(wait_us, 32, clock.now_ns + S)
    assert window.trouble == ""


def test_an_agent_that_stopped_means_the_default(
    tmp_path: Path, publisher: PagePublisher, clock: Clock
) -> None:
    """From the nanosecond on at which the window ends, the default holds; a new window ends that."""
    publisher.publish_window(published(clock.now_ns))
    window = consumer(tmp_path)
    clock.now_ns += S - 1
    assert window.read().max_items == 32
    clock.now_ns += 1
    assert window.read() == DEFAULT
    assert "not written" in window.trouble
    publisher.publish_window(published(clock.now_ns))
    assert window.read().max_items == 32


def test_a_withdrawn_window_means_the_default(tmp_path: Path, publisher: PagePublisher, clock: Clock) -> None:
    """The agent may have nothing to say any more before its last window ends."""
    publisher.publish_window(published(clock.now_ns))
    window = consumer(tmp_path)
    publisher.publish_window(PublishedWindow(clock.now_ns, 0, 0, 0))
    assert window.read() == DEFAULT
    assert "no window to give" in window.trouble


def test_a_new_agent_is_found(tmp_path: Path, clock: Clock) -> None:
    """A consumer that began before the agent, and outlives it, follows the page of the next one."""
    window = consumer(tmp_path)
    assert window.read() == DEFAULT
    for items in (8, 9):
        with PagePublisher(tmp_path, "default") as publisher:
            publisher.publish_window(published(clock.now_ns, max_items=items))
            clock.now_ns += S // 2
            assert window.read().max_items == items
        assert window.read() == DEFAULT


def test_what_a_killed_agent_left_is_replaced(tmp_path: Path, clock: Clock) -> None:
    """A page whose writer is gone is no obstacle, and its readers move on to the new one."""
    killed = PagePublisher(tmp_path, "default")
    killed.publish_window(published(clock.now_ns))
    window = consumer(tmp_path)
    os.close(killed._lock)  # as the kernel does for a process that is killed
    with PagePublisher(tmp_path, "default") as publisher:
        clock.now_ns += 2 * S
        assert window.read() == DEFAULT
        publisher.publish_window(published(clock.now_ns, max_items=7))
        clock.now_ns += S // 2
        assert window.read().max_items == 7


def test_pages_have_names(tmp_path: Path, clock: Clock) -> None:
    """Consumers of different pages read different windows."""
    with PagePublisher(tmp_path, "left") as left, PagePublisher(tmp_path, "right") as right:
        left.publish_window(published(clock.now_ns, max_items=1))
        right.publish_window(published(clock.now_ns, max_items=2))
        assert consumer(tmp_path, "left").read().max_items == 1
        assert consumer(tmp_path, "right").read().max_items == 2


@pytest.mark.parametrize("name", ["", "../etc", "a/b", "a.sock", "A", "x" * 32, "-a"])
def test_names_of_pages_are_checked(tmp_path: Path, name: str) -> None:
    """A name is part of a path, and keeps to its directory."""
    with pytest.raises(ValueError, match="no name of a page"):
        page_path(tmp_path, name)


def test_one_agent_writes_a_page(tmp_path: Path, publisher: PagePublisher) -> None:
    """A second writer of a page is refused, and the page stays the first one's."""
    with pytest.raises(ConflictError, match="another agent"):
        PagePublisher(tmp_path, "default")
    assert publisher.path.exists()


def test_a_page_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    """Without the state directory there is no page, and the cause is named."""
    with pytest.raises(UnsupportedError, match="No such file"):
        PagePublisher(tmp_path / "missing", "default")


def test_the_page_is_gone_after_the_agent(tmp_path: Path, clock: Clock) -> None:
    """Closing leaves no page, and only the lock's empty file."""
    PagePublisher(tmp_path, "default").close()
    assert [path.name for path in tmp_path.iterdir()] == ["batch.lock"]


# ---- what is not believed --------------------------------------------------------------------------------------


def header(**changed: object) -> bytes:
    """A page's header, with something wrong."""
    facts = {"magic": MAGIC, "version": PAGE_VERSION, "size": PAGE_SIZE, "uid": UID, "pid": 1, "name": b"x"}
    return HEADER.pack(*(facts | changed).values())


@pytest.mark.parametrize(
    ("content", "mode", "cause"),
    [
        (header().ljust(PAGE_SIZE, b"\0")[:100], 0o644, "truncated"),
        (b"", 0o644, "truncated"),
        (header(magic=b"whatever").ljust(PAGE_SIZE, b"\0"), 0o644, "no page of this program"),
        (header(version=2).ljust(PAGE_SIZE, b"\0"), 0o644, "has version 2"),
        (header(size=8192).ljust(PAGE_SIZE, b"\0"), 0o644, "8192 bytes"),
        (header(uid=UID + 1).ljust(PAGE_SIZE, b"\0"), 0o644, f"user {UID + 1} wrote it"),
        (header().ljust(PAGE_SIZE, b"\0"), 0o646, "written by others"),
        (header().ljust(PAGE_SIZE, b"\0"), 0o664, "written by others"),
        (header().ljust(PAGE_SIZE, b"\0"), 0o644, "torn"),
    ],
)
def test_a_page_with_something_wrong_is_refused(
    tmp_path: Path, content: bytes, mode: int, cause: str
) -> None:
    """Truncated, foreign, of another version, another's, writable by others, torn: the default, and why."""
    path = tmp_path / "batch"
    path.write_bytes(content)
    path.chmod(mode)
    window = consumer(tmp_path)
    assert window.read() == DEFAULT
    assert cause in window.trouble


@pytest.mark.parametrize("default", [Window(-1, 1), Window(0, 0), Window(0, -1)])
def test_a_default_that_closes_no_batch_is_refused(tmp_path: Path, default: Window) -> None:
    """A batch of no items would be waited for without end."""
    with pytest.raises(ValueError, match="no batch can be formed"):
        BatchWindow(default=default, state_dir=tmp_path)


def test_a_default_that_is_no_whole_number_is_refused(tmp_path: Path) -> None:
    """Half an item is nothing to count to."""
    with pytest.raises(TypeError, match="float"):
        BatchWindow(default=Window(0, 2.5), state_dir=tmp_path)  # type: ignore[arg-type]


def test_another_users_page_is_refused(tmp_path: Path, publisher: PagePublisher) -> None:
    """Only the agent's user can have written what is believed."""
    publisher.publish_window(published(time.monotonic_ns()))
    window = BatchWindow(default=DEFAULT, state_dir=tmp_path, owner_uid=UID + 1)
    assert window.read() == DEFAULT
    assert f"belongs to user {UID}, not to user {UID + 1}" in window.trouble


def test_links_and_pipes_are_refused(tmp_path: Path, publisher: PagePublisher) -> None:
    """A symbolic link is not followed, and a FIFO doesn't hold up the consumer."""
    (tmp_path / "batch-link").symlink_to(publisher.path)
    os.mkfifo(tmp_path / "batch-pipe")
    assert "cannot be opened" in consumer(tmp_path, "link").trouble
    assert "no regular file" in consumer(tmp_path, "pipe").trouble


@pytest.mark.parametrize(
    "found",
    [
        PublishedWindow(0, 1 << 62, 100, 8),
        PublishedWindow(0, time.monotonic_ns() + 3600 * S, 100, 8),
        PublishedWindow(0, time.monotonic_ns() + 30 * S, 100, 0),
    ],
)
def test_windows_that_no_agent_makes_are_refused(
    tmp_path: Path, publisher: PagePublisher, found: PublishedWindow
) -> None:
    """No agent vouches for longer than a minute, and no batch is empty: an older boot's page, or damage."""
    publisher.publish_window(found)
    window = consumer(tmp_path)
    assert window.read() == DEFAULT
    assert "this host's clock" in window.trouble


@pytest.mark.parametrize("section", [WINDOW, CLOCKS])
def test_every_torn_byte_is_noticed(tmp_path: Path, publisher: PagePublisher, section: object) -> None:
    """One changed byte anywhere in the present copy is found by its checksum."""
    section = WINDOW if section is WINDOW else CLOCKS
    publisher.publish_window(published(time.monotonic_ns()))
    publisher.publish_clocks(5, [a_clock(0)])
    page = Page(publisher.path, UID)
    start = section.copies_at[page.words[section.seq_index] & 1]
    good = page.body(section)
    for at in range(start, start + section.size):
        publisher._map[at] ^= 0x10
        with pytest.raises(PageError, match="torn"):
            page.body(section)
        publisher._map[at] ^= 0x10
    assert page.body(section) == good


def test_an_agent_killed_while_writing_tears_nothing(
    tmp_path: Path, publisher: PagePublisher, clock: Clock
) -> None:
    """The copy that is being filled is not the one that is read."""
    publisher.publish_window(published(clock.now_ns))
    spare = WINDOW.copies_at[(publisher._words[WINDOW.seq_index] + 1) & 1]
    publisher._map[spare : spare + 20] = b"\xff" * 20
    assert consumer(tmp_path).read().max_items == 32


def test_a_reader_never_sees_half_of_two_windows(tmp_path: Path, publisher: PagePublisher) -> None:
    """While another process writes as fast as it can, every window that is read is one that was written."""
    until_ns = time.monotonic_ns() + 50 * S
    publisher.publish_window(PublishedWindow(0, until_ns, 0, 1))
    writer = os.fork()
    if writer == 0:
        try:
            for n in range(20_000):
                publisher.publish_window(PublishedWindow(n, until_ns + n, n, n + 1))
        finally:
            os._exit(0)
    window = consumer(tmp_path)
    seen = set()
    while os.waitpid(writer, os.WNOHANG)[0] == 0:
        max_wait_us, max_items, valid_until_ns = window.read()
        if window.trouble == "":
            assert (max_items, valid_until_ns) == (max_wait_us + 1, until_ns + max_wait_us)
            seen.add(max_wait_us)
    assert len(seen) > 1


def test_a_cause_is_logged_once(tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """A consumer that runs for a day without an agent says so in one line."""
    with caplog.at_level(logging.WARNING):
        window = consumer(tmp_path)
        for _ in range(50):
            clock.now_ns += S
            window.read()
    assert [record.getMessage() for record in caplog.records] == [
        f"the default batch window holds: there is no page {tmp_path / 'batch'}"
    ]


def test_a_closed_window_gives_the_default(tmp_path: Path, publisher: PagePublisher, clock: Clock) -> None:
    """Whoever reads on after the end gets no exception."""
    publisher.publish_window(published(clock.now_ns))
    with consumer(tmp_path) as window:
        assert window.read().max_items == 32
    assert window.read() == DEFAULT


# ---- clocks ----------------------------------------------------------------------------------------------------


def a_clock(key: int) -> PublishedClock:
    """A clock with a different value in each field."""
    return PublishedClock(f"eth{key}", key, 3, 4, -5, -6, 7, 8, 9, 10, 11, 40, "trailer", "tai")


def test_clocks_are_read_as_they_were_published(publisher: PagePublisher) -> None:
    """Every field of every clock, 16 of them; what is beyond is left out."""
    publisher.publish_clocks(5, [a_clock(key) for key in range(20)])
    _, body = Page(publisher.path, UID).body(CLOCKS)
    assert unpack_clocks(body) == [a_clock(key) for key in range(16)]


# ---- what it costs ---------------------------------------------------------------------------------------------


def test_importing_it_loads_no_bpf_and_no_arrays() -> None:
    """A consumer pays neither for BPF nor for NumPy or SciPy."""
    code = "import sys, agent.batch; print(*sorted(name.partition('.')[0] for name in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
    assert not {"numpy", "scipy", "cffi", "_cffi_backend", "pyroute2", "psutil", "msgpack"} & set(
        loaded.split()
    )
    code = "import sys, agent.batch; print(*sorted(name for name in sys.modules if name.startswith('agent')))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
    assert {name for name in loaded.split() if not name.startswith("agent.batch")} == {
        "agent",
        "agent.errors",
    }


def test_reading_makes_no_system_call(tmp_path: Path, publisher: PagePublisher) -> None:
    """Under a seccomp filter that kills at any call but write(2), a consumer reads on and on."""
    publisher.publish_window(PublishedWindow(0, time.monotonic_ns() + 50 * S, 100, 9))
    code = f"""
        import ctypes, os, platform, struct, time
        from pathlib import Path
        from agent.batch import BatchWindow
        window = BatchWindow(state_dir=Path({str(tmp_path)!r}), owner_uid={UID})
        read, write = window.read, os.write
        number = 1 if platform.machine() == "x86_64" else 64
        # Load the call's number; if it is write(2), allow it; else kill.
        rules = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x80000000)]
        filters = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
        program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(rules), ctypes.addressof(filters)))
        PR_SET_SECCOMP, SECCOMP_MODE_FILTER, PR_SET_NO_NEW_PRIVS = 22, 2, 38
        prctl = ctypes.CDLL(None).prctl
        assert prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
        assert prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0) == 0
        time.monotonic_ns()
        write(1, b"the clock needs none; ")
        for _ in range(10_000):
            items = read().max_items
        write(1, b"%d items" % items)
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, check=False)
    if not ended.stdout and not ended.stderr:
        pytest.skip("this machine's clock cannot be read without a system call")
    assert ended.stdout == b"the clock needs none; 9 items", ended.stderr.decode()
