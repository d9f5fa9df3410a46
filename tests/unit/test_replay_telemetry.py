"""A recorded stream through the clocks again: with a PHC, steered clocks, changed settings, and damage."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agent.clock.forecast import HORIZONS_S
from agent.clock.interface import InterfaceClocks, TickInputs
from agent.control.events import ChangeEvent
from agent.errors import PartialError, UsageError
from agent.ffi.clocks import ClockPairs, Steering
from agent.ffi.phc import PhcBurst
from agent.ffi.records import CLOCK_KEY_PHC, WINDOW_DTYPE, WindowArray
from agent.phcreader import PhcReading
from agent.replay.reports import Horizons
from agent.replay.rows import Row
from agent.replay.telemetry import TelemetryReplay
from agent.telemetry.encode import Encoder, pack
from tests.unit import telemetry_frames as sample

TICK_NS = 200_000_000
TICKS = 40
HW_NS = 1_790_000_000 * 10**9
STEERING = Steering(-1_234.5, 10_000, 17, 2, 64, 500, 20, 37)


def pairs(mono_ns: int, n: int = 5) -> ClockPairs:
    """Reads of the kernel's clocks; mono is 1.2 µs/s slow against raw."""
    at = mono_ns + np.arange(n) * 200
    zeros, raw = np.zeros(n, dtype=np.int64), at + at // 10**6 * 1234 // 1000
    return ClockPairs(at, raw, at + HW_NS, at + HW_NS, zeros + 40 + np.arange(n), zeros + 60, zeros + 70)


def reading(mono_ns: int, tick: int) -> PhcReading:
    """Every third tick the device refuses; every fourth its burst is against realtime; it steps at tick 25."""
    step = 100_000 if tick >= 25 else 0
    around = pairs(mono_ns - 3000, 3).followed_by(pairs(mono_ns + 9000, 3))
    base = around.realtime_ns if tick % 4 == 0 else around.raw_ns
    t1 = base[2] + 1000 + np.arange(6) * 1500
    burst = PhcBurst(
        "extended",
        "realtime" if tick % 4 == 0 else "raw",
        t1,
        HW_NS + mono_ns + step + np.arange(6) * 1500,
        t1 + 900,
    )
    return PhcReading(None if tick % 3 == 2 else burst, around, 50.0 if tick == 12 else 0.0)


def windows(mono_ns: int, tick: int) -> WindowArray:
    """Windows of the PHC's packets and, from tick 5 on, of a switch's; the path is 5 µs longer from tick 17 on."""
    made = np.zeros(200, dtype=WINDOW_DTYPE)
    at = mono_ns - TICK_NS + np.arange(200) * 1_000_000
    made["open_mono_ns"], made["last_mono_ns"], made["n"], made["n_stamped"] = at, at + 900_000, 4, 4
    made["clock_key"] = np.where((np.arange(200) % 2 == 0) | (tick < 5), CLOCK_KEY_PHC, 0x0703)
    jitter = (np.arange(200) * 7919 + tick * 31) % 400
    longer = 5_000 if tick >= 17 else 0
    for name, ns in (("first", 100_000), ("last", 800_000), ("envelope", 400_000)):
        made[name]["mono_ns"], made[name]["hw_ns"] = at + ns, HW_NS + at + ns - 2_000 - jitter - longer
    return made


def announces(mono_ns: int, tick: int) -> tuple[tuple[int, bytes], ...]:
    """A grandmaster every second, another and better one from tick 24 on."""
    if tick < 24 and tick % 5 != 0:
        return ()
    better = sample.announce(0x0A, source=0x0A, priority1=1)
    return ((mono_ns - 1000, sample.announce() if tick < 24 else better),)


def run() -> Iterator[dict[str, Any]]:
    """The frames of a run, from live clocks."""
    encoder, clocks = Encoder(), InterfaceClocks(1500)
    yield dict(sample.hello(encoder))
    for tick in range(TICKS):
        mono_ns = sample.START_NS + (tick + 1) * TICK_NS
        drained = windows(mono_ns, tick)
        inputs = TickInputs(
            mono_ns,
            pairs(mono_ns),
            replace(STEERING, freq_ppb=-1_234.5 + tick // 10),
            reading(mono_ns, tick),
            announces(mono_ns, tick),
        )
        yield from map(dict, encoder.windows(mono_ns, "eth1", drained))
        yield dict(encoder.inputs("eth1", clocks.base_delay_ns, inputs))
        for clock, report in clocks.tick(drained, inputs):
            yield dict(encoder.clock("eth1", clock.kind, report))
        if tick == 15:
            change = ChangeEvent(mono_ns, "eth1", 1, "rps", "rps_cpus", (0,), "0", "2", "applied", "2", "")
            clocks.setting_changed(mono_ns, "rps", "rps_cpus", "applied")
            yield dict(encoder.event(change))
    yield dict(sample.goodbye(encoder))


FRAMES = list(run())


def stream(frames: list[dict[str, Any]]) -> bytes:
    """Their bytes."""
    return b"".join(pack(frame) for frame in frames)  # type: ignore[arg-type]


def replay(data: bytes) -> tuple[TelemetryReplay, list[Row]]:
    """The replay of a stream and its rows."""
    played = TelemetryReplay(io.BytesIO(data), "run", Horizons.of(HORIZONS_S))
    return played, list(played.rows())


def test_the_same_inputs_give_the_same_reports() -> None:
    """A PHC that refuses, is steered and steps, a switch's clock, a changed setting: every frame comes out the same."""
    played, rows = replay(stream(FRAMES))
    recorded = [frame for frame in FRAMES if frame["t"] == "clock"]
    facts = played.facts()
    assert facts["recorded_reports"] == facts["identical_reports"] == len(recorded) == len(rows)
    assert {"tracking", "init"} < {frame["state"] for frame in recorded}
    told = {(tag["kind"], tag["cause"]) for frame in recorded for tag in frame["tags"]}
    assert {kind for kind, _ in told} >= {"phase_step", "path_change"}
    assert ("path_change", "rps rps_cpus") in told
    assert any("PTP grandmaster changed" in cause for kind, cause in told if kind == "phase_step")
    assert {row.clock for row in rows} == {"eth1 PHC", "eth1 trailer 7:3"}
    assert [row.report.offset_ns for row in rows if row.report.offset_ns is not None] == [
        frame["offset_ns"] for frame in recorded if frame["samples"]
    ]


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("inputs", "steering", {"freq_ppb": 5e4}),
        ("inputs", "phc", {"steered_ppb": 900.0}),
        ("change", "outcome", "refused"),
    ],
)
def test_every_input_matters(kind: str, key: str, value: Any) -> None:
    """Other steering, or a setting that did not change after all: the comparison notices, it is no tautology."""
    frames = [dict(frame) for frame in FRAMES]
    at = next(i for i, frame in enumerate(frames) if frame["t"] == kind and i > 50)
    frames[at][key] = frames[at][key] | value if isinstance(value, dict) else value
    facts = replay(stream(frames))[0].facts()
    assert facts["identical_reports"] != facts["recorded_reports"]


def test_two_runs_in_one_file_are_two_runs() -> None:
    """Each begins anew with its hello."""
    facts = replay(stream(FRAMES) * 2)[0].facts()
    assert facts["runs"] == 2
    assert facts["identical_reports"] == facts["recorded_reports"]


def test_dropped_frames_are_said() -> None:
    """What the sink dropped, the clocks weren't fed: the rest is replayed, then it is told."""
    with pytest.raises(PartialError, match="10 frames are missing"):
        replay(stream(FRAMES[:40] + FRAMES[50:]))


def test_a_recording_without_inputs_is_refused() -> None:
    """An older agent's stream has nothing to be fed."""
    with pytest.raises(UsageError, match="no `inputs` frames"):
        replay(stream([frame for frame in FRAMES if frame["t"] in ("hello", "windows", "clock")]))


BURST = {"method": "extended", "local_clock": "raw", "reads": bytes(24), "pairs": bytes(56)}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"pairs": b""}, "inputs.pairs of 0 bytes"),
        ({"pairs": bytes(57)}, "inputs.pairs of 57 bytes"),
        (
            {"phc": {"steered_ppb": 0.0, "burst": BURST | {"method": "guessed"}}},
            "reads of a PHC by 'guessed' against 'raw'",
        ),
        ({"phc": {"steered_ppb": 0.0, "burst": BURST | {"reads": bytes(25)}}}, "burst.reads of 25 bytes"),
        ({"phc": {"steered_ppb": float("inf"), "burst": None}}, "steered_ppb inf"),
        ({"pairs": b"\xff" * 56}, "inputs.pairs -1"),
        ({"pairs": bytes(56)}, "a tick of eth1 that is .* ns before the last one"),
        ({"mono_ns": 1 << 63}, "inputs.mono_ns 9223372036854775808"),
        ({"ifname": "eth9", "base_delay_ns": -1}, "inputs.base_delay_ns -1"),
    ],
)
def test_damaged_inputs_are_said(change: dict[str, Any], what: str) -> None:
    """A frame that can't be is no traceback."""
    frames = [dict(frame) for frame in FRAMES]
    at = next(i for i, frame in enumerate(frames) if frame["t"] == "inputs" and i > 60)
    frames[at] |= change
    with pytest.raises(PartialError, match=what):
        replay(stream(frames))


def test_windows_of_the_future_are_said() -> None:
    """Windows end before the tick in which they are drained; others would wait for ever."""
    frames = [dict(frame) for frame in FRAMES]
    at = next(i for i, frame in enumerate(frames) if frame["t"] == "windows")
    later = np.frombuffer(frames[at]["data"], WINDOW_DTYPE).copy()
    later["last_mono_ns"] += 10**12
    frames[at]["data"] = later.tobytes()
    with pytest.raises(PartialError, match="end after the tick"):
        replay(stream(frames))


def test_interfaces_without_end_are_said() -> None:
    """Each takes memory, and no host captures on so many."""
    frames = [FRAMES[0]] + [FRAMES[1] | {"ifname": f"eth{i}"} for i in range(99)]
    with pytest.raises(PartialError, match="an interface more than 64"):
        replay(stream(frames))
