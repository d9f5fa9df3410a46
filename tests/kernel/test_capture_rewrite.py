"""What tc ingress writes into skb->tstamp, by BPF_PROG_RUN: a model that stands still makes it exact."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent.ffi import _native
from agent.ffi.bpf import sk_buff_context, test_run
from agent.ffi.records import CLOCK_KEY_PHC
from tests.kernel.capture_bench import CPU, HW_NS, PORT, CaptureBench, frame, pinned, trailer

pytestmark = pytest.mark.kernel

S = 1_000_000_000
OWN_NS = 777_000_000_000
"""What the kernel stamped the packet with."""
BASE_NS = -37 * S
_ffi = _native.ffi


@pytest.fixture
def bench() -> Iterator[CaptureBench]:
    """tc with skb stamps, a model that is always HW_NS, and its clock handed on, 37 s less."""
    with CaptureBench("skb", "tc", rewrite=1, rewrite_key=CLOCK_KEY_PHC, rewrite_base_ns=BASE_NS) as made:
        made.set_model(CLOCK_KEY_PHC)
        yield made


def stamped_with(bench: CaptureBench, data: bytes, hwtstamp_ns: int = 0) -> int:
    """Run one packet; the receive timestamp that it has then."""
    context = sk_buff_context(hwtstamp_ns=hwtstamp_ns, tstamp_ns=OWN_NS)
    with pinned(CPU):
        after = test_run(bench.object.prog_fd("tc_ingress"), data, 1, context).ctx_out
    skb = _ffi.new("struct __sk_buff *")
    _ffi.memmove(skb, after, len(after))
    return int(skb.tstamp)


@pytest.mark.parametrize("off_ns", [0, -1, 1, -5_000_000, 999_999_999, -999_999_999])
def test_a_packets_own_stamp_is_handed_on(bench: CaptureBench, off_ns: int) -> None:
    """To the ns, in the named scale."""
    assert stamped_with(bench, frame(), HW_NS + off_ns) == HW_NS + off_ns + BASE_NS
    assert (bench.counters()["rewritten"], bench.counters()["rewrite_no_model"]) == (1, 0)


def test_a_packet_without_a_stamp_gets_the_models_time(bench: CaptureBench) -> None:
    """What the clock shows when it passes."""
    assert stamped_with(bench, frame()) == HW_NS + BASE_NS


@pytest.mark.parametrize("off_ns", [1 << 33, -(1 << 33), (1 << 27) + 3 + S, -HW_NS + 1])
def test_a_stamp_far_from_the_model_is_not_handed_on(bench: CaptureBench, off_ns: int) -> None:
    """A bit that flipped in the NIC does not become an application's receive time."""
    assert stamped_with(bench, frame(), HW_NS + off_ns) == HW_NS + BASE_NS


def test_without_a_model_the_kernels_stamp_stays(bench: CaptureBench) -> None:
    """Also where the packet has one of its own: nobody knows what that clock is worth."""
    bench.set_model(CLOCK_KEY_PHC, valid_until_ns=1)
    assert stamped_with(bench, frame(), HW_NS) == OWN_NS
    assert stamped_with(bench, frame()) == OWN_NS
    assert (bench.counters()["rewritten"], bench.counters()["rewrite_no_model"]) == (0, 2)


def test_unless_asked_nothing_is_written(bench: CaptureBench) -> None:
    """Applications see what they always saw."""
    bench.config["rewrite"][0] = 0
    assert stamped_with(bench, frame(), HW_NS) == OWN_NS
    assert bench.counters()["rewritten"] == 0


def test_sampled_out_packets_are_dated_too(bench: CaptureBench) -> None:
    """When one packet in many is looked at, the others have the model's time, not another clock's; frozen: none."""
    bench.config["sample_mask"][0] = 0xFFFF
    times = {stamped_with(bench, frame(), HW_NS - 5) for _ in range(3)}
    assert times <= {HW_NS + BASE_NS, HW_NS - 5 + BASE_NS}
    assert HW_NS + BASE_NS in times
    bench.config["frozen"][0] = 1
    assert stamped_with(bench, frame(), HW_NS) == OWN_NS


def test_other_clocks_stamps_are_not_handed_on() -> None:
    """Of two switches' trailers, those of the clock that is handed on; the other's packets get the model's time."""
    other = PORT + 0x100
    with CaptureBench("trailer", "tc") as bench:
        bench.introduce(PORT, other)
        bench.set_model(PORT)
        bench.config["rewrite"][0], bench.config["rewrite_key"][0] = 1, PORT
        assert stamped_with(bench, frame(behind=trailer(HW_NS - 77))) == HW_NS - 77
        assert stamped_with(bench, frame(behind=trailer(HW_NS - 77, other))) == HW_NS
