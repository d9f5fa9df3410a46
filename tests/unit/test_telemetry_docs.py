from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

from agent.telemetry import schema
from tests.unit import telemetry_frames as sample

PAGE = (Path(__file__).parents[2] / "docs/telemetry.md").read_text()


def test_worked_example_runs() -> None:
    """The reader on the page decodes a run as it stands there, without this package."""
    example = re.search(r"```python\n(.*?)```", PAGE, re.S)
    assert example is not None
    assert "agent" not in example[1]
    assert len([line for line in example[1].splitlines() if line and not line.startswith("import")]) <= 10
    result = subprocess.run(
        [sys.executable, "-c", example[1]], input=sample.stream(), capture_output=True, check=True, timeout=60
    )
    assert b"eth1 40 packets, 40 stamped" in result.stdout
    assert b"relative 12010.0 ppb ['phase_step']" in result.stdout


def test_every_frame_and_key_is_documented() -> None:
    """Each type has its section, and each of its keys is named on the page."""
    for kind, frame in schema.FRAME_TYPES.items():
        assert f"### {kind} — " in PAGE
        for key in get_type_hints(frame):
            assert f"`{key}`" in PAGE, f"{kind}.{key}"


def test_limits_on_the_page_are_those_in_force() -> None:
    """The figures of the page are the constants'."""
    assert schema.MAX_FRAME_BYTES == 8 << 20
    assert schema.MAX_DATA_BYTES == 4 << 20
    assert schema.MAX_TEXT_BYTES == 64 << 10
    for number in (schema.MAX_ITEMS, schema.MAX_BATCH_RECORDS, schema.MAX_DEPTH):
        assert str(number) in PAGE
