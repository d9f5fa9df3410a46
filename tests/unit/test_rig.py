"""The rig's own promises: the command's exit code, one more try after a failed boot, none after the command began."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rig import rig

GUEST = rig.Guest("6.12", cpus=2, numa=False, memory_mib=512, writable=None)


class FakeGuests:
    """Stands in for QEMU: each boot does what the script says next, and is counted."""

    def __init__(self, script: list[str]) -> None:
        self._script = script
        self.boots = 0

    def attempt(self, words: list[str], run: Path, limit_s: float) -> str:
        """As `rig.attempt`: `hangs`, `dies` in the command, is `late`, or ends with an exit code."""
        del words, limit_s
        self.boots += 1
        what = self._script[self.boots - 1]
        if what == "hangs":
            return "no boot within 90 s"
        (run / "begun").touch()
        if what == "dies":
            return "QEMU ended (1) without the command's exit code"
        if what == "late":
            return "no end within 5 s"
        (run / "code").write_text(f"{what}\n")
        return ""


@pytest.fixture
def boot(monkeypatch: pytest.MonkeyPatch) -> type[FakeGuests]:
    """Keeps the rig from needing a kernel or QEMU."""
    monkeypatch.setattr(rig.Guest, "image", lambda self: (Path("vmlinuz"), "6.12.0"))
    monkeypatch.setattr(rig, "machine", lambda guest, run: [])
    monkeypatch.setattr(rig, "tool", lambda name: f"/usr/bin/{name}")
    return FakeGuests


@pytest.mark.parametrize(
    ("script", "code", "boots", "said"),
    [
        (["0"], 0, 1, ""),
        (["7"], 7, 1, ""),
        (["hangs", "3"], 3, 2, "attempt 1 of 2: no boot within 90 s"),
        (["hangs", "hangs"], rig.RIG_FAILED, 2, "attempt 2 of 2"),
        (["dies"], rig.RIG_FAILED, 1, "without the command's exit code"),
        (["late"], rig.TIMED_OUT, 1, "no end within 5 s"),
    ],
)
def test_exit_code_and_attempts(
    boot: type[FakeGuests],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    script: list[str],
    code: int,
    boots: int,
    said: str,
) -> None:
    """A failed boot is reported and tried once more; a command that began is never run again."""
    guests = boot(script)
    monkeypatch.setattr(rig, "attempt", guests.attempt)
    assert rig.run_guest(GUEST, ["true"], 5.0) == code
    assert guests.boots == boots
    assert said in capfd.readouterr().err


def test_the_command_keeps_its_words_and_its_directory(boot: type[FakeGuests], tmp_path: Path) -> None:
    """Blanks and quotes arrive as they were given, and it starts where the caller is."""
    rig.write_second_stage(GUEST, "6.12.0", tmp_path, ["echo", "a  b", "it's"])
    lines = (tmp_path / "command").read_text().splitlines()
    assert lines[-2:] == [f"cd {Path.cwd()}", "echo 'a  b' 'it'\"'\"'s'"]
