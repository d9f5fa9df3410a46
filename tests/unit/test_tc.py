"""The journal's names of clsact filters."""

from __future__ import annotations

import pytest

from agent.tc import ClsactSetting, clsact_setting


@pytest.mark.parametrize(
    "target", ["", "x", "a:ingress:1", "0:ingress:1", "99999999999999:ingress:1", "3:sideways:0"]
)
def test_what_names_no_filter_is_refused(target: str) -> None:
    """A damaged journal's target is a `ValueError` before the kernel is asked."""
    with pytest.raises(ValueError, match=r"clsact filter|unpack|invalid literal"):
        ClsactSetting().read(target)


def test_a_filter_is_named_by_interface_direction_and_qdisc() -> None:
    """What the journal stores says which filter, and whether the qdisc was made for it."""
    assert clsact_setting(7, "egress", created_qdisc=True).target == "7:egress:1"
