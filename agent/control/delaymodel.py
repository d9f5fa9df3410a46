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
from collections.abc import Iterable, Mapping, Sequence
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
_LIKE_LOAD = 0.1
_MIN_PACKETS = 100
_BASE_QUANTILE = 0.1
_PRIOR_RESIDUAL_NS = 30_000.0
_RESIDUAL_RANGE_NS = (3_000.0, 5_000_000.0)
_PRIOR_SERVICE_NS = 2_000.0
# Up to that of an emulated CPU.
_SERVICE_RANGE_NS = (200.0, 300_000.0)
_SATURATION = 0.98
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


@dataclass(frozen=True, slots=True)
class Estimate:
    """A delay that is expected."""

    p50_ns: float
    p99_ns: float
    source: str
    """`measured` (there, lately, under a like load) or `predicted`."""


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
    """What a lane's delays on one CPU look like, older packets fading."""

    counts: npt.NDArray[np.float64]
    mono_ns: int
    soft: float


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
        self.recent.clear()
        self.hook = None

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
        counts = [grown for mono_ns, grown in self.recent if now_ns - mono_ns < _FRESH_NS]
        return figures(np.sum(counts, axis=0)[None, :]) if counts else NO_FIGURES

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
                state.soft, state.user, state.seen = soft, user, True
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
            if cell is None or now_ns - cell.mono_ns > _FRESH_NS:
                cell = record.cells[cpu] = _Cell(np.zeros(HIST_BUCKETS), 0, 0.0)
            # Cells fade while they are in use; one that fell out of use stays as it was: what is remembered of it.
            if cell.mono_ns != now_ns:
                cell.counts *= keep
            cell.counts += counts
            cell.mono_ns = now_ns
            cell.soft = self.soft(cpu)
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

    # ---- predicting ------------------------------------------------------------------------------------------

    def soft(self, cpu: int) -> float:
        """Smoothed softirq and interrupt share of a CPU; 0 where never seen."""
        state = self.cpus.get(cpu)
        return state.soft if state else 0.0

    def own_share(self, record: LaneRecord) -> float:
        """The share of a CPU that serving the lane takes."""
        return min(record.rate_pps * self.service_ns / 1e9, 0.9)

    def base_ns(self, records: Iterable[LaneRecord]) -> float:
        """Delay of a packet that waits for nobody: the smallest 10th percentile on any CPU; 0 where unknown."""
        cells = [
            cell.counts
            for record in records
            for cell in record.cells.values()
            if cell.counts.sum() >= _MIN_PACKETS
        ]
        return float(np.nanmin(hist_quantile(np.array(cells), _BASE_QUANTILE))) if cells else 0.0

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
            if counts.sum() >= _MIN_PACKETS and rho > 0.05:
                wait = max(float(hist_quantile(counts, 0.99)) - base_ns, 0.0)
                # Of packets that were handed over, a part of the wait was on the CPU that polls.
                here = math.sqrt(max(wait**2 - before_ns.get(cpu, 0.0) ** 2, 0.0))
                residual = here * (1 - rho) / math.log(rho / 0.01)
                fitted[cpu] = min(max(residual, _RESIDUAL_RANGE_NS[0]), _RESIDUAL_RANGE_NS[1])
        return fitted

    def predictor(
        self, records: Sequence[LaneRecord], cpus: Sequence[int], node: int | None, now_ns: int
    ) -> Predictor:
        """What the lanes of one interface on NUMA node `node` may expect on these CPUs, from what is known now."""
        base_ns = self.base_ns(records)
        fitted = self.residuals(records, base_ns, now_ns)
        usual = float(np.median(list(fitted.values()))) if fitted else _PRIOR_RESIDUAL_NS
        states = [self.cpus.get(cpu, CpuState()) for cpu in cpus]
        return Predictor(
            cpus=tuple(cpus),
            soft=np.array([state.soft for state in states]),
            user=np.array([state.user for state in states]),
            residual_ns=np.array([fitted.get(cpu, usual) for cpu in cpus]),
            base_ns=base_ns,
            penalty_ns=np.array([self._penalty_ns(cpu, node) for cpu in cpus]),
            scale=math.exp(self.log_bias),
            now_ns=now_ns,
        )

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

    def p99_ns(self, record: LaneRecord, arriving: FloatArray, handover: Handover | None) -> FloatArray:
        """Predicted p99, [CPU, case]; `arriving[CPU, case]`: by how much each CPU's softirq share changes."""
        rho = np.clip(self.soft[:, None] + arriving, 0.0, _SATURATION)
        p99 = self._delay_ns(rho, 0.99, handover)
        for i, cpu in enumerate(self.cpus):
            cell = record.cells.get(cpu)
            if cell is not None and self._is_known(cell):
                measured = float(hist_quantile(cell.counts, 0.99))
                p99[i] = np.where(np.abs(rho[i] - cell.soft) <= _LIKE_LOAD, measured, p99[i])
        return p99

    def estimate(self, record: LaneRecord, cpu: int, arriving: float, handover: Handover | None) -> Estimate:
        """The same for one CPU and case, with p50 and where it is from."""
        i = self.cpus.index(cpu)
        rho = np.clip(self.soft[:, None] + arriving, 0.0, _SATURATION)
        cell = record.cells.get(cpu)
        if cell is not None and self._is_known(cell) and abs(float(rho[i, 0]) - cell.soft) <= _LIKE_LOAD:
            p50, p99 = hist_quantile(cell.counts, [0.5, 0.99])
            return Estimate(float(p50), float(p99), "measured")
        p50, p99 = (float(self._delay_ns(rho, p, handover)[i, 0]) for p in (0.5, 0.99))
        return Estimate(p50, p99, "predicted")

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

    def _is_known(self, cell: _Cell) -> bool:
        return self.now_ns - cell.mono_ns < _REMEMBER_NS and bool(cell.counts.sum() >= _MIN_PACKETS)


def wait_ns(rho: FloatArray, p: float, residual_ns: FloatArray | float) -> FloatArray:
    """The p-quantile of the wait behind other softirq work, ns (see the head of this file); rho below 1."""
    return np.asarray(residual_ns / (1 - rho) * np.log(np.maximum(rho / (1 - p), 1.0)))


def _overcommit_ns(rho: FloatArray, user: FloatArray) -> FloatArray:
    return np.asarray(_OVERCOMMIT_NS * np.maximum(0.0, rho + user - 1.0))
