"""irqbalance beside an agent that moves interrupts: told of, and with `--own` asked to leave ours alone.

It listens on a unix socket of its own, which irqbalance-ui(1) uses: `setup` is answered with what it is told to
leave alone, `settings ban irqs 30 31` replaces that list, `settings ban irqs NONE` empties it. The list before is
journaled and comes back at the end, also by `agent restore`. What its command line bans is no part of that list.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import struct
from collections.abc import Collection, Iterator
from pathlib import Path

from agent.control.journal import Journal
from agent.control.settings import Setting, is_gone, kind_of, register_kind
from agent.errors import UsageError
from agent.host.napi import read_thread
from agent.host.paths import HostPaths
from agent.host.processes import named, running

NAME = "irqbalance"
_KIND = "irqbalance-bans"
_LOOK_NS = 10_000_000_000
_ANSWER_S = 1.0
_ANSWER_MAX = 1 << 20
# It reads 500 bytes, and newer versions no more than 255 characters of a list.
_LIST_MAX = 255
_BANNED = re.compile(r"\bIRQ (\d+)\b")
_UCRED = struct.Struct("=iII")


class BansSetting:
    """The interrupts that a running irqbalance was told to leave alone; the target is `PID:START_TICKS`.

    A value is their numbers, ascending, or `none`.
    """

    def __init__(self, proc: Path = Path("/proc"), run: Path = Path("/run")) -> None:
        self._proc = proc
        self._run = run

    @staticmethod
    def target(pid: int, start_ticks: int) -> str:
        """Name a process; its start tells it from a later one with the same number."""
        return f"{pid}:{start_ticks}"

    def read(self, target: str) -> bytes:
        """Its answer to `setup`."""
        return format_irqs(map(int, _BANNED.findall(self._ask(target, "setup"))))

    def write(self, target: str, value: bytes) -> None:
        """Replace its list. E2BIG where that is longer than it reads."""
        numbers = value.decode().strip()
        if len(numbers) > _LIST_MAX:
            raise OSError(errno.E2BIG, f"irqbalance reads {_LIST_MAX} characters of a list of interrupts")
        self._ask(target, "settings ban irqs " + ("NONE" if numbers == "none" else numbers))

    def same(self, a: bytes, b: bytes) -> bool:
        """The same interrupts."""
        return parse_irqs(a) == parse_irqs(b)

    def belongs(self, target: str, ifname: str, ifindex: int) -> bool:
        """Any agent's that was started with `--own`."""
        return True

    def _ask(self, target: str, words: str) -> str:
        """Send a request with our credentials, which it looks at; returns the answer, empty for a setting."""
        pid, start_ticks = map(int, target.split(":"))
        thread = read_thread(self._proc / str(pid))
        if thread is None or thread[0] != start_ticks:
            raise ProcessLookupError(errno.ESRCH, "irqbalance has ended", target)
        credentials = _UCRED.pack(os.getpid(), os.geteuid(), os.getegid())
        with self._connect(pid) as sock:
            sock.sendmsg([words.encode()], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, credentials)])
            answer = bytearray()
            while len(answer) < _ANSWER_MAX and (part := sock.recv(65536)):
                answer += part
        return answer.decode(errors="replace")

    def _connect(self, pid: int) -> socket.socket:
        refusal: OSError | None = None
        for address in self._addresses(pid):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.settimeout(_ANSWER_S)
                sock.connect(address)
                # The abstract names are anybody's to take.
                peer, _, _ = _UCRED.unpack(
                    sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
                )
                if peer == pid:
                    return sock
                refusal = PermissionError(errno.EACCES, f"process {peer} answers for irqbalance")
            except OSError as error:
                refusal = error if refusal is None or error.errno != errno.ENOENT else refusal
            sock.close()
        raise OSError(
            errno.ENOTCONN,
            "its socket does not answer: it was built without one, or runs in another mount or network namespace"
            + ("" if refusal is None else f" ({refusal.strerror or refusal})"),
        )

    def _addresses(self, pid: int) -> Iterator[str | bytes]:
        """Where versions listen: below /run since 1.5, in the abstract namespace before, or where /run is read-only."""
        yield str(self._run / f"irqbalance/irqbalance{pid}.sock")
        yield str(self._run / f"irqbalance{pid}.sock")
        name = b"\0irqbalance%d.sock" % pid
        yield name.ljust(108, b"\0")
        yield name
        yield bytes(108)


register_kind(_KIND, BansSetting())


def format_irqs(numbers: Collection[int] | Iterator[int]) -> bytes:
    """As a value of the setting."""
    return (" ".join(map(str, sorted(set(numbers)))) or "none").encode() + b"\n"


def parse_irqs(value: bytes) -> frozenset[int]:
    """The numbers in a value of the setting."""
    return frozenset(int(word) for word in value.split() if word.isdigit())


class Irqbalance:
    """Looks for running irqbalances now and then; those that appear are told of, or asked to leave interrupts alone."""

    def __init__(self, paths: HostPaths, irqs: Collection[int], journal: Journal | None) -> None:
        """`irqs` are those that the agent may move. `journal`: they are to be ours (`--own`); None: not asked for."""
        self._paths = paths
        self._irqs = frozenset(irqs)
        self._journal = journal
        self._looked_ns = -_LOOK_NS
        self._known: set[str] = set()

    def follow(self, now_ns: int) -> list[str]:
        """Look again if it is time; returns what was found and done, for people."""
        if not self._irqs or now_ns - self._looked_ns < _LOOK_NS:
            return []
        self._looked_ns = now_ns
        notes = []
        for pid in running(self._paths, (NAME,)).get(NAME, ()):
            thread = read_thread(self._paths.proc / str(pid))
            if thread is None:
                continue
            target = BansSetting.target(pid, thread[0])
            if target not in self._known:
                self._known.add(target)
                notes.append(self._meet(target, named({NAME: [pid]})))
        return notes

    def _meet(self, target: str, who: str) -> str:
        if self._journal is None:
            return (
                f"{who} runs: interrupts that it moves are left alone for ten minutes; "
                "with --own it is asked to leave those of these interfaces to the agent"
            )
        kind = kind_of(_KIND)
        try:
            before = kind.read(target)
            after = format_irqs(parse_irqs(before) | self._irqs)
            if kind.same(before, after):
                return f"{who} leaves the interrupts of these interfaces alone already"
            self._journal.record(Setting(_KIND, target, namespaced=False), before, after)
            kind.write(target, after)
            missing = self._irqs - parse_irqs(kind.read(target))
        except UsageError as error:  # a full disk ends no capture
            return error.what
        except OSError as error:
            if is_gone(error):
                return f"{who} has ended"
            return f"{who} was not asked to leave interrupts alone: {error.strerror or error}"
        if missing:
            return f"{who} was asked to leave interrupts alone, and does not: {format_irqs(missing).decode().strip()}"
        return f"{who} leaves IRQ {format_irqs(self._irqs).decode().strip()} to the agent until it ends"
