"""The guard's verdicts on synthetic ticks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agent.control.actuators import Target
from agent.control.guard import Guard, TickSample, Verdict
from agent.control.plan import Change, Plan
from agent.control.settings import Setting
from agent.ffi.records import HIST_BUCKETS, hist_bucket
from agent.host.load import CpuShare

TICK_NS = 100_000_000


class GuardBench:
    """Makes ticks with chosen delays, and runs the guard over them."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(11)
        self.now_ns = 10_000_000_000
        target = Target("rps", "veth0", 0, Setting("file", "/rps", True))
        change = Change(target, (0,), b"2\n", b"1\n", 0, None, None)
        self.plan = Plan("veth0", (change,), "", "", 1e5, 1e4, "predicted")
        self.guard = Guard()

    def tick(
        self,
        mean_ns: float,
        n: int = 500,
        other_ns: float | None = None,
        lost: int = 0,
        out_of_order: int = 0,
        soft: float = 0.1,
        disturbed: bool = False,
        waiting_bytes: int = 0,
        other_soft: float = 0.0,
    ) -> TickSample:
        lanes = {0: self._counts(mean_ns, n)} if n else {}
        if other_ns is not None:
            lanes[1] = self._counts(other_ns, 500)
        cpus = {
            cpu: CpuShare(idle=1 - share, user=0, softirq=share, irq=0, busy=share)
            for cpu, share in ((0, soft), (1, other_soft))
        }
        return TickSample(0.1, lanes, lost, out_of_order, cpus, disturbed, waiting_bytes)

    def judge(
        self,
        before: list[TickSample],
        after: TickSample | list[TickSample],
        in_effect: bool = True,
        hurried: bool = False,
    ) -> Verdict:
        """Apply, then show `after` again and again until there is a verdict."""
        self.guard.begin(self.plan, before, {0: 0.02, 1: -0.02}, self.now_ns, hurried=hurried)
        start = self.now_ns
        for i in range(200):
            self.now_ns += TICK_NS
            tick = after[min(i, len(after) - 1)] if isinstance(after, list) else after
            verdict = self.guard.update(tick, in_effect, self.now_ns)
            if verdict is not None:
                self.took_s = (self.now_ns - start) / 1e9
                return verdict
        raise AssertionError("no verdict in 20 s")

    def _counts(self, mean_ns: float, n: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        drawn = self.rng.exponential(mean_ns, n).astype(np.int64) + 2_000
        return np.bincount(hist_bucket(drawn), minlength=HIST_BUCKETS)


@pytest.fixture
def bench() -> GuardBench:
    """A guard with one change of queue 0."""
    return GuardBench()


def test_better_is_kept(bench: GuardBench) -> None:
    """Half the delay."""
    verdict = bench.judge([bench.tick(50_000) for _ in range(20)], [bench.tick(25_000) for _ in range(40)])
    assert verdict.outcome == "kept"
    assert bench.took_s == pytest.approx(2.1, abs=0.2)


def test_a_short_baseline_bounds_p99_from_below_only(bench: GuardBench) -> None:
    """Half of the packets wait longer in rare bursts, of which some hundredths of a second show none."""
    bursts = bench.tick(30_000, n=480).lanes[0] + bench.tick(900_000, n=20).lanes[0]
    after = replace(bench.tick(30_000), lanes={0: bursts})
    verdict = bench.judge([replace(bench.tick(60_000, n=100), seconds=0.025)], after, hurried=True)
    assert verdict.outcome == "kept"
    assert "too few" not in verdict.reason


def test_what_is_worse_for_the_typical_packet_too_is_undone_also_in_a_hurry(bench: GuardBench) -> None:
    """And sooner than otherwise."""
    baseline = [replace(bench.tick(60_000, n=250), seconds=0.025)]
    verdict = bench.judge(baseline, bench.tick(600_000), hurried=True)
    assert verdict.outcome == "rolled_back"
    assert verdict.is_harm
    assert verdict.moved_p99_ns == verdict.after.p99_ns
    assert bench.took_s <= 0.5


def test_a_share_scatters_over_a_short_baseline(bench: GuardBench) -> None:
    """A load that seems to have moved a little since is none that moved."""
    baseline = [replace(bench.tick(80_000, n=250, soft=0.45), seconds=0.025)]
    assert bench.judge(baseline, bench.tick(20_000, soft=0.1), hurried=True).outcome == "kept"


def test_no_difference_is_undone(bench: GuardBench) -> None:
    """A setting that does not help does not stay."""
    verdict = bench.judge([bench.tick(50_000) for _ in range(20)], [bench.tick(50_000) for _ in range(40)])
    assert verdict.outcome == "rolled_back"
    assert "no difference" in verdict.reason


def test_worse_is_undone(bench: GuardBench) -> None:
    """Half as much again."""
    verdict = bench.judge([bench.tick(50_000) for _ in range(20)], [bench.tick(80_000) for _ in range(40)])
    assert verdict.outcome == "rolled_back"
    assert "worse" in verdict.reason


def test_much_worse_is_undone_early(bench: GuardBench) -> None:
    """It is not watched to the end."""
    verdict = bench.judge([bench.tick(20_000) for _ in range(20)], bench.tick(400_000))
    assert verdict.outcome == "rolled_back"
    assert bench.took_s < 1.5


def test_better_for_one_but_worse_for_another_queue_is_undone(bench: GuardBench) -> None:
    """The queue that was left in place pays for it."""
    before = [bench.tick(50_000, other_ns=10_000) for _ in range(20)]
    verdict = bench.judge(before, [bench.tick(20_000, other_ns=60_000) for _ in range(40)])
    assert verdict.outcome == "rolled_back"
    assert "queue 1" in verdict.reason


@pytest.mark.parametrize(("what", "words"), [("lost", "dropped"), ("out_of_order", "out of order")])
def test_better_with_more_losses_or_reordering_is_undone(bench: GuardBench, what: str, words: str) -> None:
    """Delay is not everything."""
    verdict = bench.judge([bench.tick(50_000) for _ in range(20)], bench.tick(20_000, **{what: 2}))  # type: ignore[arg-type]
    assert verdict.outcome == "rolled_back"
    assert words in verdict.reason


def test_losses_that_were_there_before_do_not_count(bench: GuardBench) -> None:
    """The same rate of drops, before and after."""
    before = [bench.tick(50_000, lost=5) for _ in range(20)]
    assert bench.judge(before, bench.tick(20_000, lost=5)).outcome == "kept"


def test_packets_overtaken_while_it_settles_do_not_count(bench: GuardBench) -> None:
    """Packets still in the old CPU's backlog come late once: that is the move, not the place."""
    after = [bench.tick(20_000, out_of_order=50)] * 4 + [bench.tick(20_000)] * 30
    assert bench.judge([bench.tick(50_000) for _ in range(20)], after).outcome == "kept"


@pytest.mark.parametrize(("was", "mean_ns", "now"), [(0.7, 20_000, 0.1), (0.1, 50_000, 0.7)])
def test_a_load_that_moved_meanwhile_is_judged_longer_and_then_undecided(
    bench: GuardBench, was: float, mean_ns: float, now: float
) -> None:
    """Another load left the CPU, or came and outweighs what was gained: what was measured proves nothing."""
    before = [bench.tick(50_000, soft=was) for _ in range(20)]
    verdict = bench.judge(before, bench.tick(mean_ns, soft=now))
    assert verdict.outcome == "undecided"
    assert "load" in verdict.reason
    assert bench.took_s > 3


def test_a_starved_queue_may_take_more_time_where_it_gets_it(bench: GuardBench) -> None:
    """Softirqs on the new CPU grow by far more than they took on the old one, and the delay falls: kept."""
    before = [bench.tick(20_000_000, soft=0.02) for _ in range(20)]
    assert bench.judge(before, bench.tick(5_000_000, soft=0.4)).outcome == "kept"


def test_a_load_that_left_one_cpu_for_the_other_is_the_change_itself(bench: GuardBench) -> None:
    """Packets cost ten times what was expected: what the old CPU lost the new one has, and the verdict stands."""
    before = [bench.tick(50_000, soft=0.1, other_soft=0.6) for _ in range(20)]
    verdict = bench.judge(before, [bench.tick(25_000, soft=0.6, other_soft=0.1) for _ in range(40)])
    assert verdict.outcome == "kept"
    before = [bench.tick(50_000, soft=0.1, other_soft=0.6) for _ in range(20)]
    verdict = bench.judge(before, [bench.tick(50_000, soft=0.6, other_soft=0.1) for _ in range(40)])
    assert verdict.outcome == "rolled_back"


def test_a_consumer_that_keeps_up_again_is_reason_enough(bench: GuardBench) -> None:
    """The delay up to the stack stays as it was; what had piled up in the consumer's socket is read."""
    before = [bench.tick(50_000, waiting_bytes=1 << 20) for _ in range(20)]
    verdict = bench.judge(before, [bench.tick(50_000, waiting_bytes=1_000) for _ in range(40)])
    assert verdict.outcome == "kept"
    assert verdict.reason == "the consumers keep up: 1024 KiB waited for them, 1 KiB do"


def test_a_consumer_that_catches_up_is_waited_for(bench: GuardBench) -> None:
    """8 MiB had piled up, of which 1 MiB is read in a second: kept when most of it is gone."""
    before = [bench.tick(50_000, waiting_bytes=8 << 20) for _ in range(20)]
    after = [bench.tick(50_000, waiting_bytes=max(0, (8 << 20) - i * (1 << 20) // 10)) for i in range(120)]
    assert bench.judge(before, after).outcome == "kept"
    assert 6 < bench.took_s < 9


def test_a_consumer_that_falls_behind_undoes_the_change(bench: GuardBench) -> None:
    """The packets reach the stack in half the time, and the application later than ever."""
    before = [bench.tick(50_000, waiting_bytes=1_000) for _ in range(20)]
    verdict = bench.judge(before, [bench.tick(25_000, waiting_bytes=1 << 20) for _ in range(40)])
    assert verdict.outcome == "rolled_back"
    assert "the consumers fall behind" in verdict.reason


@pytest.mark.parametrize(("was", "now"), [(30_000, 0), (1 << 20, 1 << 19)])
def test_what_waits_for_a_consumer_varies(bench: GuardBench, was: int, now: int) -> None:
    """A few packets, or a backlog that is still there: no reason to keep what helps nothing else."""
    before = [bench.tick(50_000, waiting_bytes=was) for _ in range(20)]
    verdict = bench.judge(before, [bench.tick(50_000, waiting_bytes=now) for _ in range(40)])
    assert verdict.outcome == "rolled_back"


def test_too_few_packets_are_undecided(bench: GuardBench) -> None:
    """The traffic stopped: no verdict without evidence, and no waiting for ever."""
    verdict = bench.judge([bench.tick(50_000) for _ in range(20)], bench.tick(20_000, n=2))
    assert verdict.outcome == "undecided"
    assert bench.took_s < 10


def test_a_setting_that_lags_is_waited_for(bench: GuardBench) -> None:
    """An affinity follows at the next interrupt; after five seconds it is judged anyway."""
    bench.judge(
        [bench.tick(50_000) for _ in range(20)], [bench.tick(20_000) for _ in range(99)], in_effect=False
    )
    assert bench.took_s > 5


def test_ticks_with_a_clock_jump_are_left_out(bench: GuardBench) -> None:
    """Delays against a clock that jumped are no delays."""
    after = [bench.tick(20_000)] * 8 + [bench.tick(9_000_000, disturbed=True)] + [bench.tick(20_000)] * 30
    assert bench.judge([bench.tick(50_000) for _ in range(20)], after).outcome == "kept"


def test_nothing_in_flight_gives_no_verdict(bench: GuardBench) -> None:
    """A dropped change is forgotten."""
    bench.guard.begin(bench.plan, [], {}, bench.now_ns)
    bench.guard.drop()
    assert bench.guard.plan is None
    assert bench.guard.update(bench.tick(1_000), True, bench.now_ns) is None
