"""What a window counts, and when it closes, by BPF_PROG_RUN."""

from __future__ import annotations

import time

import numpy as np
import pytest

from agent.ffi import records
from agent.ffi.bpf import flush_cpus, sk_buff_context, test_run
from agent.ffi.records import CLOCK_KEY_NONE, CLOCK_KEY_PHC, COUNTERS_DTYPE
from tests.kernel.capture_bench import (
    CPU,
    CPUS,
    HW_NS,
    PORT,
    TCX_NEXT,
    CaptureBench,
    Hook,
    frame,
    pinned,
    raw_trailer,
    trailer,
    verdicts,
)

pytestmark = pytest.mark.kernel

_OTHER = (0x4321 << 8) | 5


def _wait(ns: int) -> None:
    """At least that long, by the clock that the programs use."""
    until = time.monotonic_ns() + ns
    while time.monotonic_ns() <= until:
        time.sleep(ns / 1e9)


def test_key_is_device_and_port() -> None:
    """A trailer's clock key is device << 8 | port, and the reserved bits above have no part in it."""
    with CaptureBench() as bench:
        packet = frame(behind=trailer(HW_NS, key=0xABCD << 8 | 0xEF, flags=0xFF))
        bench.run(packet, repeat=8)
        assert bench.window(0xABCDEF)["n_stamped"] == 1


def test_two_devices_have_two_windows() -> None:
    """Packets of two capture switches, mixed, count in one window each."""
    with CaptureBench() as bench:
        bench.introduce(PORT, _OTHER)
        for i in range(12):
            bench.stamped(HW_NS + i, PORT if i % 3 else _OTHER)
        closed = bench.close_windows()
        assert {int(w["clock_key"]): int(w["n_stamped"]) for w in closed} == {PORT: 8, _OTHER: 4}


def test_window_says_where_it_is_from() -> None:
    """Interface, CPU, queue, hook and stamp source stand in the record."""
    with CaptureBench(ifindex=4321) as bench:
        bench.run(frame(), cpu=CPUS[-1])
        window = bench.window()
        fields = ("ifindex", "cpu", "queue", "hook", "stamp")
        expected = [4321, CPUS[-1], 0, records.HOOK_XDP, records.STAMP_TRAILER]
        assert [int(window[name]) for name in fields] == expected


def test_duplicates_and_reordered_are_counted() -> None:
    """The same stamp twice is a duplicate, an earlier one reordered; both are still stamped."""
    with CaptureBench() as bench:
        bench.introduce(PORT)
        for offset in (10, 20, 20, 20, 15, 30):
            bench.stamped(HW_NS + offset)
        assert verdicts(bench.window()) == {"n": 6, "n_stamped": 6, "n_duplicate": 2, "n_reordered": 1}


def test_duplicate_is_seen_across_windows() -> None:
    """The stamp before is remembered when a window closes between the two."""
    with CaptureBench() as bench:
        bench.introduce(PORT)
        bench.stamped(HW_NS + 1)
        assert bench.window()["n_duplicate"] == 0
        bench.stamped(HW_NS + 1)
        assert bench.window()["n_duplicate"] == 1


def test_counts_start_anew_with_each_window() -> None:
    """A window holds nothing of the one before it in the same slot, nor of the one before that."""
    with CaptureBench() as bench:
        for n in (5, 3, 1):
            bench.run(frame(), repeat=n)
            assert verdicts(bench.window()) == {"n": n, "n_missing": n}


def test_pairs_are_first_last_and_envelope() -> None:
    """First and last pair follow the order of arrival; the envelope is the pair with the smallest mono - hw."""
    with CaptureBench() as bench:
        bench.introduce(PORT)
        before = time.monotonic_ns()
        # A step of a minute back and forth outweighs whatever passes between two packets.
        stamps = [HW_NS + minute * 60 * 10**9 for minute in (1, 3, 2)]
        for stamp in stamps:
            bench.stamped(stamp)
        after = time.monotonic_ns()
        window = bench.window()
        hw = [int(window[name]["hw_ns"]) for name in ("first", "envelope", "last")]
        mono = [int(window[name]["mono_ns"]) for name in ("first", "envelope", "last")]
        assert hw == stamps
        assert before < mono[0] < mono[1] < mono[2] < after
        assert (window["open_mono_ns"], window["last_mono_ns"]) == (mono[0], mono[2])


def test_window_without_stamps_has_no_pairs() -> None:
    """Pairs of a window with no accepted stamp are 0."""
    with CaptureBench() as bench:
        bench.run(frame(behind=raw_trailer(1, 2 * 10**9)))
        window = bench.window()
        assert {window[name].item() for name in ("first", "last", "envelope")} == {(0, 0)}


@pytest.mark.parametrize("hook", ["xdp", "tc"])
def test_without_stamps_only_n_counts(hook: Hook) -> None:
    """With stamp none nothing is looked for: no packet is stamped, missing or rejected, whatever it carries."""
    with CaptureBench("none", hook) as bench:
        for packet in (frame(), frame(behind=trailer(HW_NS)), frame(behind=b"\xff" * 16)):
            bench.run(packet)
        window = bench.window()
        assert window["clock_key"] == CLOCK_KEY_NONE
        assert verdicts(window) == {"n": 3}


def test_skb_stamp_is_taken() -> None:
    """A packet's hwtstamp is the stamp of the interface's own clock."""
    with CaptureBench("skb", "tc") as bench:
        bench.run(frame(), hwtstamp_ns=HW_NS + 9)
        window = bench.window()
        assert (window["clock_key"], window["last"]["hw_ns"], window["stamp"]) == (
            CLOCK_KEY_PHC,
            HW_NS + 9,
            records.STAMP_SKB,
        )
        assert verdicts(window) == {"n": 1, "n_stamped": 1}


def test_skb_stamp_of_0_is_missing() -> None:
    """A hwtstamp of 0 is missing, in the window of the same clock."""
    with CaptureBench("skb", "tc") as bench:
        bench.run(frame(), hwtstamp_ns=HW_NS)
        bench.run(frame(), hwtstamp_ns=0)
        window = bench.window()
        assert window["clock_key"] == CLOCK_KEY_PHC
        assert verdicts(window) == {"n": 2, "n_stamped": 1, "n_missing": 1}


def test_merged_segments_are_counted() -> None:
    """At tc a packet merged of 7 counts as 7, in the window and in the counters."""
    with CaptureBench("skb", "tc") as bench:
        bench.set_model(CLOCK_KEY_PHC)
        bench.run(frame(), hwtstamp_ns=HW_NS - 1000, gso_segs=7)
        window, counters = bench.window(), bench.counters()
        assert verdicts(window) == {"n": 7, "n_stamped": 7}
        assert (window["n_delay"], window["delay_sum_ns"]) == (7, 7_000)
        assert (counters["packets"], counters["tc_packets"], counters["stamped"]) == (7, 7, 7)
        assert bench.hists.sum() == 7


def test_tc_leaves_windows_to_xdp() -> None:
    """Where XDP owns the windows, tc ingress only counts its packets."""
    with CaptureBench("trailer", "tc") as bench:
        bench.config["hook"][0] = records.HOOK_XDP
        bench.run(frame(behind=trailer(HW_NS)), repeat=9)
        assert len(bench.close_windows()) == 0
        assert (bench.counters()["packets"], bench.counters()["tc_packets"]) == (0, 9)


def test_egress_counts_by_cpu() -> None:
    """tc egress counts packets and segments sent by each CPU, and goes on to the next program."""
    with CaptureBench("none", "tc") as bench:
        usage = bench.object.map("tx_queues").mmap()
        with pinned(CPUS[-1]):
            run = test_run(bench.object.prog_fd("tc_egress"), frame(), 3, sk_buff_context(gso_segs=2))
        assert run.retval == TCX_NEXT
        assert bench.counters_by_cpu["tx_packets"][CPUS[-1]] == bench.counters()["tx_packets"] == 6
        assert usage["packets"][CPUS[-1]].tolist() == [6, *[0] * (records.TX_QUEUES_MAX - 1)]


# ---- sampling --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hook", ["xdp", "tc"])
def test_sampling_looks_at_one_in_n(hook: Hook) -> None:
    """With 1/4 sampling a quarter of the packets is in the window, which says so; the counters have them all."""
    with CaptureBench("none", hook, sample_mask=3) as bench:
        bench.run(frame(), repeat=100)
        window = bench.window()
        assert window["n"] == 25
        assert window["flags"] & records.WINDOW_SAMPLED
        assert bench.counters()["packets"] == 100


@pytest.mark.parametrize("hook", ["xdp", "tc"])
def test_frozen_only_counts(hook: Hook) -> None:
    """Frozen programs open no window, and still count packets and bytes."""
    with CaptureBench("trailer", hook, frozen=1) as bench:
        packet = frame(behind=trailer(HW_NS))
        bench.run(packet, repeat=20)
        assert len(bench.close_windows()) == 0
        assert (bench.counters()["packets"], bench.counters()["bytes"]) == (20, 20 * len(packet))


def test_freezing_takes_effect_while_running() -> None:
    """The degrade ladder's settings reach running programs within a refresh, and going back does so at once."""
    with CaptureBench("none") as bench:
        bench.run(frame())
        bench.config["frozen"][0] = 1
        _wait(2_000_000)
        bench.run(frame())  # the packet that notices
        bench.run(frame(), repeat=50)
        bench.config["frozen"][0] = 0
        bench.run(frame(), repeat=3)
        assert bench.window()["n"] <= 1 + 1 + 3


# ---- closing ---------------------------------------------------------------------------------------------------


def test_packet_closes_an_overdue_window() -> None:
    """The first packet after the span closes the window and opens the next; no flush is needed."""
    with CaptureBench("none", window_ns=1_000_000) as bench:
        bench.run(frame())
        _wait(1_000_000)
        bench.run(frame(), repeat=1)
        closed = bench.drain()
        assert (closed["n"].tolist(), closed["flags"].tolist()) == ([1], [0])
        assert bench.close_windows()["n"].tolist() == [1]


def test_window_in_its_span_stays_open() -> None:
    """A flush leaves a window alone that is not overdue."""
    with CaptureBench("none") as bench:
        bench.run(frame())
        assert bench.flush() == 0
        assert len(bench.drain()) == 0
        assert bench.window()["n"] == 1


def test_flush_closes_an_idle_window() -> None:
    """A flush closes an overdue window, flags it and counts it."""
    with CaptureBench("none", window_ns=1_000_000) as bench:
        bench.run(frame())
        _wait(1_000_000)
        assert bench.flush() == 0
        assert bench.drain()["flags"].tolist() == [records.WINDOW_IDLE_CLOSE]
        assert bench.counters()["flushed"] == bench.counters()["produced"] == 1
        assert not bench.slots["open_mono_ns"].any()


@pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
def test_flush_is_for_the_named_cpu() -> None:
    """A flush closes the windows of its own CPU only."""
    with CaptureBench("none") as bench:
        for cpu in CPUS[:2]:
            bench.run(frame(), cpu=cpu)
        assert bench.close_windows(CPUS[1])["cpu"].tolist() == [CPUS[1]]
        assert bench.close_windows(CPUS[0])["cpu"].tolist() == [CPUS[0]]


def test_flush_runs_on_all_named_cpus() -> None:
    """One call flushes several CPUs."""
    with CaptureBench("none") as bench:
        for cpu in CPUS:
            bench.run(frame(), cpu=cpu)
        bench.config["window_ns"][0] = 0
        assert flush_cpus(bench.object.prog_fd("flush"), CPUS) == len(CPUS)
        assert sorted(bench.drain()["cpu"].tolist()) == list(CPUS)


@pytest.mark.parametrize("word", [0, 1], ids=["busy", "flushing"])
def test_flush_leaves_a_busy_cpu_alone(word: int) -> None:
    """While a packet is being counted, or another flush is at work, a flush does nothing, says so and counts it."""
    with CaptureBench("none", window_ns=1) as bench:
        bench.run(frame())
        # struct cpu_state of bpf/state.h: the two words stand behind the counters.
        at = COUNTERS_DTYPE.itemsize + 4 * word
        state = bench.raw("counters")[CPU]
        state[at] = 1
        assert bench.flush() == 1
        assert len(bench.drain()) == 0
        assert bench.counters()["flush_busy"] == 1
        state[at] = 0
        assert bench.flush() == 0
        assert bench.drain()["n"].tolist() == [1]


def test_packet_during_a_flush_closes_nothing() -> None:
    """A packet that comes while a flush is at work counts into the open window, however overdue."""
    with CaptureBench("none", window_ns=1) as bench:
        bench.run(frame())
        bench.raw("counters")[CPU, COUNTERS_DTYPE.itemsize + 4] = 1
        bench.run(frame(), repeat=5)
        assert len(bench.drain()) == 0
        bench.raw("counters")[CPU, COUNTERS_DTYPE.itemsize + 4] = 0
        assert bench.window()["n"] == 6


def test_sequence_counts_from_0_on_each_cpu() -> None:
    """Records are numbered by CPU, without a gap where none was lost."""
    with CaptureBench("none", window_ns=0) as bench:
        for cpu in CPUS:
            bench.run(frame(), repeat=20, cpu=cpu)
        closed = np.concatenate([bench.drain(), bench.close_windows()])
        for cpu in CPUS:
            assert closed["seq"][closed["cpu"] == cpu].tolist() == list(range(20))


def test_losses_are_counted_exactly() -> None:
    """A ring of 4 KiB that nobody drains: records offered are those drained and those lost."""
    with CaptureBench("none", window_ns=0, ring_bytes=4096) as bench:
        bench.run(frame(), repeat=500)  # each closes the window of the one before
        drained = bench.drain()
        counters = bench.counters()
        assert counters["produced"] == 499
        assert 0 < len(drained) < 30
        assert counters["produced"] == len(drained) + counters["lost"]
        assert drained["seq"].tolist() == list(range(len(drained)))


# ---- slots -----------------------------------------------------------------------------------------------------


def test_clock_without_a_free_slot_is_rejected() -> None:
    """Where all four slots have owners, a further clock's packets count as slot_full, and as rejected."""
    with CaptureBench("trailer", slots_per_cpu=4) as bench:
        bench.introduce(0x100, 0x200, 0x300)
        assert len(bench.owned()) == 4
        bench.stamped(HW_NS, 0x400, repeat=10)
        assert verdicts(bench.window()) == {"n": 10, "n_rejected": 10}
        assert bench.counters()["slot_full"] == 10


def test_ninth_clock_is_rejected() -> None:
    """A CPU follows CLOCKS_PER_CPU clocks; one more counts as slot_full, and as rejected."""
    with CaptureBench("trailer") as bench:
        keys = [0x1000 + (i << 8) for i in range(records.CLOCKS_PER_CPU)]
        bench.introduce(*keys)
        assert {*keys} < {*bench.owned()}
        bench.stamped(HW_NS, 0xFF00, repeat=20)
        assert verdicts(bench.window()) == {"n": 20, "n_rejected": 20}
        assert bench.counters()["slot_full"] > 0


@pytest.mark.parametrize(
    "behind",
    [
        pytest.param(b"", id="missing"),
        pytest.param(trailer(HW_NS), id="stamped"),
    ],
)
def test_packet_without_any_slot_is_counted_once(behind: bytes) -> None:
    """Where another clock owns the only slot, a packet is in no window, and once in slot_full."""
    with CaptureBench("skb", "tc", slots_per_cpu=1) as bench:
        bench.run(frame(), hwtstamp_ns=HW_NS)
        assert bench.window()["n"] == 1
        bench.config["stamp"][0] = records.STAMP_TRAILER
        bench.run(frame(behind=behind), repeat=10)
        assert len(bench.close_windows()) == 0
        assert bench.counters()["slot_full"] == 10


def test_idle_slot_changes_owner() -> None:
    """A slot unused for over ten seconds goes to the next owner, as a new generation."""
    with CaptureBench("trailer", slots_per_cpu=4) as bench:
        bench.introduce(0x100, 0x200, 0x300)
        slot = bench.owned()[0x200]
        generation = int(bench.slots["generation"][slot])
        bench.slots["last_mono_ns"][slot] -= 11 * 10**9
        bench.stamped(HW_NS, 0x400, repeat=10)
        assert bench.window(0x400)["n_stamped"] == 3
        assert (bench.owned()[0x400], int(bench.slots["generation"][slot])) == (slot, generation + 1)
        assert bench.counters()["slot_full"] == 0


def test_open_window_outlives_the_next_owner() -> None:
    """What an idle slot's open window holds is not lost to another owner."""
    with CaptureBench("trailer", slots_per_cpu=4) as bench:
        bench.introduce(0x100, 0x200, 0x300)
        bench.stamped(HW_NS + 1, 0x200)
        bench.slots["last_mono_ns"][bench.owned()[0x200]] -= 11 * 10**9
        bench.stamped(HW_NS, 0x400, repeat=10)
        assert bench.window(0x200)["n_stamped"] == 1
