"""A slice of the benchmarks: what they assert that is no timing, and that every measurement can be found."""

import os
from pathlib import Path

import pytest

from tools.bench import exact, report
from tools.bench.figure import Figure, median_with_bootstrap
from tools.bench.kill import plan_kills
from tools.bench.registry import MEASUREMENTS, measurement
from tools.testbed import Testbed

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and BPF"),
]


def test_windows_balance_when_rings_overflow() -> None:
    """With rings of 4 KiB most windows are lost, and produced = drained + lost holds exactly."""
    with Testbed(rate_pps=20_000) as bed:
        bed.start_traffic()
        balance = exact.run(bed, window_ns=100_000, ring_kib=4, seconds=0.5)
    assert balance.lost > 0
    assert balance.drained > 0
    assert balance.produced == balance.drained + balance.lost
    assert balance.error == 0


def test_windows_balance_when_rings_suffice() -> None:
    """With the usual rings every window reaches user space."""
    with Testbed(rate_pps=20_000) as bed:
        bed.start_traffic()
        balance = exact.run(bed, window_ns=1_000_000, ring_kib=256, seconds=0.5)
    assert balance.produced == balance.drained > 0
    assert balance.lost == 0
    assert balance.error == 0


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_every_measurement_is_there(name: str) -> None:
    """Each name of the registry is a module with `measure`."""
    assert callable(measurement(name).measure)


def test_kills_are_the_same_in_each_run_and_reach_every_phase() -> None:
    """The random moments have a fixed seed; both levers are killed in every phase."""
    kills = plan_kills(50)
    assert kills == plan_kills(50)
    for lever in ("rps", "xps"):
        phases = {kill.phase for kill in kills if kill.lever == lever}
        assert phases == {"starting", "writing", "judging", "restoring"}


@pytest.mark.parametrize(
    ("direction", "value", "reached"),
    [("at most", 1.3, True), ("at most", 1.31, False), ("at least", 0.95, True), ("exactly", 1, False)],
)
def test_a_target_is_reached_or_missed(direction: str, value: float, reached: bool) -> None:
    """The target's own value counts as reached."""
    target = {"at most": 1.3, "at least": 0.95, "exactly": 0}[direction]
    figure = Figure("x", "something", value, "", target, direction, None, 1)  # type: ignore[arg-type]
    assert figure.reached is reached


def test_the_bootstrap_interval_contains_the_median() -> None:
    """And it is the same each time."""
    values = [0.9, 0.95, 0.97, 1.0, 1.2]
    median, spread = median_with_bootstrap(values)
    assert median == 0.97
    assert 0.9 <= spread.low <= median <= spread.high <= 1.2
    assert median_with_bootstrap(values) == (median, spread)


def test_results_are_saved_as_a_page_and_json(tmp_path: Path) -> None:
    """Both name the figure, its target, and the machine."""
    _, spread = median_with_bootstrap([1.0, 1.1])
    figure = Figure("packet", "the cost", 1.05, "", 1.3, "at most", spread, 2, {"how": "by hand"})
    page = report.save({"date": "2026-01-02T03:04:05Z", "commit": "abc"}, [figure], directory=tmp_path)
    assert page.name == "2026-01-02-abc.md"
    assert "| packet | the cost | 1.05 |" in page.read_text()
    assert '"target": 1.3' in page.with_suffix(".json").read_text()
