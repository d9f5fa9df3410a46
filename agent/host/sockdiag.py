"""What the sockets of some processes dropped and hold, asked of the kernel by sock_diag(7): UDP, AF_PACKET and AF_XDP.

The kernel answers for the network namespace of the calling thread.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from agent.host.paths import HostPaths

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_AF_XDP = 44
_DONE, _ERROR = 3, 2
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_SOCKET = re.compile(r"^socket:\[(\d+)\]$")

# include/uapi/linux/{inet,packet,xdp}_diag.h and sock_diag.h
_REQUEST_INET = struct.Struct("=BBBBI48x")
_REQUEST_OTHER = struct.Struct("=BBHIIII")
_INET_SKMEMINFO, _PACKET_MEMINFO, _XDP_STATS = 7, 6, 9
_PACKET_SHOW_MEMINFO, _XDP_SHOW_STATS = 1 << 4, 1 << 4
_MEMINFO_RMEM_ALLOC, _MEMINFO_DROPS = 0, 8
_ALL_STATES = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class SocketCounts:
    """What sockets hold, and which packets they did not take since they were opened."""

    sockets: int = 0
    backlog_bytes: int = 0
    """Memory of the packets that wait in their receive buffers now."""
    udp: int = 0
    """No room in the receive buffer of a UDP socket."""
    packet: int = 0
    """No room in the ring or the buffer of an AF_PACKET socket."""
    xdp_full: int = 0
    """No room in the receive ring of an AF_XDP socket."""
    xdp_no_frame: int = 0
    """The fill ring of an AF_XDP socket was empty when a packet came."""
    xdp_other: int = 0
    """Dropped by an AF_XDP socket for another cause, or with an invalid descriptor."""

    @property
    def ring_lost(self) -> int:
        """By AF_PACKET and AF_XDP sockets. Where a driver finds no frame it counts the loss itself."""
        return self.packet + self.xdp_full + self.xdp_other

    def by_cause(self) -> dict[str, int]:
        """What was dropped, for telemetry."""
        return {
            "udp": self.udp,
            "packet": self.packet,
            "xdp_full": self.xdp_full,
            "xdp_no_frame": self.xdp_no_frame,
            "xdp_other": self.xdp_other,
        }

    def __add__(self, other: SocketCounts) -> SocketCounts:
        return SocketCounts(
            self.sockets + other.sockets,
            self.backlog_bytes + other.backlog_bytes,
            self.udp + other.udp,
            self.packet + other.packet,
            self.xdp_full + other.xdp_full,
            self.xdp_no_frame + other.xdp_no_frame,
            self.xdp_other + other.xdp_other,
        )


def socket_inodes(paths: HostPaths, pid: int) -> frozenset[int]:
    """The inodes of a process's sockets; none where it has ended, or is another user's and we are not root."""
    found = set()
    try:
        for fd in (paths.proc / str(pid) / "fd").iterdir():
            try:
                match = _SOCKET.match(str(fd.readlink()))
            except OSError:  # closed meanwhile
                continue
            if match:
                found.add(int(match[1]))
    except OSError:
        return frozenset()
    return frozenset(found)


def socket_counts(inodes: Collection[int]) -> dict[int, SocketCounts]:
    """Inode → what that socket dropped, of those of the three kinds among `inodes`.

    Kinds that this kernel cannot tell of (CONFIG_PACKET_DIAG, CONFIG_XDP_SOCKETS_DIAG) are left out.
    """
    found: dict[int, SocketCounts] = {}
    if not inodes:
        return found
    inet = [
        _REQUEST_INET.pack(family, socket.IPPROTO_UDP, 1 << (_INET_SKMEMINFO - 1), 0, _ALL_STATES)
        for family in (socket.AF_INET, socket.AF_INET6)
    ]
    packet = _REQUEST_OTHER.pack(socket.AF_PACKET, 0, 0, 0, _PACKET_SHOW_MEMINFO, 0, 0)
    xdp = _REQUEST_OTHER.pack(_AF_XDP, 0, 0, 0, _XDP_SHOW_STATS, 0, 0)
    for request in inet:
        for message in _dump(request):
            inode = struct.unpack_from("=I", message, 68)[0]
            memory = _meminfo(message, 72, _INET_SKMEMINFO)
            if inode in inodes and memory is not None:
                found[inode] = SocketCounts(1, memory[_MEMINFO_RMEM_ALLOC], udp=memory[_MEMINFO_DROPS])
    for message in _dump(packet):
        inode = struct.unpack_from("=I", message, 4)[0]
        memory = _meminfo(message, 16, _PACKET_MEMINFO)
        if inode in inodes and memory is not None:
            found[inode] = SocketCounts(1, memory[_MEMINFO_RMEM_ALLOC], packet=memory[_MEMINFO_DROPS])
    for message in _dump(xdp):
        inode = struct.unpack_from("=I", message, 4)[0]
        stats = _attributes(message, 16).get(_XDP_STATS)
        if inode in inodes and stats is not None:
            dropped, invalid, full, no_frame = struct.unpack_from("=4Q", stats)
            found[inode] = SocketCounts(1, xdp_full=full, xdp_no_frame=no_frame, xdp_other=dropped + invalid)
    return found


def _meminfo(message: bytes, offset: int, kind: int) -> tuple[int, ...] | None:
    """The SK_MEMINFO_* values, by their numbers."""
    values = _attributes(message, offset).get(kind)
    if values is None or len(values) < 4 * (_MEMINFO_DROPS + 1):
        return None
    return struct.unpack_from(f"={_MEMINFO_DROPS + 1}I", values)


def _attributes(message: bytes, offset: int) -> dict[int, bytes]:
    found = {}
    while offset + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, offset)
        if length < _ATTRIBUTE.size:
            break
        found[kind] = message[offset + _ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3
    return found


def _dump(request: bytes) -> Iterator[bytes]:
    """The messages that answer a dump request, without their headers; none where the kernel has no such dump."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as sock:
        flags = 0x1 | 0x300  # NLM_F_REQUEST | NLM_F_DUMP
        header = _HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, flags, 1, 0)
        sock.sendall(header + request)
        while True:
            data = sock.recv(1 << 17)
            offset = 0
            while offset + _HEADER.size <= len(data):
                length, kind, *_ = _HEADER.unpack_from(data, offset)
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    code = -struct.unpack_from("=i", data, offset + _HEADER.size)[0]
                    if code in (errno.ENOENT, errno.EOPNOTSUPP, errno.EINVAL):
                        return
                    raise OSError(code, os.strerror(code), "sock_diag")
                yield data[offset + _HEADER.size : offset + length]
                offset += (length + 3) & ~3
