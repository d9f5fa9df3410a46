"""Which CPU should serve which queue: the assignment, and why it is, or is not, worth a change."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from agent.control.actuators import Target
from agent.control.assignment import linear_sum_assignment
from agent.control.delaymodel import DelayModel, Estimate, Handover, LaneRecord
from agent.control.quantiles import NO_FIGURES, Figures
from agent.control.quantiles import figures as pool_figures
from agent.host.cpus import CpuTopology
from agent.host.masks import CpuMask

# A change has to promise this much, or more where the measurement is noisier than that.
MIN_GAIN = 0.2
MIN_GAIN_NS = 5_000.0
MIN_PACKETS = 100
# Right after a load came there are few; the interval of their p99 is as wide as they make it.
HURRIED_PACKETS = 20
_IMPOSSIBLE = 1e15


@dataclass(frozen=True, slots=True)
class Lane:
    """The queues of an interface that one lever moves together, as they are when a plan is made."""

    ifname: str
    queues: tuple[int, ...]
    lever: str
    """The actuator that decides where these queues' packets are processed; empty where nothing does."""
    target: Target | None
    measure: str
    """The delay that is optimised: `hw_to_stack`, `xdp_to_stack`, `hw_to_hook`; empty where none is measured."""
    value: bytes
    """The lever's value now."""
    held: str
    """Why it is left alone, in words; empty where it may be moved."""
    record: LaneRecord = field(repr=False)

    @property
    def queue(self) -> int:
        """The first of its queues."""
        return self.queues[0]


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that a plan wants, with what is expected of it."""

    target: Target
    queues: tuple[int, ...]
    before: bytes
    after: bytes
    cpu: int
    now: Figures | None
    expected: Estimate | None

    @property
    def from_text(self) -> str:
        """The value before, as the kernel shows it."""
        return self.before.decode(errors="replace").strip()

    @property
    def to_text(self) -> str:
        """The value wanted, as the kernel will show it."""
        return self.after.decode(errors="replace").strip()


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings wanted for one interface; without changes, why there are none."""

    ifname: str
    changes: tuple[Change, ...]
    reason: str
    decided_by: str
    """The one constraint or figure that decided."""
    now_p99_ns: float = math.nan
    predicted_p99_ns: float = math.nan
    source: str = ""
    """`measured` or `predicted`: lanes move. `coalesce`: they stay, and wait less. `tx`: a plan of transmit queues,
    judged by what it must not harm."""

    @property
    def moves_lanes(self) -> bool:
        """Its changes send lanes to other CPUs."""
        return self.source in ("measured", "predicted")


@dataclass(frozen=True, slots=True)
class LaneReport:
    """One lane for `agent plan`: what is and what would be, also where nothing would change."""

    ifname: str
    queues: tuple[int, ...]
    lever: str
    measure: str
    current: str
    wanted: str
    now: Figures
    expected: Estimate | None
    reason: str
    cause: str = ""
    """What the CPUs that serve it are busy with; empty where that is not traced."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a plan may not do."""

    topology: CpuTopology
    node: int | None
    """NUMA node of the interface."""
    set_aside: Mapping[str, frozenset[bytes]]
    """Setting → values that did not help, and are not due to be tried again."""
    refused_cpus: Mapping[str, frozenset[int]]
    """Setting → CPUs that the kernel did not take for it."""


@dataclass(frozen=True, slots=True)
class _Move:
    lane: Lane
    cpu: int
    value: bytes
    expected: Estimate


def plan_interface(
    ifname: str,
    lanes: Sequence[Lane],
    model: DelayModel,
    limits: Limits,
    now_ns: int,
    *,
    hurried: bool = False,
) -> Plan:
    """Assign the interface's lanes to CPUs by predicted p99, weighted by their packet rates.

    A lane keeps its place unless another promises at least `MIN_GAIN` and `MIN_GAIN_NS`; a CPU that takes several lanes
    gets dearer with each. The assignment is solved by SciPy's `linear_sum_assignment` over CPUs repeated as often as
    they may be used, then predicted again as a whole, since moved load loads its new CPU.

    `hurried`: a load has just come. Few packets are enough then, and those of all lanes of a CPU count for each: what
    delays one delays the others too.
    """
    movable = [lane for lane in lanes if not lane.held and lane.target is not None and lane.measure]
    if not movable:
        return _nothing(ifname, _why_none_movable(lanes), "no lever")
    cpus = list(limits.topology.usable)
    if len(limits.topology.online) < 2:
        return _nothing(ifname, "one CPU is online: there is nowhere else to process packets", "single CPU")
    if not cpus:
        return _nothing(ifname, "every online CPU is isolated or nohz_full", "isolated CPUs")
    figures = {lane.queue: lane.record.now(now_ns) for lane in movable}
    if hurried:
        figures = _pooled(movable, now_ns)
    least = HURRIED_PACKETS if hurried else MIN_PACKETS
    ready = [lane for lane in movable if figures[lane.queue].n >= least]
    if not ready:
        most = max(figure.n for figure in figures.values())
        return _nothing(
            ifname, f"too few packets to tell: {most} measured lately, {least} wanted", "too few packets"
        )
    chooser = _Chooser(ready, figures, cpus, model, limits, now_ns)
    moves = chooser.moves()
    worth, best = [], 0.0
    for move in moves:
        figure = figures[move.lane.queue]
        gain = figure.p99_ns - move.expected.p99_ns
        best = max(best, gain / figure.p99_ns)
        # Beyond noise: below the interval of what is measured. Its upper end says nothing against moving away.
        certain = move.expected.p99_ns < figure.p99_low_ns
        if certain and gain >= MIN_GAIN * figure.p99_ns and gain >= MIN_GAIN_NS:
            worth.append(move)
    now_p99 = _weighted([(lane.record.rate_pps, figures[lane.queue].p99_ns) for lane in ready])
    if not worth:
        return _nothing(ifname, _why_not_worth(moves, best, figures), "hysteresis", now_p99)
    changes = tuple(
        Change(
            target=move.lane.target,
            queues=move.lane.queues,
            before=move.lane.value,
            after=move.value,
            cpu=move.cpu,
            now=figures[move.lane.queue],
            expected=move.expected,
        )
        for move in worth
        if move.lane.target is not None
    )
    moved_now = _weighted([(move.lane.record.rate_pps, figures[move.lane.queue].p99_ns) for move in worth])
    predicted = _weighted([(move.lane.record.rate_pps, move.expected.p99_ns) for move in worth])
    source = "measured" if all(move.expected.source == "measured" for move in worth) else "predicted"
    return Plan(ifname, changes, _describe(worth), _loads(worth, model, now_ns), moved_now, predicted, source)


def _pooled(lanes: Sequence[Lane], now_ns: int) -> dict[int, Figures]:
    """First queue of a lane → delay of all packets that were processed where it is, lately.

    A lane that had none is where the others are: the load holds them up.
    """
    where = {}
    for lane in lanes:
        shares = lane.record.where(now_ns)
        where[lane.queue] = max(shares, key=lambda cpu: shares[cpu]) if shares else None
    known = [cpu for cpu in where.values() if cpu is not None]
    usual = max(known, key=known.count) if known else None
    by_cpu: dict[int | None, list[npt.NDArray[np.int64]]] = {}
    for lane in lanes:
        cpu = where[lane.queue] if where[lane.queue] is not None else usual
        where[lane.queue] = cpu
        by_cpu.setdefault(cpu, []).extend(lane.record.lately(now_ns))
    figure = {
        cpu: pool_figures(np.sum(rows, axis=0)[None, :]) if rows else NO_FIGURES
        for cpu, rows in by_cpu.items()
    }
    return {lane.queue: figure[where[lane.queue]] for lane in lanes}


class _Chooser:
    """The assignment problem of one interface."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        figures: Mapping[int, Figures],
        cpus: list[int],
        model: DelayModel,
        limits: Limits,
        now_ns: int,
    ) -> None:
        self._lanes = lanes
        self._figures = figures
        self._model = model
        self._limits = limits
        self._now_ns = now_ns
        self._own = [model.own_share(lane.record) for lane in lanes]
        self._where = [lane.record.where(now_ns) for lane in lanes]
        # On a large host the least loaded CPUs are enough to choose from.
        self._cpus = sorted(cpus, key=model.soft)[: max(64, 2 * len(lanes))]
        self._predictor = model.predictor([lane.record for lane in lanes], self._cpus, limits.node, now_ns)

    def moves(self) -> list[_Move]:
        """The lanes that a joint assignment would move, with what is predicted when all of them move."""
        lanes, cpus = self._lanes, self._cpus
        repeat = min(len(lanes), max(16, 2 * -(-len(lanes) // len(cpus))))
        columns = len(cpus) * repeat
        cost = np.full((len(lanes), columns + len(lanes)), _IMPOSSIBLE)
        further = np.arange(repeat) * (sum(self._own) / len(self._own))
        for i, lane in enumerate(lanes):
            weight = max(lane.record.rate_pps, 1.0)
            here = np.array([self._where[i].get(cpu, 0.0) for cpu in cpus])
            arriving = self._own[i] * (1 - here)[:, None] + further[None, :]
            p99 = self._predictor.p99_ns(
                lane.record, arriving, self._handover(lane), self._figures[lane.queue].p99_ns
            )
            p99[~self._options(lane)] = np.inf
            cost[i, :columns] = np.minimum(weight * p99, _IMPOSSIBLE).ravel()
            stay = self._figures[lane.queue].p99_ns
            cost[i, columns + i] = weight * max(0.0, min(stay * (1 - MIN_GAIN), stay - MIN_GAIN_NS))
        rows, chosen = linear_sum_assignment(cost)
        picked = {int(i): cpus[int(j) // repeat] for i, j in zip(rows, chosen, strict=True) if j < columns}
        return self._together(picked)

    def _together(self, picked: dict[int, int]) -> list[_Move]:
        """Predict each moved lane again under the load that all moves bring."""
        arriving: dict[int, float] = {}
        for i, cpu in picked.items():
            arriving[cpu] = arriving.get(cpu, 0.0) + self._own[i]
            for old, share in self._where[i].items():
                arriving[old] = arriving.get(old, 0.0) - share * self._own[i]
        moves = []
        for i, cpu in sorted(picked.items()):
            lane = self._lanes[i]
            expected = self._predictor.estimate(
                lane.record,
                cpu,
                arriving.get(cpu, 0.0),
                self._handover(lane),
                self._figures[lane.queue].p99_ns,
            )
            moves.append(_Move(lane, cpu, self._value(lane, cpu), expected))
        return moves

    @staticmethod
    def _handover(lane: Lane) -> Handover | None:
        return Handover(lane.record.poll_cpu(), lane.record.hook_delay()) if lane.lever == "rps" else None

    def _options(self, lane: Lane) -> npt.NDArray[np.bool_]:
        """The CPUs that the lane may be sent to. Where it is now is none of them: staying has a column of its own."""
        assert lane.target is not None
        setting = lane.target.setting.target
        excluded = set(self._limits.refused_cpus.get(setting, ()))
        mask = CpuMask.parse_mask(lane.value)
        poll_cpu = lane.record.poll_cpu()
        if len(mask) == 1:
            excluded |= set(mask)
        elif not mask and poll_cpu is not None:
            excluded.add(poll_cpu)
        set_aside = self._limits.set_aside.get(setting)
        if set_aside:
            excluded |= {cpu for cpu in self._cpus if self._value(lane, cpu).strip() in set_aside}
        return np.array([cpu not in excluded for cpu in self._cpus])

    def _value(self, lane: Lane, cpu: int) -> bytes:
        """The lever's value for a CPU. RPS to the CPU that polls anyway is a detour: it is switched off instead."""
        mask = CpuMask.of([cpu])
        if lane.lever == "rps" and lane.record.poll_cpu() == cpu:
            mask = CpuMask()
        return mask.format_like(lane.value).encode() + b"\n"


def report_lanes(lanes: Sequence[Lane], plan: Plan, now_ns: int) -> list[LaneReport]:
    """Every lane of the plan's interface, with the change that the plan has for it, or the reason why it has none."""
    changes = {change.queues: change for change in plan.changes if plan.moves_lanes}
    reports = []
    for lane in lanes:
        change = changes.get(lane.queues)
        current = lane.value.decode(errors="replace").strip()
        reports.append(
            LaneReport(
                ifname=lane.ifname,
                queues=lane.queues,
                lever=lane.lever,
                measure=lane.measure,
                current=current,
                wanted=change.to_text if change else current,
                now=lane.record.now(now_ns),
                expected=change.expected if change else None,
                reason=lane.held or plan.reason,
            )
        )
    return reports


def render_reports(reports: Sequence[LaneReport]) -> str:
    """The reports as a text table for people, a line a lane; below it what its CPUs are busy with."""
    rows = [("queue", "lever", "now", "wanted", "p50/p99 now", "p50/p99 then", "why")]
    for report in reports:
        queues = ",".join(str(queue) for queue in report.queues)
        expected = (
            f"{_us(report.expected.p50_ns)}/{_us(report.expected.p99_ns)} us" if report.expected else "-"
        )
        now = f"{_us(report.now.p50_ns)}/{_us(report.now.p99_ns)} us" if report.now.n else "-"
        lever = report.lever or "none"
        rows.append(
            (
                f"{report.ifname}:{queues}",
                lever,
                report.current or "-",
                report.wanted or "-",
                now,
                expected,
                report.reason,
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    ]
    for position, report in reversed(list(enumerate(reports, start=1))):
        if report.cause:
            lines.insert(position + 1, f"    {report.cause}")
    return "\n".join(lines)


def _nothing(ifname: str, reason: str, decided_by: str, now_p99_ns: float = math.nan) -> Plan:
    return Plan(ifname, (), reason, decided_by, now_p99_ns)


def _why_none_movable(lanes: Sequence[Lane]) -> str:
    for lane in lanes:
        if lane.held:
            return lane.held
    if any(not lane.measure for lane in lanes):
        return "no delay is measured that a lever of this interface would change"
    return "no actuator moves this interface's queues"


def _why_not_worth(moves: Sequence[_Move], best: float, figures: Mapping[int, Figures]) -> str:
    if not moves:
        return "every queue is where its predicted p99 is lowest, within the hysteresis"
    if best < MIN_GAIN:
        return f"best predicted gain {best:.0%}, below the {MIN_GAIN:.0%} that it takes"
    low = max(figures[move.lane.queue].p99_low_ns for move in moves)
    return f"best predicted gain {best:.0%}, but not beyond noise: p99 may be as low as {_us(low)} us now"


def _describe(moves: Sequence[_Move]) -> str:
    queues = ",".join(str(queue) for move in moves for queue in move.lane.queues)
    cpus = CpuMask.of(move.cpu for move in moves)
    return f"queue{'s' if len(moves) > 1 else ''} {queues} to CPU {cpus}"


def _loads(moves: Sequence[_Move], model: DelayModel, now_ns: int) -> str:
    cpus = {move.cpu for move in moves}
    for move in moves:
        cpus |= set(move.lane.record.where(now_ns))
    shares = ", ".join(f"CPU {cpu} {model.soft(cpu):.0%}" for cpu in sorted(cpus)[:8])
    return f"softirq share: {shares}"


def _weighted(pairs: Sequence[tuple[float, float]]) -> float:
    weight = sum(max(rate, 1.0) for rate, _ in pairs)
    return sum(max(rate, 1.0) * value for rate, value in pairs) / weight


def _us(value_ns: float) -> str:
    return "-" if math.isnan(value_ns) else f"{value_ns / 1000:.1f}"
