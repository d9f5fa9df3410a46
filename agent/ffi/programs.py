"""What to load, and where it is: compiled objects for libbpf, sources for BCC."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agent.errors import UnsupportedError

_PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = _PACKAGE.parents[1]


@dataclass(frozen=True, slots=True)
class ProgramSet:
    """Programs of one source, and how to load them.

    `name` is the source's name without suffix ("capture" is `bpf/capture.bpf.c`). `programs` are those to load, none
    named means all. `map_entries` sets max_entries of maps by name. Programs in `device_bound` are loaded for the
    interface `ifindex` only, as metadata kfuncs need it.
    """

    name: str
    programs: tuple[str, ...] = ()
    map_entries: Mapping[str, int] = field(default_factory=dict)
    device_bound: tuple[str, ...] = ()
    ifindex: int = 0


def object_path(name: str) -> Path:
    """The compiled object of a source: `$AGENT_BPF_DIR`, the checkout's `build/bpf`, or the installed package.

    Raises UnsupportedError if it has not been built.
    """
    return _find(f"{name}.bpf.o", (_CHECKOUT / "build/bpf", _PACKAGE / "objects"))


def built_objects() -> list[str]:
    """Names of all compiled objects, sorted. Raises UnsupportedError if nothing has been built."""
    directory = object_path("capture").parent
    return sorted(path.name.removesuffix(".bpf.o") for path in directory.glob("*.bpf.o"))


def source_path(name: str) -> Path:
    """The C source, its headers beside it: `$AGENT_BPF_DIR`, the checkout's `bpf`, or the installed package."""
    return _find(f"{name}.bpf.c", (_CHECKOUT / "bpf", _PACKAGE / "objects"))


def _find(filename: str, directories: tuple[Path, ...]) -> Path:
    override = os.environ.get("AGENT_BPF_DIR")
    if override:
        directories = (Path(override),)
    for directory in directories:
        if (directory / filename).exists():
            return directory / filename
    looked = ", ".join(str(directory) for directory in directories)
    raise UnsupportedError(f"{filename} is not there (looked in {looked})", "run `make bpf`")
