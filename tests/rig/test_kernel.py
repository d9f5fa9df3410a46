"""What this kernel has, what it lacks, and that the agent says so: in the guest on each kernel, and on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.rig.survey import BY_NUMBER, PROGRAMS, Fact, Survey, place, survey

VERSION = tuple(int(part) for part in os.uname().release.split(".")[:2])


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Survey:
    """One survey for all tests; kept where the caller asked for it."""
    with place() as where:
        done = survey(where, tmp_path_factory.mktemp("state"))
    if "RIG_RESULTS" in os.environ:
        done.write(Path(os.environ["RIG_RESULTS"]))
    return done


def _fact(found: Survey, name: str) -> Fact:
    if name not in found.facts:
        pytest.skip(f"not asked on {found.place}")
    return found.facts[name]


@pytest.mark.parametrize(
    ("name", "since"),
    [
        (PROGRAMS, (5, 18)),
        ("tc programs", (6, 6)),
        ("native XDP known without trying", (6, 3)),
        ("XDP with fragments", (5, 18)),
        ("stamps of the skb at tc", (5, 16)),
        ("stamps of XDP metadata (RX kfunc)", (6, 3)),
        ("PHC reads (igb)", (6, 12)),
        (BY_NUMBER, (6, 12)),
        ("its own types (BTF)", (5, 4)),
    ],
)
def test_what_the_kernel_has_is_used_and_what_it_lacks_is_said(
    found: Survey, name: str, since: tuple[int, int]
) -> None:
    """By the version that it came with; without it there are words for what happens instead."""
    fact = _fact(found, name)
    assert fact.has == (since <= VERSION), fact
    assert fact.has or fact.said or fact.cell


def test_both_loaders_leave_the_same_records(found: Survey) -> None:
    """For every stamp and hook that both have."""
    if not found.facts[PROGRAMS].has:
        pytest.skip("the programs do not load")
    assert {how.partition(" (")[0] for how in found.loaders.values()} == {"identical"}, found.loaders
