"""Two switches' clocks in front of one interface: the run tells how they stand to each other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kernel.agent_run import AgentRun, Frame
from tests.kernel.conftest import MakeTestbed
from tools.testbed import Testbed
from tools.testbed.simphc import SimulatedPhc

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and BPF"),
]

DRIFTS_PPB = (12_000, -8_000)
AHEAD_NS = 3_000_000
FLAGS = ("--stamp", "trailer", "--observe")


@pytest.fixture
def switches(testbed: MakeTestbed) -> tuple[Testbed, SimulatedPhc, SimulatedPhc]:
    """A bed whose two switches (device ids 7 and 9) send, and their clocks; the second one's is ahead."""
    bed = testbed(queues=1, flows=4, rate_pps=4_000, drift_ppb=DRIFTS_PPB[0], wander_ppb_per_sqrt_s=0.0)
    second = bed.add_switch(9, DRIFTS_PPB[1])
    second.jump(AHEAD_NS)
    bed.start_traffic()
    return bed, bed.phc, second


def is_valid(frame: Frame) -> bool:
    """Whether it compares two trustworthy clocks."""
    return any(pair["valid"] for pair in frame["pairs"])


def test_two_device_ids_are_aligned(
    switches: tuple[Testbed, SimulatedPhc, SimulatedPhc], tmp_path: Path
) -> None:
    """Offset within its bound of what the kernel computed for the stamps; the drift is the difference of both."""
    bed, *clocks = switches
    with AgentRun(bed.cap, tmp_path, *FLAGS) as run:
        run.wait_until(lambda: sum(map(is_valid, run.of_kind("alignment"))) >= 5)
        assert run.stop() == 0
    truths = {phc_id: clock.truth() for phc_id, clock in zip((7, 9), clocks, strict=True)}
    pairs = [pair for frame in run.of_kind("alignment") for pair in frame["pairs"] if pair["valid"]]
    for pair in pairs:
        ids = [pair[side]["key"] >> 8 for side in ("first", "second")]
        assert sorted(ids) == [7, 9]
        first, second = (int(truths[i].phc_ns(pair["at_mono_ns"])) for i in ids)
        assert abs(pair["offset_ns"] - (first - second)) <= pair["bound_ns"] < 100_000
    expected_ppb = DRIFTS_PPB[1] - DRIFTS_PPB[0] if ids[0] == 7 else DRIFTS_PPB[0] - DRIFTS_PPB[1]
    assert abs(pairs[-1]["drift_ppb"] - expected_ppb) <= pairs[-1]["drift_bound_ppb"]


def test_a_jump_of_one_ends_the_alignment_for_a_while(
    switches: tuple[Testbed, SimulatedPhc, SimulatedPhc], tmp_path: Path
) -> None:
    """The second clock steps by half a millisecond: not valid at once, and valid again with the step in it."""
    bed, *clocks = switches
    with AgentRun(bed.cap, tmp_path, *FLAGS) as run:
        run.wait_until(lambda: sum(map(is_valid, run.of_kind("alignment"))) >= 4)
        before = next(frame for frame in reversed(run.of_kind("alignment")) if is_valid(frame))
        jump = clocks[1].jump(500_000)
        doubted = run.wait_for(
            "alignment", lambda frame: frame["mono_ns"] > jump.mono_ns and not is_valid(frame)
        )
        after = run.wait_for(
            "alignment", lambda frame: frame["mono_ns"] > doubted["mono_ns"] and is_valid(frame)
        )
        assert run.stop() == 0
    assert "phase_step" in doubted["pairs"][0]["reason"]
    moved = after["pairs"][0]["offset_ns"] - before["pairs"][0]["offset_ns"]
    elapsed_s = (after["mono_ns"] - before["mono_ns"]) * 1e-9
    sign = 1 if after["pairs"][0]["second"]["key"] >> 8 == 7 else -1
    drifted = sign * (DRIFTS_PPB[0] - DRIFTS_PPB[1]) * elapsed_s
    assert moved == pytest.approx(sign * 500_000 + drifted, abs=after["pairs"][0]["bound_ns"])
