"""The degrade ladder: down under load, up when it is quiet, slower after a relapse."""

from __future__ import annotations

import pytest

from agent.control.degrade import DegradeLadder, Health, Level

SECOND_NS = 1_000_000_000


class Climber:
    """Feeds one health a second."""

    def __init__(self) -> None:
        self.ladder = DegradeLadder()
        self.now_ns = 0

    def feed(self, health: Health, seconds: int) -> Level:
        for _ in range(seconds):
            self.now_ns += SECOND_NS
            level = self.ladder.update(health, self.now_ns)
        return level


GOOD = Health(1.0, ticks=10)
BAD = Health(1.0, ring_lost=3, ticks=10)


@pytest.fixture
def climber() -> Climber:
    """At the top."""
    return Climber()


def test_one_bad_second_is_forgiven(climber: Climber) -> None:
    """A single burst is no overload."""
    climber.feed(BAD, 1)
    assert climber.feed(GOOD, 1).name == "full"


@pytest.mark.parametrize(
    ("health", "words"),
    [
        (BAD, "lost"),
        (Health(1.0, tick_overruns=5, ticks=10), "ticks"),
        (Health(1.0, softnet_dropped=1), "softnet"),
        (Health(1.0, cpu_percent=80.0), "budget"),
    ],
)
def test_each_cause_steps_down_and_is_named(climber: Climber, health: Health, words: str) -> None:
    """Ring losses, overruns, softnet drops, CPU."""
    level = climber.feed(health, 2)
    assert level.name == "sampled"
    assert words in level.reason


def test_under_lasting_overload_it_samples_less_then_freezes_then_restores(climber: Climber) -> None:
    """The order of what is given up."""
    seen = [climber.feed(BAD, 2) for _ in range(6)]
    assert [(level.name, level.sample_shift) for level in seen] == [
        ("sampled", 2),
        ("sampled", 4),
        ("sampled", 6),
        ("frozen", 6),
        ("safe", 6),
        ("safe", 6),
    ]
    assert [level.plans for level in seen] == [True, True, True, False, False, False]


def test_it_climbs_back_step_by_step(climber: Climber) -> None:
    """Ten quiet seconds for each step."""
    climber.feed(BAD, 10)
    names = [climber.feed(GOOD, 10 if i else 11) for i in range(5)]
    assert [level.name for level in names] == ["frozen", "sampled", "sampled", "sampled", "full"]
    assert names[-1].sample_shift == 0
    assert names[-1].reason == ""


def test_after_a_relapse_it_waits_longer(climber: Climber) -> None:
    """Falling again soon after climbing doubles the quiet time that it takes."""
    climber.feed(BAD, 2)
    climber.feed(GOOD, 11)
    climber.feed(BAD, 2)
    assert climber.feed(GOOD, 15).name == "sampled"
    assert climber.feed(GOOD, 7).name == "full"
