"""What the kernel tests share: namespaces and testbeds that are gone after each test, whatever happened."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Protocol

import pytest

from tools.testbed import Testbed, VethPair
from tools.testbed.namespace import netns_pair as two_namespaces


class MakePair(Protocol):
    """See `tools.testbed.namespace.netns_pair`."""

    def __call__(
        self, queues: int = 1, left_if: str = "gen0", right_if: str = "cap0", mtu: int = 1500
    ) -> VethPair: ...


class MakeTestbed(Protocol):
    """See `tools.testbed.Testbed`."""

    def __call__(self, **scenario: Any) -> Testbed: ...


def _need_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: network namespaces and BPF")


@pytest.fixture
def netns_pair() -> Iterator[MakePair]:
    """A function that makes two namespaces joined by a veth pair."""
    _need_root()
    with contextlib.ExitStack() as stack:

        def make(queues: int = 1, left_if: str = "gen0", right_if: str = "cap0", mtu: int = 1500) -> VethPair:
            return stack.enter_context(two_namespaces(queues, left_if, right_if, mtu))

        yield make


@pytest.fixture(scope="module")
def pair() -> Iterator[VethPair]:
    """A veth pair for all tests of a module, one after the other: `gen0` and `cap0`, each in its namespace."""
    _need_root()
    with two_namespaces() as made:
        yield made


@pytest.fixture
def testbed() -> Iterator[MakeTestbed]:
    """A function that makes a running `Testbed` for a scenario."""
    _need_root()
    with contextlib.ExitStack() as stack:

        def make(**scenario: Any) -> Testbed:
            return stack.enter_context(Testbed(**scenario))

        yield make
