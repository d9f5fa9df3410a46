"""The testbed's compiled parts, built by the Makefile's rules when they are missing or out of date."""

from __future__ import annotations

import subprocess
from pathlib import Path

from agent.errors import UnsupportedError

ROOT = Path(__file__).resolve().parents[2]


def built(*targets: str) -> list[Path]:
    """The paths of build products (as "testbed/consumer"), made up to date first.

    Raises `UnsupportedError` when they can't be built.
    """
    names = [f"build/{target}" for target in targets]
    # -o: what the package manager installed is not checked again at each start.
    make = ["make", "--silent", "-o", "build/.deps", *names]
    try:
        done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    except FileNotFoundError:
        raise UnsupportedError(
            "the testbed's programs can't be built: no `make`", "apt-get install make"
        ) from None
    if done.returncode != 0:
        raise UnsupportedError(
            f"the testbed's programs can't be built: {done.stderr.strip()}",
            "run `make all` in a checkout of the source, which installs the compilers",
        )
    return [ROOT / name for name in names]
