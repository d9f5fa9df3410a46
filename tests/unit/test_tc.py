"""The journal's names of clsact filters."""

from __future__ import annotations

import errno
from typing import Any

import pyroute2
import pytest
from pyroute2.netlink.exceptions import NetlinkError

from agent.errors import UnsupportedError
from agent.tc import ClsactSetting, attach_tc, clsact_setting


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


class FakeKernelWithoutIngress:
    """An rtnetlink socket of a kernel whose sch_ingress cannot be loaded."""

    def __enter__(self) -> FakeKernelWithoutIngress:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def get_qdiscs(self, index: int) -> list[Any]:
        """None yet."""
        return []

    def tc(self, command: str, kind: str, index: int, *_: object, **__: object) -> None:
        """As the kernel answers."""
        raise NetlinkError(errno.ENOENT, "No such file or directory")


def test_a_kernel_without_clsact_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before TCX, tc needs a qdisc that may be a module which nothing loads: said with the module's name."""
    monkeypatch.setattr(pyroute2, "IPRoute", FakeKernelWithoutIngress)
    with pytest.raises(UnsupportedError, match="clsact qdisc") as refused:
        attach_tc(-1, 7, "ingress", lambda direction, creates: None, clsact=True)
    assert "modprobe sch_ingress" in refused.value.remedy
