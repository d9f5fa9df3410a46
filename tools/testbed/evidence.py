"""What a run of the agent said in its telemetry, compared with what was true on the testbed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tools.testbed.simphc import Jump, Truth
from tools.testbed.testbed import ConsumerReport

_S = 1_000_000_000
# Verdicts that say "the PHC stepped"; the others are about single samples, silence, or the path.
JUMP_KINDS = frozenset({"wrap", "bounce", "phase_step", "tai_utc", "freq_step"})
KNOWN_STATES = frozenset({"tracking", "relative"})
TAG_WITHIN_NS = _S
# A verdict is dated to the start of the span in which the step fell.
_TAG_EARLY_NS = 50_000_000
_TAG_SIZE_TOLERANCE = 0.1
_TAG_SIZE_TOLERANCE_NS = 20_000
_JUMP_MARGIN_NS = 5_000_000
# A moment for the packets that were on their way when the setting changed.
_SETTLE_NS = _S // 5


@dataclass(slots=True)
class Evidence:
    """The frames of one run that matter for its verdict, in the order of the stream."""

    clock_key: int
    """The testbed's one trailer clock."""
    hello: dict[str, Any] | None = None
    goodbye: dict[str, Any] | None = None
    clocks: list[dict[str, Any]] = field(default_factory=list)
    changes: list[dict[str, Any]] = field(default_factory=list)
    effects: list[dict[str, Any]] = field(default_factory=list)
    windows: int = 0
    _pairs: list[npt.NDArray[np.int64]] = field(default_factory=list)

    def add(self, frame: dict[str, Any], records: npt.NDArray[np.void] | None) -> None:
        """Take in a decoded frame; `records` are those of a windows frame."""
        kind = frame["t"]
        if kind == "windows" and records is not None:
            self.windows += len(records)
            stamped = records[(records["clock_key"] == self.clock_key) & (records["n_stamped"] > 0)]
            pairs = np.stack([stamped["envelope.mono_ns"], stamped["envelope.hw_ns"]])
            self._pairs.append(pairs.astype(np.int64))
        elif kind == "clock" and frame["key"] == self.clock_key:
            self.clocks.append(frame)
        elif kind == "change":
            self.changes.append(frame)
        elif kind == "effect":
            self.effects.append(frame)
        elif kind in ("hello", "goodbye"):
            setattr(self, kind, frame)

    def base_delay_ns(self, truth: Truth) -> int | None:
        """The smallest true delay from the stamp to the agent's hook, from the windows' envelope pairs."""
        if not self._pairs:
            return None
        mono, hw = np.concatenate(self._pairs, axis=1)
        calm = ~truth.near_jump(mono, _JUMP_MARGIN_NS)
        if not calm.any():
            return None
        return int(truth.delay_ns(mono[calm], hw[calm]).min())

    def jump_tags(self) -> list[dict[str, Any]]:
        """The verdicts that the PHC stepped, each once, by time."""
        tags = {
            (tag["kind"], tag["mono_ns"]): tag
            for frame in self.clocks
            for tag in frame["tags"]
            if tag["kind"] in JUMP_KINDS
        }
        return sorted(tags.values(), key=lambda tag: int(tag["mono_ns"]))

    def applied(self) -> list[dict[str, Any]]:
        """The change frames of settings that were written because a plan wanted it."""
        return [change for change in self.changes if change["outcome"] == "applied"]


@dataclass(frozen=True, slots=True)
class Outside:
    """What was seen of the run from outside of the agent."""

    noise_mono_ns: int | None
    """When the background load came."""
    end_mono_ns: int
    seconds: float
    cpu_percent: float
    """Of one core, between the agent's first and last frame."""
    rss_mib: float
    """The largest seen."""
    exit_code: int
    restored: bool
    """Every setting of the capture interface is byte for byte what it was."""
    consumer: ConsumerReport


def match_jumps(
    jumps: tuple[Jump, ...], tags: list[dict[str, Any]]
) -> tuple[dict[Jump, dict[str, Any]], list[dict[str, Any]]]:
    """(tag by injected jump, tags that fit none). A tag fits within 1 s of the jump and 10 % or 20 us of its size."""
    left = list(tags)
    matched = {}
    for jump in jumps:
        allowed = max(_TAG_SIZE_TOLERANCE_NS, _TAG_SIZE_TOLERANCE * abs(jump.size_ns))
        for tag in left:
            in_time = -_TAG_EARLY_NS <= tag["mono_ns"] - jump.mono_ns <= TAG_WITHIN_NS
            if in_time and abs(tag["size_ns"] - jump.size_ns) <= allowed:
                matched[jump] = tag
                left.remove(tag)
                break
    return matched, left


def offset_errors_ns(evidence: Evidence, truth: Truth, base_delay_ns: int) -> npt.NDArray[np.float64]:
    """|estimated − true offset − base delay| of each clock frame that claims to know it. float64[n].

    Frames between a jump and its tag are left out (for at most the second in which it has to be found): in those
    the clock is known to have stepped to us, and not yet to the agent; the summary's `jumps` tells of them.
    """
    known = [frame for frame in evidence.clocks if frame["state"] in KNOWN_STATES]
    matched, _ = match_jumps(truth.jumps, evidence.jump_tags())
    found_ns = {jump: _first_frame_with(tag, evidence.clocks) for jump, tag in matched.items()}
    blind = [
        (j.mono_ns, min(found_ns.get(j, j.mono_ns + TAG_WITHIN_NS), j.mono_ns + TAG_WITHIN_NS))
        for j in truth.jumps
    ]
    judged = [f for f in known if not any(start <= f["mono_ns"] < end for start, end in blind)]
    moments = [frame["mono_ns"] for frame in judged]
    estimated = np.array([frame["offset_ns"] for frame in judged], dtype=np.int64)
    errors: npt.NDArray[np.float64] = np.abs(estimated - truth.offset_ns(moments) - base_delay_ns).astype(
        np.float64
    )
    return errors


def _first_frame_with(tag: dict[str, Any], frames: list[dict[str, Any]]) -> int:
    return next(int(frame["mono_ns"]) for frame in frames if tag in frame["tags"])


def summarise(evidence: Evidence, truth: Truth, outside: Outside) -> dict[str, Any]:
    """The run as one JSON object; a figure that the run did not give is null.

    drift_ppb, against raw: `true` is the mean of the last second, `estimated` the last clock frame's, `kernel` the
    kernel's own last figure, moved from mono to raw by the true difference of the two.
    """
    goodbye = evidence.goodbye or {"interfaces": []}
    counters: dict[str, int] = goodbye["interfaces"][0]["counters"] if goodbye["interfaces"] else {}
    tags = evidence.jump_tags()
    matched, false = match_jumps(truth.jumps, tags)
    before_us, after_us = _agent_delays(evidence)
    return {
        "packets": counters.get("packets"),
        "windows": evidence.windows,
        "produced": counters.get("produced"),
        "drained": counters.get("drained"),
        "lost": counters.get("lost"),
        "drift_ppb": _drift(evidence, truth, outside.end_mono_ns),
        "offset_error_ns": _offset_error(evidence, truth),
        "jumps": {"injected": len(truth.jumps), "tagged": len(matched), "false": len(false)},
        "delay_us": {"before": before_us, "after": after_us},
        "changes": _changes(evidence),
        "restored": outside.restored,
        "cpu_percent": round(outside.cpu_percent, 2),
        "rss_mib": round(outside.rss_mib, 1),
        "seconds": round(outside.seconds, 3),
        "consumer": _consumer(evidence, outside),
    }


def _drift(evidence: Evidence, truth: Truth, end_mono_ns: int) -> dict[str, float | None]:
    known = [frame for frame in evidence.clocks if frame["state"] in KNOWN_STATES]
    if not known:
        true = truth.drift_raw_ppb(end_mono_ns)
        return {"true": round(true, 1), "estimated": None, "error": None, "kernel": None}
    last = known[-1]
    true = truth.drift_raw_ppb(last["mono_ns"])
    steering = true - truth.drift_mono_ppb(last["mono_ns"])
    kernel = last["kernel_drift_ppb"]
    return {
        "true": round(true, 1),
        "estimated": round(last["drift_raw_ppb"], 1),
        "error": round(last["drift_raw_ppb"] - true, 1),
        "kernel": None if kernel is None else round(kernel + steering, 1),
    }


def _offset_error(evidence: Evidence, truth: Truth) -> dict[str, float | None]:
    base = evidence.base_delay_ns(truth)
    errors = np.zeros(0) if base is None else offset_errors_ns(evidence, truth, base)
    if not errors.size:
        return {"p50": None, "p99": None, "base_delay": base}
    p50, p99 = np.quantile(errors, [0.5, 0.99]).tolist()
    return {"p50": round(p50, 1), "p99": round(p99, 1), "base_delay": base}


def _agent_delays(evidence: Evidence) -> tuple[dict[str, float | None], dict[str, float | None]]:
    """What the agent measured before its first change and after the last that it kept."""
    kept = [effect for effect in evidence.effects if effect["outcome"] == "kept"]
    if not kept:
        return _figures(None), _figures(None)
    return _figures(evidence.effects[0]["before"]), _figures(kept[-1]["after"])


def _figures(figures: dict[str, Any] | None) -> dict[str, float | None]:
    return {
        name: None if figures is None or figures[key] is None else round(figures[key] / 1000, 2)
        for name, key in (("p50", "p50_ns"), ("p99", "p99_ns"))
    }


def _changes(evidence: Evidence) -> list[dict[str, str]]:
    """Each setting that a plan wrote, or that was refused, with what became of the plan."""
    effects = {effect["plan"]: effect["outcome"] for effect in evidence.effects}
    return [
        {
            "actuator": change["actuator"],
            "target": change["target"],
            "from": change["from"].strip(),
            "to": change["to"].strip(),
            "outcome": effects.get(change["plan"], "applied")
            if change["outcome"] == "applied"
            else "refused",
        }
        for change in evidence.changes
        if change["outcome"] in ("applied", "refused")
    ]


def _consumer(evidence: Evidence, outside: Outside) -> dict[str, Any]:
    """The application's own figures, by its own clock, around the changes that were kept."""
    report = outside.consumer
    kept = {effect["plan"] for effect in evidence.effects if effect["outcome"] == "kept"}
    moments = [change["mono_ns"] for change in evidence.applied() if change["plan"] in kept]
    start = outside.noise_mono_ns or (evidence.hello or {}).get("mono_ns", 0)
    # The changes are undone when the agent ends: the last slices belong to neither side.
    end = (evidence.goodbye or {}).get("mono_ns", outside.end_mono_ns) - _SETTLE_NS
    spans = {"before": (start, moments[0] if moments else end)}
    if moments:
        spans["after"] = (moments[-1] + _SETTLE_NS, end)
    delays = {"before": dict.fromkeys(("p50", "p99")), "after": dict.fromkeys(("p50", "p99"))}
    for name, span in spans.items():
        p50, p99 = report.quantiles_us(*span, 0.5, 0.99)
        delays[name] = {"p50": _or_none(p50), "p99": _or_none(p99)}
    return {
        "delay_us": delays,
        "received": report.received,
        "lost": report.lost,
        "reordered": report.reordered,
    }


def _or_none(value: float) -> Any:
    return None if math.isnan(value) else round(value, 2)


def reasons(summary: dict[str, Any], exit_code: int) -> list[str]:
    """What of the summary does not hold; empty when everything does."""
    found = []
    if exit_code != 0:
        found.append(f"the agent ended with exit code {exit_code}")
    if not summary["restored"]:
        found.append("the agent did not restore every setting")
    if not summary["packets"]:
        found.append("the agent reported no packets")
    if None in (summary["produced"], summary["drained"], summary["lost"]):
        found.append("the agent gave no final account of its windows")
    elif summary["produced"] != summary["drained"] + summary["lost"]:
        parts = (f"{summary[name]} {name}" for name in ("produced", "drained", "lost"))
        found.append(f"windows do not add up: {', '.join(parts)}")
    if summary["drift_ppb"]["estimated"] is None:
        found.append("the agent never knew the clock")
    jumps = summary["jumps"]
    if jumps["tagged"] < jumps["injected"]:
        found.append(f"{jumps['injected'] - jumps['tagged']} of {jumps['injected']} jumps not tagged")
    if jumps["false"]:
        found.append(f"{jumps['false']} jumps tagged that were none")
    return found
