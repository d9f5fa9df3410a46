"""Forks: whoever has a lock or a thread begins anew in the child, where no other thread goes on.

Servers load a service once and then fork their workers; a lock that another thread held would stay locked for ever.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Renewable(Protocol):
    """What does not survive a fork as it is."""

    def begin_anew(self) -> None:
        """Do in the child, before anything else, without taking a lock."""


_renewables: weakref.WeakSet[Renewable] = weakref.WeakSet()


def renew_in_children(renewable: Renewable) -> None:
    """Have it begin anew in each child of a fork, as long as it lives."""
    _renewables.add(renewable)


def _renew() -> None:
    for renewable in list(_renewables):
        renewable.begin_anew()


os.register_at_fork(after_in_child=_renew)
