"""Where objects and sources are looked for."""

from pathlib import Path

import pytest

from agent.errors import UnsupportedError
from agent.ffi.programs import object_path, source_path


def test_the_environment_overrides_the_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AGENT_BPF_DIR holds objects and sources."""
    (tmp_path / "capture.bpf.o").touch()
    (tmp_path / "capture.bpf.c").touch()
    monkeypatch.setenv("AGENT_BPF_DIR", str(tmp_path))
    assert object_path("capture") == tmp_path / "capture.bpf.o"
    assert source_path("capture") == tmp_path / "capture.bpf.c"


def test_the_checkouts_sources_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variable the checkout's own files are used."""
    monkeypatch.delenv("AGENT_BPF_DIR", raising=False)
    assert source_path("testbed").parent.name == "bpf"


def test_what_is_not_built_names_the_places_and_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says where it looked, the remedy how to build it."""
    monkeypatch.setenv("AGENT_BPF_DIR", str(tmp_path))
    with pytest.raises(UnsupportedError, match="capture") as error:
        object_path("capture")
    assert str(tmp_path) in error.value.what
    assert "make bpf" in error.value.remedy
