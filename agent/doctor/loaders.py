"""Which of the two loaders can be used."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from agent.doctor.check import Context, Finding, Table


def native_module(_: Context) -> Finding:
    """The compiled bridge to libbpf."""
    try:
        from agent.ffi import _native  # noqa: F401
    except ImportError as error:
        return Finding(
            "fail",
            f"agent.ffi._native cannot be imported: {error}",
            "everything that reaches the kernel goes through it",
            "run `make` in the checkout (it needs a C compiler and libbpf-dev)",
        )
    return Finding("ok", "compiled, and libbpf is linked")


def libbpf_objects(context: Context) -> Finding:
    """The prebuilt programs of the default loader."""
    from agent.errors import UnsupportedError
    from agent.ffi.programs import object_path

    try:
        return Finding("ok", str(object_path("capture")))
    except UnsupportedError as error:
        return Finding(
            "warn",
            error.what,
            "--loader libbpf, the default, loads these",
            f"{error.remedy} (clang and libbpf-dev)",
        )


def bcc(_: Context) -> Finding:
    """BCC, and whether what carries its name is BCC at all; not imported, since that would load LLVM."""
    spec = importlib.util.find_spec("bcc")
    if spec is None or spec.origin is None:
        return Finding(
            "info",
            "not installed",
            "only --loader bcc needs it, for kernels without BTF",
            "`apt install python3-bpfcc`, and an environment that sees the system's packages",
        )
    if not _is_bcc(Path(spec.origin)):
        return Finding(
            "warn",
            f"the package bcc in {Path(spec.origin).parent} is not the BPF Compiler Collection",
            "PyPI's package of that name is an unrelated physics library, and hides the real one",
            "`pip uninstall bcc`; `apt install python3-bpfcc` if --loader bcc is wanted",
        )
    return Finding("ok", str(Path(spec.origin).parent))


def _is_bcc(init: Path) -> bool:
    return (init.parent / "libbcc.py").exists() and "class BPF(" in init.read_text(errors="replace")


def kernel_headers(context: Context) -> Finding:
    """Headers that BCC compiles against."""
    from agent.errors import UnsupportedError
    from agent.ffi.bcc_loader import kernel_headers as find

    try:
        headers = find(context.kernel_release, context.machine)
    except UnsupportedError as error:
        return Finding("info", error.what, "only --loader bcc needs them", error.remedy)
    return Finding("ok", str(headers.generated or headers.source))


CHECKS: Table = (
    ("native module", native_module),
    ("libbpf objects", libbpf_objects),
    ("BCC", bcc),
    ("kernel headers", kernel_headers),
)
