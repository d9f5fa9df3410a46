"""Frames as one line each, for people."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agent.telemetry.decode import AnyFrame
from agent.telemetry.figures import count, duration, exact, ppb, printable, size
from agent.telemetry.jsonlines import summarise

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Readable:
    """Turns the frames of one stream into lines; times are seconds since its hello."""

    def __init__(self) -> None:
        self._start_ns: int | None = None

    def begin(self, mono_ns: int) -> None:
        """Count times from here; a hello does so by itself."""
        self._start_ns = mono_ns

    def line(self, frame: AnyFrame, records: npt.NDArray[np.void] | None = None) -> str:
        """One line without its end; `records` are those of a windows frame."""
        if self._start_ns is None or frame["t"] == "hello":
            self.begin(frame["mono_ns"])
        kind = frame["t"]
        if records is not None:
            text = _windows(frame, summarise(records))
        elif kind in _LINES:
            text = _LINES[kind](frame)
        else:
            text = "a frame that this version does not know"
        return printable(f"{(frame['mono_ns'] - self._start_ns) / 1e9:9.3f} {kind:<8} {text}")


def _hello(frame: AnyFrame) -> str:
    host = frame["host"]
    interfaces = ", ".join(
        f"{item['ifname']} ({item['driver']}, {item['rx_queues']} queues) hook {item['hook']} stamp {item['stamp']} "
        f"loader {item['loader']}"
        for item in frame["interfaces"]
    )
    observing = ", observing only" if frame["observe"] else ""
    return (
        f"agent {frame['agent_version']} on {host['hostname']} ({host['kernel']}): {interfaces}; "
        f"windows of {duration(frame['window_ns'])}{observing}"
    )


def _windows(frame: AnyFrame, summary: dict[str, Any]) -> str:
    sums = summary.get("sums", {})
    parts = [f"{frame['ifname']} {summary['windows']} windows, {count(sums.get('n', 0))} packets"]
    parts += [
        f"{count(sums[name])} {name.removeprefix('n_').replace('_', ' ')}"
        for name in ("n_stamped", "n_missing", "n_rejected", "n_duplicate", "n_reordered")
        if sums.get(name)
    ]
    if "delay_mean_ns" in summary:
        parts.append(
            f"delay {duration(summary['delay_min_ns'])} / {duration(summary['delay_mean_ns'])} / "
            f"{duration(summary['delay_max_ns'])} (min/mean/max)"
        )
    return ", ".join(parts)


def _inputs(frame: AnyFrame) -> str:
    phc = frame["phc"]
    parts = [f"{frame['ifname']} mono is steered by {ppb(frame['steering']['freq_ppb'])}"]
    if phc is not None:
        burst = phc["burst"]
        parts.append(
            "no PHC read" if burst is None else f"{len(burst['reads']) // 24} PHC reads, {burst['method']}"
        )
        if phc["steered_ppb"]:
            parts.append(f"PHC steered by {ppb(phc['steered_ppb'])} more")
    return ", ".join(parts)


def _clock(frame: AnyFrame) -> str:
    reason = f" ({frame['reason']})" if frame["reason"] else ""
    text = (
        f"{frame['ifname']} {clock_name(frame['kind'], frame['key'])} {frame['state']}{reason}: "
        f"offset {exact(frame['offset_ns'])} ± {duration(frame['bound_ns'])}, "
        f"drift {ppb(frame['drift_raw_ppb'])} ± {ppb(frame['drift_bound_ppb']).lstrip('+')} (raw), "
        f"{ppb(frame['drift_mono_ppb'])} (mono), kernel {ppb(frame['kernel_drift_ppb'])}"
    )
    for tag in frame["tags"]:
        text += f"; {tag['kind'].upper()} {duration(tag['size_ns'])} {tag['cause']}"
    return text


def _alignment(frame: AnyFrame) -> str:
    return "; ".join(aligned_line(pair) for pair in frame["pairs"]) or "nothing to compare"


def aligned_line(pair: dict[str, Any]) -> str:
    """How two clocks stand to each other."""
    names = " − ".join(
        f"{clock['ifname']} {clock_name(clock['kind'], clock['key'])}"
        for clock in (pair["first"], pair["second"])
    )
    if not pair["valid"]:
        return f"{names} not aligned: {pair['reason']}"
    return (
        f"{names} {exact(pair['offset_ns'])} ± {duration(pair['bound_ns'])}, "
        f"{ppb(pair['drift_ppb'])} ± {ppb(pair['drift_bound_ppb']).lstrip('+')}"
    )


def _steering(frame: AnyFrame) -> str:
    told = f"TAI − UTC {frame['tai_utc_s']} s" if frame["tai_utc_s"] else "TAI − UTC not told"
    parts = [
        f"mono {frame['mono_frequency_ppb']:+.1f} ppb ({frame['mono_adjustments']} changes), "
        f"{'' if frame['synchronised'] else 'not '}synchronised, {told}"
    ]
    return "; ".join([*parts, *(phc_line(phc) for phc in frame["phcs"])])


def phc_line(phc: dict[str, Any]) -> str:
    """How a PTP hardware clock is read and steered."""
    dialled = "unknown" if phc["frequency_ppb"] is None else f"{phc['frequency_ppb']:+.1f} ppb"
    text = f"{phc['device']} {phc['method'] or 'not read yet'}, dialled {dialled}"
    return text + (f", REFUSES READS (paused {duration(phc['pause_ns'])})" if phc["pause_ns"] else "")


def refclock_line(frame: dict[str, Any]) -> str:
    """How chronyd is fed."""
    counts = f"{frame['sent']} sent, {frame['refused']} refused, {frame['failed']} not taken"
    if frame["ahead_ns"] is None:
        return f"chronyd NOT FED from {frame['ifname']}: {frame['trouble']} ({counts})"
    return (
        f"chronyd fed from {frame['ifname']}: UTC − realtime {exact(frame['ahead_ns'])} ± "
        f"{duration(frame['bound_ns'])} ({counts})"
    )


def batch_line(frame: dict[str, Any]) -> str:
    """A page of batch windows: what holds, why, and what it comes to."""
    parts = [f"page {frame['page']}: {frame['consumers']} consumers"]
    if frame["max_items"] is not None:
        held = "" if frame["valid_until_mono_ns"] else f" NOT PUBLISHED ({frame['reason']})"
        parts.append(f"wait {frame['max_wait_us']} µs, {frame['max_items']} items at most{held}")
        parts.append(
            f"a batch takes {duration(frame['service_base_ns'])} + {duration(frame['service_item_ns'])} an item"
        )
        parts.append(f"{count(frame['items_per_s'])} items/s")
        parts.append(
            f"p99 {duration(frame['measured_p99_ns'])} (predicted {duration(frame['predicted_p99_ns'])})"
        )
    else:
        parts.append(f"their defaults hold: {frame['reason']}")
    return ", ".join(parts)


def ptp_line(frame: dict[str, Any]) -> str:
    """The PTP time sources on an interface's wire."""
    masters = [
        f"domain {master['domain']}: grandmaster {master['grandmaster']} of class {master['clock_class']}, "
        f"{master['steps_removed']} steps away"
        for master in frame["masters"]
    ]
    return f"{frame['ifname']} PTP {'; '.join(masters) or 'not announced'}, {frame['changes']} changes"


def clock_name(kind: str, key: int) -> str:
    """`PHC`, or the trailer clock's device and port."""
    return f"trailer {key >> 8}:{key & 0xFF}" if kind == "trailer" else kind.upper()


def _delay(frame: AnyFrame) -> str:
    rows = "; ".join(
        f"{row['where']} q{row['queue']}/cpu{row['cpu']} p50 {duration(row['p50_ns'])} p99 {duration(row['p99_ns'])}"
        for row in frame["rows"][:8]
    )
    left_out = len(frame["rows"]) - 8 + frame["omitted"]
    return f"{frame['ifname']} {rows or 'no packets'}" + (f"; {left_out} more" if left_out > 0 else "")


def _irq(frame: AnyFrame) -> str:
    rows = [
        f"cpu{row['cpu']} irq {row['irq']:.1%} softirq {sum(row['softirqs'].values()):.1%} "
        f"(net_rx {row['softirqs'].get('net_rx', 0.0):.1%}, waits p99 {duration(row['rx_wait_p99_ns'])})"
        for row in frame["cpus"][:8]
    ]
    rows += [f"irq {line['irq']} {line['per_s']:.0f}/s" for line in frame["irqs"][:8]]
    left_out = len(frame["cpus"]) - 8 + frame["omitted"]
    return ("; ".join(rows) or "nothing") + (f"; {left_out} more CPUs" if left_out > 0 else "")


def _consumer(frame: AnyFrame) -> str:
    rows = [
        f"{row['name']}({row['pid']}) read {row['read']}"
        + (
            f", waited p50 {duration(row['wait_p50_ns'])} p99 {duration(row['wait_p99_ns'])}"
            if row["read"]
            else ""
        )
        + "".join(f", {cause} dropped {n}" for cause, n in row["dropped"].items() if n)
        + (f", {row['backlog_bytes']} B waiting" if row["backlog_bytes"] else "")
        for row in frame["consumers"]
    ]
    full = f"; {frame['queues_full']} dropped at full queues of the host" if frame["queues_full"] else ""
    return ("; ".join(rows) or "none runs") + full


def _plan(frame: AnyFrame) -> str:
    changes = ", ".join(
        f"{item['actuator']} {item['target']} {item['from'].strip()} → {item['to'].strip()}"
        for item in frame["changes"]
    )
    does = "plan" if frame["applied"] else "would"
    return (
        f"{frame['ifname']} #{frame['plan']} {does} {changes or 'change nothing'}: {frame['reason']} "
        f"({_expectation(frame)}by {frame['decided_by']})"
        + (f"; {frame['cause']}" if frame.get("cause") else "")
    )


def _expectation(frame: AnyFrame) -> str:
    """Now and then; nothing where nothing is measured, or a plan has no delay to gain."""
    figures = (("p99 now", frame["now_p99_ns"]), ("predicted", frame["predicted_p99_ns"]))
    return "".join(f"{name} {duration(ns)}, " for name, ns in figures if ns is not None)


def _change(frame: AnyFrame) -> str:
    reason = f": {frame['reason']}" if frame["reason"] else ""
    return (
        f"{frame['ifname']} #{frame['plan']} {frame['actuator']} {frame['target']} "
        f"{frame['from'].strip()} → {frame['to'].strip()} {frame['outcome']}{reason}"
    )


def _effect(frame: AnyFrame) -> str:
    before, after = frame["before"], frame["after"]
    return (
        f"{frame['ifname']} #{frame['plan']} {frame['outcome']}: p50 {duration(before['p50_ns'])} → "
        f"{duration(after['p50_ns'])}, p99 {duration(before['p99_ns'])} → {duration(after['p99_ns'])} "
        f"(predicted {duration(frame['predicted_p99_ns'])}): {frame['reason']}"
    )


def _conflict(frame: AnyFrame) -> str:
    owner = frame["owner"] or "somebody else"
    return (
        f"{frame['ifname']} {frame['target']} is {frame['found'].strip()}, not {frame['expected'].strip()}: "
        f"{owner} changed it; left alone for a while"
    )


def _health(frame: AnyFrame) -> str:
    parts = [f"{frame['level']}" + (f" ({frame['reason']})" if frame["reason"] else "")]
    parts += [_interface(item) for item in frame["interfaces"]]
    parts.append(f"cpu {frame['cpu_percent']:.1f} %, rss {size(frame['rss_bytes'])}")
    drops = {name: value for name, value in frame["host_drops"].items() if value}
    if drops:
        parts.append("host drops: " + ", ".join(f"{name} {value}" for name, value in drops.items()))
    if frame["tick_overruns"]:
        parts.append(f"{frame['tick_overruns']} tick overruns")
    parts += _sink(frame["sink"])
    return "; ".join([*parts, *frame["notes"]])


def _goodbye(frame: AnyFrame) -> str:
    restored = len(frame["restored"])
    parts = [f"{frame['reason']} (exit code {frame['exit_code']})"]
    parts += [_interface(item) for item in frame["interfaces"]]
    parts.append(f"{restored} settings put back" if restored else "nothing to put back")
    parts += _sink(frame["sink"])
    return "; ".join(parts)


def _interface(item: dict[str, Any]) -> str:
    counters = item["counters"]
    text = f"{item['ifname']} {count(counters.get('packets', 0))} packets"
    if "produced" in counters:
        drained, lost = counters.get("drained", 0), counters.get("lost", 0)
        text += f", windows {counters['produced']} = {drained} drained + {lost} lost"
    return text


def _sink(sink: dict[str, int]) -> list[str]:
    if not sink["dropped_frames"]:
        return []
    return [f"telemetry dropped {sink['dropped_frames']} frames ({size(sink['dropped_bytes'])})"]


_LINES: dict[str, Callable[[AnyFrame], str]] = {
    "hello": _hello,
    "inputs": _inputs,
    "clock": _clock,
    "alignment": _alignment,
    "steering": _steering,
    "refclock": refclock_line,
    "batch": batch_line,
    "ptp": ptp_line,
    "delay": _delay,
    "irq": _irq,
    "consumer": _consumer,
    "plan": _plan,
    "change": _change,
    "effect": _effect,
    "conflict": _conflict,
    "health": _health,
    "goodbye": _goodbye,
}
