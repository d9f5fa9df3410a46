"""How the agent's own threads take the CPU from others: not at all, if it can be helped."""

from __future__ import annotations

import os

from agent.ffi import _native

_ffi, _lib = _native.ffi, _native.lib

NICE = 10
SLICE_NS = 100_000_000
"""The longest that EEVDF takes: whatever asks for less and wakes up goes first (sched(7), `sched_runtime`)."""


def give_way() -> bool:
    """Let whatever else wakes up on this thread's CPU go first; threads that it starts inherit that.

    A tick takes some milliseconds five times a second. A NAPI thread, or a consumer, that wakes up meanwhile would
    wait for the end of our slice: enough packets for their p99 to show it. Niceness still leaves the agent a tenth of
    a CPU beside one busy thread, several times what it needs; the slice has an effect from Linux 6.12 on.

    Whoever started the agent with a niceness or a policy of its own meant it: that stays. Returns whether it gives way.
    """
    if os.sched_getscheduler(0) != os.SCHED_OTHER or os.getpriority(os.PRIO_PROCESS, 0) != 0:
        return False
    attr = _ffi.new("struct agent_sched_attr *")
    attr.size = _ffi.sizeof("struct agent_sched_attr")
    attr.sched_policy = os.SCHED_OTHER
    attr.sched_nice = NICE
    attr.sched_runtime = SLICE_NS
    flags = _ffi.cast("unsigned int", 0)
    if _lib.syscall(_lib.SYS_sched_setattr, _ffi.cast("int", 0), attr, flags) == 0:
        return True
    os.setpriority(os.PRIO_PROCESS, 0, NICE)  # A container's seccomp filter may not know the call.
    return True
