"""The shared cases made from public reports: every verdict, state, drift, bound and time scale as they say."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from agent.clock.estimator import Sample
from agent.errors import UnsupportedError
from tools.bench.clock import product
from tools.bench.clock.recordings import DATA
from tools.bench.clock.session import Session
from tools.bench.figure import Figure

_PATH = DATA.parent / "cases" / "clock.json"
_FREE = frozenset({None, "outlier"})
"""Verdicts that are allowed anywhere."""


def measure(session: Session) -> list[Figure]:
    """How many cases come out wrong, and in what."""
    if not _PATH.exists():
        raise UnsupportedError(f"{_PATH.name} is not beside this checkout", f"put it into {_PATH.parent}")
    cases = json.loads(_PATH.read_text())
    wrong = {case["id"]: found for case in cases if (found := differences(case))}
    what = "cases of clock.json with a wrong tag, state, drift, offset, bound or time scale"
    return [Figure("cases", what, len(wrong), "", 0, "exactly", None, len(cases), {"wrong": wrong})]


def differences(case: dict[str, Any]) -> list[str]:
    """What a replay of the case says differently from what it expects; empty if nothing."""
    expect = case["expect"]
    samples = [Sample(**dict(zip(case["columns"], row, strict=True))) for row in case["samples"]]
    known = [s for s in samples if s.hw_ns]
    base_ns = known[-1].local_ns - (known[-1].hw_ns or 0) if known else 0
    local_is_realtime = case["local_clock"] == "realtime"
    ran = product.run(samples, base_ns, horizons_s=(1.0,), local_is_realtime=local_is_realtime)
    tags = {r.index: r.tag for r in ran.reports if r.tag not in _FREE}
    last = ran.reports[-1]
    found = []
    if "tags" in expect and tags != (wanted := {tag["i"]: tag["tag"] for tag in expect["tags"]}):
        found.append(f"tags {tags}, not {wanted}")
    if missing := set(expect.get("must_include", ())) - set(tags.values()):
        found.append(f"no {sorted(missing)}")
    if forbidden := set(expect.get("must_not_include", ())) & set(tags.values()):
        found.append(f"{sorted(map(str, forbidden))} tagged")
    if "state_end" in expect and last.state != expect["state_end"]:
        found.append(f"state {last.state}, not {expect['state_end']}")
    if "timescale" in expect and ran.timescale != expect["timescale"]:
        found.append(f"time scale {ran.timescale}, not {expect['timescale']}")
    if "drift_tol_ppb" in expect:
        found += _off_the_line(expect, samples, ran, base_ns)
    if "bound_min_ns" in expect and last.bound_ns < expect["bound_min_ns"]:
        found.append(f"bound {last.bound_ns:.0f} ns, at least {expect['bound_min_ns']} is honest")
    return found


def _off_the_line(expect: dict[str, Any], samples: list[Sample], ran: product.Run, base_ns: int) -> list[str]:
    """Drift and the offset a second ahead, against the line through the good samples after the last step."""
    tags = [r.tag for r in ran.reports]
    step = max((i for i, tag in enumerate(tags) if tag in ("phase_step", "tai_utc")), default=0)
    good = [
        sample
        for i, (sample, tag) in enumerate(zip(samples, tags, strict=True))
        if i >= step and sample.hw_ns and (tag in _FREE or tag == "epoch_unset" or i == step)
    ]
    last_ns = good[-1].local_ns
    seconds = [(s.local_ns - last_ns) * 1e-9 for s in good]
    offsets = [float(s.local_ns - (s.hw_ns or 0) - base_ns) for s in good]
    slope, level = np.polyfit(seconds, offsets, 1)
    found = []
    drift = ran.reports[-1].drift_ppb
    if drift is None or abs(drift - slope) > expect["drift_tol_ppb"]:
        found.append(f"drift {drift}, the good samples' is {slope:.1f} ppb")
    ahead = (samples[-1].local_ns - last_ns) * 1e-9 + 1.0
    away = abs(ran.predicted_ns[-1, 0] - (level + slope * ahead))
    if "theta_tol_ns" in expect and not away <= expect["theta_tol_ns"]:
        found.append(f"offset a second ahead {away:.0f} ns from the good samples' line")
    return found
