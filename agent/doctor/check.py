"""The frame of the checks: what one gets, what one answers, and how all of them are run."""

from __future__ import annotations

import copy
import importlib
import os
import platform
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from agent.errors import AgentError, UsageError
from agent.host.paths import HostPaths

if TYPE_CHECKING:
    from agent.host.links import LinkTable
    from agent.host.model import Host, Interface

Severity = Literal["ok", "info", "warn", "fail"]
"""ok: as it should be. info: good to know. warn: works with less, or worse. fail: `agent run` cannot work."""
_ORDER: tuple[Severity, ...] = ("ok", "info", "warn", "fail")


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found; `why` and `remedy` may be empty where nothing is wrong."""

    severity: Severity
    found: str
    why: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor's report."""

    group: str
    name: str
    severity: Severity
    found: str
    why: str
    remedy: str


class NotChecked(Exception):  # noqa: N818 - not a fault, an answer
    """A check cannot be made here; the message says why."""


class Context:
    """The host that is looked at: this machine, or a tree that a test wrote."""

    def __init__(
        self,
        paths: HostPaths | None = None,
        ifname: str | None = None,
        *,
        kernel_release: str | None = None,
        machine: str | None = None,
        state_dir: Path = Path("/run/agent"),
        consumers: tuple[int, ...] = (),
    ) -> None:
        """`consumers` are the process ids of the programs that the packets are for."""
        self.paths = paths or HostPaths()
        self.ifname = ifname
        self.kernel_release = kernel_release or platform.release()
        self.machine = machine or platform.machine()
        self.state_dir = state_dir
        self.consumers = consumers

    @property
    def kernel(self) -> tuple[int, int]:
        """Major and minor version."""
        match = re.match(r"(\d+)\.(\d+)", self.kernel_release)
        if match is None:
            raise NotChecked(f"the kernel release {self.kernel_release!r} has no version number")
        return int(match[1]), int(match[2])

    def need_live(self) -> None:
        """Raise `NotChecked` unless system calls speak about the host that is looked at."""
        if not self.paths.is_live:
            raise NotChecked("needs the machine itself, not a copy of its files")

    def need_root(self) -> None:
        """Raise `NotChecked` unless this process may ask the kernel of this machine about BPF."""
        self.need_live()
        if os.geteuid() != 0:
            raise NotChecked("needs root")

    @cached_property
    def links(self) -> LinkTable:
        """Netlink's view; empty for a tree of files."""
        from agent.host.links import LinkTable

        if not self.paths.is_live:
            return LinkTable()
        from agent.host.netlink import query_links

        return query_links()

    @cached_property
    def host(self) -> Host:
        """The host with the interface and what is below it. Raises `UsageError` if it is not there."""
        from agent.host.model import read_host

        return read_host(self.paths, [self.ifname] if self.ifname else [], self.links)

    def leaves(self) -> tuple[str, ...]:
        """The interfaces that the packets of the one asked about come in by: itself, or what its bond or VLAN is on."""
        return self.host.interfaces[self.ifname].leaves if self.ifname else ()

    def on(self, ifname: str) -> Context:
        """The same host, asked about another interface of it; nothing is read again."""
        other = copy.copy(self)
        other.ifname = ifname
        return other

    @property
    def interface(self) -> Interface:
        """The interface that was asked about."""
        if self.ifname is None:
            raise NotChecked("no interface named")
        return self.host.interfaces[self.ifname]


CheckFunction: TypeAlias = Callable[[Context], Finding]
Table: TypeAlias = tuple[tuple[str, CheckFunction], ...]
"""A module's checks: (name, function) in the order of the report."""

# Group -> module with its CHECKS. Only what is asked for is imported.
_HOST_GROUPS = {
    "privileges": "agent.doctor.privileges",
    "container": "agent.doctor.container",
    "kernel": "agent.doctor.kernel",
    "loaders": "agent.doctor.loaders",
    "clocks": "agent.doctor.clocks",
    "cpus": "agent.doctor.cpus",
    "network stack": "agent.doctor.network",
    "batch windows": "agent.doctor.pages",
}
_INTERFACE_MODULES = (
    "agent.doctor.interface",
    "agent.doctor.spreading",
    "agent.doctor.interrupts",
    "agent.doctor.locality",
)


def run_checks(context: Context) -> list[Check]:
    """All checks of the host, then those of the interface's leaves if one is named, in the order of the report.

    Raises `UsageError` if the interface does not exist.
    """
    leaves = _leaves(context)  # raises here, not within a report, where there is no such interface
    checks = []
    for group, module in _HOST_GROUPS.items():
        checks += _run_table(context, group, module)
    for leaf in leaves:
        for module in _INTERFACE_MODULES:
            checks += _run_table(context.on(leaf), f"interface {leaf}", module)
    return checks


def _leaves(context: Context) -> tuple[str, ...]:
    try:
        return context.leaves()
    except UsageError as error:
        from agent.doctor.network import taken_from_kernel

        # The interface that is missed may be gone because a program drives its NIC.
        raise UsageError(error.what, "; ".join([error.remedy, *taken_from_kernel(context.paths)])) from None


def worst(checks: Iterable[Check]) -> Severity:
    """The gravest severity among the checks."""
    return max((check.severity for check in checks), key=_ORDER.index, default="ok")


def _run_table(context: Context, group: str, module: str) -> list[Check]:
    table: Table = importlib.import_module(module).CHECKS
    return [_run(context, group, name, function) for name, function in table]


def _cause(error: OSError | ImportError) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _run(context: Context, group: str, name: str, function: CheckFunction) -> Check:
    try:
        finding = function(context)
    except NotChecked as cause:
        finding = Finding("info", f"not checked: {cause}")
    except AgentError as error:
        finding = Finding("info", f"not checked: {error.what}", "", error.remedy)
    except (OSError, ImportError) as error:
        finding = Finding("info", f"not checked: {_cause(error)}")
    return Check(group, name, finding.severity, finding.found, finding.why, finding.remedy)
