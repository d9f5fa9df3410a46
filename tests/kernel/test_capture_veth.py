"""The programs on a veth pair in a namespace of its own, with real packets."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from agent.ffi import records
from agent.ffi.bpf import ProgramSet, attach_tcx, attach_xdp, load
from agent.ffi.records import CLOCK_KEY_PHC
from tests.kernel.capture_bench import (
    HW_NS,
    META_NEVER,
    PORT,
    PROBATION,
    CaptureBench,
    frame,
    map_entries,
    total,
    trailer,
)
from tests.kernel.ffi_probe import VethPair, inside_veth_pair

pytestmark = pytest.mark.kernel

_PACKETS = 60


@pytest.fixture
def veth() -> Iterator[VethPair]:
    """A pair in a namespace that this thread is in."""
    with inside_veth_pair() as pair:
        yield pair


def _send(pair: VethPair, packet: bytes, count: int = _PACKETS) -> None:
    """Frames out of the outer end, so into the inner one."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
        sender.bind((pair.outer_name, 0))
        for _ in range(count):
            sender.send(packet)


def _until(reached: Callable[[], bool]) -> None:
    """Wait for what softirqs do; fails after five seconds."""
    deadline = time.monotonic() + 5
    while not reached():
        assert time.monotonic() < deadline, "the packets never came"
        time.sleep(0.002)


# Not to be run by accident: on Linux 6.18 the end of the namespace after this test made the kernel read freed memory in
# __bpf_offload_dev_netdev_unregister, and the lock of all network configuration stayed taken until the next boot.
@pytest.mark.skipif(
    os.environ.get("AGENT_TEST_DEVICE_BOUND") != "1",
    reason="removing a device that a program was bound to can crash the kernel: set AGENT_TEST_DEVICE_BOUND=1 "
    "on a machine that may be lost",
)
def test_device_bound_programs_load_attach_and_count(veth: VethPair) -> None:
    """xdp_capture_meta runs natively on a veth, whose packets from a raw socket carry no stamp: all are missing."""
    wanted = ProgramSet(
        "capture_xdpmeta",
        map_entries=map_entries(),
        device_bound=("xdp_capture_meta",),
        ifindex=veth.inner,
    )
    with (
        load("libbpf", wanted) as loaded,
        CaptureBench("xdp", loaded=loaded, ifindex=veth.inner) as bench,
        attach_xdp(loaded.prog_fd("xdp_capture_meta"), veth.inner, "native"),
    ):
        _send(veth, frame(behind=trailer(HW_NS)))
        _until(lambda: bench.counters()["packets"] >= _PACKETS)
        windows = bench.close_windows()
        assert total(windows, "n") == total(windows, "n_missing") >= _PACKETS
        assert {*windows["clock_key"].tolist()} == {CLOCK_KEY_PHC}
        assert {*windows["ifindex"].tolist()} == {veth.inner}
        assert {*windows["stamp"].tolist()} == {records.STAMP_XDP}


@pytest.fixture
def both(veth: VethPair) -> Iterator[CaptureBench]:
    """XDP and tc of a capture with trailers, attached to the inner end."""
    with ExitStack() as stack:
        bench = stack.enter_context(CaptureBench("trailer", meta_mask=0, ifindex=veth.inner))
        stack.enter_context(attach_xdp(bench.object.prog_fd("xdp_capture"), veth.inner, "native"))
        stack.enter_context(attach_tcx(bench.object.prog_fd("tc_ingress"), veth.inner, "ingress"))
        yield bench


def test_metadata_reaches_the_stack(veth: VethPair, both: CaptureBench) -> None:
    """With metadata on every packet each one is a sample of the delay from XDP to the stack."""
    _send(veth, frame())
    _until(lambda: both.counters()["tc_packets"] >= _PACKETS)
    counters = both.counters()
    assert counters["stack_samples"] == counters["tc_packets"] == counters["packets"]
    assert counters["meta_failed"] == 0
    assert both.stack_hists["xdp_to_stack"]["bucket"].sum() == counters["stack_samples"]
    assert not both.stack_hists["hw_to_stack"]["bucket"].any()


def test_stamped_packets_are_dated_from_their_stamp(veth: VethPair, both: CaptureBench) -> None:
    """Packets with stamp and model also count in the histogram from the stamp, at least their delay at XDP away."""
    at_xdp_ns = 100_000_000
    both.set_model(PORT, HW_NS + at_xdp_ns)
    _send(veth, frame(behind=trailer(HW_NS)))
    _until(lambda: both.counters()["tc_packets"] >= _PACKETS)
    from_stamp = both.stack_hists["hw_to_stack"]["bucket"].sum(axis=0)
    # Probation is by CPU; all packets came from this thread, but it may have moved.
    believed = int(both.counters()["packets"] - both.counters()["probation"])
    assert _PACKETS - PROBATION * 2 <= from_stamp.sum() <= believed
    assert np.flatnonzero(from_stamp)[0] >= records.hist_bucket(at_xdp_ns)


def test_metadata_is_off_when_masked(veth: VethPair, both: CaptureBench) -> None:
    """With the mask of ones no packet carries metadata."""
    both.config["meta_mask"][0] = META_NEVER
    _send(veth, frame())
    _until(lambda: both.counters()["tc_packets"] >= _PACKETS)
    assert both.counters()["stack_samples"] == 0


def test_packets_go_on_to_the_receiver(veth: VethPair, both: CaptureBench) -> None:
    """A socket behind both programs gets every frame, unchanged."""
    packet = frame(behind=trailer(HW_NS + 5))
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003)) as receiver:
        receiver.bind((veth.inner_name, 0x0003))
        receiver.settimeout(5)
        _send(veth, packet, 20)
        got = 0
        while got < 20:
            got += receiver.recv(2048) == packet
    assert both.counters()["packets"] >= 20
