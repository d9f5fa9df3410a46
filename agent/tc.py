"""tc programs: a TCX link where the kernel has it (6.6), else a clsact filter beside those of others.

A TCX link dies with the agent. A clsact filter survives its process, so it is journaled before it is added, and
`agent restore` takes it away. A clsact qdisc is removed only if it was created here and nobody has put a filter
of their own on it since.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from agent.control.settings import Setting, register_kind
from agent.errors import ConflictError, UnsupportedError
from agent.ffi.bpf import Link, attach_tcx

Direction = Literal["ingress", "egress"]

# Behind every filter that people number by hand; below 0xC000, where tc's own automatic numbers start.
_PRIORITY = 0xBFF0
_HANDLE = 0xA6
_PARENTS = {"ingress": 0xFFFFFFF2, "egress": 0xFFFFFFF3}
_PROTOCOL_ALL = 0x0003
# The interface, the qdisc or the filter is not there (any more).
_GONE = (errno.ENODEV, errno.ENOENT, errno.EINVAL)

ABSENT, ATTACHED = b"absent", b"attached"


@dataclass(frozen=True, slots=True)
class ClsactFilter:
    """A filter of ours on a clsact qdisc; `close` removes it, and the qdisc if it was ours and is empty."""

    ifindex: int
    direction: Direction
    created_qdisc: bool

    def close(self) -> None:
        """Remove the filter; it being gone already is fine."""
        remove_clsact(self.ifindex, self.direction, self.created_qdisc)


def attach_tc(
    prog_fd: int,
    ifindex: int,
    direction: Direction,
    before_clsact: Callable[[Direction, bool], None],
    *,
    clsact: bool = False,
) -> Link | ClsactFilter:
    """Attach a tc program and return what detaches it.

    TCX unless the kernel has none or `clsact` is given. `before_clsact(direction, creates_qdisc)` is called before
    anything that outlives this process is written. Raises `ConflictError` if our place is taken by a filter
    that is not ours.
    """
    if not clsact:
        try:
            return attach_tcx(prog_fd, ifindex, direction)
        except UnsupportedError:
            pass  # before 6.6: the way that every kernel has
    from pyroute2 import IPRoute
    from pyroute2.netlink.exceptions import NetlinkError

    with IPRoute() as netlink:
        creates = not _has_clsact(netlink, ifindex)
        before_clsact(direction, creates)
        if creates:
            try:
                netlink.tc("add", "clsact", ifindex)
            except NetlinkError as error:
                raise UnsupportedError(
                    f"cannot add a clsact qdisc to interface {ifindex}: {error}",
                    "the kernel needs CONFIG_NET_SCH_INGRESS, as a module that can be loaded (`modprobe sch_ingress`)",
                ) from error
        try:
            netlink.tc(
                "add-filter",
                "bpf",
                ifindex,
                _HANDLE,
                fd=prog_fd,
                name=f"agent_tc_{direction}",
                parent=_PARENTS[direction],
                prio=_PRIORITY,
                protocol=_PROTOCOL_ALL,
                direct_action=True,
            )
        except NetlinkError as error:
            if creates:
                _remove_empty_clsact(netlink, ifindex)
            if error.code == errno.EEXIST:
                raise ConflictError(
                    f"a tc filter with priority {_PRIORITY} is on {direction} of interface {ifindex} already",
                    "`agent restore` removes one that a killed run left; `tc filter show` says whose it is",
                ) from error
            raise UnsupportedError(
                f"cannot add a tc filter on {direction} of interface {ifindex}: {error}",
                "the kernel needs CONFIG_NET_CLS_BPF, as a module that can be loaded (`modprobe cls_bpf`)",
            ) from error
    return ClsactFilter(ifindex, direction, creates)


def remove_clsact(ifindex: int, direction: Direction, created_qdisc: bool) -> bool:
    """Remove our filter, and the qdisc if it was created for it and is empty; False if the filter was gone."""
    from pyroute2 import IPRoute
    from pyroute2.netlink.exceptions import NetlinkError

    with IPRoute() as netlink:
        try:
            found = _is_ours(netlink, ifindex, direction)
            if found:
                netlink.tc(
                    "del-filter",
                    "bpf",
                    ifindex,
                    _HANDLE,
                    parent=_PARENTS[direction],
                    prio=_PRIORITY,
                    protocol=_PROTOCOL_ALL,
                )
            if created_qdisc:
                _remove_empty_clsact(netlink, ifindex)
        except NetlinkError as error:
            if error.code not in _GONE:
                raise
            return False  # the interface, or the qdisc, went away and took the filter along
    return found


def clsact_setting(ifindex: int, direction: Direction, created_qdisc: bool) -> Setting:
    """The journal's name for a filter of ours: absent before, attached after."""
    return Setting("clsact", f"{ifindex}:{direction}:{int(created_qdisc)}", namespaced=True)


class ClsactSetting:
    """How the journal reads such a filter, and takes it away after a crash."""

    def read(self, target: str) -> bytes:
        """`ATTACHED` or `ABSENT`; absent also where the interface is gone.

        Attached is also a qdisc that was made for the filter and is empty: a run killed between the two left it.
        """
        from pyroute2 import IPRoute
        from pyroute2.netlink.exceptions import NetlinkError

        ifindex, direction, created_qdisc = _parse(target)
        try:
            with IPRoute() as netlink:
                left = _is_ours(netlink, ifindex, direction) or (
                    created_qdisc and _has_clsact(netlink, ifindex) and _is_empty(netlink, ifindex)
                )
                return ATTACHED if left else ABSENT
        except NetlinkError as error:
            if error.code in _GONE:
                return ABSENT
            raise OSError(error.code, str(error)) from error

    def write(self, target: str, value: bytes) -> None:
        """Remove the filter; only `ABSENT` can be written, attaching needs a program."""
        if value != ABSENT:
            raise OSError(errno.EINVAL, "a clsact filter cannot be put back from a journal")
        remove_clsact(*_parse(target))

    def same(self, a: bytes, b: bytes) -> bool:
        """Equal bytes."""
        return a == b

    def belongs(self, target: str, ifname: str, ifindex: int) -> bool:
        """A filter of this interface."""
        return target.startswith(f"{ifindex}:")


register_kind("clsact", ClsactSetting())


def _parse(target: str) -> tuple[int, Direction, bool]:
    """Raises `ValueError` for what `clsact_setting` never wrote."""
    index, direction, created = target.split(":")
    ifindex = int(index)
    if not 0 < ifindex < 1 << 31 or direction not in _PARENTS:
        raise ValueError(f"{target!r} names no clsact filter")
    return ifindex, "ingress" if direction == "ingress" else "egress", created == "1"


def _has_clsact(netlink: Any, ifindex: int) -> bool:
    return any(qdisc.get_attr("TCA_KIND") == "clsact" for qdisc in netlink.get_qdiscs(index=ifindex))


def _is_ours(netlink: Any, ifindex: int, direction: Direction) -> bool:
    for found in netlink.get_filters(index=ifindex, parent=_PARENTS[direction]):
        options = found.get_attr("TCA_OPTIONS")
        if found["info"] >> 16 == _PRIORITY and options is not None:
            name = options.get_attr("TCA_BPF_NAME")
            if name is not None and str(name).startswith("agent_tc_"):
                return True
    return False


def _is_empty(netlink: Any, ifindex: int) -> bool:
    return not any(
        True for parent in _PARENTS.values() for _ in netlink.get_filters(index=ifindex, parent=parent)
    )


def _remove_empty_clsact(netlink: Any, ifindex: int) -> None:
    if _is_empty(netlink, ifindex):
        netlink.tc("del", "clsact", ifindex)
