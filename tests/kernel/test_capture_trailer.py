"""Which frames the capture programs find a trailer in, at both hooks, by BPF_PROG_RUN."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from agent.ffi.records import CLOCK_KEY_NONE
from tests.kernel.capture_bench import (
    HW_NS,
    PORT,
    TCX_NEXT,
    XDP_PASS,
    CaptureBench,
    Hook,
    frame,
    raw_trailer,
    trailer,
    verdicts,
)

pytestmark = pytest.mark.kernel

_VLAN, _QINQ = 0x8100, 0x88A8
_HW = HW_NS + 123_456_789
_GOOD = trailer(_HW)

_STAMPED = {
    "ipv4": frame(behind=_GOOD),
    "ipv6": frame("ipv6", behind=_GOOD),
    "ipv4 in a VLAN": frame(tags=(_VLAN,), behind=_GOOD),
    "ipv6 in a VLAN": frame("ipv6", tags=(_VLAN,), behind=_GOOD),
    "ipv4 in QinQ": frame(tags=(_QINQ, _VLAN), behind=_GOOD),
    "ipv6 in QinQ": frame("ipv6", tags=(_QINQ, _VLAN), behind=_GOOD),
    "arp": frame("arp", behind=_GOOD),
    "arp in a VLAN": frame("arp", tags=(_VLAN,), behind=_GOOD),
    "padded to 60 bytes": frame(payload=1, behind=_GOOD),
    "odd length": frame(payload=333, behind=_GOOD),
    "full size": frame(payload=1480, behind=_GOOD),
    "two unknown bytes before": frame(behind=b"\x11\x22" + _GOOD),
    "last ns of a second": frame(behind=trailer(HW_NS + 999_999_999)),
    "reserved flags": frame(behind=trailer(_HW, flags=0xFC)),
    "extension, 4 bytes": frame(behind=b"\x01\x02\x03\x04" + trailer(_HW, flags=0x02)),
}

_MISSING = {
    "ipv4 without": frame(payload=100),
    "ipv6 without": frame("ipv6", payload=100),
    "vlan without": frame(payload=100, tags=(_VLAN,)),
    "arp without": frame("arp"),
    "zero padding": frame(payload=1, behind=bytes(16)),
    "zeros behind": frame(payload=100, behind=bytes(16)),
    "15 bytes behind": frame(payload=100, behind=_GOOD[1:]),
    "a trailer inside the payload": frame(payload=100)[:-16] + _GOOD,
    "shorter than the least frame with one": frame(payload=0)[:34] + _GOOD,
}

# BPF_PROG_RUN doesn't take these for tc.
_SHORT = {
    "bare Ethernet header": frame()[:14],
    "shorter than a trailer": frame()[:15],
    "shorter than Ethernet and trailer": frame()[:14] + _GOOD[:-1],
}

_REJECTED = {
    "10^9 ns": frame(behind=raw_trailer(1_700_000_000, 1_000_000_000)),
    "all ones": frame(behind=b"\xff" * 16),
    "seconds 0": frame(behind=raw_trailer(0, 5)),
}


@pytest.fixture(params=["xdp", "tc"])
def bench(request: pytest.FixtureRequest) -> Iterator[CaptureBench]:
    """The programs at either hook; the clock of the frames above is known."""
    with CaptureBench("trailer", request.param) as made:
        made.introduce(PORT)
        yield made


@pytest.mark.parametrize("case", _STAMPED)
def test_trailer_is_found(bench: CaptureBench, case: str) -> None:
    """A frame with a trailer counts as stamped by the clock that the trailer names."""
    bench.run(_STAMPED[case])
    window = bench.window()
    assert (window["clock_key"], window["n"], window["n_stamped"]) == (PORT, 1, 1)


@pytest.mark.parametrize("case", _MISSING)
def test_no_trailer_is_missing(bench: CaptureBench, case: str) -> None:
    """A frame without a trailer counts as missing, in a window without a clock."""
    bench.run(_MISSING[case])
    window = bench.window()
    assert window["clock_key"] == CLOCK_KEY_NONE
    assert verdicts(window) == {"n": 1, "n_missing": 1}


@pytest.mark.parametrize("case", _SHORT)
def test_short_frame_is_missing(case: str) -> None:
    """A frame too short for any trailer counts as missing."""
    with CaptureBench("trailer") as bench:
        bench.run(_SHORT[case])
        assert verdicts(bench.window()) == {"n": 1, "n_missing": 1}


@pytest.mark.parametrize("case", _REJECTED)
def test_impossible_time_is_rejected(bench: CaptureBench, case: str) -> None:
    """A trailer with an impossible time counts as rejected, in a window without a clock."""
    bench.run(_REJECTED[case])
    window = bench.window()
    assert window["clock_key"] == CLOCK_KEY_NONE
    assert verdicts(window) == {"n": 1, "n_rejected": 1}


def test_stamp_is_seconds_and_nanoseconds(bench: CaptureBench) -> None:
    """The time in the window is the trailer's, to the ns."""
    bench.run(frame(behind=raw_trailer(0xFFFFFFFE, 7)))
    assert bench.window()["last"]["hw_ns"] == 0xFFFFFFFE * 10**9 + 7


def test_packet_goes_on(bench: CaptureBench) -> None:
    """Whatever the packet, XDP passes it and tc goes on to the next program."""
    verdict = XDP_PASS if bench.hook == "xdp" else TCX_NEXT
    packets = [*_STAMPED.values(), *_MISSING.values(), *_REJECTED.values()]
    assert {bench.run(packet) for packet in packets} == {verdict}


def test_bytes_are_frame_lengths(bench: CaptureBench) -> None:
    """The bytes counted are whole frames, trailer included, whether it was found or not."""
    before = bench.counters()
    packets = [*_STAMPED.values(), *_MISSING.values(), *_REJECTED.values()]
    for packet in packets:
        bench.run(packet)
    after = bench.counters()
    assert after["packets"] - before["packets"] == len(packets)
    assert after["bytes"] - before["bytes"] == sum(map(len, packets))


@pytest.mark.parametrize("payload", [4_000, 5_000, 8_900])
def test_trailer_in_fragments_is_found(payload: int) -> None:
    """A jumbo frame lies in several pages for XDP, and its trailer in the last one."""
    with CaptureBench("trailer") as bench:
        bench.introduce(PORT)
        before = bench.counters()["bytes"]
        packet = frame(payload=payload, behind=_GOOD)
        assert bench.run(packet) == XDP_PASS
        assert bench.window()["last"]["hw_ns"] == _HW
        assert bench.counters()["bytes"] - before == len(packet)


def test_trailer_across_fragments_is_found() -> None:
    """A trailer is found wherever the boundary between two fragments cuts it."""
    with CaptureBench("trailer") as bench:
        bench.introduce(PORT)
        lengths = range(3_400, 4_200, 4)  # the kernel's linear part ends somewhere in here
        for payload in lengths:
            bench.run(frame(payload=payload, behind=_GOOD))
        assert bench.window()["n_stamped"] == len(lengths)


def test_noise_makes_no_clock(bench: CaptureBench) -> None:
    """Random bytes behind frames never become a clock: they count as rejected, some on probation."""
    noise = random.Random(1)
    before = bench.counters()["probation"]
    possible = 0
    for _ in range(500):
        seconds, nanoseconds, key = noise.getrandbits(32), noise.getrandbits(32), noise.getrandbits(24)
        possible += bool(seconds) and nanoseconds < 10**9
        bench.run(frame(behind=raw_trailer(seconds, nanoseconds, key)))
    assert verdicts(bench.window()) == {"n": 500, "n_rejected": 500}
    assert bench.owned().keys() == {PORT, CLOCK_KEY_NONE}
    assert bench.counters()["probation"] - before == possible > 50


def test_clock_keeps_its_slot_in_noise(bench: CaptureBench) -> None:
    """A real clock between random ones keeps slot and generation, and all its packets."""
    noise = random.Random(2)
    slot = bench.owned()[PORT]
    generation = int(bench.slots["generation"][slot])
    for i in range(300):
        bench.run(frame(behind=raw_trailer(noise.getrandbits(31) + 1, i, noise.getrandbits(24))))
        bench.stamped(HW_NS + i)
    assert bench.window(PORT)["n_stamped"] == 300
    assert (bench.owned()[PORT], int(bench.slots["generation"][slot])) == (slot, generation)


@pytest.mark.parametrize("hook", ["xdp", "tc"])
def test_clock_is_believed_at_the_eighth_packet(hook: Hook) -> None:
    """Seven packets of a new clock count as rejected, from the eighth on they count as stamped."""
    with CaptureBench("trailer", hook) as bench:
        for i in range(10):
            bench.stamped(HW_NS + i)
        by_key = {int(window["clock_key"]): verdicts(window) for window in bench.close_windows()}
        assert by_key == {CLOCK_KEY_NONE: {"n": 7, "n_rejected": 7}, PORT: {"n": 3, "n_stamped": 3}}
        assert bench.counters()["probation"] == 7


def test_clock_that_leaps_is_not_believed() -> None:
    """A clock whose offset moves by more than a second between two packets stays on probation."""
    with CaptureBench("trailer") as bench:
        for i in range(30):
            bench.stamped(HW_NS + 2 * i * 10**9)
        assert verdicts(bench.window()) == {"n": 30, "n_rejected": 30}
