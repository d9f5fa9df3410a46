"""Every case of the shared clock cases, as samples through the estimator that replay uses too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.clock.estimator import Estimator, Sample, Verdict

_PATH = Path(__file__).resolve().parents[3] / "shared" / "cases" / "clock.json"
CASES: list[dict[str, Any]] = json.loads(_PATH.read_text()) if _PATH.exists() else []
_QUIET = (None, "outlier")

pytestmark = pytest.mark.skipif(
    not CASES, reason=f"{_PATH.name} is not beside this checkout (../shared/cases)"
)


def _samples(case: dict[str, Any]) -> list[Sample]:
    rows = next(v for k, v in case.items() if k != "columns" and isinstance(v, list))
    return [Sample(**dict(zip(case["columns"], row, strict=True))) for row in rows]


def _run(case: dict[str, Any]) -> tuple[Estimator, list[Sample], list[Verdict]]:
    """The estimator after the case, and one verdict per sample in order, none late by more than three samples."""
    estimator = Estimator(local_is_realtime=case["local_clock"] == "realtime")
    samples = _samples(case)
    verdicts: list[Verdict] = []
    for i, sample in enumerate(samples):
        new = estimator.update(sample)
        assert all(i - v.index <= 3 for v in new)
        verdicts += new
    verdicts += estimator.flush()
    verdicts.sort(key=lambda v: v.index)
    assert [v.index for v in verdicts] == list(range(len(samples)))
    return estimator, samples, verdicts


def _good_line(samples: list[Sample], verdicts: list[Verdict]) -> tuple[float, float]:
    """(drift in ppb, offset one second ahead relative to the last good sample) of the line through the good samples."""
    step = max((v.index for v in verdicts if v.kind in ("phase_step", "tai_utc")), default=0)
    good = [
        s
        for s, v in zip(samples, verdicts, strict=True)
        if v.kind in (*_QUIET, "epoch_unset") or v.index == step
    ]
    good = [s for s in good if s.local_ns >= samples[step].local_ns and s.hw_ns]
    last = good[-1]
    base = last.local_ns - (last.hw_ns or 0)
    t = [(s.local_ns - last.local_ns) * 1e-9 for s in good]
    y = [float(s.local_ns - (s.hw_ns or 0) - base) for s in good]
    slope, level = np.polyfit(t, y, 1)
    return float(slope), base + float(level + slope)


@pytest.mark.parametrize("case", CASES, ids=[c["id"] for c in CASES])
def test_case(case: dict[str, Any]) -> None:
    """Tags, state, drift, offset ahead, bound and time scale are as the case says."""
    expect = case["expect"]
    estimator, samples, verdicts = _run(case)
    tags = {v.index: v.kind for v in verdicts if v.kind not in _QUIET}
    if "tags" in expect:
        assert tags == {tag["i"]: tag["tag"] for tag in expect["tags"]}
    assert set(expect.get("must_include", ())) <= set(tags.values())
    assert not set(expect.get("must_not_include", ())) & set(tags.values())
    last_ns = samples[-1].local_ns
    if "state_end" in expect:
        assert estimator.state(last_ns) == expect["state_end"]
    if "timescale" in expect:
        assert estimator.timescale == expect["timescale"]
    if "stale_from" in expect:
        assert [i for i, kind in tags.items() if kind == "stale"] == list(
            range(expect["stale_from"], len(samples))
        )
    if expect.get("missing") == "odd":
        assert [i for i, kind in tags.items() if kind == "missing"] == list(range(1, len(samples), 2))
    if "drift_tol_ppb" in expect:
        drift, ahead = _good_line(samples, verdicts)
        assert abs(estimator.drift()[0] - drift) <= expect["drift_tol_ppb"]
        if "theta_tol_ns" in expect:
            offset, _ = estimator.offset_at(last_ns + 1_000_000_000)
            assert abs(offset - ahead) <= expect["theta_tol_ns"]
    if "bound_min_ns" in expect:
        state = estimator.state(last_ns)
        assert estimator.bound_ns(estimator.offset_at(last_ns)[1], state) >= expect["bound_min_ns"]
    if estimator.accepted:
        assert np.isfinite(estimator.offset_at(last_ns)[1])


def test_one_pop_does_not_ring() -> None:
    """After a rejected pop, the offset one second ahead never leaves the line by more than 200 ns."""
    case = next(c for c in CASES if c["id"] == "pow2-27-pop")
    estimator = Estimator()
    for i, sample in enumerate(_samples(case)):
        if i > 31:
            offset, _ = estimator.offset_at(sample.local_ns)
            assert abs(offset - (sample.local_ns - (sample.hw_ns or 0))) < 200
        estimator.update(sample)
