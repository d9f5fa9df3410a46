"""`agent demo`: what it refuses before anything is set up."""

from __future__ import annotations

import os

import pytest

from agent.cli import main


@pytest.mark.parametrize(
    "arguments",
    [
        ["--seconds", "-1"],
        ["--seconds", "nan"],
        ["--seconds", "1"],
        ["--seconds", "1e9"],
        ["--rate", "0"],
        ["--rate", "inf"],
        ["--drift-ppb", "600000"],
        ["--jump-ns", "99999999999999"],
    ],
)
def test_impossible_scenario_is_a_usage_error(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A value that makes no scenario is refused with its name and what would do."""
    assert main(["demo", *arguments]) == 2
    said = capsys.readouterr().err
    assert arguments[0] in said
    assert "remedy" in said


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Not being root is an unsupported host, with the remedy."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["demo"]) == 3
    assert "sudo" in capsys.readouterr().err


def test_a_short_run_is_warned_about(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run in which the drift can't settle is allowed, and told."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    main(["demo", "--seconds", "3"])
    assert "3 s is short" in capsys.readouterr().err
