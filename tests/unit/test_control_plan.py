"""Predictions and assignments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from agent.control.actuators import Target
from agent.control.delaymodel import DelayModel, LaneRecord, wait_ns
from agent.control.plan import Lane, Limits, Plan, plan_interface
from agent.control.settings import Setting
from agent.control.txplan import TxUsage, plan_tx
from agent.ffi.records import HIST_BUCKETS, hist_bucket
from agent.host.cpus import Cpu, CpuTopology
from agent.host.load import CpuLoad, CpuShare
from agent.host.masks import CpuMask

NOW_NS = 5_000_000_000


def topology(
    cpus: int, nodes: dict[int, int] | None = None, siblings: dict[int, list[int]] | None = None
) -> CpuTopology:
    """CPUs 0 to n−1, all online."""
    online = CpuMask.of(range(cpus))
    return CpuTopology(
        {
            i: Cpu(i, True, False, (nodes or {}).get(i), 0, i, CpuMask.of((siblings or {}).get(i, [i])))
            for i in range(cpus)
        },
        online,
        online,
        CpuMask(),
        CpuMask(),
    )


def load(*soft: float, user: tuple[float, ...] = ()) -> CpuLoad:
    """Softirq shares by CPU."""
    users = [*user, *[0.0] * (len(soft) - len(user))]
    return CpuLoad(
        0.1,
        {i: CpuShare(1 - s - u, u, s, 0.0, s + u) for i, (s, u) in enumerate(zip(soft, users, strict=True))},
    )


def lane(
    model: DelayModel, queue: int, cpu: int, p99_ns: float, value: bytes, poll_cpu: int = 0, pps: int = 10_000
) -> Lane:
    """A lane measured on a CPU, steered by RPS."""
    record = LaneRecord()
    rng = np.random.default_rng(queue)
    drawn = 3_000 + rng.exponential(p99_ns / np.log(100), 2_000).astype(np.int64)
    counts = np.bincount(hist_bucket(drawn), minlength=HIST_BUCKETS)
    model.observe_lane(record, [queue], {(queue, cpu): counts}, {}, 0.1, NOW_NS)
    record.polled, record.rate_pps = {poll_cpu: float(pps)}, float(pps)
    target = Target("rps", "eth0", queue, Setting("file", f"/rx-{queue}/rps_cpus", True))
    return Lane("eth0", (queue,), "rps", target, "xdp_to_stack", value, "", record)


def limits(
    top: CpuTopology,
    node: int | None = None,
    refused_cpus: Mapping[str, frozenset[int]] | None = None,
    set_aside: Mapping[str, frozenset[bytes]] | None = None,
) -> Limits:
    """No ideas put aside and no refusals, unless given."""
    return Limits(top, node, set_aside or {}, refused_cpus or {})


def plan_for(top: CpuTopology, soft: CpuLoad, given: Limits | None = None, value: bytes = b"2\n") -> Plan:
    """A plan for one queue that is measured slow on CPU 1."""
    model = DelayModel(top)
    model.observe_load(soft)
    return plan_interface("eth0", [lane(model, 0, 1, 300_000, value)], model, given or limits(top), NOW_NS)


def test_the_wait_formula() -> None:
    """No wait below 1−p; it grows without bound towards a full CPU; the tail of M/M/1 as it is in textbooks."""
    assert float(wait_ns(np.array(0.005), 0.99, 1000.0)) == 0.0
    assert float(wait_ns(np.array(0.5), 0.99, 1000.0)) == pytest.approx(1000 / 0.5 * np.log(50))
    waits = wait_ns(np.array([0.1, 0.5, 0.9]), 0.99, 1000.0)
    assert list(waits) == sorted(waits)


def test_the_least_loaded_cpu_is_chosen() -> None:
    """By softirq share, not by user load."""
    plan = plan_for(topology(4), load(0.3, 0.8, 0.02, 0.3, user=(0.0, 0.0, 0.6)))
    assert [change.to_text for change in plan.changes] == ["4"]
    assert plan.source == "predicted"
    assert "CPU 2" in plan.decided_by


def test_user_load_breaks_ties() -> None:
    """Two CPUs without softirq load: the idle one."""
    plan = plan_for(topology(4), load(0.5, 0.8, 0.02, 0.02, user=(0.0, 0.0, 0.6)))
    assert [change.to_text for change in plan.changes] == ["8"]


def test_the_nics_node_and_an_idle_sibling_are_preferred() -> None:
    """Among CPUs as idle: same node first, and no busy hardware thread beside it."""
    top = topology(4, nodes={0: 0, 1: 0, 2: 1, 3: 0}, siblings={3: [3, 0], 0: [0, 3]})
    plan = plan_for(top, load(0.5, 0.8, 0.02, 0.02), limits(top, node=0))
    assert [change.to_text for change in plan.changes] == ["8"]
    top = topology(4, nodes={0: 0, 1: 0, 2: 1, 3: 1})
    plan = plan_for(top, load(0.12, 0.8, 0.12, 0.12), limits(top, node=0))
    assert [change.to_text for change in plan.changes] == ["0"]


def test_efficiency_cores_come_last() -> None:
    """Of CPUs that are as idle, the faster kind."""
    top = topology(4)
    slow = {i: replace(cpu, capacity=0.5 if i in (0, 2) else 1.0) for i, cpu in top.cpus.items()}
    plan = plan_for(replace(top, cpus=slow), load(0.1, 0.8, 0.1, 0.1))
    assert plan.changes[0].cpu == 3


def test_refused_cpus_and_ideas_put_aside_are_not_planned_again() -> None:
    """The next best CPU is."""
    top, soft = topology(4), load(0.6, 0.8, 0.02, 0.05)
    assert (
        plan_for(top, soft, limits(top, refused_cpus={"/rx-0/rps_cpus": frozenset([2])})).changes[0].cpu == 3
    )
    assert (
        plan_for(top, soft, limits(top, set_aside={"/rx-0/rps_cpus": frozenset([b"4"])})).changes[0].cpu == 3
    )


def test_masks_are_written_as_wide_as_the_kernel_shows_them() -> None:
    """On a host with 40 CPUs."""
    plan = plan_for(topology(4), load(0.6, 0.8, 0.02, 0.3), value=b"00,00000002\n")
    assert plan.changes[0].after == b"00,00000004\n"


def test_a_measured_place_counts_more_than_a_predicted_one() -> None:
    """CPU 0 was measured slow under this very load, though its softirq share is low."""
    top = topology(2)
    model = DelayModel(top)
    model.observe_load(load(0.1, 0.5))
    slow = lane(model, 0, 1, 100_000, b"2\n", poll_cpu=1)
    counts = np.bincount(hist_bucket(np.full(2_000, 400_000)), minlength=HIST_BUCKETS)
    slow.record.polled, slow.record.rate_pps = {1: 100.0}, 100.0
    model.observe_lane(slow.record, [0], {(0, 0): counts}, {}, 0.1, NOW_NS - 20_000_000_000)
    plan = plan_interface("eth0", [slow], model, limits(top), NOW_NS)
    assert plan.changes == ()


def seen(
    record: LaneRecord, model: DelayModel, cpu: int, delay_ns: int, seconds: float, ago_s: float
) -> None:
    """A lane's packets waited so long on a CPU, under the load that the model knows now."""
    counts = np.bincount(hist_bucket(np.full(2_000, delay_ns)), minlength=HIST_BUCKETS)
    model.observe_lane(record, [0], {(0, cpu): counts}, {}, seconds, NOW_NS - round(ago_s * 1e9))


def napi_lane(record: LaneRecord, value: bytes) -> Lane:
    """A queue whose thread's CPUs decide."""
    target = Target("napi", "eth0", 0, Setting("affinity", "9", True))
    return Lane("eth0", (0,), "napi", target, "hw_to_stack", value, "", record)


def test_a_load_that_moved_makes_the_delays_there_that_it_made_here() -> None:
    """CPU 1 never served under load; what was measured on CPU 0, which is of its kind, tells what to expect."""
    top = topology(2)
    model, record = DelayModel(top), LaneRecord()
    model.observe_load(load(0.0, 0.4))
    seen(record, model, 0, 50_000, 1.0, ago_s=2)
    seen(record, model, 0, 50_000, 1.0, ago_s=1)
    record.load_moved(1.0)
    model.load_moved(np.array([0.4, 0.0]))
    seen(record, model, 0, 4_000_000, 0.025, ago_s=0)
    plan = plan_interface("eth0", [napi_lane(record, b"1\n")], model, limits(top), NOW_NS, hurried=True)
    (change,) = plan.changes
    assert change.after == b"2\n"
    assert change.expected is not None
    assert change.expected.p99_ns == pytest.approx(50_000, rel=0.05)


def test_what_came_in_the_tick_in_which_the_load_moved_is_not_remembered() -> None:
    """It was under both loads."""
    record, model = LaneRecord(), DelayModel(topology(2))
    model.observe_load(load(0.0, 0.4))
    seen(record, model, 0, 50_000, 1.0, ago_s=2)
    seen(record, model, 0, 9_000_000, 0.6, ago_s=1)
    record.load_moved(0.6)
    ((_, cell),) = record.measured()
    assert cell.quantile_ns(0.99) == pytest.approx(50_000, rel=0.05)
    assert cell.seconds == pytest.approx(1.0)


def test_of_a_short_look_the_longest_delay_counts() -> None:
    """It sees few of the bursts that make a p99."""
    record, model = LaneRecord(), DelayModel(topology(2))
    model.observe_load(load(0.4, 0.0))
    delays = np.append(np.full(1_999, 50_000), 8_000_000)
    counts = np.bincount(hist_bucket(delays), minlength=HIST_BUCKETS)
    model.observe_lane(record, [0], {(0, 0): counts}, {}, 0.025, NOW_NS)
    ((_, cell),) = record.measured()
    assert cell.quantile_ns(0.99) == pytest.approx(8_000_000, rel=0.05)


def test_more_load_in_front_is_never_expected_to_help() -> None:
    """Whatever bursts are assumed: nobody measured there."""
    top = topology(2)
    model, record = DelayModel(top), LaneRecord()
    model.observe_load(load(0.5, 0.0))
    seen(record, model, 1, 2_000_000, 1.0, ago_s=0)
    plan = plan_interface("eth0", [napi_lane(record, b"2\n")], model, limits(top), NOW_NS)
    assert plan.changes == ()


def test_in_a_hurry_the_few_packets_of_all_lanes_of_a_cpu_count_for_each() -> None:
    """What delays one delays the others too, also that of which nothing came through yet: they move together."""
    top = topology(2)
    model = DelayModel(top)
    model.observe_load(load(0.4, 0.0))
    lanes = []
    for queue, n in ((0, 30), (1, 4), (2, 0)):
        record = LaneRecord(rate_pps=5_000.0, polled={0: 5_000.0})
        delays = np.append(np.full(n, 5_000_000), [50_000] * (n // 4))
        counts = np.bincount(hist_bucket(delays.astype(np.int64)), minlength=HIST_BUCKETS)
        model.observe_lane(record, [queue], {(queue, 0): counts} if n else {}, {(queue, 0): n}, 0.025, NOW_NS)
        target = Target("napi", "eth0", queue, Setting("affinity", str(queue), True))
        lanes.append(Lane("eth0", (queue,), "napi", target, "hw_to_stack", b"3\n", "", record))
    assert plan_interface("eth0", lanes, model, limits(top), NOW_NS).decided_by == "too few packets"
    plan = plan_interface("eth0", lanes, model, limits(top), NOW_NS, hurried=True)
    assert {(change.queues, change.cpu) for change in plan.changes} == {((0,), 1), ((1,), 1), ((2,), 1)}


def test_small_gains_are_not_worth_a_change() -> None:
    """The reason says how much was missing."""
    plan = plan_for(topology(2), load(0.78, 0.8))
    assert plan.changes == ()
    assert plan.reason


def test_without_a_lever_or_a_measure_the_reason_says_which() -> None:
    """Nothing is planned in the dark."""
    top = topology(2)
    model = DelayModel(top)
    model.observe_load(load(0.1, 0.8))
    one = lane(model, 0, 1, 300_000, b"2\n")
    blind = Lane(one.ifname, one.queues, "rps", one.target, "", one.value, "", one.record)
    assert "measured" in plan_interface("eth0", [blind], model, limits(top), NOW_NS).reason
    none = Lane(
        one.ifname, one.queues, "", None, "", b"", "no allowed actuator has a lever for it", one.record
    )
    assert "lever" in plan_interface("eth0", [none], model, limits(top), NOW_NS).reason


def test_a_prediction_that_was_wrong_corrects_the_next() -> None:
    """The bias follows the log ratio."""
    model = DelayModel(topology(2))
    assert model.score(10_000, 40_000) == pytest.approx(np.log(4))
    assert model.log_bias > 0.5


def test_what_a_packet_costs_is_learnt_also_where_it_is_much() -> None:
    """3,000 packets/s that took 30 % of a CPU cost 100 us each, as in an emulated guest."""
    model = DelayModel(topology(2))
    for _ in range(12):
        model.learn_service(0.3, 3_000)
    assert model.service_ns == pytest.approx(100_000, rel=0.01)


def tx_usage(rates: dict[tuple[int, int], int], cpus: int = 4, queues: int = 4) -> TxUsage:
    """Packets by (CPU, queue) in one second."""
    packets = np.zeros((cpus, queues), dtype=np.int64)
    for (cpu, queue), n in rates.items():
        packets[cpu, queue] = n
    usage = TxUsage()
    usage.observe(packets * 60, 60.0)
    return usage


def tx_targets(queues: int = 4) -> dict[int, tuple[Target, bytes]]:
    """Unset masks."""
    return {
        q: (Target("xps", "eth0", q, Setting("file", f"/tx-{q}/xps_cpus", True)), b"0\n")
        for q in range(queues)
    }


def test_cpus_that_share_a_transmit_queue_get_their_own() -> None:
    """Each keeps the queue that it uses most; idle CPUs are spread over all."""
    usage = tx_usage({(0, 1): 9_000, (1, 1): 4_000, (1, 3): 1_000})
    plan = plan_tx("eth0", usage, tx_targets(), topology(4))
    masks = {change.queues[0]: CpuMask.parse_mask(change.after) for change in plan.changes}
    assert 0 in masks[1]
    assert 1 in masks[3]
    owners = [cpu for mask in masks.values() for cpu in mask]
    assert sorted(owners) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "rates",
    [{(0, 0): 9_000, (1, 1): 9_000}, {(0, 0): 300, (1, 0): 300}, {(0, 0): 9_000, (1, 0): 50}],
    ids=["apart already", "hardly any traffic", "hardly shared"],
)
def test_transmit_queues_are_left_alone_without_need(rates: dict[tuple[int, int], int]) -> None:
    """Nothing to gain."""
    assert plan_tx("eth0", tx_usage(rates), tx_targets(), topology(4)).changes == ()


def test_fewer_queues_than_senders_have_to_be_shared() -> None:
    """Said, not changed."""
    usage = tx_usage({(0, 0): 5_000, (1, 0): 5_000, (2, 0): 5_000})
    plan = plan_tx("eth0", usage, tx_targets(2), topology(4))
    assert plan.changes == ()
    assert "share" in plan.reason
