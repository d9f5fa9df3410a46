"""A slice of the ingest benchmark: every frame is accounted for, on a static side and on the agent's."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

pytest.importorskip("onnx", reason="the bench extra is not installed")
pytest.importorskip("onnxruntime", reason="the bench extra is not installed")

from tools.bench.ingest import scenario
from tools.bench.ingest.bench import IngestBench, Side

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and BPF"),
]


def test_each_frame_is_inferred_once_or_dropped() -> None:
    """Frames of six packets at a low rate come through the service on both sides, with the latency of each."""
    setting = replace(scenario.read(), warmup_s=0.5)
    phases = [replace(phase, seconds=0.5, rate=200.0) for phase in setting.phases[:2]]
    with IngestBench(setting) as bench:
        for side in (
            Side("tuned", (0, 8), setting.rcvbuf_kib),
            Side("agent", (0, 8), setting.rcvbuf_kib, True),
        ):
            run = bench.run(side, phases)
            assert [phase.sent for phase in run.phases] == [100, 96]
            assert 0.0 <= run.drops < 0.1
            assert (run.latency_ns > 0).all()
            assert (run.phases[1].captured_ns >= 0.5e9).all()
            assert run.cpu_percent > 0.0
