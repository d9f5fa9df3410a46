"""The agent's clock on a NIC whose truth is known, by both stamp paths: drift, offset, jump, stamps alone, holdover."""

from __future__ import annotations

import json
import os
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.kernel.agent_run import AgentRun
from tests.rig.testnic import CAPTURED, ClockTruth, HardwareClock, Wire

RATE_PPT = 20_000_000
WANDER_PPT = 10_000  # 10 ppb within a second
JUMP_NS = -3_210_987
# What is changed while the agent runs is not the clock's business here.
PASSIVE = ("--deny", "irq,rps,xps,napi")
CASES = {"skb": ("--stamp", "skb", *PASSIVE), "xdp": ("--stamp", "xdp", "--allow-reset", *PASSIVE)}


@dataclass(frozen=True, slots=True)
class Course:
    """A run over: first with the PHC, then a jump, then stamps alone, then nothing. Phases are named by their ends."""

    frames: list[dict[str, Any]]
    truth: ClockTruth
    jumped_ns: int
    reads_refused_ns: int
    silent_ns: int
    goodbye: dict[str, Any]
    windows: npt.NDArray[np.void]
    delays: list[dict[str, Any]]
    """What the delay frames told, until the end."""

    def clock(self, start_ns: int, end_ns: int) -> list[dict[str, Any]]:
        """The clock's frames in a span of mono."""
        return [frame for frame in self.frames if start_ns <= frame["mono_ns"] < end_ns]

    def settled(self) -> tuple[int, int]:
        """The span of mono in which the PHC was read and well known: until the jump."""
        # A busy guest ticks seldom, and the kernel's model takes some ticks.
        start_ns = max(self.frames[0]["mono_ns"] + 5_000_000_000, self.frames[15]["mono_ns"])
        return start_ns, self.jumped_ns

    def settled_windows(self) -> npt.NDArray[np.void]:
        """The windows of that span."""
        start_ns, end_ns = self.settled()
        return self.windows[
            (self.windows["open_mono_ns"] > start_ns) & (self.windows["last_mono_ns"] < end_ns)
        ]

    def true_delays_ns(self, windows: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
        """How long the first packets of these windows really took."""
        mono_ns: npt.NDArray[np.int64] = windows["first.mono_ns"].astype(np.int64)
        offsets = [self.truth.offset_ns(at_ns) for at_ns in mono_ns.tolist()]
        hw_ns: npt.NDArray[np.int64] = windows["first.hw_ns"].astype(np.int64)
        return mono_ns - hw_ns - np.array(offsets, dtype=np.int64)

    def errors_ns(self, frames: list[dict[str, Any]]) -> list[int]:
        """What each frame's offset is off by, without sign."""
        return [abs(frame["offset_ns"] - self.truth.offset_ns(frame["mono_ns"])) for frame in frames]

    def drift_errors_ppb(self, frames: list[dict[str, Any]]) -> list[float]:
        """What each frame's drift is off by, without sign."""
        return [abs(frame["drift_raw_ppb"] - self.truth.drift_ppb(frame["mono_ns"])) for frame in frames]


def _mono_ns(run: AgentRun) -> int:
    return int(run.of_kind("clock")[-1]["mono_ns"])


def _until_samples(run: AgentRun, more: int) -> None:
    """Wait for that many more reports."""
    target = len(run.of_kind("clock")) + more
    run.wait_until(lambda: len(run.of_kind("clock")) >= target)


def _drive(wire: Wire, run: AgentRun, clock: HardwareClock) -> Course:
    run.wait_for("clock", lambda frame: frame["state"] == "tracking")
    _until_samples(run, 30)
    jumped_ns = _mono_ns(run)
    clock.set("jump_ns", JUMP_NS)
    _until_samples(run, 20)
    reads_refused_ns = _mono_ns(run)
    clock.set("refuse_reads", "Y")
    run.wait_for("clock", lambda frame: frame["state"] == "relative")
    _until_samples(run, 30)
    silent_ns = _mono_ns(run)
    wire.silence()
    run.wait_for("clock", lambda frame: frame["state"] == "holdover")
    _until_samples(run, 10)
    truth = clock.truth()
    assert run.stop() == 0, run.said()
    return Course(
        run.of_kind("clock"),
        truth,
        jumped_ns,
        reads_refused_ns,
        silent_ns,
        run.of_kind("goodbye")[0],
        run.windows(CAPTURED),
        run.of_kind("delay"),
    )


@pytest.fixture(scope="module", params=["skb", pytest.param("xdp", marks=pytest.mark.minutes)])
def course(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Course:
    """One run for all tests of a stamp path."""
    with Wire() as wire:
        wire.clock.set("rate_ppt", RATE_PPT)
        wire.clock.set("wander_ppt", WANDER_PPT)
        wire.send(400)
        state = tmp_path_factory.mktemp("state")
        with AgentRun(wire.here, state, *CASES[request.param], interfaces=(CAPTURED,)) as run:
            done = _drive(wire, run, wire.clock)
    _write_figures(request.param, done)
    return done


def test_every_packet_that_was_looked_at_has_a_stamp(course: Course) -> None:
    """The driver's stamps reach the windows by this path."""
    counters = course.goodbye["interfaces"][0]["counters"]
    assert counters["stamped"] > 1000
    assert counters["produced"] == counters["drained"] + counters["lost"]


def test_drift_after_five_seconds(course: Course) -> None:
    """20 ppm with wander, cross-timestamps: within 20 ppb of the truth."""
    start = course.frames[0]["mono_ns"] + 5_000_000_000
    errors = course.drift_errors_ppb(course.clock(start, course.jumped_ns))
    assert len(errors) > 5
    assert np.percentile(errors, 95) <= 20


def test_offset_is_within_200_ns_and_its_bound(course: Course) -> None:
    """While the PHC is read: p99 of the error at most 200 ns, and within the stated bound in 99 of 100."""
    frames = [frame for frame in course.clock(0, course.jumped_ns) if frame["state"] == "tracking"]
    errors = course.errors_ns(frames)
    assert np.percentile(errors, 99) <= 200
    inside = [error <= frame["bound_ns"] for error, frame in zip(errors, frames, strict=True)]
    assert statistics.mean(inside) >= 0.99


def test_delays_are_the_packets_true_ones(course: Course) -> None:
    """From the peer's transmission to our hook, by the clock that the kernel was told of: within 1 us of the truth.

    Of a window with one packet the sum of its delays is that packet's, and its first pair says what was compared.
    """
    windows = course.settled_windows()
    single = windows[(windows["n_delay"] == 1) & (windows["n_stamped"] == 1) & (windows["n"] == 1)]
    assert len(single) > 100
    errors = single["delay_sum_ns"].astype(np.int64) - course.true_delays_ns(single)
    assert np.percentile(np.abs(errors), 99) <= 1_000


def test_the_delay_histogram_has_the_true_quantiles(course: Course) -> None:
    """The delay frames' medians, weighted by their packets, against all that the windows' pairs say of the truth."""
    start_ns, end_ns = course.settled()
    rows = [
        (row["p50_ns"], row["n"])
        for frame in course.delays
        if start_ns < frame["mono_ns"] < end_ns
        for row in frame["rows"]
        if row["where"] == "hook" and row["p50_ns"] is not None
    ]
    windows = course.settled_windows()
    true_ns = course.true_delays_ns(windows[windows["n_stamped"] > 0])
    told = np.average([p50 for p50, _ in rows], weights=[n for _, n in rows])
    assert np.percentile(true_ns, 35) <= told <= np.percentile(true_ns, 65)


def test_the_jump_is_told_with_its_size_and_the_drift_is_kept(course: Course) -> None:
    """One phase step of the size that the driver made, and the drift is as good after it as before."""
    after = course.clock(course.jumped_ns, course.reads_refused_ns)
    jumps = [tag for frame in after for tag in frame["tags"] if tag["kind"] == "phase_step"]
    assert [round(tag["size_ns"], -3) for tag in jumps] == [round(JUMP_NS, -3)]
    assert max(course.drift_errors_ppb(after[-15:])) <= 50
    assert max(course.errors_ns(after[-10:])) <= 1000


def test_stamps_alone_keep_the_drift(course: Course) -> None:
    """The PHC refuses to be read: the packets' envelope comes to within 50 ppb, or says that it is not that sure.

    On a busy machine a packet's least delay is not steady to what 50 ppb take. The offset stays within its bound.
    """
    frames = course.clock(course.reads_refused_ns, course.silent_ns)
    alone = [frame for frame in frames if frame["state"] == "relative"]
    allowed = max(50, statistics.median(frame["drift_bound_ppb"] for frame in alone[-10:]))
    assert statistics.median(course.drift_errors_ppb(alone[-10:])) <= allowed
    inside = [e <= f["bound_ns"] for e, f in zip(course.errors_ns(alone), alone, strict=True)]
    assert statistics.mean(inside) >= 0.99


def test_holdover_says_so_and_holds_the_truth_in_its_bound(course: Course) -> None:
    """No reads, no packets: holdover with its reason, a bound that grows and covers the truth."""
    held = [frame for frame in course.clock(course.silent_ns, 2**63) if frame["state"] == "holdover"]
    assert held
    assert all(frame["reason"] for frame in held)
    assert held[-1]["bound_ns"] > held[0]["bound_ns"]
    for frame, error in zip(held, course.errors_ns(held), strict=True):
        assert error <= frame["bound_ns"]


def _write_figures(stamp: str, course: Course) -> None:
    """Hand the figures to the host, where it asked for them."""
    directory = os.environ.get("RIG_RESULTS")
    if not directory:
        return
    start = course.frames[0]["mono_ns"] + 5_000_000_000
    tracked = [frame for frame in course.clock(0, course.jumped_ns) if frame["state"] == "tracking"]
    alone = course.clock(course.reads_refused_ns, course.silent_ns)[-10:]
    errors = course.errors_ns(tracked)
    figures = {
        "kernel": os.uname().release,
        "stamp": stamp,
        "reports": len(tracked),
        "drift_error_p95_ppb": _rounded(course.drift_errors_ppb(course.clock(start, course.jumped_ns)), 95),
        "offset_error_p99_ns": _rounded(errors, 99),
        "offset_within_bound": statistics.mean(
            e <= f["bound_ns"] for e, f in zip(errors, tracked, strict=True)
        ),
        "stamps_alone_drift_error_median_ppb": _rounded(course.drift_errors_ppb(alone), 50),
        "stamps_alone_drift_bound_median_ppb": _rounded([f["drift_bound_ppb"] for f in alone], 50),
        "stamped_packets": course.goodbye["interfaces"][0]["counters"]["stamped"],
    }
    Path(directory, f"testnic-{stamp}.json").write_text(json.dumps(figures, indent=1) + "\n")


def _rounded(values: list[int] | list[float], percent: int) -> float | None:
    return round(float(np.percentile(values, percent)), 1) if values else None
