"""`agent bpf`: the programs by hand: through the verifier, attached without a controller, detached again."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from agent.cli._begin import begin
from agent.errors import UsageError
from agent.options import add_capture_arguments, require_root

# Loaded for an interface that stays: on 6.18 a device that is removed while such a program lives crashes the kernel,
# so no throw-away interface is made for it.
_DEVICE_BOUND_OBJECT = "capture_xdpmeta"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the subcommand and its three actions."""
    parser = subparsers.add_parser(
        "bpf",
        help="verify, attach or detach the BPF programs by hand",
        description="Load every BPF program through this kernel's verifier; attach the capture programs to an "
        "interface without the controller (they stay attached, pinned below /sys/fs/bpf/agent); detach them again. "
        "`agent run` takes over from programs that were attached this way: when it ends, they are gone.",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    verify = actions.add_parser("verify", help="load every program and print its verified instruction count")
    verify.add_argument(
        "-i",
        "--interface",
        dest="ifname",
        metavar="IF",
        help=f"also {_DEVICE_BOUND_OBJECT}, whose programs are bound to a device; it must outlive the check",
    )
    verify.add_argument("--json", action="store_true", help="one JSON object")
    verify.set_defaults(run=_verify)
    attach = actions.add_parser("attach", help="attach to an interface and stay attached")
    add_capture_arguments(attach)
    attach.set_defaults(run=_attach)
    detach = actions.add_parser("detach", help="detach what `attach` attached")
    detach.add_argument("-i", "--interface", dest="ifname", required=True, metavar="IF")
    detach.add_argument("--netns", metavar="NAME", help="network namespace that the interface is in")
    detach.set_defaults(run=_detach)


@dataclass(frozen=True, slots=True)
class _Verified:
    object: str
    program: str
    type: str
    verified_insns: int
    native_bytes: int


def _verify(args: argparse.Namespace) -> int:
    require_root("bpf verify")
    from agent.ffi.bpf import ProgramSet, load, prog_info
    from agent.ffi.programs import built_objects

    rows = []
    for name in built_objects():
        bound = name == _DEVICE_BOUND_OBJECT
        if bound and args.ifname is None:
            continue
        source = ProgramSet(
            name,
            device_bound=("xdp_capture_meta",) if bound else (),
            ifindex=_interface_index(args.ifname) if bound else 0,
        )
        with load("libbpf", source) as loaded:
            for program, fd in loaded.programs.items():
                info = prog_info(fd)
                rows.append(_Verified(name, program, info.type, info.verified_insns, info.jited_len))
    if args.json:
        json.dump({"kernel": os.uname().release, "programs": [asdict(row) for row in rows]}, sys.stdout)
        print()
        return 0
    if args.ifname is None:
        print(
            f"{_DEVICE_BOUND_OBJECT} is loaded for a device only: name one that stays with -i IF",
            file=sys.stderr,
        )
    print(f"verified by Linux {os.uname().release}:")
    print(f"{'object':<17} {'program':<18} {'type':<15} {'verified insns':>14} {'native bytes':>13}")
    for row in rows:
        print(
            f"{row.object:<17} {row.program:<18} {row.type:<15} {row.verified_insns:>14} {row.native_bytes:>13}"
        )
    return 0


def _attach(args: argparse.Namespace) -> int:
    require_root("bpf attach")
    from agent.ffi.bpf import ensure_bpffs
    from agent.pins import BPFFS

    # Before a namespace is entered: mounted in there, it would end with this process and take the pins along.
    _require_lasting_mounts()
    ensure_bpffs(BPFFS)
    options = begin(args, "bpf attach")
    from agent import tc
    from agent.capture import Capture
    from agent.errors import ConflictError, UnsupportedError
    from agent.hooks import read_facts
    from agent.host.model import read_host
    from agent.host.netlink import query_links
    from agent.host.paths import HostPaths
    from agent.loop import capture_target
    from agent.pins import make_pin_directory, pin_directory

    def before_clsact(direction: tc.Direction, creates_qdisc: bool) -> None:
        raise UnsupportedError(
            "programs cannot stay attached on this kernel without a process: it has no TCX links (before 6.6)",
            "use `agent run`",
        )

    host = read_host(HostPaths(), options.interfaces, query_links())
    for leaf in host.leaves():
        if pin_directory(leaf.ifindex).exists():
            raise ConflictError(
                f"our programs are attached to {leaf.name} already",
                f"`agent bpf detach -i {leaf.name}` first",
            )
        with Capture(capture_target(leaf, host), read_facts(leaf), options, before_clsact) as capture:
            capture.pin(make_pin_directory(leaf.ifindex))
            print(f"{leaf.name}: attached, hook {capture.hook}, stamp {capture.stamp}")
            for reason in capture.reasons:
                print(f"  {reason}")
    return 0


def _require_lasting_mounts() -> None:
    """Raise `UsageError` where what is pinned would end with this command, as under `ip netns exec`."""
    try:
        own, first = (Path(f"/proc/{pid}/ns/mnt").stat().st_ino for pid in ("self", 1))
    except PermissionError:
        return  # who may not look at process 1 can't tell
    if own != first:
        raise UsageError(
            "this command has mounts of its own (`ip netns exec` does that): what it attached would end with it",
            "run it outside, and name the namespace with --netns NAME (`make bpf IF=… NETNS=…`)",
        )


def _detach(args: argparse.Namespace) -> int:
    require_root("bpf detach")
    if args.netns is not None:
        from agent.ffi.netns import enter_netns

        enter_netns(args.netns)
    from agent.pins import unpin

    ifindex = _interface_index(args.ifname)
    names = unpin(ifindex)
    print(
        f"{args.ifname}: detached {', '.join(names)}"
        if names
        else f"{args.ifname}: nothing of ours was attached"
    )
    return 0


def _interface_index(ifname: str) -> int:
    """The index of an interface. Raises `UsageError` where there is none."""
    try:
        return socket.if_nametoindex(ifname)
    except OSError as error:
        raise UsageError(f"no such interface {ifname!r}", "`ip link` lists them") from error
