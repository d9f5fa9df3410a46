"""The summary of a run on the testbed, for people."""

from __future__ import annotations

from typing import Any

from tools.testbed.evidence import Evidence, Outside
from tools.testbed.picture import delay_picture
from tools.testbed.simphc import Jump

_PICTURE_COLUMNS = 64
_MIN_STEP_NS = 200_000_000  # two of the slices that the consumer counts in


def picture(evidence: Evidence, outside: Outside, jumps: tuple[Jump, ...], unicode: bool) -> list[str]:
    """The application's p99 delay over time, with the moments that mattered."""
    if evidence.hello is None or not outside.consumer.slices:
        return []
    start = outside.consumer.slices[0].mono_ns
    step_ns = max(_MIN_STEP_NS, (outside.end_mono_ns - start) // _PICTURE_COLUMNS)
    values = outside.consumer.timeline_us(start, step_ns, _PICTURE_COLUMNS, 0.99)
    marks = [(evidence.hello["mono_ns"], "the agent starts")]
    marks += [(jump.mono_ns, f"the PHC steps by {jump.size_ns:+d} ns") for jump in jumps]
    if outside.noise_mono_ns is not None:
        marks.append((outside.noise_mono_ns, "background load comes"))
    if evidence.goodbye is not None:
        marks.append((evidence.goodbye["mono_ns"], "the agent ends, settings put back"))
    first_of_plan = {
        change["plan"]: change for change in reversed(evidence.changes) if change["outcome"] == "applied"
    }
    marks += [
        (c["mono_ns"], f"agent: {c['actuator']} {c['from'].strip()} -> {c['to'].strip()}")
        for c in first_of_plan.values()
    ]
    lines = delay_picture(
        values,
        step_ns / 1e9,
        [((moment - start) / 1e9, text) for moment, text in marks],
        unicode,
    )
    return ["The application's p99 delay, us, over time:", *lines] if lines else []


def table(summary: dict[str, Any], title: str) -> list[str]:
    """The summary as a table for people."""
    drift, offset, jumps = summary["drift_ppb"], summary["offset_error_ns"], summary["jumps"]
    before, after = summary["delay_us"]["before"], summary["delay_us"]["after"]
    consumer = summary["consumer"]
    own_before, own_after = consumer["delay_us"]["before"], consumer["delay_us"]["after"]
    rows = [
        ("packets", f"{summary['packets']} seen by the agent; "
                    f"{consumer['received']} got by the application in all, {consumer['lost']} lost"),
        ("windows", f"{summary['produced']} produced = {summary['drained']} drained + {summary['lost']} lost"),
        ("drift, ppb", f"true {_shown(drift['true'])}, estimated {_shown(drift['estimated'])} "
                       f"(error {_shown(drift['error'])}), the kernel's own figure {_shown(drift['kernel'])}"),
        ("offset error, ns", f"p50 {_shown(offset['p50'])}, p99 {_shown(offset['p99'])}, "
                             f"above a base delay of {_shown(offset['base_delay'])} that no trailer can tell"),
        ("jumps", f"{jumps['injected']} injected, {jumps['tagged']} tagged, {jumps['false']} tagged that were none"),
        ("delay, us", f"p50 {_shown(before['p50'])} -> {_shown(after['p50'])}, "
                      f"p99 {_shown(before['p99'])} -> {_shown(after['p99'])} (the agent's, up to the stack)"),
        ("", f"p50 {_shown(own_before['p50'])} -> {_shown(own_after['p50'])}, "
             f"p99 {_shown(own_before['p99'])} -> {_shown(own_after['p99'])} (the application's, by its own clock)"),
    ]  # fmt: skip
    for index, change in enumerate(summary["changes"]):
        text = f"{change['actuator']} {change['target']}: {change['from']} -> {change['to']}, {change['outcome']}"
        rows.append(("" if index else "changes", text))
    if not summary["changes"]:
        rows.append(("changes", "none"))
    rows += [
        ("restored", "every setting, byte for byte" if summary["restored"] else "NO"),
        (
            "cost",
            f"{summary['cpu_percent']} % of one CPU, {summary['rss_mib']} MiB, over {summary['seconds']} s",
        ),
    ]
    return [title, *(f"  {name:<17} {text}" for name, text in rows)]


def _shown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:g}" if abs(value) < 1e5 else f"{value:.0f}"
