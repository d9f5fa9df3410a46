"""The controller: each tick learns; now and then one plan is applied, judged, and kept or undone."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from agent.control.actuators import Actuator, Outcome, Target, allowed_actuators, make_actuators
from agent.control.coalesce import plan_coalesce
from agent.control.delaymodel import DelayModel, LaneRecord, LoadSignature
from agent.control.events import ChangeEvent, ConflictEvent, EffectEvent, Event, PlanEvent
from agent.control.guard import Guard, TickSample, Timing, Verdict
from agent.control.journal import Journal, Restored
from agent.control.observation import Delays, InterfaceObservation, Observation
from agent.control.plan import (
    MIN_PACKETS,
    Change,
    Lane,
    LaneReport,
    Limits,
    Plan,
    plan_interface,
    report_lanes,
)
from agent.control.quantiles import NO_FIGURES
from agent.control.settings import Setting, is_gone, kind_of
from agent.control.txplan import TxUsage, plan_tx
from agent.host.activity import IrqActivity, why_slow
from agent.host.masks import CpuMask
from agent.host.model import Host, Interface
from agent.host.processes import OTHER_OWNERS, running

_PLAN_NS = 500_000_000
_IDLE_PLAN_NS = 1_000_000_000
# Planning takes longer with many queues and CPUs; it is then done as rarely as keeps it below 1 % of a core.
_PLAN_SHARE = 100
_PLAN_MAX_NS = 2_000_000_000
_BASELINE_NS = 1_000_000_000
_HISTORY_NS = 2_500_000_000
_REST_NS = 1_000_000_000
# A plan has to be wanted this often in a row.
_SUSTAINED = 2
_SILENT_NS = 3_000_000_000
_HOLD_OFF_NS = 600_000_000_000
_SET_ASIDE_NS = 30_000_000_000
_SET_ASIDE_MAX_NS = 1_800_000_000_000
# A change whose interface shows no tick any more is undone after this.
_VANISHED_NS = 5_000_000_000
# After a load came, a plan that promises to divide p99 by this is applied at once; no plan is looked for longer than
# this, and then it goes on as ever.
_HURRY_GAIN = 2.0
_HURRY_NS = 150_000_000
# Answers in a hurry that gain nothing, so many in a row, are paused for this time, then for twice that: what comes and
# goes in bursts is no load that moved.
_HURRIED_IN_VAIN = 2
_HURRY_PAUSE_NS = 30_000_000_000
_HURRY_PAUSE_MAX_NS = 600_000_000_000
# An idea that was put aside is not any more where p99 now is above that under it by this factor.
_REGRET = 2.0
_UNMEASURED = (NO_FIGURES, NO_FIGURES)

# Which delay shows what a lever does, best first. From the hook to the stack only the handing over (RPS) is seen; what
# comes before, where the polling CPU's own load shows, needs the hardware stamp.
_MEASURES = {
    "rps": ("hw_to_stack", "xdp_to_stack"),
    "irq": ("hw_to_stack", "hw_to_hook"),
    "napi": ("hw_to_stack", "hw_to_hook"),
    # No lever of its own: what coalescing, the interface's, does shows there as well.
    "": ("hw_to_stack", "hw_to_hook"),
}

_Idea = tuple[str, bytes, LoadSignature]
"""A setting, its value, and the load then: what did not help under one load may under another."""


@dataclass(frozen=True, slots=True)
class _SetAside:
    """An idea that did not help."""

    until_ns: int
    delay_ns: int
    harmful: bool
    """It made something worse, and was not only of no use."""
    p99_ns: float
    """Delay under it; NaN where it was not measured, or where another one than this was harmed."""


@dataclass(slots=True)
class _LaneState:
    """One lane over time."""

    queues: tuple[int, ...]
    targets: dict[str, Target]
    """Actuator name → this lane's target."""
    lever: str = ""
    measure: str = ""
    value: bytes = b""
    held_until_ns: int = 0
    record: LaneRecord = field(default_factory=LaneRecord)


@dataclass(slots=True)
class _InterfaceState:
    """One interface over time."""

    interface: Interface
    lanes: list[_LaneState]
    tx_targets: dict[int, Target]
    coalesce: Target | None = None
    """Its coalescing, if that may be changed."""
    tx: TxUsage = field(default_factory=TxUsage)
    history: deque[tuple[int, TickSample]] = field(default_factory=deque)
    seen_ns: dict[str, int] = field(default_factory=dict)
    """Measure → when it last had packets."""
    plan: Plan | None = None
    wanted: frozenset[str] = frozenset()
    wanted_times: int = 0
    told: tuple[object, ...] = ()


class Controller:
    """Plans for all watched interfaces; one change set in flight at a time.

    Give `tick` one `Observation` a tick (any period; about 100 ms is meant), and call `close` at the end, whatever
    ended the run: it puts back every setting that was changed here. The journals are the caller's to close.
    """

    def __init__(
        self,
        host: Host,
        journals: Mapping[str, Journal],
        *,
        allow: Iterable[str] = (),
        deny: Iterable[str] = (),
        observe_only: bool = False,
        timing: Timing | None = None,
        cpu_time_ns: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        """`journals` by interface name; not needed for `observe_only`, which writes nothing. `cpu_time_ns` tells what
        planning costs: plans are spaced by it.

        Raises `UsageError` for actuator names that are not there.
        """
        self._host = host
        self._journals = journals
        self._observe_only = observe_only
        self._cpu_time_ns = cpu_time_ns
        self._actuators = make_actuators(host, allowed_actuators(allow, deny))
        self._model = DelayModel(host.topology)
        self._guard = Guard(timing)
        self._in_flight: tuple[int, _InterfaceState, list[tuple[Change, Outcome]]] | None = None
        self._interfaces = {leaf.name: self._state(leaf) for leaf in host.leaves()}
        self._known: dict[Setting, bytes] = {}
        self._unmanageable: dict[Setting, str] = {}
        self._refused_cpus: dict[str, frozenset[int]] = {}
        self._set_aside: dict[_Idea, _SetAside] = {}
        self._written: dict[str, set[Setting]] = {}
        self._plans = 0
        self._activity: IrqActivity | None = None
        self._last_ns = 0
        self._flight_seen_ns = 0
        self._next_plan_ns = 0
        self._hurry_until_ns = self._no_hurry_until_ns = 0
        self._hurried_in_vain = 0
        self._level = "full"
        self.notes: list[str] = self._beginning()
        for state in self._interfaces.values():
            for lane in state.lanes:
                self._refresh(state, lane, [], 0)

    # ---- the tick --------------------------------------------------------------------------------------------

    def tick(self, observation: Observation, now_ns: int) -> list[Event]:
        """Learn from a tick, judge what is in flight, else plan if it is time. Returns what happened."""
        seconds = (now_ns - self._last_ns) / 1e9 if self._last_ns else 0.0
        if not self._last_ns:
            self._next_plan_ns = now_ns + _BASELINE_NS
        self._last_ns = now_ns
        self._model.observe_load(observation.load, observation.consumers.values())
        self._activity = observation.activity
        samples = {
            name: self._learn(state, seen, observation, seconds, now_ns)
            for name, seen in observation.interfaces.items()
            if (state := self._interfaces.get(name)) is not None
        }
        if self._level in ("frozen", "safe"):
            return []
        events: list[Event] = []
        if now_ns >= self._hurry_until_ns:
            self._hurry_until_ns = 0
        if self._in_flight is not None:
            sample = samples.get(self._in_flight[1].interface.name)
            if sample is not None:
                self._flight_seen_ns = now_ns
                self._watch_flight(sample, events, now_ns)
            elif now_ns - self._flight_seen_ns > _VANISHED_NS:
                self._abandon("its interface is gone", events, now_ns)
        elif now_ns >= self._next_plan_ns or self.hurried:
            began_ns = self._cpu_time_ns()
            for state in self._interfaces.values():
                self._consider(state, events, now_ns)
                if self._in_flight is not None:
                    break
            cost_ns = self._cpu_time_ns() - began_ns
            is_wanted = any(state.wanted for state in self._interfaces.values())
            usual_ns = _PLAN_NS if is_wanted else _IDLE_PLAN_NS
            self._next_plan_ns = now_ns + min(max(usual_ns, _PLAN_SHARE * cost_ns), _PLAN_MAX_NS)
        return events

    @property
    def in_flight(self) -> bool:
        """A change is being judged: each tick is wanted."""
        return self._in_flight is not None

    @property
    def hurried(self) -> bool:
        """A load has just moved, and is not answered yet: more ticks are wanted than usual."""
        return self._hurry_until_ns > 0

    def load_moved(self, shares: npt.NDArray[np.float64], now_ns: int) -> list[Event]:
        """A load came to a CPU that serves a queue: call it before the first tick that was under the new load whole.

        `shares`: of each CPU's time in softirqs and interrupts now, float64[CPU ids]. What was measured before counts
        as past; a change in flight cannot be told from the load any more, and is undone. The next tick plans at once.
        """
        events: list[Event] = []
        if self._in_flight is not None:
            if self._guard.hurried:
                self._count_hurried(False, now_ns)
            self._abandon("the load moved meanwhile", events, now_ns)
        self._model.load_moved(shares)
        for state in self._interfaces.values():
            latest_s = state.history[-1][1].seconds if state.history else 0.0
            state.history.clear()
            for lane in state.lanes:
                lane.record.load_moved(latest_s)
        if self._level not in ("frozen", "safe") and now_ns >= self._no_hurry_until_ns:
            self._hurry_until_ns = now_ns + _HURRY_NS
        return events

    def set_level(self, level: str, now_ns: int) -> list[Event]:
        """Follow the degrade ladder: `frozen` undoes what is in flight and plans no more, `safe` undoes everything."""
        events: list[Event] = []
        if level in ("frozen", "safe") and self._in_flight is not None:
            self._abandon(f"degraded to {level}", events, now_ns)
        if level == "safe" and self._level != "safe":
            events += [_restored_event(item, now_ns) for item in self._restore()]
        if self._level in ("frozen", "safe") and level not in ("frozen", "safe"):
            self._next_plan_ns = now_ns + _REST_NS
        self._level = level
        return events

    def explain(self, now_ns: int) -> list[LaneReport]:
        """Every lane: current → wanted by the latest plan, what is predicted, and why, also where nothing changes."""
        reports = []
        for name, state in self._interfaces.items():
            lanes = self._lanes(state, [], now_ns)
            plan = state.plan or Plan(name, (), "nothing was measured yet", "too few packets")
            for lane, report in zip(lanes, report_lanes(lanes, plan, now_ns), strict=True):
                reports.append(replace(report, cause=self._cause(state, lane.queues, now_ns)))
        return reports

    def close(self, *, keep: bool = False) -> list[Restored]:
        """Put back everything that was changed here, newest first; with `keep`, leave what was kept (and journaled).

        A change in flight is undone in any case. Values that somebody changed meanwhile are left to them, and said.
        """
        if self._in_flight is not None:
            self._abandon("the run ends", [], self._last_ns)
        return [] if keep else self._restore()

    # ---- learning --------------------------------------------------------------------------------------------

    def _learn(
        self,
        state: _InterfaceState,
        seen: InterfaceObservation,
        observation: Observation,
        seconds: float,
        now_ns: int,
    ) -> TickSample:
        delays = _by_measure(seen)
        for measure, rows in delays.items():
            if rows:
                state.seen_ns[measure] = now_ns
        grown = {}
        disturbed = False
        for lane in state.lanes:
            self._follow_measure(state, lane, now_ns)
            from_stamp = lane.measure != "xdp_to_stack"
            disturbed = disturbed or (from_stamp and seen.clock_disturbed)
            handed_over = lane.lever == "rps" and from_stamp and not seen.hook_is_stack
            counts = self._model.observe_lane(
                lane.record,
                lane.queues,
                {} if disturbed else delays.get(lane.measure, {}),
                seen.packets,
                seconds,
                now_ns,
                seen.hook_delays if handed_over and not disturbed else None,
            )
            if counts is not None:
                grown[lane.queues[0]] = counts
        if seen.tx_packets is not None:
            state.tx.observe(seen.tx_packets, seconds)
        drops = observation.load.drops
        sample = TickSample(
            seconds=seconds,
            lanes=grown,
            lost=drops.lost,
            out_of_order=drops.tcp_out_of_order + seen.reordered,
            cpus=observation.load.cpus,
            disturbed=disturbed,
            waiting_bytes=observation.waiting_bytes,
            tx_shared=state.tx.shared,
            irq_rate=_irq_rate(state.interface, observation),
        )
        state.history.append((now_ns, sample))
        while state.history[0][0] < now_ns - _HISTORY_NS:
            state.history.popleft()
        return sample

    def _follow_measure(self, state: _InterfaceState, lane: _LaneState, now_ns: int) -> None:
        """Measure the best delay that has packets; not while a change is judged by another."""
        if self._in_flight is not None and lane.measure:
            return
        best = next(
            (
                measure
                for measure in _MEASURES.get(lane.lever, ())
                if measure in state.seen_ns and now_ns - state.seen_ns[measure] <= _SILENT_NS
            ),
            "",
        )
        if best and best != lane.measure:
            lane.measure = best
            lane.record.forget()
            state.history.clear()

    # ---- planning --------------------------------------------------------------------------------------------

    def _consider(self, state: _InterfaceState, events: list[Event], now_ns: int) -> None:
        """Make a plan for an interface; apply it if it was wanted before, and there is enough to compare with."""
        lanes = self._lanes(state, events, now_ns)
        limits = Limits(
            self._host.topology,
            state.interface.numa_node,
            self._set_aside_now(now_ns, _p99_now(lanes, now_ns)),
            self._refused_cpus,
        )
        plan = plan_interface(state.interface.name, lanes, self._model, limits, now_ns, hurried=self.hurried)
        if not plan.changes and state.tx.shared:
            plan = self._plan_tx(state, now_ns) or plan
        if not plan.changes and state.coalesce is not None:
            plan = self._plan_coalesce(state, lanes, state.coalesce, events, now_ns) or plan
        state.plan = plan
        # Among CPUs that are as good, the values may differ from plan to plan; the queues to be moved should not.
        wanted = frozenset(change.target.setting.target for change in plan.changes)
        state.wanted_times = state.wanted_times + 1 if wanted & state.wanted else 1
        state.wanted = wanted
        if not plan.changes or self._observe_only:
            self._tell(state, plan, events, now_ns)
            return
        seconds = sum(sample.seconds for _, sample in state.history)
        is_sure = state.wanted_times >= _SUSTAINED and seconds * 1e9 >= _BASELINE_NS
        is_urgent = self.hurried and plan.moves_lanes
        if is_sure or (is_urgent and _HURRY_GAIN * plan.predicted_p99_ns <= plan.now_p99_ns):
            self._apply(state, plan, events, now_ns)

    def _plan_tx(self, state: _InterfaceState, now_ns: int) -> Plan | None:
        targets = {}
        for queue, target in state.tx_targets.items():
            try:
                targets[queue] = (target, self._actuators["xps"].read(target))
            except OSError:
                continue
        plan = plan_tx(state.interface.name, state.tx, targets, self._host.topology)
        return plan if plan.changes and not self._is_blocked(plan, now_ns) else None

    def _plan_coalesce(
        self,
        state: _InterfaceState,
        lanes: list[Lane],
        target: Target,
        events: list[Event],
        now_ns: int,
    ) -> Plan | None:
        try:
            value = self._actuators[target.actuator].read(target)
        except OSError:
            return None
        if self._changed_by_others(state, target, value, events, now_ns):
            state.coalesce = None
            return None
        plan = plan_coalesce(state.interface.name, lanes, target, value, self._model, now_ns)
        return plan if plan is not None and not self._is_blocked(plan, now_ns) else None

    def _is_blocked(self, plan: Plan, now_ns: int) -> bool:
        """One of its settings is unmanageable, or the value did not help lately."""
        set_aside = self._set_aside_now(now_ns, {})
        return any(
            change.target.setting in self._unmanageable
            or change.after.strip() in set_aside.get(change.target.setting.target, ())
            for change in plan.changes
        )

    def _tell(self, state: _InterfaceState, plan: Plan, events: list[Event], now_ns: int) -> None:
        told = (plan.decided_by if not plan.changes else "", state.wanted)
        if told == state.told:
            return
        state.told = told
        events.append(self._plan_event(plan, applied=False, now_ns=now_ns))

    def _plan_event(self, plan: Plan, *, applied: bool, now_ns: int) -> PlanEvent:
        self._plans += 1
        state = self._interfaces[plan.ifname]
        queues = {queue for change in plan.changes for queue in change.queues}
        everyone = {queue.index for queue in state.interface.queues}
        return PlanEvent(
            mono_ns=now_ns,
            ifname=plan.ifname,
            plan=self._plans,
            decided_by=plan.decided_by,
            reason=plan.reason,
            applied=applied,
            now_p99_ns=plan.now_p99_ns,
            predicted_p99_ns=plan.predicted_p99_ns,
            changes=plan.changes,
            cause=self._cause(state, queues or everyone, now_ns),
        )

    def _cause(self, state: _InterfaceState, queues: Collection[int], now_ns: int) -> str:
        """What the CPUs that serve some queues are busy with, and how often these interrupt."""
        if self._activity is None:
            return ""
        cpus = {
            cpu
            for lane in state.lanes
            if not set(lane.queues).isdisjoint(queues)
            for cpu in lane.record.where(now_ns)
        }
        irqs = {queue.irq for queue in state.interface.queues if queue.index in queues}
        return why_slow(self._activity, cpus, sorted(irq for irq in irqs if irq is not None))

    def _lanes(self, state: _InterfaceState, events: list[Event], now_ns: int) -> list[Lane]:
        """The lanes as they are now: which lever decides, its value, and whether somebody else changed it."""
        lanes = []
        for lane in state.lanes:
            self._refresh(state, lane, events, now_ns)
            target = lane.targets.get(lane.lever)
            held = self._why_no_lever(lane) if target is None else ""
            if now_ns < lane.held_until_ns:
                held = "somebody else changed it: held off"
            lanes.append(
                Lane(
                    state.interface.name,
                    lane.queues,
                    lane.lever,
                    target,
                    lane.measure,
                    lane.value,
                    held,
                    lane.record,
                )
            )
        return lanes

    def _refresh(self, state: _InterfaceState, lane: _LaneState, events: list[Event], now_ns: int) -> None:
        values: dict[str, bytes] = {}
        for name, target in lane.targets.items():
            if target.setting in self._unmanageable:
                continue
            try:
                values[name] = self._actuators[name].read(target)
            except OSError as error:
                if is_gone(error):
                    self._unmanageable[target.setting] = "it does not exist any more"
                    continue
                raise
            self._notice_conflict(state, lane, target, values[name], events, now_ns)
        lever = _lever(state.interface, values)
        if lever != lane.lever:
            lane.lever = lever
            lane.measure = ""
            self._follow_measure(state, lane, now_ns)
        lane.value = values.get(lever, b"")

    def _notice_conflict(
        self,
        state: _InterfaceState,
        lane: _LaneState,
        target: Target,
        value: bytes,
        events: list[Event],
        now_ns: int,
    ) -> None:
        if self._changed_by_others(state, target, value, events, now_ns):
            lane.held_until_ns = now_ns + _HOLD_OFF_NS

    def _changed_by_others(
        self, state: _InterfaceState, target: Target, value: bytes, events: list[Event], now_ns: int
    ) -> bool:
        """Whether a setting is no longer as we knew it; that is told then."""
        known = self._known.get(target.setting)
        self._known[target.setting] = value
        if known is None or kind_of(target.setting.kind).same(known, value):
            return False
        events.append(
            ConflictEvent(
                now_ns,
                state.interface.name,
                str(target),
                _text(known),
                _text(value),
                ", ".join(running(self._host.paths, OTHER_OWNERS)),
            )
        )
        return True

    def _why_no_lever(self, lane: _LaneState) -> str:
        reasons = [
            self._unmanageable[t.setting] for t in lane.targets.values() if t.setting in self._unmanageable
        ]
        if reasons:
            return f"no lever: {reasons[0]}"
        return "no allowed actuator has a lever for it"

    # ---- acting ----------------------------------------------------------------------------------------------

    def _apply(self, state: _InterfaceState, plan: Plan, events: list[Event], now_ns: int) -> None:
        """Write a plan's changes; if one is refused, the plan is undone as a whole."""
        event = self._plan_event(plan, applied=True, now_ns=now_ns)
        events.append(event)
        made: list[tuple[Change, Outcome]] = []
        refused = False
        for change in plan.changes:
            outcome = self._write(change.target, change.after)
            events.append(
                _change_event(event, change, outcome, "applied" if outcome.ok else "refused", now_ns)
            )
            if outcome.ok or outcome.after != outcome.before:
                made.append((change, outcome))
            if not outcome.ok:
                self._remember_refusal(change, outcome, now_ns)
                refused = True
                break
        state.wanted_times = 0
        if refused:
            self._undo(event, made, "another change of the plan was refused", events, now_ns)
            return
        baseline = [sample for _, sample in state.history]
        state.history.clear()
        self._guard.begin(plan, baseline, self._own_shares(state, plan, now_ns), now_ns, hurried=self.hurried)
        self._hurry_until_ns = 0
        state.told = ()
        self._flight_seen_ns = now_ns
        self._in_flight = (event.plan, state, made)

    def _own_shares(self, state: _InterfaceState, plan: Plan, now_ns: int) -> dict[int, float]:
        """CPU → share of its time that the plan brings or takes."""
        shares: dict[int, float] = {}
        moved = {change.queues: change.cpu for change in plan.changes}
        for lane in state.lanes:
            cpu = moved.get(lane.queues)
            if cpu is None or not plan.moves_lanes:
                continue
            own = self._model.own_share(lane.record)
            shares[cpu] = shares.get(cpu, 0.0) + own
            for old, part in lane.record.where(now_ns).items():
                shares[old] = shares.get(old, 0.0) - part * own
        return shares

    def _write(self, target: Target, value: bytes) -> Outcome:
        actuator: Actuator = self._actuators[target.actuator]
        outcome = actuator.write(target, value, self._journals[target.ifname])
        self._written.setdefault(target.ifname, set()).add(target.setting)
        if outcome.after:
            self._known[target.setting] = outcome.after
        return outcome

    def _remember_refusal(self, change: Change, outcome: Outcome, now_ns: int) -> None:
        if outcome.permanent:
            self._unmanageable[change.target.setting] = f"{change.target}: {outcome.reason}"
            self.notes.append(f"{change.target} cannot be managed: {outcome.reason}")
        elif outcome.other_cpu:
            setting = change.target.setting.target
            self._refused_cpus[setting] = self._refused_cpus.get(setting, frozenset()) | {change.cpu}
        else:
            self._put_aside(change, now_ns)

    def _watch_flight(self, sample: TickSample, events: list[Event], now_ns: int) -> None:
        assert self._in_flight is not None
        number, state, made = self._in_flight
        if now_ns >= self._next_plan_ns:
            self._next_plan_ns = now_ns + _PLAN_NS
            if self._lost_to_others(state, made, events, now_ns):
                self._abandon("somebody else changed one of its settings", events, now_ns)
                return
        plan, own_shares, hurried = self._guard.plan, self._guard.own_shares, self._guard.hurried
        verdict = self._guard.update(sample, self._is_in_effect(made), now_ns)
        if verdict is None or plan is None:
            return
        self._in_flight = None
        self._next_plan_ns = now_ns + _REST_NS
        if hurried:
            self._count_hurried(verdict.is_gain, now_ns)
        if verdict.outcome != "undecided":
            self._learn_service(verdict, own_shares)
        if verdict.outcome == "kept":
            for change, _ in made:
                self._set_aside.pop(self._idea(change), None)
            if plan.source == "predicted" and not math.isnan(verdict.after.p99_ns):
                self._model.score(plan.predicted_p99_ns, verdict.after.p99_ns)
        else:
            for change, _ in made:
                self._put_aside(change, now_ns, harmful=verdict.is_harm, p99_ns=verdict.moved_p99_ns)
            state.history.clear()
        event = EffectEvent(
            mono_ns=now_ns,
            ifname=state.interface.name,
            plan=number,
            outcome=verdict.outcome,
            reason=verdict.reason,
            before=verdict.before,
            after=verdict.after,
            predicted_p99_ns=plan.predicted_p99_ns,
            lost_before=verdict.lost_before,
            lost_after=verdict.lost_after,
        )
        events.append(event)
        if verdict.outcome != "kept":
            self._undo(event, made, verdict.reason, events, now_ns)

    def _count_hurried(self, is_gain: bool, now_ns: int) -> None:
        """Pause the hurry where it has led to nothing lately."""
        self._hurried_in_vain = 0 if is_gain else self._hurried_in_vain + 1
        further = self._hurried_in_vain - _HURRIED_IN_VAIN
        if further >= 0:
            pause_ns = min(_HURRY_PAUSE_NS << min(further, 10), _HURRY_PAUSE_MAX_NS)
            self._no_hurry_until_ns = now_ns + pause_ns

    def _learn_service(self, verdict: Verdict, own_shares: Mapping[int, float]) -> None:
        """What a packet costs is seen on the CPUs that it left and came to, whether that helped or not."""
        rates = {cpu: own * 1e9 / self._model.service_ns for cpu, own in own_shares.items()}
        for cpu, rate_pps in rates.items():
            self._model.learn_service(verdict.soft_change.get(cpu, 0.0), rate_pps)

    def _is_in_effect(self, made: list[tuple[Change, Outcome]]) -> bool:
        for change, _ in made:
            effective = self._actuators[change.target.actuator].in_effect(change.target)
            if effective is not None and not (effective & CpuMask.parse_mask(change.after)):
                return False
        return True

    def _lost_to_others(
        self, state: _InterfaceState, made: list[tuple[Change, Outcome]], events: list[Event], now_ns: int
    ) -> bool:
        lost = False
        for change, _ in made:
            try:
                value = self._actuators[change.target.actuator].read(change.target)
            except OSError as error:
                if not is_gone(error):
                    raise
                lost = True
                continue
            before = len(events)
            lane = next((lane for lane in state.lanes if lane.queues == change.queues), None)
            if lane is not None:
                self._notice_conflict(state, lane, change.target, value, events, now_ns)
            lost = lost or len(events) > before
        return lost

    def _abandon(self, reason: str, events: list[Event], now_ns: int) -> None:
        """Undo the change in flight without a verdict."""
        assert self._in_flight is not None
        number, state, made = self._in_flight
        self._in_flight = None
        self._guard.drop()
        state.history.clear()
        event = EffectEvent(
            now_ns, state.interface.name, number, "undecided", reason, *_UNMEASURED, math.nan, 0, 0
        )
        events.append(event)
        self._undo(event, made, reason, events, now_ns)

    def _undo(
        self,
        plan: PlanEvent | EffectEvent,
        made: list[tuple[Change, Outcome]],
        reason: str,
        events: list[Event],
        now_ns: int,
    ) -> None:
        for change, outcome in reversed(made):
            known = self._known.get(change.target.setting)
            if known is not None and not kind_of(change.target.setting.kind).same(known, outcome.after):
                continue  # Somebody else's value stands there now.
            undone = self._write(change.target, outcome.before)
            events.append(
                ChangeEvent(
                    now_ns,
                    plan.ifname,
                    plan.plan,
                    change.target.actuator,
                    str(change.target),
                    change.queues,
                    _text(outcome.after),
                    _text(outcome.before),
                    "rolled_back" if undone.ok else "refused",
                    _text(undone.after),
                    reason if undone.ok else undone.reason,
                )
            )

    def _restore(self) -> list[Restored]:
        restored: list[Restored] = []
        for ifname, settings in self._written.items():
            restored += self._journals[ifname].restore(settings)
            for setting in settings:
                self._known.pop(setting, None)
        self._written.clear()
        return restored

    # ---- ideas that did not help -----------------------------------------------------------------------------

    def _put_aside(
        self, change: Change, now_ns: int, *, harmful: bool = False, p99_ns: float = math.nan
    ) -> None:
        idea = self._idea(change)
        before = self._set_aside.get(idea)
        delay_ns = min(2 * before.delay_ns, _SET_ASIDE_MAX_NS) if before else _SET_ASIDE_NS
        self._set_aside[idea] = _SetAside(now_ns + delay_ns, delay_ns, harmful, p99_ns)

    def _set_aside_now(self, now_ns: int, p99_ns: Mapping[str, float]) -> dict[str, frozenset[bytes]]:
        """Those that the load now is as when they did not help.

        `p99_ns`: setting → p99 now, at least. What was only not needed may be tried in a hurry; and so may what turns
        out to have been better than what is: it was compared with a lucky moment.
        """
        ideas: dict[str, frozenset[bytes]] = {}
        load = self._model.load_signature()
        for (setting, value, under), aside in self._set_aside.items():
            if now_ns >= aside.until_ns or under != load or (self.hurried and not aside.harmful):
                continue
            if p99_ns.get(setting, 0.0) <= _REGRET * aside.p99_ns or math.isnan(aside.p99_ns):
                ideas[setting] = ideas.get(setting, frozenset()) | {value}
        return ideas

    def _idea(self, change: Change) -> _Idea:
        return change.target.setting.target, change.after.strip(), self._model.load_signature()

    # ---- beginning -------------------------------------------------------------------------------------------

    def _state(self, interface: Interface) -> _InterfaceState:
        """Group the queues into lanes: those that one interrupt serves move together."""
        groups: dict[object, list[int]] = {}
        irq = self._actuators.get("irq")
        for queue in interface.queues:
            target = irq.target(interface, queue.index) if irq else None
            groups.setdefault(target.setting if target else queue.index, []).append(queue.index)
        lanes = []
        for queues in groups.values():
            targets = {}
            for name in ("rps", "napi", "irq"):
                actuator = self._actuators.get(name)
                target = actuator.target(interface, queues[0]) if actuator else None
                # A mask of one queue does not move the others of its interrupt.
                if target is not None and (name == "irq" or len(queues) == 1):
                    targets[name] = target
            lanes.append(_LaneState(tuple(queues), targets))
        tx_targets = {}
        if "xps" in self._actuators:
            for index in range(interface.tx_queues):
                target = self._actuators["xps"].target(interface, index)
                if target is not None:
                    tx_targets[index] = target
        coalesce = self._actuators.get("coalesce")
        return _InterfaceState(
            interface, lanes, tx_targets, coalesce=coalesce.target(interface, 0) if coalesce else None
        )

    def _beginning(self) -> list[str]:
        if self._observe_only:
            return []
        return [note for actuator in self._actuators.values() if (note := actuator.problem()) is not None]


def _lever(interface: Interface, values: Mapping[str, bytes]) -> str:
    """The actuator that decides where a lane's packets are processed, given the values that can be written."""
    if "rps" in values and CpuMask.parse_mask(values["rps"]):
        return "rps"  # Whoever polls, these CPUs process.
    if interface.threaded and "napi" in values:
        return "napi"  # Interrupt affinity does not decide where a thread polls.
    return next((name for name in ("irq", "rps") if name in values), "")


def _irq_rate(interface: Interface, observation: Observation) -> float:
    """Interrupts of an interface per second; NaN where they are not traced."""
    if observation.activity is None or not observation.activity.seconds:
        return math.nan
    irqs = {queue.irq for queue in interface.queues if queue.irq is not None}
    return sum(rate.per_s for irq, rate in observation.activity.irqs.items() if irq in irqs)


def _by_measure(seen: InterfaceObservation) -> dict[str, Delays]:
    hw_to_stack = seen.hook_delays if seen.hook_is_stack else seen.hw_to_stack
    return {"hw_to_stack": hw_to_stack, "xdp_to_stack": seen.xdp_to_stack, "hw_to_hook": seen.hook_delays}


def _p99_now(lanes: Iterable[Lane], now_ns: int) -> dict[str, float]:
    """Setting → the lower end of p99 now, ns; of those that have packets."""
    known = {}
    for lane in lanes:
        if lane.target is not None and (figure := lane.record.now(now_ns)).n >= MIN_PACKETS:
            known[lane.target.setting.target] = figure.p99_low_ns
    return known


def _text(value: bytes) -> str:
    return value.decode(errors="replace").strip()


def _change_event(plan: PlanEvent, change: Change, outcome: Outcome, name: str, now_ns: int) -> ChangeEvent:
    return ChangeEvent(
        now_ns,
        plan.ifname,
        plan.plan,
        change.target.actuator,
        str(change.target),
        change.queues,
        _text(outcome.before),
        change.to_text,
        name,
        _text(outcome.after),
        outcome.reason,
    )


def _restored_event(item: Restored, now_ns: int) -> ChangeEvent:
    ifname = unquote(item.scope.rpartition("@")[0])
    outcome = "restored" if item.complete else "refused"
    wanted = _text(item.wanted)
    return ChangeEvent(
        now_ns, ifname, 0, item.kind, item.target, (), _text(item.found), wanted, outcome, "", item.reason
    )
