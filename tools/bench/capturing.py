"""The product's capture on an interface of the testbed, without the rest of the agent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from agent.capture import Capture
from agent.hooks import read_facts
from agent.host.model import read_host
from agent.host.netlink import query_links
from agent.host.paths import HostPaths
from agent.loop import capture_target
from agent.options import RunOptions
from agent.tc import Direction
from tools.testbed import Namespace


@contextlib.contextmanager
def capture_on(namespace: Namespace, options: RunOptions) -> Iterator[Capture]:
    """Attach as `agent run` does to the one interface that `options` name; detach afterwards."""

    def nothing(direction: Direction, creates_qdisc: bool) -> None:
        """No journal: what a clsact filter leaves goes with the namespace."""

    def attach() -> Capture:
        host = read_host(HostPaths(), options.interfaces, query_links())
        (leaf,) = host.leaves()
        return Capture(capture_target(leaf, host), read_facts(leaf), options, nothing)

    with namespace.call(attach) as capture:
        yield capture
