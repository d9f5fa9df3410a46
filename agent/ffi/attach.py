"""Attaches programs to interfaces by BPF links, without ever displacing somebody else's.

A link detaches by itself when its last fd is gone, so also when the agent is killed; a pinned one stays.
Interfaces are named by index in the caller's network namespace.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from agent.errors import AgentError, ConflictError, UnsupportedError, UsageError
from agent.ffi import _native
from agent.ffi.failures import NativeLog, call_error, error_name, permission_cause
from agent.ffi.info import map_info_by_id, prog_by_id, prog_info

_ffi, _lib = _native.ffi, _native.lib

# Younger than Debian 12's linux/bpf.h (6.6).
_BPF_TCX = {"ingress": 46, "egress": 47}

_XDP_MODE_FLAGS = {"native": _lib.XDP_FLAGS_DRV_MODE, "generic": _lib.XDP_FLAGS_SKB_MODE}
_XDP_ATTACHED = {
    _lib.XDP_ATTACHED_DRV: "native",
    _lib.XDP_ATTACHED_SKB: "generic",
    _lib.XDP_ATTACHED_HW: "offloaded",
    _lib.XDP_ATTACHED_MULTI: "several",
}
_REDIRECT_MAPS = {
    _lib.BPF_MAP_TYPE_XSKMAP: "XSKMAP",
    _lib.BPF_MAP_TYPE_DEVMAP: "DEVMAP",
    _lib.BPF_MAP_TYPE_DEVMAP_HASH: "DEVMAP_HASH",
    _lib.BPF_MAP_TYPE_CPUMAP: "CPUMAP",
}
_DISPATCHER = "xdp_dispatcher"  # libxdp's: the real programs are attached to it as extensions
_TCX_MAX = 64  # BPF_MPROG_MAX

_BPF_FS_MAGIC = 0xCAFE4A11


@dataclass(frozen=True, slots=True)
class XdpOwner:
    """The XDP program that an interface has."""

    prog_id: int
    name: str
    mode: str  # native, generic, offloaded, several
    map_types: tuple[int, ...]
    redirect_maps: tuple[str, ...]  # XSKMAP, DEVMAP, …: packets may go where tc never sees them
    processes: tuple[str, ...]  # "name (pid)" of those that hold the program or its link

    @property
    def redirects(self) -> bool:
        """Whether it can redirect packets away from the stack."""
        return bool(self.redirect_maps)

    def __str__(self) -> str:
        held = f", held by {', '.join(self.processes)}" if self.processes else ""
        redirects = f", redirecting by {', '.join(self.redirect_maps)}" if self.redirect_maps else ""
        return f"{self.name or 'unnamed'} (id {self.prog_id}, {self.mode}{redirects}{held})"


class Link:
    """An attachment by its fd, which it owns: closing it detaches the program, unless it is pinned."""

    def __init__(self, fd: int, what: str) -> None:
        self.fd = fd
        self.what = what
        """What is attached where, for messages."""

    @classmethod
    def from_pin(cls, path: Path) -> Link:
        """The link pinned at a path of a bpffs. AgentError if there is none."""
        fd = _lib.bpf_obj_get(os.fsencode(path))
        if fd < 0:
            raise call_error(f"open the link pinned at {path}", fd)
        return cls(fd, f"the link pinned at {path}")

    def pin(self, path: Path) -> None:
        """Keeps the attachment beyond this process; unlink the path to end it. `ensure_bpffs` its directory first."""
        err = _lib.bpf_obj_pin(self.fd, os.fsencode(path))
        if err:
            raise call_error(f"pin {self.what} at {path}", err)

    def detach(self) -> None:
        """Detaches even if pinned or held elsewhere; the fd stays open."""
        err = _lib.bpf_link_detach(self.fd)
        if err and err != -errno.ENOLINK:  # the interface went away: detached already
            raise call_error(f"detach {self.what}", err)

    @property
    def attached(self) -> bool:
        """Whether it is still in place: somebody may have detached it, and an interface that goes takes it along."""
        return "\nifindex:\t0\n" not in Path(f"/proc/self/fdinfo/{self.fd}").read_text()

    def close(self) -> None:
        """Closes the fd; a second call does nothing."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _name_of(ifindex: int) -> str | None:
    try:
        return socket.if_indextoname(ifindex)
    except OSError:
        return None


def _interface(ifindex: int) -> str:
    return _name_of(ifindex) or f"interface {ifindex}"


def _no_interface(action: str) -> UsageError:
    return UsageError(
        f"cannot {action}: there is no such interface in this network namespace, or no longer",
        "`ip link` lists them",
    )


def _link_create(prog_fd: int, ifindex: int, attach_type: int, flags: int) -> int:
    opts = _ffi.new("struct bpf_link_create_opts *")
    opts.sz = _ffi.sizeof("struct bpf_link_create_opts")
    opts.flags = flags
    return int(_lib.bpf_link_create(prog_fd, ifindex, attach_type, opts))


def attach_xdp(prog_fd: int, ifindex: int, mode: Literal["native", "generic"]) -> Link:
    """Attaches an XDP program by a link.

    ConflictError names the program that has the hook already; UnsupportedError gives the driver's reason (MTU, LRO,
    no native XDP), UsageError means that the interface is gone.
    """
    name = _interface(ifindex)
    fd = _link_create(prog_fd, ifindex, _lib.BPF_XDP, _XDP_MODE_FLAGS[mode])
    if fd >= 0:
        return Link(fd, f"{mode} XDP on {name}")
    code = -fd
    action = f"attach {mode} XDP to {name}"
    if code in (errno.EBUSY, errno.EEXIST):
        owner = xdp_owner(ifindex)
        raise ConflictError(
            f"cannot {action}: it already has the XDP program {owner or '(gone meanwhile)'}",
            "use --hook tc, or detach that program yourself",
        )
    if _name_of(ifindex) is None:  # the kernel says EINVAL
        raise _no_interface(action)
    if code in (errno.EPERM, errno.EACCES):
        cause, remedy = permission_cause()
        raise UnsupportedError(f"cannot {action}: {cause}", remedy)
    reason = _xdp_refusal(prog_fd, ifindex, _XDP_MODE_FLAGS[mode]) or _guess_refusal(code, mode, name)
    raise UnsupportedError(f"cannot {action}: {error_name(code)}: {reason}", "use --hook tc")


def _xdp_refusal(prog_fd: int, ifindex: int, mode_flag: int) -> str:
    """The driver's own words for a refusal: netlink carries them, bpf(2) doesn't.

    So the same attach is tried again through netlink; should it succeed now, it is undone at once.
    """
    with NativeLog() as log:
        flags = mode_flag | _lib.XDP_FLAGS_UPDATE_IF_NOEXIST
        if _lib.bpf_xdp_attach(ifindex, prog_fd, flags, _ffi.NULL) == 0:
            opts = _ffi.new("struct bpf_xdp_attach_opts *")
            opts.sz, opts.old_prog_fd = _ffi.sizeof("struct bpf_xdp_attach_opts"), prog_fd
            _lib.bpf_xdp_detach(ifindex, mode_flag | _lib.XDP_FLAGS_REPLACE, opts)
            return ""
        for line in log.text.splitlines():
            if "Kernel error message:" in line:
                return line.partition("Kernel error message:")[2].strip()
    return ""


def _guess_refusal(code: int, mode: str, name: str) -> str:
    """The likely cause where the driver said nothing."""
    if code in (errno.EINVAL, errno.ERANGE):
        mtu = _mtu(name)
        size = f" ({mtu})" if mtu else ""
        return f"the driver refuses the MTU{size}, LRO/GRO_HW, the number of queues, or programs with frags"
    if code == errno.EOPNOTSUPP:
        return f"the driver has no {mode} XDP"
    return "the driver gives no reason"


def _mtu(name: str) -> int | None:
    """By ioctl, since /sys may show another network namespace."""
    ifreq = struct.pack("16si", name.encode(), 0).ljust(_ffi.sizeof("struct ifreq"), b"\0")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        try:
            answer = fcntl.ioctl(control, _lib.SIOCGIFMTU, ifreq)
        except OSError:  # it went away meanwhile
            return None
    return int(struct.unpack_from("16si", answer)[1])


def xdp_owner(ifindex: int) -> XdpOwner | None:
    """The XDP program on an interface, with what it may redirect by; None if there is none."""
    opts = _ffi.new("struct bpf_xdp_query_opts *")
    opts.sz = _ffi.sizeof("struct bpf_xdp_query_opts")
    err = _lib.bpf_xdp_query(ifindex, 0, opts)
    if err:
        raise call_error(f"query XDP on {_interface(ifindex)}", err)
    prog_id = opts.prog_id or opts.drv_prog_id or opts.skb_prog_id or opts.hw_prog_id
    if not prog_id:
        return None
    mode = _XDP_ATTACHED.get(opts.attach_mode, "unknown")
    try:
        with prog_by_id(prog_id) as fd:
            info = prog_info(fd)
        map_ids = set(info.map_ids)
        names = [info.name]
        if info.name == _DISPATCHER:
            for extension in _extensions(prog_id):
                with prog_by_id(extension) as fd:
                    part = prog_info(fd)
                map_ids.update(part.map_ids)
                names.append(part.name)
        types = tuple(sorted({map_info_by_id(map_id).type for map_id in map_ids}))
    except AgentError:  # replaced while being read
        return XdpOwner(prog_id, "", mode, (), (), ())
    return XdpOwner(
        prog_id=prog_id,
        name=" + ".join(names),
        mode=mode,
        map_types=types,
        redirect_maps=tuple(_REDIRECT_MAPS[t] for t in types if t in _REDIRECT_MAPS),
        processes=tuple(_holders(prog_id)),
    )


def _extensions(prog_id: int) -> Iterator[int]:
    """Ids of the programs that extend (freplace) functions of a program."""
    link_id = _ffi.new("uint32_t *", 0)
    while _lib.bpf_link_get_next_id(link_id[0], link_id) == 0:
        fd = _lib.bpf_link_get_fd_by_id(link_id[0])
        if fd < 0:  # gone meanwhile
            continue
        info = _ffi.new("struct agent_tracing_link *")
        length = _ffi.new("uint32_t *", _ffi.sizeof("struct agent_tracing_link"))
        err = _lib.bpf_obj_get_info_by_fd(fd, info, length)
        os.close(fd)
        if not err and info.type == _lib.BPF_LINK_TYPE_TRACING and info.target_obj_id == prog_id:
            yield info.prog_id


def _holders(prog_id: int) -> Iterator[str]:
    """`name (pid)` of the processes with an fd of the program or of a link to it."""
    mark = f"prog_id:\t{prog_id}\n"
    for fdinfo in Path("/proc").glob("[0-9]*/fdinfo"):
        try:
            held = any(mark in entry.read_text() for entry in fdinfo.iterdir())
            if held and fdinfo.parent.name != str(os.getpid()):
                yield f"{(fdinfo.parent / 'comm').read_text().strip()} ({fdinfo.parent.name})"
        except OSError:  # the process or the fd ended meanwhile
            continue


def attach_tcx(prog_fd: int, ifindex: int, direction: Literal["ingress", "egress"]) -> Link:
    """Attaches a tc program by a TCX link, behind those that are there.

    UnsupportedError on kernels before 6.6: attach by clsact then. UsageError if the interface is gone.
    """
    name = _interface(ifindex)
    fd = _link_create(prog_fd, ifindex, _BPF_TCX[direction], 0)
    if fd >= 0:
        return Link(fd, f"TCX {direction} on {name}")
    code, action = -fd, f"attach a TCX {direction} program to {name}"
    if code == errno.ENODEV:
        raise _no_interface(action)
    if code == errno.EINVAL:
        raise UnsupportedError(
            f"cannot {action}: this kernel has no TCX", "use Linux 6.6 or newer, or clsact"
        )
    if code == errno.ERANGE:
        raise ConflictError(f"cannot {action}: {_TCX_MAX} programs are there already", "detach some of them")
    raise call_error(action, code)


def attach_tracepoint(prog_fd: int, name: str) -> Link:
    """Attaches a raw tracepoint program. UnsupportedError if the kernel has no tracepoint of that name."""
    fd = _lib.bpf_raw_tracepoint_open(name.encode(), prog_fd)
    if fd >= 0:
        return Link(fd, f"tracepoint {name}")
    if fd == -errno.ENOENT:
        raise UnsupportedError(
            f"this kernel has no tracepoint {name}", "use a kernel with CONFIG_TRACEPOINTS=y"
        )
    raise call_error(f"attach to the tracepoint {name}", fd)


def tcx_programs(ifindex: int, direction: Literal["ingress", "egress"]) -> list[int]:
    """Ids of the TCX programs of an interface in the order they run. UnsupportedError before Linux 6.6."""
    ids = _ffi.new("uint32_t[]", _TCX_MAX)
    opts = _ffi.new("struct bpf_prog_query_opts *")
    opts.sz = _ffi.sizeof("struct bpf_prog_query_opts")
    opts.prog_ids, opts.prog_cnt = ids, _TCX_MAX
    err = _lib.bpf_prog_query_opts(ifindex, _BPF_TCX[direction], opts)
    if err == -errno.EINVAL:
        raise UnsupportedError("cannot list TCX programs: this kernel has no TCX", "use Linux 6.6 or newer")
    if err:
        raise call_error(f"list the TCX {direction} programs of {_interface(ifindex)}", err)
    return list(ids[0 : opts.prog_cnt])


def ensure_bpffs(path: Path) -> None:
    """Makes `path` a directory on a bpffs: creates it, and mounts one there if it isn't on one yet."""
    path.mkdir(parents=True, exist_ok=True)
    if _lib.agent_filesystem_magic(os.fsencode(path)) == _BPF_FS_MAGIC:
        return
    if _lib.mount(b"bpf", os.fsencode(path), b"bpf", 0, b"mode=0700"):
        raise call_error(f"mount a bpffs at {path}", _ffi.errno)
