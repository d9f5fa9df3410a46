"""Captures of stamped packets through the clocks: queueing, drift, jumps and silences of known truth."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from agent.clock.forecast import HORIZONS_S
from agent.errors import PartialError, UsageError
from agent.ffi.records import IntArray
from agent.replay.packets import WINDOW_NS, PacketReplay, windows_of
from agent.replay.reports import Horizons
from agent.replay.rows import Row
from tests.unit.captures import NS_PER_S, START_NS, Timed, metamako, pcap, udp

DRIFT_PPB = 12_000
BASE_NS = 900


def stamped(span_s: float, make: Callable[..., bytes] = metamako, **ids: int) -> Iterator[Timed]:
    """Packets each ms or so: hardware time, and the capture's, that is `BASE_NS` and some queueing later."""
    rng = np.random.default_rng(11)
    hw_ns = START_NS
    while hw_ns < START_NS + span_s * NS_PER_S:
        hw_ns += int(rng.exponential(1e6)) + 1
        delay_ns = BASE_NS + int(rng.exponential(3000.0))
        yield hw_ns + round((hw_ns - START_NS) * DRIFT_PPB * 1e-9) + delay_ns, make(hw_ns, **ids)


def replay(data: bytes, base_delay_ns: int | None = None) -> tuple[PacketReplay, list[Row]]:
    """The replay of a capture and its rows."""
    played = PacketReplay(io.BytesIO(data), "x.pcap", Horizons.of(HORIZONS_S), base_delay_ns)
    return played, list(played.rows())


def test_offset_and_drift_are_found_below_the_queueing() -> None:
    """After 5 s the drift is within its bound, and the offset is the truth plus the base delay."""
    played, rows = replay(pcap(list(stamped(5.0))), BASE_NS)
    report = rows[-1].report
    assert (report.state, rows[-1].clock, played.timescale(rows[-1].clock)) == (
        "relative",
        "trailer 7:3",
        "utc",
    )
    assert report.drift_ppb == pytest.approx(DRIFT_PPB, abs=100)
    assert report.offset_ns is not None
    truth = round((report.local_ns - START_NS) * DRIFT_PPB * 1e-9)
    assert abs(report.offset_ns - truth - BASE_NS) < report.bound_ns - BASE_NS
    assert played.facts()["unstamped"] == 0
    assert {row.report.state for row in rows} == {"init", "relative"}


def test_a_step_is_tagged() -> None:
    """The switch's clock goes back by 200 µs after 3 s."""
    packets = [(t + (200_000 if t > START_NS + 3 * NS_PER_S else 0), frame) for t, frame in stamped(6.0)]
    _, rows = replay(pcap(packets))
    assert [row.report.tag for row in rows if row.report.tag] == ["phase_step"]


def test_two_switches_are_two_clocks() -> None:
    """Told apart by device and port; frames without a stamp are counted."""
    merged = sorted([*stamped(2.0), *stamped(2.0, device=9), (START_NS + 10**9, udp())])
    played, rows = replay(pcap(merged))
    assert {row.clock for row in rows} == {"trailer 7:3", "trailer 9:3"}
    assert [row.index for row in rows] == list(range(len(rows)))
    assert played.facts()["unstamped"] == 1


def test_a_silence_is_holdover_and_costs_no_rows() -> None:
    """An hour without packets is one tick in it, and one at its end."""
    packets = list(stamped(3.0))
    late = [
        (t + 1200 * NS_PER_S, frame) for t, frame in stamped(3.0, lambda hw: metamako(hw + 1200 * NS_PER_S))
    ]
    _, quick = replay(pcap(packets))
    _, rows = replay(pcap(packets + late))
    assert len(rows) < 2 * len(quick) + 4
    assert "holdover" in {row.report.state for row in rows}
    assert rows[-1].report.state == "relative"


def test_a_cut_capture_is_replayed_as_far_as_it_goes() -> None:
    """All that is whole becomes rows, then the error comes."""
    whole = pcap(list(stamped(3.0)))
    played = PacketReplay(io.BytesIO(whole[:-7]), "x.pcap", Horizons.of(HORIZONS_S), None)
    rows: list[Row] = []
    with pytest.raises(PartialError, match="the file ends within a packet"):
        rows.extend(played.rows())
    assert rows[-1].report.state == "relative"


@pytest.mark.parametrize(
    ("packets", "what"),
    [
        ([], "holds no packet"),
        (
            [(START_NS, udp())] * 5,
            "packets 1 to 5: no known time stamp. Looked for: Arista 7130 .*, Cisco .*0xD28B",
        ),
        ([*stamped(0.1), (START_NS - 2 * NS_PER_S, metamako(START_NS))], "packet 10[0-9]: .* goes back by"),
    ],
)
def test_what_cannot_be_replayed_is_said(packets: list[Timed], what: str) -> None:
    """Nothing in it, nothing known in it, time going back."""
    with pytest.raises(UsageError, match=what) as caught:
        replay(pcap(packets))
    assert caught.value.remedy


def test_windows_are_the_kernels() -> None:
    """A window for each clock, interface and millisecond, with its first, last and least delayed pair."""
    rng = np.random.default_rng(2)
    n = 500
    local = np.sort(rng.integers(0, 20 * WINDOW_NS, n)) + 10**18
    table: IntArray = np.stack(
        (local, local - rng.integers(0, 10**5, n), rng.integers(1, 4, n), rng.integers(0, 2, n))
    )
    windows = windows_of(table)
    assert windows["n"].sum() == windows["n_stamped"].sum() == n
    seen = set()
    for window in windows:
        mine = table[:, (table[2] == window["clock_key"]) & (table[3] == window["queue"])]
        mine = mine[:, mine[0] // WINDOW_NS == window["open_mono_ns"] // WINDOW_NS]
        least = mine[:, np.argmin(mine[0] - mine[1])]
        assert mine.shape[1] == window["n"]
        assert tuple(window["first"]) == tuple(mine[:2, 0])
        assert tuple(window["last"]) == tuple(mine[:2, -1])
        assert window["envelope"]["mono_ns"] - window["envelope"]["hw_ns"] == least[0] - least[1]
        seen.add((int(window["clock_key"]), int(window["queue"]), int(window["open_mono_ns"]) // WINDOW_NS))
    assert len(seen) == len(windows)


def test_other_horizons_are_refused() -> None:
    """A live clock predicts at fixed ones."""
    with pytest.raises(UsageError, match="30"):
        Horizons.of((1.0, 30.0))
