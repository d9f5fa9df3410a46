"""libbpf and BCC: the same source, so the same records for the same packets.

The two runs differ in time only. Compared are the records' bytes after the monotonic moments (`open_mono_ns`,
`last_mono_ns`, `mono_ns` of the pairs) are set to 0, and so is `seq`, since the loaders' flushes close the windows
that are open together in opposite order; the records are then in the order of their clocks. All else doesn't depend
on when the packets came: stamps rise by a second from packet to packet, so that which pair is the envelope is no
matter of chance, the model stands still, and one window is too short for a drift.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import pytest

from agent.errors import UnsupportedError
from agent.ffi.bpf import ProgramSet, load
from agent.ffi.records import CLOCK_KEY_PHC, CONFIG_DTYPE, HIST_DTYPE
from tests.kernel.capture_bench import (
    HW_NS,
    PORT,
    TCX_NEXT,
    CaptureBench,
    Hook,
    Stamp,
    frame,
    raw_trailer,
    trailer,
)

pytestmark = pytest.mark.kernel

Loader = Literal["libbpf", "bcc"]


@pytest.fixture(scope="module", autouse=True)
def _bcc_is_there() -> None:
    """Skips, with what is missing, where BCC can't compile."""
    try:
        CaptureBench(loader="bcc").rings.close()
    except UnsupportedError as missing:
        pytest.skip(str(missing))


def _packets(bench: CaptureBench, stamp: Stamp) -> None:
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


def _masked(windows: npt.NDArray[np.void]) -> list[bytes]:
    masked = windows[np.argsort(windows["clock_key"])]
    masked["seq"] = masked["open_mono_ns"] = masked["last_mono_ns"] = 0
    for pair in ("first", "last", "envelope"):
        masked[pair]["mono_ns"] = 0
    return [window.tobytes() for window in masked]


def _run(loader: Loader, stamp: Stamp, hook: Hook) -> tuple[list[bytes], dict[str, int], bytes]:
    """Records, counters and histograms after the same packets."""
    with CaptureBench(stamp, hook, loader=loader) as bench:
        _packets(bench, stamp)
        windows = bench.close_windows()
        assert len(windows) > 0
        return _masked(windows), bench.counters(), bench.hists.tobytes()


@pytest.mark.parametrize(
    ("stamp", "hook"),
    [("none", "xdp"), ("none", "tc"), ("trailer", "xdp"), ("trailer", "tc"), ("skb", "tc")],
)
def test_records_are_the_same(stamp: Stamp, hook: Hook) -> None:
    """Both loaders' programs give byte-identical records, counters and histograms, times of arrival masked."""
    assert _run("bcc", stamp, hook) == _run("libbpf", stamp, hook)


def test_mask_hides_times_only() -> None:
    """The comparison can fail: one packet more is another record."""
    with CaptureBench("trailer") as bench:
        _packets(bench, "trailer")
        bench.run(frame())
        more = _masked(bench.close_windows())
    assert more != _run("libbpf", "trailer", "xdp")[0]


def test_flush_of_bcc_closes_idle_windows() -> None:
    """BCC's flush, which has no bpf_loop, reaches every slot of its CPU."""
    with CaptureBench("trailer", loader="bcc") as bench:
        bench.introduce(*(PORT + i for i in range(6)))
        for i in range(6):
            bench.stamped(HW_NS, PORT + i)
        assert sorted(bench.close_windows()["clock_key"].tolist()) == [PORT + i for i in range(6)]


def test_map_layout_is_the_same() -> None:
    """Maps have the same names, types and value sizes with both loaders."""
    shapes = []
    for loader in ("libbpf", "bcc"):
        with CaptureBench(loader=loader) as bench:
            maps = bench.object.maps
            shapes.append(
                {
                    name: (m.type, m.key_size, m.value_size, m.flags)
                    for name, m in maps.items()
                    if not name.startswith(".")  # a compiler's constants
                }
            )
    assert shapes[0] == shapes[1]
    assert shapes[0]["config"][2] == CONFIG_DTYPE.itemsize
    assert shapes[0]["hists"][2] >= HIST_DTYPE.itemsize


def test_bcc_refuses_device_bound_programs() -> None:
    """BCC knows no kfuncs: the error says which way out there is."""
    wanted = ProgramSet("capture_xdpmeta", device_bound=("xdp_capture_meta",), ifindex=1)
    with pytest.raises(UnsupportedError) as refused:
        load("bcc", wanted)
    assert "libbpf" in str(refused.value)


def test_tc_of_bcc_goes_on() -> None:
    """The verdict is the same, too."""
    with CaptureBench("trailer", "tc", loader="bcc") as bench:
        assert bench.run(frame(behind=trailer(HW_NS))) == TCX_NEXT
