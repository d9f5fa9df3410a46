"""Runs programs by BPF_PROG_RUN: on made-up packets, or once on a given CPU."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass

from agent.ffi import _native
from agent.ffi.failures import call_error

_ffi, _lib = _native.ffi, _native.lib

_TAILROOM = 512  # what a program may add to a packet


@dataclass(frozen=True, slots=True)
class TestRun:
    """What a run gave. `duration_ns` is the kernel's own mean over the repetitions, in whole ns."""

    __test__ = False  # not a test class for pytest

    retval: int
    duration_ns: int
    data_out: bytes
    ctx_out: bytes


def test_run(
    prog_fd: int,
    data: bytes = b"",  # noqa: PT028 - not a pytest test
    repeat: int = 1,  # noqa: PT028
    ctx: bytes | None = None,  # noqa: PT028
    cpu: int | None = None,  # noqa: PT028
) -> TestRun:
    """Runs a program `repeat` times on a packet; with `cpu` once on that CPU (raw tracepoint programs only).

    XDP and tc programs need at least an Ethernet header (14 bytes) of data. `ctx` is what `xdp_context` or
    `sk_buff_context` make. Raises AgentError: EINVAL for data or context that the kernel doesn't accept, ENXIO for
    an offline CPU, ENOTSUPP for a device-bound program.
    """
    out = _ffi.new("uint8_t[]", len(data) + _TAILROOM) if data else _ffi.NULL
    ctx_out = _ffi.new("uint8_t[]", len(ctx)) if ctx is not None and cpu is None else _ffi.NULL
    data_in = _ffi.from_buffer(data) if data else _ffi.NULL
    ctx_in = _ffi.from_buffer(ctx) if ctx is not None else _ffi.NULL
    while True:
        opts = _ffi.new("struct bpf_test_run_opts *")
        opts.sz = _ffi.sizeof("struct bpf_test_run_opts")
        opts.data_in, opts.data_size_in = data_in, len(data)
        opts.data_out, opts.data_size_out = out, len(data) + _TAILROOM if data else 0
        if ctx is not None:
            opts.ctx_in, opts.ctx_size_in = ctx_in, len(ctx)
            opts.ctx_out, opts.ctx_size_out = ctx_out, 0 if cpu is not None else len(ctx)
        if cpu is None:
            opts.repeat = repeat
        else:
            opts.flags, opts.cpu = _lib.BPF_F_TEST_RUN_ON_CPU, cpu
        err = _lib.bpf_prog_test_run_opts(prog_fd, opts)
        if err != -errno.EINTR:  # long runs are cut short by signals; Python's handlers ran, start again
            break
    if err:
        where = "" if cpu is None else f" on CPU {cpu}"
        raise call_error(f"run BPF program fd {prog_fd}{where}", err)
    return TestRun(
        retval=opts.retval,
        duration_ns=opts.duration,
        data_out=bytes(_ffi.buffer(out, opts.data_size_out)) if data else b"",
        ctx_out=bytes(_ffi.buffer(ctx_out, opts.ctx_size_out)) if ctx_out != _ffi.NULL else b"",
    )


test_run.__test__ = False  # type: ignore[attr-defined]  # pytest would collect it where it is imported


def flush_cpus(prog_fd: int, cpus: Sequence[int]) -> int:
    """Runs a raw tracepoint program once on each CPU by an IPI each; returns how many ran (offline CPUs don't)."""
    ran = _lib.agent_run_on_cpus(prog_fd, _ffi.new("int[]", list(cpus)), len(cpus))
    if ran < 0:
        raise call_error(f"run BPF program fd {prog_fd} on CPUs {list(cpus)}", ran)
    return int(ran)


def xdp_context(data_len: int, *, ifindex: int = 0, rx_queue: int = 0, meta_len: int = 0) -> bytes:
    """The `struct xdp_md` for a test run on `data_len` bytes, of which the first `meta_len` are metadata.

    With an ifindex the kernel takes the device (of the caller's network namespace) and its receive queue for real:
    EINVAL if the queue doesn't exist. With neither, the run looks like queue 0 of the loopback device.
    """
    md = _ffi.new("struct xdp_md *")
    md.data, md.data_end = meta_len, data_len
    md.ingress_ifindex, md.rx_queue_index = ifindex, rx_queue
    return bytes(_ffi.buffer(md))


def sk_buff_context(
    *,
    mark: int = 0,
    priority: int = 0,
    ifindex: int = 0,
    ingress_ifindex: int = 0,
    cb: Sequence[int] = (0, 0, 0, 0, 0),
    tstamp_ns: int = 0,
    wire_len: int = 0,
    gso_segs: int = 0,
    gso_size: int = 0,
    hwtstamp_ns: int = 0,
) -> bytes:
    """The `struct __sk_buff` for a test run: the fields that the kernel lets a run set (others must be 0)."""
    skb = _ffi.new("struct __sk_buff *")
    skb.mark, skb.priority = mark, priority
    skb.ifindex, skb.ingress_ifindex = ifindex, ingress_ifindex
    skb.cb = list(cb)
    skb.tstamp, skb.hwtstamp = tstamp_ns, hwtstamp_ns
    skb.wire_len, skb.gso_segs, skb.gso_size = wire_len, gso_segs, gso_size
    return bytes(_ffi.buffer(skb))
