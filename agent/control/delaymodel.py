"""Predicted delay of a queue on a CPU, also where it never ran.

A packet that the NIC or RPS hands to a CPU waits for the softirq work that is in front of it. With the CPU's
softirq utilisation ρ and a mean residual burst R, the tail of the wait of an M/G/1 queue is close to
P(W > t) = ρ·exp(−t·(1−ρ)/R) (exact for exponential bursts; Kleinrock, Queueing Systems I, 5.7), hence

    W_p = R/(1−ρ) · ln(ρ/(1−p))   for ρ > 1−p, else 0.

R is fitted on each CPU from what is measured there, a bias from what the changes turned out to be. User load
does not delay softirq work and only breaks ties, until softirq and user load together fill the CPU: then
ksoftirqd has to share it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from agent.control.observation import Delays
from agent.control.quantiles import NO_FIGURES, Figures, figures
from agent.ffi.records import HIST_BUCKETS, hist_quantile
from agent.host.cpus import CpuTopology
from agent.host.load import CpuLoad
from agent.host.masks import CpuMask

_LOAD_TAU_S = 1.0
_DELAY_TAU_S = 1.5
_RATE_TAU_S = 1.0
_REMEMBER_NS = 60_000_000_000
_FRESH_NS = 2_000_000_000
# Loads whose softirq shares differ by less are alike; user shares by less, as far as they matter.
_LIKE_LOAD = 0.1
_LIKE_USER = 0.4
# A lane's rate that differs by more than this factor makes other delays.
_LIKE_RATE = 2.0
_LOADED = 0.15
_BUSY = 0.5
_EPISODES = 8
_LONG_S = 0.3
_JOINED = 0.5
_MIN_PACKETS = 100
_BASE_QUANTILE = 0.1
_PRIOR_RESIDUAL_NS = 30_000.0
_RESIDUAL_RANGE_NS = (3_000.0, 5_000_000.0)
_PRIOR_SERVICE_NS = 2_000.0
# Up to that of an emulated CPU.
_SERVICE_RANGE_NS = (200.0, 300_000.0)
_SATURATION = 0.98
# Below this share the wait says nothing about its bursts.
_RHO_FITTED = 0.05
_HOP_NS = 4_000.0
_NUMA_NS = 2_000.0
_SIBLING_NS = 3_000.0
_USER_NS = 2_000.0
# From the interrupt to the socket, on the fastest kind of core.
_PATH_NS = 5_000.0
_CONSUMER_NS = 5_000.0
_OVERCOMMIT_NS = 1_000_000.0
_MAX_BIAS = 1.5

FloatArray = npt.NDArray[np.float64]

LoadSignature = tuple[frozenset[int], frozenset[int]]
"""The CPUs that are loaded with softirqs, and those with other work."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A delay that is expected."""

    p50_ns: float
    p99_ns: float
    source: str
    """`measured` (there or on a CPU of its kind, lately, under a like load) or `predicted`."""


@dataclass(slots=True)
class CpuState:
    """Smoothed shares of one CPU's time."""

    soft: float = 0.0
    """Softirq and hard interrupts."""
    user: float = 0.0
    """Everything else that is not idle."""
    seen: bool = False


@dataclass(slots=True)
class _Cell:
    """What a lane's delays on one CPU look like under one load, older packets fading."""

    counts: npt.NDArray[np.float64]
    mono_ns: int
    soft: float
    user: float = 0.0
    rate_pps: float = 0.0
    seconds: float = 0.0
    before: npt.NDArray[np.float64] | None = None
    """The counts before the latest tick."""

    @property
    def is_enough(self) -> bool:
        """It has the packets to tell a p99."""
        return bool(self.counts.sum() >= _MIN_PACKETS)

    def quantile_ns(self, p: float) -> float:
        """A quantile of what is expected here. A short look sees few of the bursts that make the p99: the longest delay
        stands for it then."""
        return float(hist_quantile(self.counts, p if p < 0.99 or self.seconds >= _LONG_S else 1.0))


@dataclass(frozen=True, slots=True)
class HookDelay:
    """Delay up to the hook: of a packet that waits for nobody, and quantiles of the wait on the CPU that polls."""

    base_ns: float
    wait50_ns: float
    wait99_ns: float


@dataclass(slots=True)
class LaneRecord:
    """The history of one lane (the queues that one lever moves together)."""

    cells: dict[int, _Cell] = field(default_factory=dict)
    past: dict[int, list[_Cell]] = field(default_factory=dict)
    """CPU → what was measured there under other loads, the latest last."""
    recent: deque[tuple[int, npt.NDArray[np.int64]]] = field(default_factory=deque)
    """(mono ns, growth over all CPUs) of the latest ticks."""
    rate_pps: float = 0.0
    polled: dict[int, float] = field(default_factory=dict)
    """CPU → packets per second at the hook, smoothed: where the queues are polled."""
    hook: FloatArray | None = None
    """Delays up to the hook, fading; only where they are a part of the delays in `cells`."""

    def forget(self) -> None:
        """Drop what was measured: another delay is measured from now on."""
        self.cells.clear()
        self.past.clear()
        self.recent.clear()
        self.hook = None

    def load_moved(self, latest_s: float) -> None:
        """What was measured so far was under another load: it is remembered, but is not what is now.

        The latest tick, of `latest_s`, was under both.
        """
        for cpu, cell in list(self.cells.items()):
            if cell.before is not None:
                cell.counts = cell.before
                cell.seconds = max(0.0, cell.seconds - latest_s)
            self.end_episode(cpu)
        self.recent.clear()
        self.hook = None

    def end_episode(self, cpu: int) -> None:
        """What is measured on a CPU from now on is kept apart from what was; that joins what was like it, and counts
        more than that."""
        cell = self.cells.pop(cpu)
        others = []
        for old in self.past.get(cpu, ()):
            if _alike(old, cell.soft, cell.user):
                cell.counts = cell.counts + _JOINED * old.counts
                cell.seconds += _JOINED * old.seconds
            else:
                others.append(old)
        if cell.counts.any():
            self.past[cpu] = [*others, cell][-_EPISODES:]

    def measured(self) -> Iterator[tuple[int, _Cell]]:
        """(CPU, delays there) under each load that was seen, the present one first."""
        yield from self.cells.items()
        for cpu, cells in self.past.items():
            yield from ((cpu, cell) for cell in reversed(cells))

    def where(self, now_ns: int) -> dict[int, float]:
        """CPU → share of the delays measured lately."""
        weights = {
            cpu: float(cell.counts.sum())
            for cpu, cell in self.cells.items()
            if now_ns - cell.mono_ns < _FRESH_NS
        }
        total = sum(weights.values())
        return (
            {cpu: weight / total for cpu, weight in weights.items() if weight > 0.01 * total} if total else {}
        )

    def now(self, now_ns: int) -> Figures:
        """Delay in the last two seconds, over all CPUs that served the lane."""
        counts = self.lately(now_ns)
        return figures(np.sum(counts, axis=0)[None, :]) if counts else NO_FIGURES

    def lately(self, now_ns: int) -> list[npt.NDArray[np.int64]]:
        """Growth of its histogram in each tick of the last two seconds."""
        return [grown for mono_ns, grown in self.recent if now_ns - mono_ns < _FRESH_NS]

    def poll_cpu(self) -> int | None:
        """The CPU that polls nearly all of the lane's packets; None where several do."""
        total = sum(self.polled.values())
        for cpu, rate in self.polled.items():
            if total > 0 and rate >= 0.9 * total:
                return cpu
        return None

    def hook_delay(self) -> HookDelay | None:
        """The delay up to the hook; None where that is no part of the delays measured."""
        if self.hook is None or self.hook.sum() < _MIN_PACKETS:
            return None
        base, p50, p99 = hist_quantile(self.hook, [_BASE_QUANTILE, 0.5, 0.99])
        return HookDelay(float(base), float(p50 - base), float(p99 - base))


class DelayModel:
    """Learns from each tick, predicts for (lane, CPU)."""

    def __init__(self, topology: CpuTopology) -> None:
        self._topology = topology
        self.cpus: dict[int, CpuState] = {}
        self.service_ns = _PRIOR_SERVICE_NS
        self.log_bias = 0.0
        self._consumers: CpuMask = CpuMask()

    # ---- learning --------------------------------------------------------------------------------------------

    def observe_load(self, load: CpuLoad, consumers: Iterable[CpuMask] = ()) -> None:
        """Take in one difference of CPU times."""
        keep = math.exp(-load.seconds / _LOAD_TAU_S)
        for cpu, share in load.cpus.items():
            state = self.cpus.setdefault(cpu, CpuState())
            soft = share.softirq + share.irq
            user = max(0.0, share.busy - soft)
            if not state.seen:
                # Right after a move its share is known better than from one short step.
                state.soft, state.user, state.seen = state.soft or soft, user, True
            else:
                state.soft = keep * state.soft + (1 - keep) * soft
                state.user = keep * state.user + (1 - keep) * user
        # A consumer that may run anywhere says nothing about where to keep away.
        pinned = [mask for mask in consumers if len(mask) <= 2]
        self._consumers = CpuMask.of(cpu for mask in pinned for cpu in mask)

    def observe_lane(
        self,
        record: LaneRecord,
        queues: Iterable[int],
        delays: Delays,
        packets: Mapping[tuple[int, int], int],
        seconds: float,
        now_ns: int,
        hook_delays: Delays | None = None,
    ) -> npt.NDArray[np.int64] | None:
        """Take in one tick of a lane; returns the growth of its histogram over all CPUs, None without packets.

        `hook_delays`: those up to the hook, where they are a part of `delays`.
        """
        keep = math.exp(-seconds / _DELAY_TAU_S)
        grown: npt.NDArray[np.int64] | None = None
        queue_set = set(queues)
        for (queue, cpu), counts in delays.items():
            if queue not in queue_set:
                continue
            grown = counts if grown is None else grown + counts
            cell = record.cells.get(cpu)
            if cell is not None and now_ns - cell.mono_ns > _FRESH_NS:
                record.end_episode(cpu)
                cell = None
            if cell is None:
                cell = record.cells[cpu] = _Cell(np.zeros(HIST_BUCKETS), 0, 0.0)
            # Cells fade while they are in use; one that fell out of use stays as it was: what is remembered of it.
            if cell.mono_ns != now_ns:
                cell.seconds += seconds
                cell.before = cell.counts
                cell.counts = cell.counts * keep
            cell.counts += counts
            cell.mono_ns = now_ns
            cell.soft, cell.user, cell.rate_pps = self.soft(cpu), self.user(cpu), record.rate_pps
        if grown is not None:
            record.recent.append((now_ns, grown))
            while now_ns - record.recent[0][0] >= _FRESH_NS:
                record.recent.popleft()
        if hook_delays is not None:
            record.hook = np.zeros(HIST_BUCKETS) if record.hook is None else record.hook * keep
            for (queue, _), counts in hook_delays.items():
                if queue in queue_set:
                    record.hook += counts
        self._observe_rate(record, queue_set, packets, seconds)
        return grown

    def _observe_rate(
        self, record: LaneRecord, queues: set[int], packets: Mapping[tuple[int, int], int], seconds: float
    ) -> None:
        if seconds <= 0:
            return
        keep = math.exp(-seconds / _RATE_TAU_S)
        polled: dict[int, float] = {cpu: keep * rate for cpu, rate in record.polled.items() if rate > 1.0}
        for (queue, cpu), n in packets.items():
            if queue in queues:
                polled[cpu] = polled.get(cpu, 0.0) + (1 - keep) * n / seconds
        record.polled = polled
        record.rate_pps = sum(polled.values())

    def learn_service(self, soft_change: float, rate_pps: float) -> None:
        """`rate_pps` came to a CPU (or left it: negative), whose softirq share changed so: what a packet costs."""
        if abs(rate_pps) >= 1_000 and soft_change * rate_pps > 0:
            low, high = _SERVICE_RANGE_NS
            self.service_ns = 0.5 * self.service_ns + 0.5 * min(max(soft_change * 1e9 / rate_pps, low), high)

    def score(self, predicted_ns: float, measured_ns: float) -> float:
        """Learn from a change's outcome; returns the log ratio measured / predicted."""
        ratio = math.log(max(measured_ns, 1.0) / max(predicted_ns, 1.0))
        self.log_bias = min(max(self.log_bias + 0.5 * ratio, -_MAX_BIAS), _MAX_BIAS)
        return ratio

    def load_moved(self, shares: FloatArray) -> None:
        """`shares`: of each CPU's time in softirqs and interrupts now, float64[CPU ids]; what was before is past."""
        for cpu, share in enumerate(shares.tolist()):
            if cpu in self.cpus:
                self.cpus[cpu].soft = share
                self.cpus[cpu].seen = False

    # ---- predicting ------------------------------------------------------------------------------------------

    def soft(self, cpu: int) -> float:
        """Smoothed softirq and interrupt share of a CPU; 0 where never seen."""
        state = self.cpus.get(cpu)
        return state.soft if state else 0.0

    def user(self, cpu: int) -> float:
        """Smoothed share of everything else that is not idle; 0 where never seen."""
        state = self.cpus.get(cpu)
        return state.user if state else 0.0

    def load_signature(self) -> LoadSignature:
        """Which CPUs are loaded with softirqs, and which with other work: what settings are good or bad under."""
        return (
            frozenset(cpu for cpu, state in self.cpus.items() if state.soft >= _LOADED),
            frozenset(cpu for cpu, state in self.cpus.items() if state.user >= _BUSY),
        )

    def own_share(self, record: LaneRecord) -> float:
        """The share of a CPU that serving the lane takes."""
        return min(record.rate_pps * self.service_ns / 1e9, 0.9)

    def base_ns(self, records: Iterable[LaneRecord]) -> float:
        """Delay of a packet that waits for nobody: the smallest 10th percentile on any CPU; 0 where unknown."""
        cells = [cell for record in records for _, cell in record.measured() if cell.counts.any()]
        known = [cell.counts for cell in cells if cell.is_enough] or [cell.counts for cell in cells]
        return float(np.nanmin(hist_quantile(np.array(known), _BASE_QUANTILE))) if known else 0.0

    def residuals(self, records: Iterable[LaneRecord], base_ns: float, now_ns: int) -> dict[int, float]:
        """CPU → residual burst fitted from the delays measured there lately, ns."""
        by_cpu: dict[int, FloatArray] = {}
        before_ns: dict[int, float] = {}
        for record in records:
            for cpu, cell in record.cells.items():
                if now_ns - cell.mono_ns < _FRESH_NS:
                    by_cpu[cpu] = by_cpu.get(cpu, 0.0) + cell.counts
                    hook = record.hook_delay()
                    if hook is not None and cpu != record.poll_cpu():
                        before_ns[cpu] = max(before_ns.get(cpu, 0.0), hook.wait99_ns)
        fitted = {}
        for cpu, counts in by_cpu.items():
            rho = min(self.soft(cpu), _SATURATION)
            if counts.sum() >= _MIN_PACKETS and rho > _RHO_FITTED:
                fitted[cpu] = _residual_ns(
                    float(hist_quantile(counts, 0.99)), base_ns, rho, before_ns.get(cpu, 0.0)
                )
        return fitted

    def predictor(
        self, records: Sequence[LaneRecord], cpus: Sequence[int], node: int | None, now_ns: int
    ) -> Predictor:
        """What the lanes of one interface on NUMA node `node` may expect on these CPUs, from what is known now."""
        base_ns = self.base_ns(records)
        fitted = self.residuals(records, base_ns, now_ns)
        bursts = self._bursts(records, base_ns, fitted)
        states = [self.cpus.get(cpu, CpuState()) for cpu in cpus]
        return Predictor(
            cpus=tuple(cpus),
            soft=np.array([state.soft for state in states]),
            user=np.array([state.user for state in states]),
            residual_ns=np.array([fitted.get(cpu) or _like(bursts, self.soft(cpu)) for cpu in cpus]),
            base_ns=base_ns,
            penalty_ns=np.array([self._penalty_ns(cpu, node) for cpu in cpus]),
            scale=math.exp(self.log_bias),
            now_ns=now_ns,
            kinds=tuple(self._kind(cpu) for cpu in cpus),
        )

    def _kind(self, cpu: int) -> object:
        """CPUs of one kind serve alike: of one node, one capacity, with or without a consumer of their own."""
        own = self._topology.cpus.get(cpu)
        return None if own is None else (own.node, own.capacity, cpu in self._consumers)

    def _bursts(
        self, records: Sequence[LaneRecord], base_ns: float, fitted: Mapping[int, float]
    ) -> list[tuple[float, float]]:
        """(softirq share, residual burst) of all that was fitted, now and under past loads: a load takes its bursts
        along when it moves."""
        bursts = [(self.soft(cpu), residual_ns) for cpu, residual_ns in fitted.items()]
        for record in records:
            for cells in record.past.values():
                for cell in cells:
                    if cell.soft > _RHO_FITTED:
                        bursts.append(
                            (cell.soft, _residual_ns(cell.quantile_ns(0.99), base_ns, cell.soft, 0.0))
                        )
        return bursts

    def _penalty_ns(self, cpu: int, node: int | None) -> float:
        penalty = _USER_NS * self.cpus.get(cpu, CpuState()).user
        if cpu in self._consumers:
            penalty += _CONSUMER_NS
        own = self._topology.cpus.get(cpu)
        if own is None:
            return penalty
        if node is not None and own.node is not None and own.node != node:
            penalty += _NUMA_NS
        penalty += _PATH_NS * (1 / own.capacity - 1)
        for sibling in own.siblings:
            if sibling != cpu:
                state = self.cpus.get(sibling, CpuState())
                penalty += _SIBLING_NS * (state.soft + state.user)
        return penalty


@dataclass(frozen=True, slots=True)
class Handover:
    """Packets are polled by one CPU and handed to another (RPS), or processed where they are polled."""

    poll_cpu: int | None
    """None where several CPUs poll."""
    hook: HookDelay | None
    """None where the delay is measured from the hook on: the polling CPU's load then stands for what is not seen."""


@dataclass(frozen=True, slots=True)
class Predictor:
    """The model at one moment, as arrays over the CPUs that may be chosen."""

    cpus: tuple[int, ...]
    soft: FloatArray
    user: FloatArray
    residual_ns: FloatArray
    base_ns: float
    """Delay without any wait, as far as it was ever seen."""
    penalty_ns: FloatArray
    """What the CPU's place costs: another node, a busy sibling, a consumer there."""
    scale: float
    now_ns: int
    kinds: tuple[object, ...] = ()
    """What a CPU is: those of one kind serve alike."""

    def p99_ns(
        self, record: LaneRecord, arriving: FloatArray, handover: Handover | None, now_p99_ns: float
    ) -> FloatArray:
        """Predicted p99, [CPU, case]; `arriving[CPU, case]`: by how much each CPU's softirq share changes.

        `now_p99_ns`: the lane's, measured where it is.
        """
        rho = np.clip(self.soft[:, None] + arriving, 0.0, _SATURATION)
        p99 = self._no_better_busier(record, rho, self._delay_ns(rho, 0.99, handover), now_p99_ns)
        quantiles: dict[int, float] = {}
        for i in range(len(self.cpus)):
            for case in range(rho.shape[1]):
                cell = self._known(record, i, float(rho[i, case]), handover)
                if cell is None:
                    break  # The further cases are further from what is known.
                if id(cell) not in quantiles:
                    quantiles[id(cell)] = cell.quantile_ns(0.99)
                p99[i, case] = quantiles[id(cell)]
        return p99

    def _no_better_busier(
        self, record: LaneRecord, rho: FloatArray, p99: FloatArray, now_p99_ns: float
    ) -> FloatArray:
        """Where more softirq work is in front of it than where it is, a lane waits no less, whatever the bursts that
        were assumed say: only a measurement could tell."""
        here = sum(
            share * float(self.soft[self.cpus.index(cpu)])
            for cpu, share in record.where(self.now_ns).items()
            if cpu in self.cpus
        )
        busier = rho > here + _LIKE_LOAD
        return np.where(busier, np.fmax(p99, now_p99_ns), p99)

    def estimate(
        self, record: LaneRecord, cpu: int, arriving: float, handover: Handover | None, now_p99_ns: float
    ) -> Estimate:
        """The same for one CPU and case, with p50 and where it is from."""
        i = self.cpus.index(cpu)
        rho = np.clip(self.soft[:, None] + arriving, 0.0, _SATURATION)
        cell = self._known(record, i, float(rho[i, 0]), handover)
        if cell is not None:
            return Estimate(cell.quantile_ns(0.5), cell.quantile_ns(0.99), "measured")
        p50, p99 = (self._delay_ns(rho, p, handover) for p in (0.5, 0.99))
        p99 = self._no_better_busier(record, rho, p99, now_p99_ns)
        return Estimate(float(p50[i, 0]), float(p99[i, 0]), "predicted")

    def _delay_ns(self, rho: FloatArray, p: float, handover: Handover | None) -> FloatArray:
        residual = self.residual_ns[:, None]
        waits = wait_ns(rho, p, residual)
        base: FloatArray | float = self.base_ns
        if handover is not None:
            polls = np.array([cpu == handover.poll_cpu for cpu in self.cpus])[:, None]
            base = np.where(polls, self.base_ns, self.base_ns + _HOP_NS)
            hook = handover.hook
            if hook is not None:
                # Where they are polled they wait once, before the hook, and longer by what the lane's own work adds;
                # handed over they wait twice: of two independent waits the tails add up like their squares.
                before = hook.wait50_ns if p == 0.5 else hook.wait99_ns
                now = wait_ns(np.clip(self.soft[:, None], 0.0, _SATURATION), p, residual)
                longer = np.where(
                    now > 0, before * np.clip(waits / np.maximum(now, 1.0), 1.0, 10.0), before + waits
                )
                waits = np.where(polls, longer, np.hypot(before, waits))
                base = np.where(polls, hook.base_ns, np.minimum(self.base_ns, hook.base_ns + _HOP_NS))
        fixed = base + self.penalty_ns[:, None] + _overcommit_ns(rho, self.user[:, None])
        return np.asarray(self.scale * (fixed + waits))

    def _known(self, record: LaneRecord, i: int, rho: float, handover: Handover | None) -> _Cell | None:
        """What was measured under a load most like that on CPU `i` with a softirq share `rho`.

        What was measured on the CPU itself comes first, then what was on another of its kind: a load that moves makes
        there the delays that it made here. Handed over, a packet's way from another CPU is another one.
        """
        cpu, user = self.cpus[i], float(self.user[i])
        best: tuple[tuple[bool, bool, float], _Cell] | None = None
        for where, cell in record.measured():
            if where != cpu and (handover is not None or self.kinds[i] != self._kind_of(where)):
                continue
            if abs(cell.soft - rho) > _LIKE_LOAD or not self._counts(cell, record):
                continue
            rank = (abs(cell.user - user) > _LIKE_USER, where != cpu, abs(cell.soft - rho))
            if best is None or rank < best[0]:
                best = rank, cell
        return best[1] if best else None

    def _kind_of(self, cpu: int) -> object:
        return self.kinds[self.cpus.index(cpu)] if cpu in self.cpus else None

    def _counts(self, cell: _Cell, record: LaneRecord) -> bool:
        """It is recent, enough, and of a rate like the lane's now, as far as that was known."""
        if self.now_ns - cell.mono_ns >= _REMEMBER_NS or not cell.is_enough:
            return False
        if not cell.rate_pps or not record.rate_pps:
            return True
        return cell.rate_pps <= _LIKE_RATE * record.rate_pps and record.rate_pps <= _LIKE_RATE * cell.rate_pps


def _alike(cell: _Cell, soft: float, user: float) -> bool:
    return abs(cell.soft - soft) <= _LIKE_LOAD and abs(cell.user - user) <= _LIKE_USER


def _residual_ns(p99_ns: float, base_ns: float, rho: float, before_ns: float) -> float:
    """The residual burst that makes a p99 at a softirq share; `before_ns` of it were waited elsewhere."""
    wait = max(p99_ns - base_ns, 0.0)
    # Of packets that were handed over, a part of the wait was on the CPU that polls.
    here = math.sqrt(max(wait**2 - before_ns**2, 0.0))
    residual = here * (1 - rho) / math.log(rho / 0.01)
    return min(max(residual, _RESIDUAL_RANGE_NS[0]), _RESIDUAL_RANGE_NS[1])


def _like(bursts: Sequence[tuple[float, float]], soft: float) -> float:
    """The burst of the load that is most like a softirq share."""
    return min(bursts, key=lambda burst: abs(burst[0] - soft), default=(0.0, _PRIOR_RESIDUAL_NS))[1]


def wait_ns(rho: FloatArray, p: float, residual_ns: FloatArray | float) -> FloatArray:
    """The p-quantile of the wait behind other softirq work, ns (see the head of this file); rho below 1."""
    return np.asarray(residual_ns / (1 - rho) * np.log(np.maximum(rho / (1 - p), 1.0)))


def _overcommit_ns(rho: FloatArray, user: FloatArray) -> FloatArray:
    return np.asarray(_OVERCOMMIT_NS * np.maximum(0.0, rho + user - 1.0))
