"""What the doctor says of the pages of batch windows."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from agent.batch.consumers import ConsumerServer
from agent.batch.publisher import PagePublisher
from agent.doctor import Context, pages

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="pages are believed if they are root's")

S = 1_000_000_000


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """This machine, with a state directory of the test's that every user can get to as far as it goes."""
    return Context(state_dir=tmp_path)


def test_without_pages_nothing_is_wrong(context: Context) -> None:
    """Nor with a state directory that does not exist."""
    missing = Context(state_dir=context.state_dir / "missing")
    for looked_at in (context, missing):
        assert {check(looked_at).severity for _, check in pages.CHECKS} == {"ok"}


def test_pages_of_a_running_agent_are_well(context: Context) -> None:
    """It has written them just now; sockets and locks beside them are no pages."""
    with (
        PagePublisher(context.state_dir, "default") as default,
        PagePublisher(context.state_dir, "left") as left,
        ConsumerServer(context.state_dir, "default", [0]),
    ):
        for publisher in (default, left):
            publisher.publish_clocks(time.monotonic_ns(), ())
        found = pages.pages(context)
    assert found.severity == "ok"
    assert found.found.endswith(": default, left")


def test_a_killed_agents_page_is_told(context: Context) -> None:
    """When it was written last, by whom, and that this process has gone."""
    child = os.fork()
    if child == 0:
        PagePublisher(context.state_dir, "left").publish_clocks(time.monotonic_ns() - 60 * S, ())
        os._exit(0)
    os.waitpid(child, 0)
    found = pages.pages(context)
    assert found.severity == "info"
    assert "batch-left was written 60 s ago" in found.found
    assert f"process {child}, which has gone" in found.found


def test_a_page_that_consumers_refuse_is_told(context: Context) -> None:
    """With the same cause that consumers give, and its remedy."""
    with PagePublisher(context.state_dir, "default") as publisher:
        publisher.path.chmod(0o666)
        found = pages.pages(context)
    assert found.severity == "warn"
    assert "can be written by others" in found.found
    assert "restart the agent" in found.remedy


@pytest.mark.parametrize(
    ("what", "mode", "remedy"),
    [
        ("", 0o700, "chmod o+x {}"),
        ("", 0o777, "chmod go-w {}"),
        ("batch", 0o600, "chmod o+r {}"),
        ("batch.sock", 0o600, "chmod o+rw {}"),
    ],
    ids=["shut", "open", "page", "socket"],
)
def test_what_keeps_consumers_away_is_told(context: Context, what: str, mode: int, remedy: str) -> None:
    """A directory, a page or a socket that other users can't get to, or can replace; with what makes it well."""
    context.state_dir.chmod(0o755)
    path = context.state_dir / what
    with (
        PagePublisher(context.state_dir, "default"),
        ConsumerServer(context.state_dir, "default", [0]),
    ):
        assert remedy.format(path) not in pages.reach(context).remedy
        path.chmod(mode)
        found = pages.reach(context)
    assert found.severity == "warn"
    assert remedy.format(path) in found.remedy.split("; ")
