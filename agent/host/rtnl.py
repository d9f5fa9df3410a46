"""Whether the kernel still answers questions about interfaces at all."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
from collections.abc import Callable

from agent.errors import UnsupportedError

_RTM_GETLINK, _NLM_F_REQUEST = 18, 1
_LOOPBACK = 1
_TIMEOUT_S = 10.0


def require_answers(timeout_s: float = _TIMEOUT_S, ask: Callable[[], object] | None = None) -> None:
    """Raise `UnsupportedError` where the kernel's RTNL lock is never released.

    After a crash inside the kernel somebody may hold it for ever: whoever asks for it then hangs, and cannot even be
    killed. So a child asks (`ask`, default: for the loopback interface), and is left behind. Call it before any thread
    is started.
    """
    child = os.fork()
    if child == 0:
        try:
            (ask or _ask_for_loopback)()
        finally:
            os._exit(0)
    watched = os.pidfd_open(child)
    try:
        poll = select.poll()
        poll.register(watched, select.POLLIN)
        answered = bool(poll.poll(timeout_s * 1000))
    finally:
        os.close(watched)
    if not answered:
        os.kill(child, signal.SIGKILL)
        raise UnsupportedError(
            f"the kernel does not answer questions about interfaces: its RTNL lock is held for {timeout_s:g} s",
            "`dmesg` may show what crashed or hangs; if the lock is never released, only a reboot helps",
        )
    os.waitpid(child, 0)


def _ask_for_loopback() -> None:
    """One RTM_GETLINK request (rtnetlink(7)): the kernel takes the lock for it within `send`."""
    header = struct.pack("=IHHII", 32, _RTM_GETLINK, _NLM_F_REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as asking:
        asking.send(header + struct.pack("=BxHiII", socket.AF_UNSPEC, 0, _LOOPBACK, 0, 0))
