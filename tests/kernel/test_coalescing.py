"""Coalescing through ethtool netlink, on a tap device: the one virtual device that has any."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.control.coalesce import CoalesceActuator
from agent.control.journal import Journal, Scope, netns_inode, restore
from agent.control.settings import Setting, kind_of
from agent.host.coalescing import Coalescing, read_coalescing, write_coalescing
from agent.host.model import read_host
from agent.host.netlink import query_links
from agent.host.paths import HostPaths
from tests.kernel import ffi_probe

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces"),
    pytest.mark.skipif(not Path("/dev/net/tun").exists(), reason="this kernel has no tap devices"),
]

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000


@pytest.fixture
def tap() -> Iterator[str]:
    """A tap device in a namespace that this thread is in; it ends with its descriptor."""
    with ffi_probe.inside_veth_pair():
        fd = os.open("/dev/net/tun", os.O_RDWR)
        try:
            fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", b"tap0", IFF_TAP | IFF_NO_PI))
            yield "tap0"
        finally:
            os.close(fd)


def test_only_what_the_driver_has_is_told_and_set(tap: str) -> None:
    """A tap has rx-frames alone; the rest is unknown, and refused."""
    assert read_coalescing(tap) == Coalescing(None, 0, None)
    write_coalescing(tap, Coalescing(None, 16, None))
    assert read_coalescing(tap) == Coalescing(None, 16, None)
    with pytest.raises(OSError, match=r"Invalid argument|not supported"):
        write_coalescing(tap, Coalescing(20, None, None))
    assert read_coalescing(tap) == Coalescing(None, 16, None)


def test_devices_without_coalescing_and_without_being(tap: str) -> None:
    """None, and ENODEV."""
    assert read_coalescing("lo") is None
    with pytest.raises(OSError, match="No such device"):
        read_coalescing("agt-nothing")


def test_a_killed_run_is_restored(tap: str, tmp_path: Path) -> None:
    """The journal's bytes are what the driver gets back."""
    setting = Setting("coalesce", tap, namespaced=True)
    kind = kind_of("coalesce")
    # /sys shows another namespace here than this thread is in.
    paths = HostPaths(sys=tmp_path / "sys")
    journal = Journal(tmp_path / "run", Scope(tap, socket.if_nametoindex(tap), netns_inode()), paths)
    journal.record(setting, kind.read(tap), b"rx-frames 32\n")
    kind.write(tap, b"rx-frames 32\n")
    assert read_coalescing(tap) == Coalescing(None, 32, None)
    os.close(journal._fd)  # as a killed agent leaves it
    (item,) = restore(tmp_path / "run", paths=paths)
    assert item.outcome == "restored"
    assert read_coalescing(tap) == Coalescing(None, 0, None)


def test_a_device_that_counts_frames_alone_is_no_lever(tap: str) -> None:
    """Nothing waits for a time there."""
    host = read_host(HostPaths(), [tap], query_links())
    assert CoalesceActuator(host).target(host.interfaces[tap], 0) is None
