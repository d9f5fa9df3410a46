"""`agent exec`: start a program with its CPUs and memory on a NIC's NUMA node."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from agent.errors import UnsupportedError, UsageError
from agent.host.masks import CpuMask

if TYPE_CHECKING:
    from agent.host.cpus import CpuTopology
    from agent.host.model import Host


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "exec",
        help="start a program with its CPUs and memory on a NIC's NUMA node",
        description="Bind the CPUs and the memory to the NUMA node that an interface's NIC is on, then become CMD, "
        "which inherits both: a consumer that reads that NIC's packets. Isolated CPUs are left out, unless they are "
        "all that is allowed (`taskset -c 3 agent exec …`). On a host with one node CMD is started as it is.",
        epilog="exit codes: CMD's; before it runs 2 usage, 3 the NIC's node is not known",
    )
    parser.add_argument(
        "--numa", dest="ifname", required=True, metavar="IF", help="the interface that CMD reads from"
    )
    parser.add_argument("command", nargs="+", metavar="CMD", help="the program and its arguments, behind --")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Bind, then become the command; returns only by raising.

    Raises `UsageError` where the interface or the command is not there, `UnsupportedError` without a known node.
    """
    from agent.host.model import read_host
    from agent.host.paths import HostPaths

    host = read_host(HostPaths(), [args.ifname])
    if host.topology.nodes < 2:
        print("agent exec: this host has one NUMA node: nothing to bind", file=sys.stderr)
    else:
        _bind(host, args.ifname)
    try:
        os.execvp(args.command[0], args.command)
    except OSError as error:
        raise UsageError(
            f"cannot start {args.command[0]!r}: {error.strerror}", "check its path and permissions"
        ) from error


def _bind(host: Host, ifname: str) -> None:
    from agent.ffi.mempolicy import bind_memory

    nodes = {leaf.numa_node for leaf in host.leaves()}
    if len(nodes) > 1:
        raise UnsupportedError(
            f"{ifname} is on several NICs of different NUMA nodes", "name the one that matters: --numa IF"
        )
    node = nodes.pop()
    if node is None:
        raise UnsupportedError(
            f"the NUMA node of {ifname} is not known: its firmware does not tell, or it is virtual",
            "`numactl --cpunodebind=N --membind=N CMD` with the node that its slot is on",
        )
    cpus = cpus_on_node(host.topology, node, CpuMask.of(os.sched_getaffinity(0)))
    if not cpus:
        raise UnsupportedError(
            f"none of the CPUs that this process may use is of NUMA node {node}, where {ifname} is",
            "widen the cpuset or `taskset` that it was started under",
        )
    os.sched_setaffinity(0, cpus)
    bind_memory(node)


def cpus_on_node(topology: CpuTopology, node: int, allowed: CpuMask) -> CpuMask:
    """The allowed CPUs of a node; isolated ones only where there are no others."""
    near = CpuMask.of(cpu for cpu in allowed & topology.online if topology.node_of(cpu) == node)
    return (near & topology.usable) or near
