"""The benchmark's own arithmetic, on values computed by hand; and that a slice of it runs."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tools.bench import report
from tools.bench.clock import jumps, plots
from tools.bench.clock.bounds import width_over_told, wilson_percent
from tools.bench.clock.evaluation import Outlook, apart
from tools.bench.clock.holdover import SILENT_S, _trace
from tools.bench.clock.oscillator import TCXO
from tools.bench.clock.predictions import of_trace, rmse, run_baselines, scored_samples
from tools.bench.clock.ratios import geometric_mean, worst_figure
from tools.bench.clock.recipe import Recipe, draw
from tools.bench.clock.recordings import DATA
from tools.bench.clock.speed import as_csv
from tools.bench.clock.traces import Event
from tools.bench.figure import Figure


def test_rmse_leaves_out_what_is_not_scored() -> None:
    """NaN targets count for nothing; a horizon without any is NaN."""
    target = np.array([[0.0, np.nan], [np.nan, np.nan], [4.0, np.nan]])
    result = rmse(np.ones((3, 2)), target)
    assert result[0] == pytest.approx(np.sqrt((1 + 9) / 2))
    assert np.isnan(result[1])


def test_the_verdict_on_a_jump_is_waited_for() -> None:
    """The sample that jumped and the three after it aren't scored, nor is the warm-up."""
    trace = draw(Recipe("r", TCXO, 1, 100, events=(Event(79.5, "phase_step", 1e6),)), 1)
    assert scored_samples(trace).nonzero()[0].tolist() == [*range(60, 80), *range(84, 100)]


def test_spans_apart_do_not_overlap() -> None:
    """Every third sample at 10 Hz is 0.3 s from the last, also where a gap comes between."""
    times = np.concatenate((np.arange(10) / 10, 5 + np.arange(4) / 10))
    assert apart(times, 0.3).tolist() == [0, 3, 6, 9, 10, 13]


def test_geometric_mean_and_worst() -> None:
    """Of 1/4 and 4 the mean is 1; the worst is named."""
    ratios = {"a": 0.25, "b": 4.0}
    value, spread = geometric_mean(ratios)
    assert value == pytest.approx(1.0)
    assert spread.low == pytest.approx(0.25)
    assert spread.high == pytest.approx(4.0)
    figure = worst_figure("n", "w", ratios, 1.05)
    assert figure.value == 4.0
    assert figure.detail == {"worst": "b", "beyond_target": ["b"]}


def test_wilson_interval() -> None:
    """Of 10 in 10 the 95 % interval is 72.2 to 100 % (Newcombe 1998)."""
    low, high = wilson_percent(100.0, 10)
    assert low == pytest.approx(72.2, abs=0.1)
    assert high == pytest.approx(100.0)


def test_width_is_compared_at_the_same_coverage() -> None:
    """The limit's deviations are scaled until as many of its own errors are inside."""
    errors = np.arange(1.0, 101.0)
    outlook = Outlook(errors, np.full(100, 180.0), errors, np.ones(100))
    # 90 % of the limit's errors are within 90.1 deviations: its bound there is 90.1 wide.
    assert width_over_told(outlook, 0.9) == pytest.approx(180 / 90.1)


def test_holdover_ends_ten_minutes_after_the_last_stamp() -> None:
    """Each silence ends with a sample without a stamp, 600 s after the last that had one."""
    trace = _trace("tcxo", 0)
    ends = np.flatnonzero(trace.hw_ns == 0)
    assert (trace.hw_ns[ends - 1] != 0).all()
    assert np.diff(trace.time_s)[ends - 1] == pytest.approx(SILENT_S)


def test_latency_of_a_tag() -> None:
    """Samples from the jump to the first tag after it; none when only the next jump's comes."""
    tagged = np.array([10, 95])
    assert jumps._latency(tagged, 8) == 2
    assert jumps._latency(tagged, 40) == -1
    assert jumps._latency(tagged, 96) == -1


def test_injected_jumps_are_found() -> None:
    """Steps far above the noise of a quiet clock are tagged in time."""
    injected = jumps.inject(("tcxo", 10, "quiet", 30))
    large = injected.multiple >= 100
    assert large.any()
    assert (injected.latency[large] >= 0).all()
    assert (injected.latency[large] < jumps.FOUND_WITHIN).all()


def test_baselines_do_not_see_samples_without_a_stamp() -> None:
    """A missing sample leaves no prediction, and changes none after it."""
    trace = draw(Recipe("r", TCXO, 1, 100, missing=0.3), 2)
    predicted = run_baselines(of_trace(trace))["hold"]
    assert np.isnan(predicted[trace.hw_ns == 0]).all()
    stamped = trace.hw_ns != 0
    assert predicted[stamped, 0] == pytest.approx(trace.measured_ns()[stamped])


def test_csv_is_what_replay_reads() -> None:
    """Header, integers, nothing where there was no stamp."""
    trace = draw(Recipe("r", TCXO, 1, 50, missing=0.5), 3)
    lines = as_csv(trace).splitlines()
    assert lines[0] == "local_ns,hw_ns,read_delay_ns"
    local, hw, delay = zip(*(line.split(",") for line in lines[1:]), strict=True)
    assert list(map(int, local)) == trace.local_ns.tolist()
    assert [int(h or 0) for h in hw] == trace.hw_ns.tolist()
    assert list(map(int, delay)) == trace.read_delay_ns.tolist()


def test_what_was_not_measured_is_said(tmp_path: Path) -> None:
    """In the table, on the page and in the JSON, with the reason and without a value."""
    missing = {"speed": "there is no such command"}
    assert "speed: not measured: there is no such command" in report.table([], missing)
    facts = {"date": "2026-01-02T03:04:05Z", "commit": "abc"}
    page = report.save(facts, [], missing, suffix="-clock", directory=tmp_path)
    assert page.name == "2026-01-02-abc-clock.md"
    assert "not measured: there is no such command" in page.read_text()
    assert json.loads(page.with_suffix(".json").read_text())["not_measured"] == missing


def test_pictures_are_drawn_of_what_was_measured(tmp_path: Path) -> None:
    """A recall curve, and nothing of ratios that are not there."""
    pytest.importorskip("matplotlib")
    curve = [{"from": 1, "to": 2, "n": 5, "recall": 0.4}, {"from": 8, "to": 16, "n": 5, "recall": 1.0}]
    detail = {"curve": curve, "false_tags_a_day_beside": 0.0}
    figure = Figure("jump-recall", "", 100.0, "%", 99.9, "at least", None, 5, detail)
    assert [path.name for path in plots.save([figure], tmp_path / "x")] == ["x-recall.png"]
    assert (tmp_path / "x-recall.png").stat().st_size > 1000


@pytest.mark.skipif(not DATA.exists(), reason="the shared data are not beside this checkout")
def test_a_slice_runs(tmp_path: Path) -> None:
    """The command measures, prints a table, and writes JSON."""
    out = tmp_path / "out.json"
    command = [
        sys.executable,
        "-m",
        "tools.bench.clock",
        "--quick",
        "--only",
        "metrics,delay",
        "--json",
        str(out),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    names = [figure["name"] for figure in json.loads(out.read_text())["figures"]]
    assert names == ["metrics", "delay-p50", "delay-p99"]
    assert all(name in done.stdout for name in names)


def test_an_unknown_measurement_is_refused() -> None:
    """Exit code 2, with the way to see what there is."""
    command = [sys.executable, "-m", "tools.bench.clock", "--only", "nothing"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--list" in done.stderr
