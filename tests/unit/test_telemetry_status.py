from __future__ import annotations

import contextlib
import os
import pty
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.telemetry.encode import Encoder
from agent.telemetry.status import State, StatusView, one_line, render
from tests.unit import telemetry_frames as sample


def state_of(*frames: Any) -> State:
    """The state after these frames."""
    state = State()
    for frame in frames:
        state.take(frame)
    return state


def test_view_shows_what_the_run_is_about() -> None:
    """Interface, hook, stamp, clock with bound, delays, events and the loss equation are all on the screen."""
    text = "\n".join(render(state_of(*sample.run_of_frames()), 160, 40))
    for part in (
        "eth1", "hook xdp", "stamp trailer", "relative", "+12.01 ppm", "20 ppb", "PHASE_STEP", "250 µs",
        "40 drained, 0 lost", "rps_cpus 0 → 2 applied", "kept", "irqbalance",
        "p99", "█", "ended: SIGINT", "/dev/ptp0 extended against raw, dialled -1250.2 ppb",
        "eth1 trailer 2:3 − eth1 trailer 9:1 5000123 ns ± 20.1 µs, -320 ppb ± 25 ppb",
        "PTP domain 24: grandmaster 001b19.fffe.0a0b0c of class 6, 1 steps away",
        "UTC − realtime -1234 ns ± 812 ns",
        "page default: 2 consumers, wait 700 µs, 12 items at most, a batch takes 1.15 ms + 240 µs an item",
    ):  # fmt: skip
        assert part in text, part


def test_rates_are_differences_over_the_span() -> None:
    """Packets per second come from two health frames."""
    encoder = Encoder()
    later: dict[str, Any] = {"interfaces": [sample.interface_health(packets=3000)], "span_ns": 500_000_000}
    state = state_of(sample.hello(encoder), sample.health(encoder), sample.health(encoder, **later))
    assert state.interfaces["eth1"].rates["packets"] == 4000
    assert "4 k packets/s" in "\n".join(render(state, 120, 30))


def test_losses_and_degrading_stand_out() -> None:
    """Everything that went wrong is a line that begins with an exclamation mark."""
    encoder = Encoder()
    trouble: dict[str, Any] = {
        "level": "sampled",
        "reason": "ring losses",
        "interfaces": [sample.interface_health(lost=7)],
        "host_drops": {"softnet": 3, "socket": 0, "interface": 0, "ring": 0, "tcp_out_of_order": 0},
        "tick_overruns": 2,
    }
    lines = render(state_of(sample.hello(encoder), sample.health(encoder, **trouble)), 120, 30)
    loud = [line for line in lines if line.startswith("!")]
    assert len(loud) == 4
    assert "ring losses" in loud[0]
    assert "softnet 3" in loud[1]
    assert "7 windows lost" in loud[3]


def test_many_pairs_show_the_worst() -> None:
    """Where not all (queue, CPU) pairs fit, those with the highest p99 are shown, and how many there are."""
    encoder = Encoder()
    rows: Any = [
        {"queue": q, "cpu": q, "where": "hook", "n": 5, "p50_ns": 1e3, "p99_ns": 1e3 * (q + 1)}
        for q in range(64)
    ]
    lines = render(state_of(sample.hello(encoder), encoder.delay(1, "eth1", 1, rows)), 100, 16)
    assert len(lines) <= 16
    text = "\n".join(lines)
    assert "worst of 64" in text
    assert "64 µs" in text


@given(st.integers(0, 200), st.integers(0, 60), st.integers(0, 9))
@settings(max_examples=100, derandomize=True, deadline=None)
def test_any_size_is_kept_to(width: int, height: int, frames: int) -> None:
    """No terminal is too narrow or too low, at any moment of a run."""
    lines = render(state_of(*sample.run_of_frames()[:frames]), width, height)
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)


def test_foreign_text_cannot_steer_the_terminal() -> None:
    """Escape sequences in names and causes are shown as question marks."""
    encoder = Encoder()
    evil = "\x1b]0;owned\x07\x1b[2J"
    facts: Any = sample.INTERFACE | {"driver": evil}
    frames = [
        sample.hello(encoder, interfaces=[facts]),
        sample.health(encoder, reason=evil, level="safe", notes=[evil]),
        encoder.clock("eth1", "trailer", sample.report(reason=evil)),
    ]
    state = state_of(*frames)
    assert all(char.isprintable() for line in [*render(state, 300, 50), one_line(state)] for char in line)


def painted(view_arguments: dict[str, Any], frames: list[Any]) -> bytes:
    """What a terminal receives for these frames, each a second after the one before."""
    ours, theirs = pty.openpty()
    shown = bytearray()

    def read() -> None:
        # A terminal's buffer holds some pictures only. Its end is an error: EIO.
        with contextlib.suppress(OSError):
            while data := os.read(ours, 65536):
                shown.extend(data)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        moments = iter(range(1000))
        view = StatusView(theirs, clock=lambda: float(next(moments)), **view_arguments)
        for frame in frames:
            view.put(frame)
        assert view.close(10.0)
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)
    return bytes(shown)


def test_painter_repaints_in_place() -> None:
    """Each picture begins at the top left and clears what is left of the one before; the screen is kept."""
    frames: list[Any] = sample.run_of_frames()[:3]
    shown = painted(
        {"term": "xterm", "encoding": "utf-8", "terminal_size": lambda _: os.terminal_size((80, 24))}, frames
    )
    assert shown.count(b"\x1b[H") == 3
    assert shown.count(b"\x1b[2J") == 1
    assert b"\x1b[?" not in shown  # no mode is switched that a killed agent would leave behind


def test_resize_clears_the_screen() -> None:
    """After a resize the picture is made anew for the new size."""
    sizes = iter([(80, 24), (80, 24), (40, 10)])
    frames: list[Any] = sample.run_of_frames()[:3]
    shown = painted(
        {"term": "xterm", "encoding": "utf-8", "terminal_size": lambda _: os.terminal_size(next(sizes))},
        frames,
    )
    assert shown.count(b"\x1b[2J") == 2


@pytest.mark.parametrize("term", ["dumb", ""])
def test_dumb_terminal_gets_lines(term: str) -> None:
    """Without cursor movement there is one line a second, without any escape sequence."""
    frames: list[Any] = sample.run_of_frames()[:5]
    shown = painted({"term": term, "encoding": "utf-8"}, frames)
    assert b"\x1b" not in shown
    assert shown.count(b"\n") == 5
    assert "worst p99 90 µs".encode() in shown


def test_ascii_terminal_gets_ascii() -> None:
    """A locale without UTF-8 gets no bytes above 127."""
    shown = painted({"term": "xterm", "encoding": "ascii"}, list(sample.run_of_frames()))
    assert max(shown) < 128


def test_stopped_terminal_holds_nothing_up() -> None:
    """With nobody reading the terminal, putting frames goes on and closing ends at its deadline."""
    ours, theirs = pty.openpty()
    try:
        moments = iter(range(10_000))
        view = StatusView(theirs, term="xterm", clock=lambda: float(next(moments)))
        frames: list[Any] = sample.run_of_frames()
        for _ in range(100):
            for frame in frames:
                view.put(frame)
        assert not view.close(0.1)
    finally:
        os.close(ours)
        os.close(theirs)


def test_the_busiest_cpus_have_a_line() -> None:
    """What the tracepoints show of the CPUs, the busiest first."""
    lines = render(state_of(*sample.run_of_frames()), 160, 40)
    (busiest,) = [line for line in lines if line.startswith("busiest")]
    assert "cpu1 10% softirq 1% irq, net_rx waits 45" in busiest
    assert busiest.index("cpu1") < busiest.index("cpu0")
