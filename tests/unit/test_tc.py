"""How a clsact filter is named in the journal; what it does to the kernel is in tests/kernel/test_others_clsact.py."""

from __future__ import annotations

import pytest

from agent import tc
from agent.control.settings import kind_of


def test_a_filter_is_a_setting_of_its_namespace() -> None:
    """Interface, direction and whose qdisc it is, all that undoing it takes."""
    setting = tc.clsact_setting(7, "egress", True)
    assert (setting.kind, setting.target, setting.namespaced) == ("clsact", "7:egress:1", True)


def test_the_journal_knows_the_kind() -> None:
    """Importing the module registers it: a journal that names it can be restored."""
    assert isinstance(kind_of("clsact"), tc.ClsactSetting)


def test_attaching_cannot_be_restored() -> None:
    """Only removal can be written: the program of a filter is gone with its process."""
    with pytest.raises(OSError, match="cannot be put back"):
        tc.ClsactSetting().write("7:egress:1", tc.ATTACHED)


def test_values_are_compared_exactly() -> None:
    """There are but two."""
    same = tc.ClsactSetting().same
    assert same(tc.ABSENT, tc.ABSENT)
    assert not same(tc.ABSENT, tc.ATTACHED)
