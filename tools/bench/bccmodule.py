"""Small programs of the benchmarks' own, compiled by BCC when they are needed."""

from __future__ import annotations

import os
from typing import Any

from agent.errors import UnsupportedError
from agent.ffi.bcc_loader import kernel_headers


def compile_module(source: str) -> Any:
    """A `bcc.BPF` of a source. Raises `UnsupportedError` where BCC or kernel headers are missing."""
    try:
        from bcc import BPF
    except ImportError as error:
        raise UnsupportedError("BCC is not installed", "apt-get install python3-bpfcc") from error
    uname = os.uname()
    headers = kernel_headers(uname.release, uname.machine)
    os.environ.setdefault("BCC_KERNEL_SOURCE", str(headers.source))
    arch = {"x86_64": "x86", "aarch64": "arm64"}.get(uname.machine, uname.machine)
    return BPF(text=source.encode(), cflags=headers.compiler_flags(arch))
