"""The same packets through the programs of one loader: the records they leave, without what depends on the time.

Runs differ in time only. `Records` are bytes after the monotonic moments (`open_mono_ns`, `last_mono_ns`, `mono_ns` of
the pairs) are set to 0, and so is `seq`, since the loaders' flushes close the windows that are open together in
opposite order; they are then in the order of their clocks. All else doesn't depend on when the packets came: stamps
rise by a second from packet to packet, so that which pair is the envelope is no matter of chance, the model stands
still, and one window is too short for a drift.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from agent.ffi.records import CLOCK_KEY_PHC
from tests.kernel.capture_bench import (
    HW_NS,
    PORT,
    CaptureBench,
    Hook,
    Stamp,
    frame,
    raw_trailer,
    trailer,
)

Loader = Literal["libbpf", "bcc"]

SOURCES: tuple[tuple[Stamp, Hook], ...] = (
    ("none", "xdp"),
    ("none", "tc"),
    ("trailer", "xdp"),
    ("trailer", "tc"),
    ("skb", "tc"),
)
"""Stamp and hook that both loaders have."""


@dataclass(frozen=True, slots=True)
class Records:
    """What the packets left behind."""

    windows: tuple[bytes, ...]
    counters: dict[str, int]
    hists: bytes


def send_packets(bench: CaptureBench, stamp: Stamp) -> None:
    """A bit of everything: stamped, doubled, reordered, missing, rejected, a second clock, negative delays."""
    clock = CLOCK_KEY_PHC if stamp == "skb" else PORT
    bench.set_model(clock, HW_NS + 20 * 10**9)
    seconds = [*range(1, 15), 14, 12, *range(15, 30)]
    for second in seconds:
        hw = HW_NS + second * 10**9 + second
        bench.run(frame(behind=trailer(hw)), hwtstamp_ns=hw if stamp == "skb" else 0)
    for packet in (
        frame(),
        frame("arp"),
        frame(behind=raw_trailer(5, 2 * 10**9)),
        frame("ipv6", payload=700),
    ):
        bench.run(packet)
    for i in range(12):
        bench.run(frame("ipv6", tags=(0x8100,), behind=trailer(HW_NS + i, PORT + 1)))


def masked(windows: npt.NDArray[np.void]) -> tuple[bytes, ...]:
    """Closed windows as bytes, the moments left out."""
    timeless = windows[np.argsort(windows["clock_key"])]
    timeless["seq"] = timeless["open_mono_ns"] = timeless["last_mono_ns"] = 0
    for pair in ("first", "last", "envelope"):
        timeless[pair]["mono_ns"] = 0
    return tuple(window.tobytes() for window in timeless)


def records_of(loader: Loader, stamp: Stamp, hook: Hook) -> Records:
    """What the packets of `send_packets` leave with this loader's programs."""
    with CaptureBench(stamp, hook, loader=loader) as bench:
        send_packets(bench, stamp)
        windows = bench.close_windows()
        assert len(windows) > 0
        return Records(masked(windows), bench.counters(), bench.hists.tobytes())
