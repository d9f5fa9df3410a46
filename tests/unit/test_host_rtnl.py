"""A kernel that does not answer is said, instead of being waited for."""

from __future__ import annotations

import signal

import pytest

from agent.errors import UnsupportedError
from agent.host.rtnl import require_answers

pytestmark = pytest.mark.rtnl


def fake_kernel_that_never_answers() -> None:
    """As one whose RTNL lock is held for ever."""
    while True:
        signal.pause()


def test_a_kernel_that_never_answers_is_unsupported() -> None:
    """Exit 3, with what to look at."""
    with pytest.raises(UnsupportedError, match="RTNL") as error:
        require_answers(0.05, fake_kernel_that_never_answers)
    assert "dmesg" in error.value.remedy


def test_a_kernel_that_answers_is_all_right() -> None:
    """This one does."""
    require_answers()


def test_a_refusal_is_an_answer() -> None:
    """Whatever else is wrong is found later, and named there."""

    def refuse() -> None:
        raise PermissionError

    require_answers(ask=refuse)
