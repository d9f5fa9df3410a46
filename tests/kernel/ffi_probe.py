"""What the tests of agent.ffi share: the probe programs, compiled and loaded, and a namespace with a veth pair."""

import itertools
import os
import socket
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from agent.ffi import _native
from agent.ffi.bpf import BpfObject, ProgramSet, load_object_file

SOURCE = Path(__file__).with_name("ffi_probe.bpf.c")
PROGRAMS = ("probe_xdp", "probe_plain", "probe_redirect", "probe_tc", "probe_emit", "probe_foreign")
RECORD = np.dtype([("seq", "u8"), ("cpu", "u4"), ("pad", "u4"), ("body", "u8", 8)])
ONLINE = tuple(sorted(os.sched_getaffinity(0)))

_numbers = itertools.count()


def compile_bpf(source: Path, target: Path, *flags: str) -> Path:
    """Compile a BPF source as the Makefile does."""
    triplet = sysconfig.get_config_var("MULTIARCH")
    command = ["clang", "-O2", "-g", "-target", "bpf", "-mcpu=v3", f"-I/usr/include/{triplet}", *flags]
    subprocess.run([*command, "-c", source, "-o", target], check=True)
    return target


@cache
def probe_object(directory: Path) -> Path:
    """The probe's object file, compiled once per test session's base directory."""
    return compile_bpf(SOURCE, directory / "ffi_probe.bpf.o")


def load_probe(path: Path, *programs: str) -> BpfObject:
    """Load the probe: all programs but the one that must be refused, or those named."""
    return load_object_file(path, ProgramSet("ffi_probe", programs=programs or PROGRAMS))


@dataclass(frozen=True)
class VethPair:
    """A namespace with two ends of a veth pair, both up."""

    netns: str
    inner: int  # ifindex
    outer: int
    inner_name: str
    outer_name: str


def ip(*arguments: str) -> None:
    """Run iproute2's ip."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@contextmanager
def inside_veth_pair() -> Iterator[VethPair]:
    """A fresh namespace with a veth pair, the calling thread being in it; all gone afterwards."""
    name = f"agt-ffi-{os.getpid()}-{next(_numbers)}"
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    ip("netns", "add", name)
    try:
        ip("-n", name, "link", "add", "inner", "type", "veth", "peer", "name", "outer")
        for end in ("inner", "outer"):
            # Without an address of its own the namespace sends no packets of its own.
            ip("-n", name, "link", "set", end, "addrgenmode", "none")
            ip("-n", name, "link", "set", end, "up")
        there = os.open(f"/run/netns/{name}", os.O_RDONLY)
        try:
            assert _native.lib.setns(there, _native.lib.CLONE_NEWNET) == 0
        finally:
            os.close(there)
        yield VethPair(name, socket.if_nametoindex("inner"), socket.if_nametoindex("outer"), "inner", "outer")
    finally:
        assert _native.lib.setns(home, _native.lib.CLONE_NEWNET) == 0
        os.close(home)
        ip("netns", "del", name)
