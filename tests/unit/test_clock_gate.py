"""What a clock's history says about a sample that stands off."""

from __future__ import annotations

from agent.clock.gate import Gate


def test_who_steps_again_and_again_is_not_taken_to_have_grown() -> None:
    """At first a step may hide growth; after two plain steps it may not; a plain ramp each makes it possible again."""
    gate = Gate()
    assert gate.believes_growth
    for _ in range(2):
        gate.named(grew=False)
    assert not gate.believes_growth
    for _ in range(2):
        gate.named(grew=True)
    assert gate.believes_growth
