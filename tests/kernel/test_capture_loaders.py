"""libbpf and BCC: the same source, so the same records for the same packets (see `loader_records`)."""

from __future__ import annotations

import pytest

from agent.errors import UnsupportedError
from agent.ffi.bpf import ProgramSet, load
from agent.ffi.records import CONFIG_DTYPE, HIST_DTYPE
from tests.kernel.capture_bench import HW_NS, PORT, TCX_NEXT, CaptureBench, Hook, Stamp, frame, trailer
from tests.kernel.loader_records import SOURCES, masked, records_of, send_packets

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module", autouse=True)
def _bcc_is_there() -> None:
    """Skips, with what is missing, where BCC can't compile."""
    try:
        CaptureBench(loader="bcc").rings.close()
    except UnsupportedError as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize(("stamp", "hook"), SOURCES)
def test_records_are_the_same(stamp: Stamp, hook: Hook) -> None:
    """Both loaders' programs give byte-identical records, counters and histograms, times of arrival masked."""
    assert records_of("bcc", stamp, hook) == records_of("libbpf", stamp, hook)


def test_mask_hides_times_only() -> None:
    """The comparison can fail: one packet more is another record."""
    with CaptureBench("trailer") as bench:
        send_packets(bench, "trailer")
        bench.run(frame())
        more = masked(bench.close_windows())
    assert more != records_of("libbpf", "trailer", "xdp").windows


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
