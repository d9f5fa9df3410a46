"""Judges the one change in flight: kept only if what was measured after it is better than before, beyond noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from agent.control.observation import Counts
from agent.control.plan import Plan
from agent.control.quantiles import NO_FIGURES, Figures, figures
from agent.host.load import CpuShare

# p99 has to improve by this much to be worth a setting that differs from what the operator left.
_MIN_EFFECT = 0.05
_MIN_PACKETS = 200
_HARM = 1.25
_HARM_NS = 2_000.0
_DISASTER = 2.0
_P99_WORSE = "p99 got worse"
_LOAD_MOVED = 0.25
# Bursts scatter a share over a short baseline: by about 0.1 over 0.1 s.
_LOAD_SCATTER = 0.03
_MORE_INTERRUPTS = 1.1
# Consumers keep up while less than this waits in their sockets; behind or relieved, it changes by such a factor.
_BACKLOG_BYTES = 65_536
_BACKLOG_FACTOR = 4
# Where it is heading is told by the latest ticks against as many before.
_LATEST = 10


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a change settles, and is judged."""

    settle_ns: int = 500_000_000
    hurried_ns: int = 100_000_000
    """How long one settles that answers a load's move."""
    judge_ns: int = 1_500_000_000
    drain_ns: int = 30_000_000_000
    """How long consumers that catch up are waited for."""
    in_effect_ns: int = 5_000_000_000
    """How long to wait for a setting to take effect: an affinity follows at the next interrupt."""


@dataclass(frozen=True, slots=True)
class TickSample:
    """One tick of one interface, as the guard compares it."""

    seconds: float
    lanes: Mapping[int, Counts]
    """First queue of a lane → growth of its histogram."""
    lost: int
    """Packets lost anywhere: NIC, softnet, sockets."""
    out_of_order: int
    """Packets out of order within queues and TCP flows."""
    cpus: Mapping[int, CpuShare]
    disturbed: bool
    """The delays of this tick compare with nothing: the hardware clock jumped."""
    waiting_bytes: int = 0
    """What waits in the named consumers' sockets to be read."""
    tx_shared: float = 0.0
    irq_rate: float = math.nan
    """Interrupts of the interface per second; NaN where they are not traced."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a change came to."""

    outcome: str
    """`kept`; `rolled_back` (worse, or no better) or `undecided` (the load moved meanwhile), both undone."""
    reason: str
    before: Figures
    after: Figures
    lost_before: int
    lost_after: int
    soft_change: Mapping[int, float]
    """CPU → how its softirq share changed, of the CPUs that the plan loads or relieves."""
    is_harm: bool = False
    """Something got worse, and not only no better."""
    moved_p99_ns: float = math.nan
    """Delay of what was moved, where that alone decided."""
    is_gain: bool = False
    """It is better beyond noise."""


@dataclass(slots=True)
class _Flight:
    plan: Plan
    own_shares: Mapping[int, float]
    baseline: Sequence[TickSample]
    since_ns: int
    hurried: bool
    settling: list[TickSample] = field(default_factory=list)
    judged: list[TickSample] = field(default_factory=list)
    judging_since_ns: int = 0
    extended: bool = False
    _before: dict[frozenset[int], Figures] = field(default_factory=dict)

    def before(self, queues: Iterable[int]) -> Figures:
        """The baseline's delay of some lanes: it does not change any more."""
        key = frozenset(queues)
        if key not in self._before:
            self._before[key] = _span(self.baseline, set(key))
        return self._before[key]


class Guard:
    """Holds at most one change in flight."""

    def __init__(self, timing: Timing | None = None) -> None:
        self.timing = timing or Timing()
        self._flight: _Flight | None = None

    @property
    def plan(self) -> Plan | None:
        """The plan in flight."""
        return self._flight.plan if self._flight else None

    @property
    def hurried(self) -> bool:
        """The plan in flight answers a load that has just moved."""
        return self._flight is not None and self._flight.hurried

    @property
    def own_shares(self) -> Mapping[int, float]:
        """What the plan in flight brings to each CPU, as told to `begin`."""
        return self._flight.own_shares if self._flight else {}

    def begin(
        self,
        plan: Plan,
        baseline: Sequence[TickSample],
        own_shares: Mapping[int, float],
        now_ns: int,
        *,
        hurried: bool = False,
    ) -> None:
        """A plan was applied just now. `own_shares`: CPU → share of its time that the plan brings (+) or takes (−).

        `hurried`: it answers a load that has just moved. Harm is then looked for sooner.
        """
        self._flight = _Flight(plan, own_shares, list(baseline), now_ns, hurried)

    def drop(self) -> None:
        """Forget the change in flight without judging it."""
        self._flight = None

    def update(self, tick: TickSample, in_effect: bool, now_ns: int) -> Verdict | None:
        """Take in a tick; the verdict when there is one, after which nothing is in flight any more."""
        flight = self._flight
        if flight is None:
            return None
        if not flight.judging_since_ns:
            flight.settling.append(tick)
            waited = now_ns - flight.since_ns
            if waited >= self._settle_ns(flight) and (in_effect or waited >= self.timing.in_effect_ns):
                flight.judging_since_ns = now_ns
            return None
        flight.judged.append(tick)
        verdict = self._judge(flight, now_ns)
        if verdict is not None:
            self._flight = None
        return verdict

    def _settle_ns(self, flight: _Flight) -> int:
        return self.timing.hurried_ns if flight.hurried else self.timing.settle_ns

    def _judge(self, flight: _Flight, now_ns: int) -> Verdict | None:
        elapsed = now_ns - flight.judging_since_ns
        due = elapsed >= self.timing.judge_ns * (2 if flight.extended else 1)
        if not due and elapsed < self._settle_ns(flight):
            return None
        if flight.plan.source == "tx":
            return self._judge_tx(flight) if due else None
        moved = {queue for change in flight.plan.changes for queue in change.queues}
        before, after = flight.before(moved), _span(flight.judged, moved)
        if after.n >= _MIN_PACKETS and _is_disaster(flight, before, after):
            return self._verdict(
                flight, "rolled_back", "p99 got much worse at once", before, after, True, after.p99_ns
            )
        if not due:
            return None
        if after.n < _MIN_PACKETS:
            if elapsed < 3 * self.timing.judge_ns:
                return None
            return self._verdict(
                flight, "undecided", f"only {after.n} packets came to judge it by", before, after
            )
        harm = self._harm(flight, moved, before, after)
        if harm:
            only_p99 = after.p99_ns if harm == _P99_WORSE else math.nan
            return self._verdict(flight, "rolled_back", harm, before, after, True, only_p99)
        relief = _backlog_fell(flight.baseline, flight.judged[-_LATEST:])
        if not relief and elapsed < self.timing.drain_ns and _is_draining(flight):
            return None
        better = _better(before, after) or bool(relief)
        load = _load_moved(flight, better)
        if load and flight.extended:
            return self._verdict(flight, "undecided", load, before, after)
        if not load and better:
            verdict = self._verdict(flight, "kept", relief or "better beyond noise", before, after)
            return replace(verdict, is_gain=True)
        if not load and flight.hurried:
            # Those packets that a load holds up most had not come yet when it was answered.
            return self._verdict(
                flight, "kept", "no worse than the first packets under the load", before, after
            )
        if not flight.extended and (load or after.p99_ns < 0.8 * before.p99_ns):
            flight.extended = True
            return None
        reason = f"no difference beyond noise: not needed{_without_effect(flight)}"
        return self._verdict(flight, "rolled_back", reason, before, after, False, after.p99_ns)

    def _judge_tx(self, flight: _Flight) -> Verdict:
        """A plan of transmit queues shows no receive delay to gain: it must end the sharing, and harm nothing."""
        lanes = {queue for tick in flight.baseline for queue in tick.lanes}
        before, after = flight.before(lanes), _span(flight.judged, lanes)
        harm = _drops(flight) or (_worse(before, after) and "p99 of receiving got worse") or ""
        was = float(np.mean([tick.tx_shared for tick in flight.baseline])) if flight.baseline else 0.0
        now = flight.judged[-1].tx_shared
        if not harm and now > 0.5 * was:
            harm = f"transmit queues are shared as before ({was:.0%} to {now:.0%})"
        reason = harm or f"transmit queues shared: {was:.0%} to {now:.0%} of the packets"
        return self._verdict(flight, "rolled_back" if harm else "kept", reason, before, after, bool(harm))

    def _harm(self, flight: _Flight, moved: set[int], before: Figures, after: Figures) -> str:
        """What got worse beyond noise, in words; empty for nothing."""
        drops = _drops(flight)
        if drops:
            return drops
        if _backlog_fell(flight.judged, flight.baseline):
            return f"the consumers fall behind: {_backlog(flight.judged) / 1024:.0f} KiB wait for them"
        if _harms(flight, before, after):
            return _P99_WORSE
        for queue in sorted({queue for tick in flight.baseline for queue in tick.lanes}):
            one_before, one_after = flight.before({queue}), _span(flight.judged, {queue})
            if min(one_before.n, one_after.n) >= _MIN_PACKETS and _harms(flight, one_before, one_after):
                what = "moved with it" if queue in moved else "left where it was"
                change = f"p99 {one_before.p99_ns / 1000:.1f} to {one_after.p99_ns / 1000:.1f} us"
                return f"queue {queue}, {what}, got worse: {change}"
        return ""

    @staticmethod
    def _verdict(
        flight: _Flight,
        outcome: str,
        reason: str,
        before: Figures,
        after: Figures,
        is_harm: bool = False,
        moved_p99_ns: float = math.nan,
    ) -> Verdict:
        return Verdict(
            outcome,
            reason,
            before,
            after,
            sum(tick.lost for tick in flight.baseline),
            sum(tick.lost for tick in (*flight.settling, *flight.judged)),
            {cpu: _soft_change(flight, cpu) for cpu in flight.own_shares},
            is_harm,
            moved_p99_ns,
        )


def _without_effect(flight: _Flight) -> str:
    """Of coalescing: whether the driver took it and did nothing, in words; empty if it did, or cannot be told."""
    if flight.plan.source != "coalesce":
        return ""
    rates = [
        np.array([tick.irq_rate for tick in ticks if not math.isnan(tick.irq_rate)])
        for ticks in (flight.baseline, flight.judged)
    ]
    if not all(len(rate) for rate in rates) or rates[1].mean() >= _MORE_INTERRUPTS * rates[0].mean():
        return ""
    return (
        f"; interrupts {rates[0].mean():.0f}/s as before: the driver accepted it without effect, or none wait"
    )


def _span(ticks: Sequence[TickSample], queues: set[int]) -> Figures:
    # A jump is tagged some packets after it came: the tick before the tag is as unsure.
    told_later = [*(tick.disturbed for tick in ticks[1:]), False]
    rows = [
        sum(tick.lanes[queue] for queue in queues if queue in tick.lanes)
        for tick, late in zip(ticks, told_later, strict=True)
        if not tick.disturbed and not late and not queues.isdisjoint(tick.lanes)
    ]
    return figures(np.array(rows)) if rows else NO_FIGURES


def _better(before: Figures, after: Figures) -> bool:
    gained = after.p99_high_ns < before.p99_low_ns and after.p99_ns <= (1 - _MIN_EFFECT) * before.p99_ns
    typical = after.p50_high_ns < before.p50_low_ns and after.p50_ns <= (1 - _MIN_EFFECT) * before.p50_ns
    return gained or (typical and after.p99_ns <= before.p99_ns)


def _is_disaster(flight: _Flight, before: Figures, after: Figures) -> bool:
    much = after.p99_low_ns > _DISASTER * before.p99_high_ns
    return much and (not flight.hurried or after.p50_low_ns > before.p50_high_ns)


def _harms(flight: _Flight, before: Figures, after: Figures) -> bool:
    """p99 got worse. A baseline of some hundredths of a second has seen few of the bursts that make up p99, which it
    bounds from below only: the median then has to agree."""
    return _worse(before, after) and (not flight.hurried or after.p50_low_ns > before.p50_high_ns)


def _worse(before: Figures, after: Figures) -> bool:
    if not before.n or not after.n:
        return False
    return (
        after.p99_low_ns > before.p99_high_ns
        and after.p99_ns > _HARM * before.p99_ns
        and after.p99_ns > before.p99_ns + _HARM_NS
    )


def _drops(flight: _Flight) -> str:
    # Packets lost while the change settled are its cost as well; those that it overtook meanwhile happen once.
    if _more(flight.baseline, [*flight.settling, *flight.judged], "lost"):
        return "more packets are dropped"
    if _more(flight.baseline, flight.judged, "out_of_order"):
        return "more packets arrive out of order"
    return ""


def _more(before: Sequence[TickSample], after: Sequence[TickSample], what: str) -> bool:
    """More events a second than before, by three standard deviations of a Poisson count."""
    seconds_before = sum(tick.seconds for tick in before)
    seconds_after = sum(tick.seconds for tick in after)
    if seconds_before <= 0 or seconds_after <= 0:
        return False
    expected = sum(getattr(tick, what) for tick in before) * seconds_after / seconds_before
    count = sum(getattr(tick, what) for tick in after)
    return bool(count > expected + 3 * np.sqrt(expected + 1))


def _backlog(ticks: Sequence[TickSample]) -> float:
    return float(np.median([tick.waiting_bytes for tick in ticks])) if ticks else 0.0


def _backlog_fell(was: Sequence[TickSample], now: Sequence[TickSample]) -> str:
    """What a consumer's delay shows, which lies behind all that is measured here, in words; empty for no such thing.

    Where the packets' softirqs take a consumer's CPU, its sockets fill while the delay up to the stack stays as it is.
    """
    before, after = _backlog(was), _backlog(now)
    if before < _BACKLOG_BYTES or after * _BACKLOG_FACTOR > before:
        return ""
    return f"the consumers keep up: {before / 1024:.0f} KiB waited for them, {after / 1024:.0f} KiB do"


def _is_draining(flight: _Flight) -> bool:
    """Whether consumers that had fallen behind read more than comes."""
    now, before = _backlog(flight.judged[-_LATEST:]), _backlog(flight.judged[-2 * _LATEST : -_LATEST])
    return _backlog(flight.baseline) >= _BACKLOG_BYTES and now < before


def _load_moved(flight: _Flight, better: bool) -> str:
    """Which CPU's softirq load changed by more than the change itself can explain, in words; empty for none.

    What left the CPUs that the plan relieves and came to those that it loads is the change itself, whatever was
    expected of it. More load on a CPU that the plan brings work to is no doubt about a delay that got better all the
    same: a queue that was starved takes more time where it gets it.
    """
    left = -sum(min(0.0, _soft_change(flight, cpu)) for cpu, own in flight.own_shares.items() if own < 0)
    came = sum(max(0.0, _soft_change(flight, cpu)) for cpu, own in flight.own_shares.items() if own > 0)
    moved = min(left, came)
    seconds = max(sum(tick.seconds for tick in flight.baseline), 1e-3)
    least = _LOAD_MOVED + 2 * _LOAD_SCATTER / math.sqrt(seconds)
    for cpu, own in flight.own_shares.items():
        difference = _soft_change(flight, cpu)
        low = -least - (max(-3 * own, moved) if own < 0 else 0.0)
        high = least + (max(3 * own, moved) if own > 0 else 0.0)
        if better and own > 0:
            high = math.inf
        if not low <= difference <= high:
            return f"the softirq load of CPU {cpu} moved by {difference:+.0%} meanwhile"
    return ""


def _soft_change(flight: _Flight, cpu: int) -> float:
    return _soft(flight.judged, cpu) - _soft(flight.baseline, cpu)


def _soft(ticks: Sequence[TickSample], cpu: int) -> float:
    shares = [tick.cpus[cpu].softirq + tick.cpus[cpu].irq for tick in ticks if cpu in tick.cpus]
    return float(np.mean(shares)) if shares else 0.0
