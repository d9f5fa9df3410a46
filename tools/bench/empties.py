"""What the agent is compared with: programs that do nothing, attached where the agent's are."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator

from agent.ffi.bpf import ProgramSet, attach_tcx, attach_xdp, load
from tools.bench.programtime import ProgramTime, program_time
from tools.testbed import Namespace


@contextlib.contextmanager
def empty_programs(namespace: Namespace, ifname: str) -> Iterator[Callable[[], ProgramTime]]:
    """XDP_PASS natively, and tc programs that let everything through at ingress and egress; yields their run time."""
    with contextlib.ExitStack() as stack:
        programs = stack.enter_context(load("libbpf", ProgramSet("bench", ("xdp_empty", "tc_empty"))))

        def attach() -> None:
            ifindex = socket.if_nametoindex(ifname)
            stack.enter_context(attach_xdp(programs.prog_fd("xdp_empty"), ifindex, "native"))
            stack.enter_context(attach_tcx(programs.prog_fd("tc_empty"), ifindex, "ingress"))
            stack.enter_context(attach_tcx(programs.prog_fd("tc_empty"), ifindex, "egress"))

        namespace.call(attach)
        yield lambda: program_time(programs.programs.values())
