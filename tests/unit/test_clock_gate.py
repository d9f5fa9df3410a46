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


def test_more_samples_have_to_agree_where_bad_stamps_are_usual_and_close() -> None:
    """Three that step and four on a line do at first; the closer usual bad stamps lie, the more it takes."""
    gate = Gate()
    assert (gate.needed_alike(80.0, 1), gate.needed_alike(80.0, 2)) == (3, 4)
    needed = []
    for size_ns in (200_000.0, 20_000.0, 2_000.0, 100.0):
        for _ in range(200):
            gate.saw_bad(size_ns)
        needed.append(gate.needed_alike(80.0, 1))
    assert needed == sorted(needed)
    assert needed[0] == 3
    assert needed[-1] == 16
