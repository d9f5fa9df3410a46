"""Network namespaces to experiment in, and the veth pair between two of them.

A `Namespace` is a named one (so that `ip netns` and `agent run --netns` find it) with a thread that lives in it:
what runs in that thread sees the namespace's sockets, interfaces and /sys/class/net, and so do the programs
started from it. The rest of the process stays where it was.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self, TypeVar

from agent.errors import AgentError, UnsupportedError

T = TypeVar("T")

_NETNS_DIR = Path("/run/netns")
_NAME = re.compile(r"^agt-(?:gen|cap)-(\d+)-\d+$")
_serial = itertools.count()

_CLONE_NEWNET = 0x40000000
_CLONE_NEWNS = 0x00020000
_MS_REC = 0x4000
_MS_SLAVE = 1 << 19

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, doing: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise AgentError(
            f"{doing}: {os.strerror(code)}", "the testbed needs root with CAP_SYS_ADMIN and CAP_NET_ADMIN"
        )


def run_ip(*args: str, batch: str | None = None) -> None:
    """Run iproute2's `ip`; raise `AgentError` with what it said."""
    try:
        done = subprocess.run(
            ["ip", *args], input=batch, capture_output=True, text=True, check=False, timeout=20
        )
    except FileNotFoundError:
        raise UnsupportedError("the command `ip` is not installed", "apt-get install iproute2") from None
    if done.returncode != 0:
        raise AgentError(f"ip {' '.join(args)}: {done.stderr.strip()}")


def sweep_stale() -> list[str]:
    """Delete the namespaces of testbeds whose process is gone (killed before it could); return their names."""
    swept = []
    for path in sorted(_NETNS_DIR.glob("agt-*")):
        match = _NAME.match(path.name)
        if match and not Path(f"/proc/{match[1]}").exists():
            # Another process may be sweeping at the same time.
            with contextlib.suppress(AgentError):
                run_ip("netns", "delete", path.name)
                swept.append(path.name)
    return swept


class Namespace:
    """A network namespace `agt-<role>-<pid>-<n>`, deleted by `close()`.

    `role` is "gen" or "cap". `call` runs a function inside of it, `popen` starts a program there.
    Raises `UnsupportedError` when the process is not root.
    """

    def __init__(self, role: str) -> None:
        if os.geteuid() != 0:
            raise UnsupportedError("network namespaces need root", "run it with sudo")
        self.name = f"agt-{role}-{os.getpid()}-{next(_serial)}"
        assert _NAME.match(self.name), self.name
        run_ip("netns", "add", self.name)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=self.name)
        try:
            self.call(self._enter)
            run_ip("-n", self.name, "link", "set", "lo", "up")
        except BaseException:
            self.close()
            raise

    def _enter(self) -> None:
        # A mount namespace of the thread's own: its /sys shows the interfaces of the network namespace, and
        # vanishes with the thread. Slave, so that `ip netns delete` reaches it.
        _check(_libc.unshare(_CLONE_NEWNS), "unshare the mount namespace")
        _check(_libc.mount(b"none", b"/", None, _MS_REC | _MS_SLAVE, None), "make mounts private")
        with (_NETNS_DIR / self.name).open("rb") as file:
            _check(_libc.setns(file.fileno(), _CLONE_NEWNET), f"enter the namespace {self.name}")
        _check(_libc.mount(b"sysfs", b"/sys", b"sysfs", 0, None), "mount /sys of the namespace")

    def call(self, function: Callable[[], T]) -> T:
        """Run `function` in the namespace's thread and hand back what it returns or raises."""
        return self._thread.submit(function).result()

    def popen(
        self, args: list[str], stdout: IO[bytes] | int | None = None, stderr: IO[bytes] | int | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a program in the namespace."""
        return self.call(
            lambda: subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)
        )

    def read(self, path: Path) -> bytes:
        """The content of a file as seen in the namespace (its /sys/class/net)."""
        return self.call(path.read_bytes)

    def write(self, path: Path, value: bytes) -> None:
        """Write a file as seen in the namespace."""

        def write() -> None:
            # One write call, no truncation: what sysfs expects.
            fd = os.open(path, os.O_WRONLY)
            try:
                os.write(fd, value)
            finally:
                os.close(fd)

        self.call(write)

    def close(self) -> None:
        """Delete the namespace and end its thread. Interfaces in it vanish."""
        if (_NETNS_DIR / self.name).exists():
            run_ip("netns", "delete", self.name)
        self._thread.shutdown(wait=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class VethPair:
    """Two namespaces joined by a multi-queue veth pair: `left_if` in `left`, `right_if` in `right`."""

    left: Namespace
    right: Namespace
    left_if: str
    right_if: str
    left_mac: str
    right_mac: str
    left_ip: str
    right_ip: str


def add_veth(
    left: Namespace, right: Namespace, left_if: str, right_if: str, net: int, queues: int, mtu: int = 1500
) -> VethPair:
    """Join two namespaces by a veth pair that is up, addressed 10.77.`net`.1 and .2, and silent.

    Silent: neighbours are permanent entries and there is no IPv6 link-local address, so that no ARP, neighbour
    discovery or multicast report mixes with the test's packets.
    """
    pair = VethPair(
        left, right, left_if, right_if,
        f"02:41:47:{net:02x}:00:01", f"02:41:47:{net:02x}:00:02", f"10.77.{net}.1", f"10.77.{net}.2",
    )  # fmt: skip
    shape = f"numtxqueues {queues} numrxqueues {queues} mtu {mtu}"
    run_ip(
        "-batch", "-",
        batch=f"link add {left_if} netns {left.name} address {pair.left_mac} {shape} type veth "
        f"peer name {right_if} netns {right.name} address {pair.right_mac} {shape}\n",
    )  # fmt: skip
    ends = (
        (left, left_if, pair.left_ip, pair.right_ip, pair.right_mac),
        (right, right_if, pair.right_ip, pair.left_ip, pair.left_mac),
    )
    for namespace, ifname, own_ip, peer_ip, peer_mac in ends:
        run_ip(
            "-n", namespace.name, "-batch", "-",
            batch=f"link set {ifname} addrgenmode none\n"
            f"addr add {own_ip}/24 dev {ifname}\n"
            f"neigh add {peer_ip} lladdr {peer_mac} nud permanent dev {ifname}\n"
            f"link set {ifname} up\n",
        )  # fmt: skip
    return pair


@contextlib.contextmanager
def netns_pair(
    queues: int = 1, left_if: str = "gen0", right_if: str = "cap0", mtu: int = 1500
) -> Iterator[VethPair]:
    """Two fresh namespaces with a veth pair between them; both are gone afterwards, whatever happened."""
    sweep_stale()
    with Namespace("gen") as left, Namespace("cap") as right:
        yield add_veth(left, right, left_if, right_if, net=0, queues=queues, mtu=mtu)


def stop(process: subprocess.Popen[bytes], timeout_s: float = 5.0) -> int:
    """Ask a program to end (SIGTERM), insist after the timeout; return its exit code."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()
