"""The controller on a simulated host: finds, applies, measures, keeps or undoes, restores."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from agent.control.controller import Controller
from agent.control.events import ChangeEvent, ConflictEvent, EffectEvent, Event, PlanEvent
from agent.control.plan import render_reports
from agent.errors import UsageError
from agent.host.activity import CpuActivity, IrqActivity
from tests.unit.control_simulation import SimulatedHost


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    """Two CPUs; all four queues are sent to CPU 1, which softirq load fills by 70 %."""
    host = SimulatedHost(tmp_path)
    host.soft[1] = 0.7
    return host


def effects(host: SimulatedHost) -> list[EffectEvent]:
    """The effects told so far."""
    return [event for event in host.events if isinstance(event, EffectEvent)]


def test_queues_leave_a_cpu_full_of_softirq_load(host: SimulatedHost) -> None:
    """Within three seconds a better place is found that was never tried, measured, and kept; the end restores."""
    controller = host.controller()
    host.run(controller, 30)
    assert host.masks() == ["0"] * 4
    applied = [event for event in host.events if isinstance(event, PlanEvent) and event.applied]
    assert len(applied) == 1
    assert applied[0].predicted_p99_ns < 0.5 * applied[0].now_p99_ns
    assert {change.expected.source for change in applied[0].changes if change.expected} == {"predicted"}
    host.run(controller, 20)
    (effect,) = effects(host)
    assert effect.outcome == "kept"
    assert effect.after.p99_high_ns < effect.before.p99_low_ns
    restored = controller.close()
    assert [item.outcome for item in restored] == ["restored"] * 4
    assert host.masks() == ["2"] * 4
    host.journal.close(restored)


def test_without_stamps_the_delay_behind_the_hook_decides(host: SimulatedHost) -> None:
    """RPS is the lever and the XDP-to-stack delay its measure."""
    host.stamped = False
    controller = host.controller()
    host.run(controller, 60)
    assert host.masks() == ["0"] * 4
    assert [effect.outcome for effect in effects(host)] == ["kept"]
    assert controller.explain(host.now_ns)[0].measure == "xdp_to_stack"


def test_predictions_are_near_what_is_measured_then(host: SimulatedHost) -> None:
    """Where the simulation is the model's own, within a factor of 1.5."""
    host.run(host.controller(), 60)
    (effect,) = effects(host)
    assert 1 / 1.5 < effect.after.p99_ns / effect.predicted_p99_ns < 1.5


def test_another_cpu_than_the_polling_one_gets_a_mask(host: SimulatedHost) -> None:
    """Where the polling CPU is the loaded one, RPS hands the packets to the other."""
    host.poll_cpu = 1
    host.run(host.controller(), 30)
    assert host.masks() == ["1"] * 4


def test_handing_over_does_not_help_against_a_wait_before_the_hook(tmp_path: Path) -> None:
    """RPS is off and the polling CPU is full: packets wait there before anything can hand them on."""
    host = SimulatedHost(tmp_path, rps="0")
    host.soft[0] = 0.8
    host.run(host.controller(), 100)
    assert host.masks() == ["0"] * 4
    assert not effects(host)


def move_load(host: SimulatedHost, controller: Controller, soft: dict[int, float]) -> list[Event]:
    """A load moves; the controller is told, and ticks."""
    host.soft |= soft
    host.residual_ns = 300_000.0
    events = controller.load_moved(np.array([host.soft[cpu] for cpu in host.online]), host.now_ns)
    host.events += events
    return events + host.run(controller, 1)


def test_a_load_that_comes_is_answered_in_the_tick_after(tmp_path: Path) -> None:
    """No sustained wish and no long baseline is waited for where p99 is to be divided by two or more."""
    host = SimulatedHost(tmp_path, rps="2")
    host.soft[0] = 0.4
    controller = host.controller()
    host.run(controller, 30)
    assert host.masks() == ["2"] * 4
    move_load(host, controller, {0: 0.05, 1: 0.7})
    assert host.masks() == ["0"] * 4
    assert controller.in_flight
    assert not controller.hurried
    host.run(controller, 30)
    assert effects(host)[-1].outcome == "kept"


def test_a_load_that_comes_is_no_reason_for_a_small_gain(tmp_path: Path) -> None:
    """It goes on as ever, and is not in a hurry for long."""
    host = SimulatedHost(tmp_path, rps="2")
    controller = host.controller()
    host.run(controller, 30)
    move_load(host, controller, {0: 0.45, 1: 0.45})
    assert host.masks() == ["2"] * 4
    assert controller.hurried
    host.run(controller, 2)
    assert not controller.hurried


def test_a_load_that_moves_in_flight_ends_the_trial_and_is_answered(tmp_path: Path) -> None:
    """The change is undone, then planned anew."""
    host = SimulatedHost(tmp_path, rps="2")
    controller = host.controller()
    host.run(controller, 30)
    move_load(host, controller, {0: 0.05, 1: 0.7})
    host.run(controller, 3)
    events = move_load(host, controller, {0: 0.7, 1: 0.05})
    undecided = [event for event in events if isinstance(event, EffectEvent)]
    assert [event.outcome for event in undecided] == ["undecided"]
    assert host.masks() == ["2"] * 4


def test_bursts_that_come_and_go_are_not_answered_again_and_again(tmp_path: Path) -> None:
    """After two answers that gained nothing the hurry pauses, and it goes on as ever."""
    host = SimulatedHost(tmp_path, rps="2")
    controller = host.controller()
    host.run(controller, 30)
    for _ in range(6):
        for soft in ({0: 0.05, 1: 0.7}, {0: 0.7, 1: 0.05}):
            move_load(host, controller, soft)
            host.run(controller, 3)
    answers = [event for event in host.events if isinstance(event, PlanEvent) and event.applied]
    assert 2 <= len(answers) <= 3
    move_load(host, controller, {0: 0.05, 1: 0.7})
    assert not controller.hurried


def test_what_did_not_help_under_one_load_may_under_another(host: SimulatedHost) -> None:
    """An idea is put aside for the load that it failed under."""
    host.delay_on = lambda cpu: 100_000.0
    controller = host.controller()
    host.run(controller, 60)
    assert effects(host)[-1].outcome == "rolled_back"
    host.delay_on = lambda cpu: 2_000_000.0 if cpu == 1 else 20_000.0
    move_load(host, controller, {0: 0.02, 1: 0.95})
    host.run(controller, 30)
    assert effects(host)[-1].outcome == "kept"
    assert host.masks() == ["0"] * 4


def test_observing_answers_nothing_but_tells_it(tmp_path: Path) -> None:
    """`--observe` writes nothing, in a hurry either."""
    host = SimulatedHost(tmp_path, rps="2")
    controller = host.controller(observe_only=True)
    host.run(controller, 30)
    events = move_load(host, controller, {0: 0.05, 1: 0.7})
    assert any(isinstance(event, PlanEvent) and event.changes and not event.applied for event in events)
    assert host.masks() == ["2"] * 4


def test_a_balanced_host_is_left_alone(tmp_path: Path) -> None:
    """Nothing to gain: no change, and the reason is told once."""
    host = SimulatedHost(tmp_path, rps="0")
    host.run(host.controller(), 100)
    assert host.masks() == ["0"] * 4
    plans = [event for event in host.events if isinstance(event, PlanEvent)]
    assert plans
    assert all(not plan.changes and plan.reason for plan in plans)
    assert len(plans) <= 3


def test_what_does_not_help_is_undone_and_put_aside(host: SimulatedHost) -> None:
    """The prediction is wrong: both CPUs are as slow. The change goes back, and is not tried again for a while."""
    host.delay_on = lambda cpu: 100_000.0
    host.run(host.controller(), 150)
    assert host.masks() == ["2"] * 4
    assert [effect.outcome for effect in effects(host)] == ["rolled_back"]


def test_what_makes_it_worse_is_undone_at_once(host: SimulatedHost) -> None:
    """Ten times the delay does not have to be watched for the whole span."""
    host.delay_on = lambda cpu: 50_000.0 if cpu == 1 else 500_000.0
    controller = host.controller()
    while not effects(host):
        host.run(controller, 1)
    (effect,) = effects(host)
    applied = next(e for e in host.events if isinstance(e, PlanEvent) and e.applied)
    assert effect.outcome == "rolled_back"
    assert effect.mono_ns - applied.mono_ns <= 1_500_000_000
    assert host.masks() == ["2"] * 4


def test_an_idea_that_failed_is_tried_again_after_its_back_off(host: SimulatedHost) -> None:
    """Half a minute first, then a minute."""
    host.delay_on = lambda cpu: 100_000.0
    host.run(host.controller(), 1200)
    plans = [event.mono_ns for event in host.events if isinstance(event, PlanEvent) and event.applied]
    assert 2 <= len(plans) <= 4
    gaps = np.diff(plans) / 1e9
    assert gaps[0] >= 30
    assert all(b > 1.5 * a for a, b in pairwise(gaps))


def test_lower_delay_with_more_drops_is_undone(host: SimulatedHost) -> None:
    """The new CPU is faster but drops packets."""
    host.drops = lambda mask: 3 if 0 in mask else 0
    host.run(host.controller(), 60)
    assert host.masks() == ["2"] * 4
    assert effects(host)[0].outcome == "rolled_back"
    assert "dropped" in effects(host)[0].reason


def test_a_load_that_moves_while_judging_leaves_it_undecided(host: SimulatedHost) -> None:
    """The old CPU's load went away by itself: nothing is proven, so the change is undone."""
    controller = host.controller()
    while not any(isinstance(event, PlanEvent) and event.applied for event in host.events):
        host.run(controller, 1)
    host.soft[1] = 0.05
    host.run(controller, 60)
    assert effects(host)[0].outcome == "undecided"
    assert host.masks() == ["2"] * 4


def test_observing_writes_nothing_but_tells_what_it_would_do(host: SimulatedHost) -> None:
    """With `--observe` the plan is told as not applied."""
    controller = host.controller(observe_only=True)
    host.run(controller, 40)
    assert host.masks() == ["2"] * 4
    plans = [event for event in host.events if isinstance(event, PlanEvent) and event.changes]
    assert plans
    assert not any(plan.applied for plan in plans)
    assert not any(isinstance(event, ChangeEvent) for event in host.events)
    assert controller.close() == []


def test_a_value_changed_by_somebody_else_is_left_to_them(host: SimulatedHost) -> None:
    """It is told, nothing of ours goes on top, and the end does not overwrite it."""
    controller = host.controller()
    host.run(controller, 50)
    host.rps_path(2).write_text("3\n")
    events = host.run(controller, 50)
    conflicts = [event for event in events if isinstance(event, ConflictEvent)]
    assert [(c.expected, c.found) for c in conflicts] == [("0", "3")]
    assert conflicts[0].target.endswith("rx-2/rps_cpus")
    outcomes = {item.target[-13:]: item.outcome for item in controller.close()}
    assert outcomes["rx-2/rps_cpus"] == "changed_by_others"
    assert host.masks() == ["2", "2", "3", "2"]


def test_a_conflict_names_who_runs_that_sets_such_things(host: SimulatedHost) -> None:
    """irqbalance is found among the processes of the host that is controlled."""
    host.tree.file(host.tree.paths.proc / "555/comm", "irqbalance\n")
    controller = host.controller()
    host.run(controller, 50)
    host.rps_path(2).write_text("3\n")
    conflicts = [event for event in host.run(controller, 50) if isinstance(event, ConflictEvent)]
    assert [conflict.owner for conflict in conflicts] == ["irqbalance"]


def test_somebody_changing_a_setting_in_flight_ends_the_trial(host: SimulatedHost) -> None:
    """Our other settings go back, theirs stays."""
    controller = host.controller()
    while host.masks() == ["2"] * 4:
        host.run(controller, 1)
    host.rps_path(0).write_text("3\n")
    host.run(controller, 12)
    assert any(isinstance(event, ConflictEvent) for event in host.events)
    assert effects(host)[0].outcome == "undecided"
    assert host.masks() == ["3", "2", "2", "2"]


def test_closing_in_flight_undoes_it(host: SimulatedHost) -> None:
    """The run ends in the middle of a trial."""
    controller = host.controller()
    while host.masks() == ["2"] * 4:
        host.run(controller, 1)
    controller.close()
    assert host.masks() == ["2"] * 4


def test_isolated_cpus_are_never_chosen(tmp_path: Path) -> None:
    """The idlest CPU is isolated: the next one is taken."""
    host = SimulatedHost(tmp_path, cpus="0-3", rps="2", isolated="2", nohz_full="3")
    host.soft |= {1: 0.7, 0: 0.15, 2: 0.0, 3: 0.0}
    host.run(host.controller(), 60)
    assert set(host.masks()) == {"0"}


def test_a_host_with_one_cpu_says_so(tmp_path: Path) -> None:
    """Nowhere to go."""
    host = SimulatedHost(tmp_path, cpus="0", rps="0")
    host.run(host.controller(), 20)
    assert any(isinstance(event, PlanEvent) and event.decided_by == "single CPU" for event in host.events)


def test_many_queues_spread_over_the_idle_cpus(tmp_path: Path) -> None:
    """Moved load loads its new CPU: eight busy queues do not all end on one."""
    host = SimulatedHost(tmp_path, cpus="0-3", queues=8, rps="2")
    host.soft |= {1: 0.8}
    host.packets_per_tick = 6_000
    host.run(host.controller(), 30)
    assert "2" not in host.masks()
    assert len(set(host.masks())) >= 3


def test_degrading_to_safe_puts_everything_back_and_climbing_plans_again(host: SimulatedHost) -> None:
    """At `safe` the host is as it was found; at `full` the controller works again."""
    controller = host.controller()
    host.run(controller, 50)
    assert host.masks() == ["0"] * 4
    events = controller.set_level("safe", host.now_ns)
    assert [event.outcome for event in events if isinstance(event, ChangeEvent)] == ["restored"] * 4
    assert host.masks() == ["2"] * 4
    host.run(controller, 50)
    assert host.masks() == ["2"] * 4
    controller.set_level("full", host.now_ns)
    host.run(controller, 60)
    assert host.masks() == ["0"] * 4
    controller.close()
    assert host.masks() == ["2"] * 4


def test_freezing_undoes_what_is_in_flight(host: SimulatedHost) -> None:
    """A trial cannot be judged by a frozen model."""
    controller = host.controller()
    while host.masks() == ["2"] * 4:
        host.run(controller, 1)
    controller.set_level("frozen", host.now_ns)
    assert host.masks() == ["2"] * 4


def test_shared_transmit_queues_are_given_apart(host: SimulatedHost) -> None:
    """Both CPUs send by queue 0: each gets its own, and the files are as before at the end."""
    host.soft = {0: 0.0, 1: 0.0}
    for queue in range(4):
        host.tree.file(host.directory / f"queues/tx-{queue}/xps_cpus", "0\n")
    shared = np.zeros((2, 64), dtype=np.int64)
    shared[:, 0] = 500
    apart = np.zeros((2, 64), dtype=np.int64)

    def paths() -> list[str]:
        return [(host.directory / f"queues/tx-{queue}/xps_cpus").read_text().strip() for queue in range(4)]

    controller = host.controller()
    host.tx = shared
    for _ in range(120):
        if paths() != ["0"] * 4:
            host.tx = apart
            for queue, mask in enumerate(paths()):
                for cpu in (0, 1):
                    if int(mask, 16) >> cpu & 1:
                        apart[cpu, queue] = 500
        host.run(controller, 1)
    assert sorted(paths()) == ["0", "0", "1", "2"]
    assert [effect.outcome for effect in effects(host)] == ["kept"]
    controller.close()
    assert paths() == ["0"] * 4


def test_explaining_names_every_queue_and_the_reason(host: SimulatedHost) -> None:
    """`agent plan` shows current and wanted, with the prediction; also when nothing changes."""
    controller = host.controller(observe_only=True)
    host.run(controller, 30)
    reports = controller.explain(host.now_ns)
    assert [report.queues for report in reports] == [(0,), (1,), (2,), (3,)]
    assert {(report.lever, report.current, report.wanted) for report in reports} == {("rps", "2", "0")}
    text = render_reports(reports)
    assert "veth0:3" in text
    assert "to CPU 0" in text
    host.soft = {0: 0.0, 1: 0.0}
    host.run(controller, 60)
    assert "hysteresis" in render_reports(controller.explain(host.now_ns))


def test_denied_and_unknown_actuators(host: SimulatedHost) -> None:
    """Without RPS a veth has no lever; a name that does not exist is refused."""
    controller = host.controller(deny=["rps"])
    host.run(controller, 30)
    assert host.masks() == ["2"] * 4
    assert "lever" in controller.explain(host.now_ns)[0].reason
    with pytest.raises(UsageError):
        Controller(controller._host, {}, allow=["nonsense"])


def test_a_refused_change_takes_the_whole_plan_back(
    host: SimulatedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of four writes fails: the three others do not stay."""
    controller = host.controller()
    real = type(controller._actuators["rps"]).write

    def write(self: object, target: object, value: bytes, journal: object) -> object:
        if "rx-2" in str(target) and value.strip() == b"0":
            from agent.control.actuators import Outcome

            return Outcome(target, value, b"2\n", b"2\n", False, "no", 22, other_cpu=True)  # type: ignore[arg-type]
        return real(self, target, value, journal)  # type: ignore[arg-type]

    monkeypatch.setattr(type(controller._actuators["rps"]), "write", write)
    while not any(isinstance(event, ChangeEvent) for event in host.events):
        host.run(controller, 1)
    outcomes = [event.outcome for event in host.events if isinstance(event, ChangeEvent)]
    assert outcomes == ["applied", "applied", "refused", "rolled_back", "rolled_back"]
    assert host.masks() == ["2"] * 4


def test_plans_say_what_the_cpus_are_busy_with(host: SimulatedHost) -> None:
    """Where interrupts are traced, the CPU that serves the queues is named with its softirqs; else nothing is said."""
    silent = host.controller(observe_only=True)
    plans = [event for event in host.run(silent, 30) if isinstance(event, PlanEvent)]
    assert {plan.cause for plan in plans} == {""}
    assert {report.cause for report in silent.explain(host.now_ns)} == {""}
    host.journal.close()
    row = CpuActivity(0.0, 0.7, {"net_rx": 0.6, "timer": 0.1}, 1e3, 9e4, 100.0, 10.0, 0.0)
    host.activity = IrqActivity(0.1, {1: row})
    traced = host.controller(observe_only=True)
    plans = [event for event in host.run(traced, 30) if isinstance(event, PlanEvent)]
    expected = "CPU 1: 70% in softirq (net_rx 60%, timer 10%), 0.0% in interrupts, NET_RX waits 90.0 us (p99)"
    assert expected in {plan.cause for plan in plans}
    assert {report.cause for report in traced.explain(host.now_ns)} == {expected}
    assert expected in render_reports(traced.explain(host.now_ns))
