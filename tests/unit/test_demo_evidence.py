"""The demo's verdict: telemetry frames against a known truth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tools.testbed.evidence import Evidence, Outside, match_jumps, offset_errors_ns, reasons, summarise
from tools.testbed.picture import delay_picture
from tools.testbed.report import picture, table
from tools.testbed.simphc import SHIFT, Jump, Truth
from tools.testbed.testbed import ConsumerReport, Slice, bucket_middle_ns, quantiles_us

S = 1_000_000_000
KEY = 0x703
DRIFT_PPB = 12_000
BASE_NS = 1_500
JUMP = Jump(6 * S, 250_000)


def make_truth() -> Truth:
    """Ten seconds of a PHC that is slow by 12 ppm, with a jump at 6 s; mono and raw run alike."""
    adj = round(-DRIFT_PPB * (1 << SHIFT) / 1e9)
    at_jump = 1000 * S + 6 * S + ((6 * S * adj) >> SHIFT) + JUMP.size_ns
    pairs = np.arange(0, 10 * S, S // 100)
    return Truth(
        np.array([0, 6 * S]), np.array([1000 * S, at_jump]), np.array([adj, adj]), pairs, pairs, (JUMP,)
    )


def tag(mono_ns: int, size_ns: int = 250_000, kind: str = "phase_step") -> dict[str, Any]:
    """A verdict as telemetry has it."""
    return {"kind": kind, "mono_ns": mono_ns, "size_ns": size_ns, "cause": ""}


def clock_frame(
    mono_ns: int, error_ns: int = 0, tags: list[dict[str, Any]] | None = None, **fields: Any
) -> dict[str, Any]:
    """A clock frame whose offset is wrong by `error_ns` above the base delay."""
    offset = int(make_truth().offset_ns(mono_ns)) + BASE_NS + error_ns
    return {
        "t": "clock", "key": KEY, "state": "relative", "mono_ns": mono_ns, "offset_ns": offset, "tags": tags or [],
        "drift_raw_ppb": 12_010.0, "drift_mono_ppb": 12_010.0, "kernel_drift_ppb": 11_900.0, **fields,
    }  # fmt: skip


def change_frame(mono_ns: int, plan: int, outcome: str = "applied") -> dict[str, Any]:
    """A written setting."""
    return {
        "t": "change", "mono_ns": mono_ns, "plan": plan, "actuator": "rps", "target": "cap0 rx-0",
        "from": "2\n", "to": "0\n", "outcome": outcome,
    }  # fmt: skip


def effect_frame(plan: int, outcome: str) -> dict[str, Any]:
    """A judged plan: p99 of 200 us became 10 us."""
    before, after = {"n": 1, "p50_ns": 90e3, "p99_ns": 200e3}, {"n": 1, "p50_ns": 4e3, "p99_ns": 10e3}
    return {"t": "effect", "plan": plan, "outcome": outcome, "before": before, "after": after}


def goodbye_frame(produced: int = 100, drained: int = 99, lost: int = 1) -> dict[str, Any]:
    """The final account."""
    counters = {"packets": 5000, "produced": produced, "drained": drained, "lost": lost}
    return {"t": "goodbye", "mono_ns": 9 * S, "interfaces": [{"ifname": "cap0", "counters": counters}]}


def windows_of(truth: Truth, delays_ns: list[int]) -> np.ndarray[Any, Any]:
    """Window records whose envelope pairs have these true delays."""
    records = np.zeros(len(delays_ns), dtype=[
        ("clock_key", "<u4"), ("n_stamped", "<u4"), ("envelope.mono_ns", "<u8"), ("envelope.hw_ns", "<u8"),
    ])  # fmt: skip
    mono = np.arange(1, len(delays_ns) + 1) * S // 10
    records["clock_key"], records["n_stamped"] = KEY, 1
    records["envelope.mono_ns"], records["envelope.hw_ns"] = mono, truth.phc_ns(mono) - delays_ns
    return records


def consumer_report() -> ConsumerReport:
    """200 us until 4 s, 4 us from then on, in slices of 100 ms."""
    slow, fast = np.array([[12 * 32 + 48, 10]]), np.array([[7 * 32 + 32, 10]])
    slices = [Slice(i * S // 10, S // 10, 10, slow if i < 40 else fast) for i in range(95)]
    return ConsumerReport(slices, received=950, lost=0, reordered=0)


def full_run() -> tuple[Evidence, Outside]:
    """A run in which everything went well."""
    evidence = Evidence(KEY)
    evidence.add({"t": "hello", "mono_ns": S}, None)
    evidence.add({"t": "windows"}, windows_of(make_truth(), [4000, BASE_NS, 3000]))
    for step in range(10, 90):
        tags = [tag(JUMP.mono_ns + 5)] if step == 62 else []
        evidence.add(clock_frame(step * S // 10, error_ns=10, tags=tags), None)
    evidence.add(change_frame(4 * S, plan=1), None)
    evidence.add(effect_frame(1, "kept"), None)
    evidence.add(change_frame(9 * S, plan=1, outcome="restored"), None)
    evidence.add(goodbye_frame(), None)
    return evidence, Outside(S // 2, 9 * S, 8.0, 3.25, 60.0, 0, True, consumer_report())


def test_a_good_run_has_every_figure_and_no_reason() -> None:
    """The summary of a complete run holds the figures that its frames give."""
    evidence, outside = full_run()
    summary = summarise(evidence, make_truth(), outside)
    assert reasons(summary, outside.exit_code) == []
    assert summary["drift_ppb"]["true"] == pytest.approx(12_000, abs=1)
    assert summary["drift_ppb"]["error"] == pytest.approx(10, abs=1)
    assert summary["drift_ppb"]["kernel"] == pytest.approx(11_900, abs=1)
    assert summary["offset_error_ns"] == {"p50": 10, "p99": 10, "base_delay": BASE_NS}
    assert summary["jumps"] == {"injected": 1, "tagged": 1, "false": 0}
    assert summary["delay_us"] == {"before": {"p50": 90, "p99": 200}, "after": {"p50": 4, "p99": 10}}
    assert summary["changes"] == [
        {"actuator": "rps", "target": "cap0 rx-0", "from": "2", "to": "0", "outcome": "kept"}
    ]
    assert (summary["packets"], summary["windows"], summary["produced"]) == (5000, 3, 100)
    own = summary["consumer"]["delay_us"]
    assert own["before"]["p99"] > 10 * own["after"]["p99"]


def test_a_run_that_said_nothing_is_null_not_zero() -> None:
    """An agent that died at once leaves nulls, and reasons for each."""
    outside = Outside(None, S, 0.0, 0.0, 0.0, 1, False, ConsumerReport([], 0, 0, 0))
    summary = summarise(Evidence(KEY), make_truth(), outside)
    assert summary["drift_ppb"]["true"] == pytest.approx(12_000, abs=1)
    assert [summary["drift_ppb"][name] for name in ("estimated", "error", "kernel")] == [None] * 3
    assert summary["packets"] is None
    said = "; ".join(reasons(summary, 1))
    for part in ("exit code 1", "restore", "no packets", "account", "never knew", "not tagged"):
        assert part in said


def test_lost_windows_that_are_not_accounted_for_are_a_reason() -> None:
    """produced = drained + lost, exactly."""
    evidence, outside = full_run()
    evidence.add(goodbye_frame(lost=0), None)
    assert "100 produced, 99 drained, 0 lost" in reasons(summarise(evidence, make_truth(), outside), 0)[0]


def test_a_setting_left_changed_is_a_reason() -> None:
    """Not restored is told."""
    evidence, outside = full_run()
    outside = replace(outside, restored=False)
    assert "restore" in reasons(summarise(evidence, make_truth(), outside), 0)[0]


def test_a_rolled_back_plan_is_shown_as_such() -> None:
    """A change takes the outcome of its plan; a refusal stays one; no plan kept means no figures after."""
    evidence = Evidence(KEY)
    evidence.add(change_frame(2 * S, plan=1), None)
    evidence.add(change_frame(2 * S, plan=1, outcome="refused"), None)
    evidence.add(effect_frame(1, "rolled_back"), None)
    evidence.add(change_frame(3 * S, plan=1, outcome="rolled_back"), None)
    _, outside = full_run()
    summary = summarise(evidence, make_truth(), outside)
    assert [change["outcome"] for change in summary["changes"]] == ["rolled_back", "refused"]
    assert summary["delay_us"]["after"] == {"p50": None, "p99": None}


def test_each_tag_counts_for_one_jump() -> None:
    """A tag in time and of the size is the jump's; a second one, a late one, one of another size are false."""
    tags = [
        tag(JUMP.mono_ns + S // 2),
        tag(JUMP.mono_ns + S // 2 + 1),
        tag(JUMP.mono_ns + 2 * S),
        tag(JUMP.mono_ns, 90_000),
    ]
    matched, false = match_jumps((JUMP,), tags)
    assert matched == {JUMP: tags[0]}
    assert false == tags[1:]


def test_repeated_and_unrelated_tags_are_not_counted_twice() -> None:
    """A tag told in two frames is one; verdicts about single samples or the path are no jumps."""
    evidence = Evidence(KEY)
    for moment in (1, 2):
        evidence.add(
            clock_frame(moment * S, tags=[tag(S), tag(S, kind="outlier"), tag(S, kind="path_change")]), None
        )
    assert evidence.jump_tags() == [tag(S)]


def test_offset_error_leaves_out_the_search_for_the_jump_only() -> None:
    """Frames from the jump to its tag aren't judged; those before and after are."""
    evidence = Evidence(KEY)
    evidence.add(clock_frame(JUMP.mono_ns - 1, error_ns=1), None)
    evidence.add(clock_frame(JUMP.mono_ns + 1, error_ns=250_000), None)
    evidence.add(clock_frame(JUMP.mono_ns + S // 5, error_ns=3, tags=[tag(JUMP.mono_ns + 1)]), None)
    evidence.add(clock_frame(8 * S, error_ns=99, state="init"), None)
    assert offset_errors_ns(evidence, make_truth(), BASE_NS).tolist() == [1, 3]


def test_an_untagged_jump_excuses_one_second() -> None:
    """If the jump is never tagged, the error counts again from a second on."""
    evidence = Evidence(KEY)
    evidence.add(clock_frame(JUMP.mono_ns + S // 2, error_ns=250_000), None)
    evidence.add(clock_frame(JUMP.mono_ns + S, error_ns=250_000), None)
    assert offset_errors_ns(evidence, make_truth(), BASE_NS).tolist() == [250_000]


def test_base_delay_ignores_pairs_across_a_jump() -> None:
    """A packet stamped before the jump and received after it has no delay to learn from."""
    truth = make_truth()
    records = windows_of(truth, [BASE_NS, BASE_NS + 1])
    records["envelope.mono_ns"][1] = JUMP.mono_ns + 1000
    evidence = Evidence(KEY)
    evidence.add({"t": "windows"}, records)
    assert evidence.base_delay_ns(truth) == BASE_NS


def test_other_clocks_are_not_judged() -> None:
    """Frames of a clock with another key say nothing about this one."""
    evidence = Evidence(KEY)
    evidence.add(clock_frame(S, key=KEY + 1), None)
    assert evidence.clocks == []


@pytest.mark.parametrize("ns", [0, 5, 63, 64, 100, 1000, 123_456, 10_000_000, 999_999_999])
def test_consumer_buckets_are_within_two_percent(ns: int) -> None:
    """The middle of the consumer's bucket is near the delay that was counted there."""
    shift = 0 if ns < 32 else ns.bit_length() - 1 - 5
    bucket = (shift << 5) + (ns >> shift)
    assert bucket_middle_ns(bucket) == pytest.approx(ns, rel=0.02, abs=0.5)


def test_quantiles_of_nothing_are_nan() -> None:
    """No packets: no figure."""
    assert np.isnan(quantiles_us([], 0.5)).all()


def test_readable_summary_names_what_matters() -> None:
    """The table holds drift, jump, change and restore; the picture marks load, change and jump."""
    evidence, outside = full_run()
    truth = make_truth()
    text = "\n".join(table(summarise(evidence, truth, outside), "a title"))
    for part in ("a title", "true 12000", "1 tagged", "rps cap0 rx-0: 2 -> 0, kept", "byte for byte"):
        assert part in text
    lines = "\n".join(picture(evidence, outside, truth.jumps, unicode=False))
    for part in ("background load", "rps 2 -> 0", "steps by +250000 ns"):
        assert part in lines
    assert lines.isascii()


def test_picture_puts_marks_below_their_column() -> None:
    """A mark's caret stands under the column of its time."""
    *_, axis, mark = delay_picture([1.0, 10.0, 100.0], 0.5, [(1.0, "here")])
    assert mark.index("^") == axis.index("+") + 1 + 2


def test_picture_of_nothing_is_empty() -> None:
    """Without a figure there is no picture."""
    assert delay_picture([float("nan"), 0.0], 0.5, []) == []
