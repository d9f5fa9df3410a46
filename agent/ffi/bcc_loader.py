"""The second loader: BCC compiles the very same C source at load time, for kernels without BTF.

BCC is only used as a compiler and to create the maps. The programs are loaded here, since BCC's own loader knows no
program flags (frags). Importing this module costs nothing; compiling costs some 130 MB in this process.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.errors import AgentError, UnsupportedError
from agent.ffi import _native
from agent.ffi.failures import load_error
from agent.ffi.programs import ProgramSet
from agent.ffi.records import AGENT_ABI

_ffi, _lib = _native.ffi, _native.lib

_LOG_BYTES = 1 << 20
_INSN_BYTES = 8

# By what stands in AGENT_SECTION(): program type, load flags.
_SECTIONS = {
    "xdp": (_lib.BPF_PROG_TYPE_XDP, 0),
    "xdp.frags": (_lib.BPF_PROG_TYPE_XDP, _lib.BPF_F_XDP_HAS_FRAGS),
    "tc": (_lib.BPF_PROG_TYPE_SCHED_CLS, 0),
    "raw_tp": (_lib.BPF_PROG_TYPE_RAW_TRACEPOINT, 0),
}


@dataclass(frozen=True, slots=True)
class KernelHeaders:
    """Where BCC finds the kernel's headers. `generated` is the tree of the generated ones if that is another."""

    source: Path
    generated: Path | None = None

    def compiler_flags(self, arch: str) -> list[str]:
        """What BCC's own search, which starts at `source`, doesn't find."""
        if self.generated is None:
            return []
        parts = (f"arch/{arch}/include/generated", f"arch/{arch}/include/generated/uapi", "include")
        return [f"-I{self.generated / part}" for part in (*parts, "include/generated/uapi")]


def kernel_headers(
    release: str, machine: str, modules: Path = Path("/lib/modules"), src: Path = Path("/usr/src")
) -> KernelHeaders:
    """The headers of the running kernel, else the newest installed: the programs use stable interfaces only.

    Debian splits them into a tree by flavour and a common one. UnsupportedError names the package if there are none.
    """
    flavour = {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)

    def version(path: Path) -> list[int]:
        return [int(number) for number in re.findall(r"\d+", path.name)]

    newest = sorted(src.glob(f"linux-headers-*-{flavour}"), key=version, reverse=True)
    for tree in (modules / release / "build", *newest):
        if (tree / "include/linux/kconfig.h").exists():
            return KernelHeaders(tree)
        makefile = tree / "Makefile"
        common = (
            re.search(r"^include (\S+)/Makefile", makefile.read_text(), re.M) if makefile.exists() else None
        )
        if common and (Path(common[1]) / "include/linux/kconfig.h").exists():
            return KernelHeaders(Path(common[1]), tree)
    raise UnsupportedError(
        f"BCC needs kernel headers, and there are none in {modules / release}/build or {src}",
        f"install linux-headers-{release} (or linux-headers-{flavour})",
    )


def inline_headers(source: Path) -> str:
    """The source with our own `#include "…"` replaced by the files' texts: BCC rewrites only what is in one text."""

    def included(match: re.Match[str]) -> str:
        return inline_headers(source.parent / match[1])

    return re.sub(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)".*$', included, source.read_text(), flags=re.M)


def program_sections(text: str) -> dict[str, str]:
    """Program names and what stands in their SEC() or AGENT_SECTION(), in the order of the text."""
    found = re.findall(r'\b(?:SEC|AGENT_SECTION)\("([^"]+)"\)\s*int\s+(\w+)\s*\(', text)
    return {name: section.lstrip("?") for section, name in found}


def _bcc() -> Any:
    """The class BPF of the BCC project, not of the unrelated physics library that PyPI has under this name."""
    remedy = "install python3-bpfcc and run the agent by the system's Python, or use --loader libbpf"
    try:
        import bcc
    except ImportError as error:
        raise UnsupportedError(f"BCC is not installed ({error})", remedy) from error
    if not hasattr(bcc, "BPF"):
        raise UnsupportedError(
            f"the package bcc in {Path(bcc.__file__ or '?').parent} is not the BPF Compiler Collection",
            f"uninstall it (pip uninstall bcc); {remedy}",
        )
    return bcc.BPF


def load_source(source: Path, wanted: ProgramSet) -> tuple[dict[str, int], dict[str, int]]:
    """Compiles a source, loads its programs: (program fds, map fds) by name, all the caller's.

    Sizes from `map_entries` are given to the compiler as `-D<MAP>_ENTRIES=n`, the map's name in capitals. Raises
    UnsupportedError (no BCC, no headers, device-bound programs), LoadError (compiler or verifier).
    """
    if wanted.device_bound:
        raise UnsupportedError(
            "BCC cannot load programs with kfuncs", "use --loader libbpf, or another --stamp"
        )
    text = inline_headers(source)
    abi = re.search(r"^#define\s+AGENT_ABI\s+(\d+)", text, re.M)
    if abi and int(abi[1]) != AGENT_ABI:
        raise AgentError(
            f"{source} has record version {abi[1]}, agent.ffi._native has {AGENT_ABI}", "run `make all`"
        )
    sections = program_sections(text)
    names = wanted.programs or tuple(sections)
    unknown = {*names} - {*sections}
    if unknown:
        raise AgentError(f"{source} has no program {', '.join(sorted(unknown))}")
    module = _compile(source, text, wanted.map_entries)
    programs: dict[str, int] = {}
    maps: dict[str, int] = {}
    try:
        for name, fd in _map_fds(module):
            maps[name] = os.dup(fd)
        for name in names:
            programs[name] = _load_program(name, sections[name], module.dump_func(name.encode()))
    except BaseException:
        for fd in (*programs.values(), *maps.values()):
            os.close(fd)
        raise
    finally:
        # The instructions hold the maps by reference once loaded; BCC's own fds and its module can go.
        module.cleanup()
    return programs, maps


def _compile(source: Path, text: str, entries: Mapping[str, int]) -> Any:
    bpf = _bcc()
    uname = platform.uname()
    headers = kernel_headers(uname.release, uname.machine)
    arch = {"x86_64": "x86", "aarch64": "arm64"}.get(uname.machine, uname.machine)
    flags = ["-DAGENT_BCC", *headers.compiler_flags(arch)]
    flags += [f"-D{name.upper()}_ENTRIES={n}" for name, n in entries.items()]
    before = os.environ.get("BCC_KERNEL_SOURCE")
    os.environ["BCC_KERNEL_SOURCE"] = before or str(headers.source)
    try:
        return bpf(text=text.encode(), cflags=flags)
    except Exception as error:  # BCC raises nothing more specific; the compiler's words are on stderr
        raise UnsupportedError(
            f"BCC cannot compile {source.name}: {error} (headers: {headers.source})",
            "see the compiler's messages above; headers of another kernel version may help, or --loader libbpf",
        ) from error
    finally:
        if before is None:
            del os.environ["BCC_KERNEL_SOURCE"]


def _map_fds(module: Any) -> list[tuple[str, int]]:
    from bcc.libbcc import lib

    # BCC's Python does not declare these, and ctypes would cut the pointers to 32 bits: a crash, as soon as the module
    # lies further up than that.
    lib.bpf_num_tables.restype = ctypes.c_size_t
    lib.bpf_num_tables.argtypes = [ctypes.c_void_p]
    lib.bpf_table_name.restype = ctypes.c_char_p
    lib.bpf_table_name.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    lib.bpf_table_fd_id.restype = ctypes.c_int
    lib.bpf_table_fd_id.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    count = lib.bpf_num_tables(module.module)
    return [
        (lib.bpf_table_name(module.module, i).decode(), lib.bpf_table_fd_id(module.module, i))
        for i in range(count)
    ]


def _load_program(name: str, section: str, instructions: bytes) -> int:
    if section not in _SECTIONS:
        raise AgentError(f'program {name} has the unknown section "{section}"')
    prog_type, flags = _SECTIONS[section]
    log = _ffi.new("char[]", _LOG_BYTES)
    opts = _ffi.new("struct bpf_prog_load_opts *")
    opts.sz = _ffi.sizeof("struct bpf_prog_load_opts")
    opts.prog_flags = flags
    opts.log_buf, opts.log_size = log, _LOG_BYTES  # level 0: libbpf asks for the log only after a failure
    fd = _lib.bpf_prog_load(
        prog_type,
        name.encode(),
        b"GPL",
        _ffi.from_buffer(instructions),
        len(instructions) // _INSN_BYTES,
        opts,
    )
    if fd < 0:
        raise load_error(f"load the BPF program {name} compiled by BCC", fd, _ffi.string(log).decode())
    return int(fd)
