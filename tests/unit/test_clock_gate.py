"""What a clock's history says about a sample that stands off."""

from __future__ import annotations

from agent.clock.gate import Gate


def test_growth_is_believed_until_one_did_not_last() -> None:
    """At first a drift that changed is taken to stay changed; whose did not has to show one that did."""
    gate = Gate()
    assert gate.believes_growth
    gate.outlasted(lasted=False)
    assert not gate.believes_growth
    gate.outlasted(lasted=True)
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
