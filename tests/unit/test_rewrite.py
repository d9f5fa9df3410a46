"""Which clock receive timestamps are made of, in which scale, and when they are left alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agent.clock import Clock, ClockReport, Tag
from agent.ffi.clocks import ClockPairs
from agent.ffi.records import CLOCK_KEY_PHC
from agent.rewrite import HandedOn, TimestampRewrite, base_of
from tests.unit import telemetry_frames as sample

S = 1_000_000_000
PHC, LEFT, RIGHT = CLOCK_KEY_PHC, 0x0203, 0x0901


def pairs(tai_utc_s: int = 37) -> ClockPairs:
    """One instant."""
    now, zero = np.array([5_000 * S]), np.array([0])
    return ClockPairs(now, now, now, now + tai_utc_s * S, zero, zero, zero)


def seen(key: int, **changed: Any) -> tuple[Clock, ClockReport]:
    """A clock that tracks, counts TAI, and didn't jump."""
    facts: dict[str, Any] = {"state": "tracking", "timescale": "tai", "tags": ()}
    return Clock(key, "phc" if key == PHC else "trailer"), sample.report(key=key, **(facts | changed))


class Scene:
    """A rewrite, and what it made the kernel do."""

    def __init__(self, scale: str = "tai") -> None:
        self.applied: list[HandedOn | None] = []
        self.rewrite = TimestampRewrite("eth1", scale, self.applied.append)

    def tick(self, *clocks: tuple[Clock, ClockReport]) -> None:
        """One tick with these clocks."""
        self.rewrite.take(clocks, pairs())


def test_a_trusted_clock_is_handed_on_once() -> None:
    """The kernel is told when something changes, and people too."""
    scene = Scene("realtime")
    for _ in range(3):
        scene.tick(seen(PHC))
    assert scene.applied == [HandedOn(PHC, -37 * S)]
    assert scene.rewrite.take_notes() == [f"eth1: receive timestamps are realtime by clock {PHC}"]


@pytest.mark.parametrize(
    ("timescale", "scale", "base_s"),
    [("tai", "tai", 0), ("utc", "realtime", 0), ("tai", "realtime", -37), ("utc", "tai", 37)],
)
def test_scales(timescale: str, scale: str, base_s: int) -> None:
    """TAI is ahead of UTC by what the kernel was told."""
    assert base_of(timescale, scale, pairs()) == base_s * S


@pytest.mark.parametrize(
    ("timescale", "tai_utc_s", "why"),
    [
        ("unknown", 37, "scale is unknown"),
        ("unset", 37, "scale is unset"),
        ("tai", 0, "nobody told the kernel"),
    ],
)
def test_a_scale_that_is_not_known_is_not_made_up(timescale: str, tai_utc_s: int, why: str) -> None:
    """Applications keep the kernel's stamps, and the reason is told."""
    found = base_of(timescale, "realtime", pairs(tai_utc_s))
    assert isinstance(found, str)
    assert why in found


@pytest.mark.parametrize(
    "doubtful",
    [
        {"state": "software"},
        {"state": "invalid"},
        {"state": "holdover", "model": None},
        {"tags": (Tag("phase_step", 0, 250_000, ""),)},
        {"timescale": "unset"},
    ],
)
def test_a_doubtful_clock_is_not_handed_on(doubtful: dict[str, Any]) -> None:
    """Lost, stepped a moment ago, or of no known scale: the kernel's own stamps, until it is right again."""
    scene = Scene()
    scene.tick(seen(PHC))
    scene.tick(seen(PHC, **doubtful))
    assert scene.applied == [HandedOn(PHC, 0), None]
    assert "kernel's own" in scene.rewrite.take_notes()[-1]
    scene.tick(seen(PHC, mono_ns=sample.START_NS + 2 * S))
    assert scene.applied[-1] == HandedOn(PHC, 0)


def test_a_clock_in_holdover_goes_on() -> None:
    """A pause of the traffic doesn't make applications' time jump to another clock."""
    scene = Scene()
    scene.tick(seen(LEFT))
    scene.tick(seen(LEFT, state="holdover"))
    assert scene.applied == [HandedOn(LEFT, 0)]


def test_of_several_clocks_one_is_kept() -> None:
    """The PHC, else the one with the most samples; not another one because that has more by now."""
    scene = Scene()
    scene.tick(seen(LEFT, samples=10), seen(RIGHT, samples=20))
    scene.tick(seen(LEFT, samples=99), seen(RIGHT, samples=30))
    assert scene.applied == [HandedOn(RIGHT, 0)]
    scene = Scene()
    scene.tick(seen(LEFT, samples=10), seen(PHC, samples=1))
    assert scene.applied == [HandedOn(PHC, 0)]


def test_another_clock_is_handed_on_by_way_of_none() -> None:
    """For a tick the kernel writes nothing, so that it cannot mix the one's key with the other's scale."""
    scene = Scene()
    scene.tick(seen(LEFT), seen(RIGHT, timescale="utc", samples=1))
    for _ in range(2):
        scene.tick(seen(LEFT, state="invalid"), seen(RIGHT, timescale="utc"))
    assert scene.applied == [HandedOn(LEFT, 0), None, HandedOn(RIGHT, 37 * S)]


def test_without_clocks_nothing_is_written() -> None:
    """And that is told once."""
    scene = Scene()
    scene.tick()
    scene.tick()
    assert scene.applied == []
    assert scene.rewrite.take_notes() == [
        "eth1: receive timestamps are the kernel's own: there is no hardware clock"
    ]
