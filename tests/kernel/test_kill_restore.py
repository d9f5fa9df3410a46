"""SIGKILL in the middle of a run, then `agent restore`: three of the benchmark's fifty moments."""

import os

import pytest

from tools.bench.kill import Kill, Outcome, Scene

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and BPF"),
]

KILLS = (
    Kill("rps", "writing", 0.001),
    Kill("xps", "judging", 0.1),
    Kill("rps", "restoring", 0.002),
)


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    """What became of the three runs."""
    with Scene() as scene:
        return [scene.kill(kill) for kill in KILLS]


def test_everything_is_put_back(outcomes: list[Outcome]) -> None:
    """Every file of every queue is byte for byte as before, no program is attached, no journal is left."""
    assert [outcome.wrong for outcome in outcomes] == [(), (), ()]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="one CPU: there is nothing to steer")
def test_the_killed_runs_had_changed_something(outcomes: list[Outcome]) -> None:
    """At least one run died with changed settings in force: there was something to put back."""
    assert any(outcome.journaled for outcome in outcomes)
    assert any(outcome.changed for outcome in outcomes)
