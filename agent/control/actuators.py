"""The levers: where each is, how it is pulled, and what the kernel may answer.

Every write goes through the journal first, is read back, and ends in an `Outcome`: a refusal by the kernel is a fact to
plan with, never an exception that leaves half a plan applied.
"""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from agent.control.journal import Journal
from agent.control.settings import Setting, ThreadAffinitySetting, is_gone, kind_of
from agent.errors import UsageError
from agent.host.masks import CpuMask
from agent.host.model import Host, Interface, Queue
from agent.host.paths import HostPaths, read_text

KNOWN = ("irq", "rps", "rfs", "xps", "napi", "coalesce", "batch", "rss")
IMPLEMENTED = ("irq", "rps", "xps", "napi", "coalesce")
DEFAULT = ("irq", "rps", "xps", "napi")


@dataclass(frozen=True, slots=True)
class Target:
    """One setting of one lever."""

    actuator: str
    ifname: str
    queue: int
    """The queue that it belongs to; the first of them where one interrupt serves several."""
    setting: Setting

    def __str__(self) -> str:
        return self.setting.target


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a write came to."""

    target: Target
    wanted: bytes
    before: bytes
    after: bytes
    """Read back after the write."""
    ok: bool
    reason: str
    """Why not, in words; empty when it was done."""
    error: int = 0
    permanent: bool = False
    """This target never takes a value: it is unmanageable, and not tried again."""
    other_cpu: bool = False
    """This CPU does not take it, another may (no interrupt vector left)."""


class Actuator(ABC):
    """One kind of lever: the write with its journal entry and its read-back is the same for all."""

    name: str
    disruptive = False
    """Pulling it may drop packets or reset the device for a moment."""
    # errno → (reason, permanent, another CPU may do)
    refusals: ClassVar[dict[int, tuple[str, bool, bool]]] = {}

    def __init__(self, host: Host) -> None:
        self.host = host
        self.paths: HostPaths = host.paths

    @abstractmethod
    def target(self, interface: Interface, queue: int) -> Target | None:
        """The lever of a queue; None where the interface has none."""

    def read(self, target: Target) -> bytes:
        """The value now. Raises `OSError`."""
        return kind_of(target.setting.kind).read(target.setting.target)

    def write(self, target: Target, value: bytes, journal: Journal) -> Outcome:
        """Journal, write, read back. Nothing is raised for what the kernel refuses."""
        kind = kind_of(target.setting.kind)
        before = b""
        try:
            before = self.read(target)
            if taken := self.taken_over(target):
                return Outcome(target, value, before, before, False, taken, errno.ENODEV, True)
            if kind.same(before, value):
                return Outcome(target, value, before, before, True, "")
            try:
                journal.record(target.setting, before, value)
            except UsageError as error:
                # A full disk ends no capture: it goes on, with what is set now.
                return Outcome(target, value, before, before, False, error.what, errno.EIO)
            kind.write(target.setting.target, value)
            after = self.read(target)
        except OSError as error:
            return self._refused(target, value, before, error)
        if not kind.same(after, value):
            reason = f"accepted, but it reads {after.decode(errors='replace').strip()!r}"
            return Outcome(target, value, before, after, False, reason)
        return Outcome(target, value, before, after, True, "")

    def in_effect(self, target: Target) -> CpuMask | None:
        """The CPUs that the kernel really uses now; None where it does not tell them apart from the value."""
        return None

    def taken_over(self, target: Target) -> str:
        """Why the target is not what it was when the host was read; empty where it is."""
        del target
        return ""

    def problem(self) -> str | None:
        """Why no write can succeed on this host; None where nothing is known to be in the way.

        Found without writing: opening for write is refused already where the file system is read-only.
        """
        for interface in self.host.leaves():
            target = self.target(interface, 0)
            if target is not None and target.setting.kind == "file":
                return _opens_for_write(Path(target.setting.target))
        return None

    def _refused(self, target: Target, value: bytes, before: bytes, error: OSError) -> Outcome:
        number = error.errno or errno.EIO
        if is_gone(error):
            return Outcome(target, value, before, before, False, "it does not exist any more", number, True)
        reason, permanent, other_cpu = (self.refusals | _REFUSALS).get(
            number, (os.strerror(number), False, False)
        )
        return Outcome(target, value, before, before, False, reason, number, permanent, other_cpu)


_READ_ONLY = (
    "read-only file system: mounted so in this container, or ProtectKernelTunables=yes in the service"
)
_REFUSALS = {
    errno.EROFS: (_READ_ONLY, True, False),
    errno.EACCES: (
        "permission denied: it takes root (CAP_DAC_OVERRIDE) in the namespace that owns it",
        True,
        False,
    ),
    errno.EOVERFLOW: ("the mask names CPUs that this kernel cannot have", False, True),
}


class IrqActuator(Actuator):
    """`/proc/irq/N/smp_affinity`: the CPU that takes a device queue's interrupt, and so polls it."""

    name = "irq"
    refusals: ClassVar = {
        errno.EIO: ("managed by the kernel: its affinity cannot be set", True, False),
        # The same refusal, since 6.12.
        errno.EPERM: ("managed by the kernel: its affinity cannot be set", True, False),
        errno.ENOSPC: ("no interrupt vector is left on that CPU", False, True),
        errno.EINVAL: ("no CPU of the mask is online", False, True),
        errno.EBUSY: ("busy for now", False, False),
        errno.EAGAIN: ("busy for now", False, False),
    }

    def target(self, interface: Interface, queue: int) -> Target | None:
        """The interrupt of the queue, unless it serves other devices as well: then it is never moved."""
        found = _queue(interface, queue)
        if found is None or found.irq is None:
            return None
        irq = self.host.irqs[found.irq]
        if irq.shared:
            return None
        path = self.paths.irq(irq.number) / "smp_affinity"
        first = min(index for name, index in irq.queues if name == interface.name)
        return Target(self.name, interface.name, first, Setting("file", str(path), namespaced=False))

    def taken_over(self, target: Target) -> str:
        """Numbers are given again: after `ethtool -L` or a reset, this one may be another device's."""
        directory = Path(target.setting.target).parent
        known = self.host.irqs[int(directory.name)].actions
        # A handler has a directory of its name; one whose name has a slash has none.
        now = [entry.name for entry in directory.iterdir() if entry.is_dir()]
        if not known or not now or any(name in known for name in now):
            return ""
        return f"interrupt {directory.name} is {now[0]} now, not {known[0]}: the driver has set up its queues anew"

    def in_effect(self, target: Target) -> CpuMask | None:
        """`effective_affinity`, which follows a write only at the next interrupt."""
        text = read_text(Path(target.setting.target).with_name("effective_affinity"))
        return CpuMask.parse_mask(text) if text else None


class RpsActuator(Actuator):
    """`rps_cpus` of a receive queue: the CPUs that its packets are handed to behind the driver's poll."""

    name = "rps"
    refusals: ClassVar = {
        errno.EINVAL: ("no housekeeping CPU is in the mask", False, True),
    }

    def target(self, interface: Interface, queue: int) -> Target | None:
        """The queue's mask; None where the kernel has no RPS."""
        path = self.paths.net(interface.name) / f"queues/rx-{queue}/rps_cpus"
        return (
            Target(self.name, interface.name, queue, Setting("file", str(path), True))
            if path.exists()
            else None
        )


class XpsActuator(Actuator):
    """`xps_cpus` of a transmit queue: the CPUs that send by it."""

    name = "xps"

    def target(self, interface: Interface, queue: int) -> Target | None:
        """The queue's mask. A device with one queue lists the file, yet reading gives ENOENT: it has no such lever."""
        path = self.paths.net(interface.name) / f"queues/tx-{queue}/xps_cpus"
        target = Target(self.name, interface.name, queue, Setting("file", str(path), True))
        try:
            self.read(target)
        except OSError:
            return None
        return target


class NapiActuator(Actuator):
    """Threaded NAPI: whether an interface polls in kernel threads, and the CPUs that a queue's thread may use."""

    name = "napi"
    refusals: ClassVar = {
        errno.EINVAL: ("no CPU of the mask is allowed for the thread", False, True),
        errno.EOPNOTSUPP: ("the interface has no NAPI to thread", True, False),
        errno.EPERM: ("the kernel pins this thread", True, False),
    }

    def target(self, interface: Interface, queue: int) -> Target | None:
        """The thread that polls the queue; None where polling is not threaded."""
        found = _queue(interface, queue)
        if found is None or found.thread is None:
            return None
        thread = found.thread
        name = ThreadAffinitySetting.target(thread.name, thread.pid, thread.start_ticks)
        return Target(self.name, interface.name, queue, Setting("thread-affinity", name, namespaced=True))

    def switch(self, interface: Interface) -> Target:
        """The interface's switch between polling in softirq (`0`) and in threads (`1`)."""
        path = self.paths.net(interface.name) / "threaded"
        return Target(self.name, interface.name, 0, Setting("file", str(path), namespaced=True))


def allowed_actuators(allow: Iterable[str] = (), deny: Iterable[str] = ()) -> tuple[str, ...]:
    """The default ones, with those allowed added and those denied left out.

    Raises `UsageError` for a name that does not exist, and for one that is allowed but not in this version.
    """
    for name in (*allow, *deny):
        if name not in KNOWN:
            raise UsageError(f"there is no actuator {name!r}", f"there are: {', '.join(KNOWN)}")
    for name in allow:
        if name not in IMPLEMENTED:
            raise UsageError(
                f"the actuator {name!r} is not in this version", f"use: {', '.join(IMPLEMENTED)}"
            )
    denied = set(deny)
    return tuple(name for name in dict.fromkeys((*DEFAULT, *allow)) if name not in denied)


def make_actuators(host: Host, names: Iterable[str]) -> dict[str, Actuator]:
    """An actuator for each of these names."""
    from agent.control.coalesce import CoalesceActuator

    classes: dict[str, type[Actuator]] = {
        "irq": IrqActuator,
        "rps": RpsActuator,
        "xps": XpsActuator,
        "napi": NapiActuator,
        "coalesce": CoalesceActuator,
    }
    return {name: classes[name](host) for name in names}


def _queue(interface: Interface, index: int) -> Queue | None:
    return next((queue for queue in interface.queues if queue.index == index), None)


def _opens_for_write(path: Path) -> str | None:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
    except OSError as error:
        reason = _REFUSALS[error.errno][0] if error.errno in _REFUSALS else error.strerror
        return f"{path} cannot be written: {reason}"
    return None
