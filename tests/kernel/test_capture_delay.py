"""Delays under a clock model, by BPF_PROG_RUN: the model stands still, so that every delay is known to the ns."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import numpy as np
import pytest

from agent.ffi.records import CLOCK_KEY_PHC, HIST_BUCKETS, hist_bucket, hist_edges_ns
from tests.kernel.capture_bench import CPUS, HW_NS, PORT, CaptureBench, frame

pytestmark = pytest.mark.kernel


@pytest.fixture
def bench() -> Iterator[CaptureBench]:
    """tc with skb stamps, which can be any number, and a model for them."""
    with CaptureBench("skb", "tc") as made:
        made.set_model(CLOCK_KEY_PHC)
        yield made


def _delayed(bench: CaptureBench, *delays_ns: int) -> np.void:
    """Run a packet for each delay; their window."""
    for delay in delays_ns:
        bench.run(frame(), hwtstamp_ns=HW_NS - delay)
    return bench.window()


def test_sums_and_extremes(bench: CaptureBench) -> None:
    """Sum, sum of squares, smallest and largest delay are exact."""
    delays = [random.Random(3).randrange(1 << 28) for _ in range(200)]
    window = _delayed(bench, *delays)
    assert (window["n_delay"], window["n_no_model"], window["n_saturated"]) == (200, 0, 0)
    assert window["delay_sum_ns"] == sum(delays)
    assert window["delay_sq_sum"] == sum((delay >> 6) ** 2 for delay in delays)
    assert (window["delay_min_ns"], window["delay_max_ns"]) == (min(delays), max(delays))


def test_histogram_has_every_delay_in_its_bucket(bench: CaptureBench) -> None:
    """The kernel's buckets are those of the reference: at every edge, one below, and between."""
    edges = hist_edges_ns()[1:-1].tolist()
    between = [random.Random(4).randrange(1 << 32) >> shift for shift in range(32) for _ in range(4)]
    delays = [delay for edge in edges for delay in (edge - 1, edge)] + between
    _delayed(bench, *delays)
    expected = np.bincount(hist_bucket(delays), minlength=HIST_BUCKETS)
    assert bench.hists[bench.owned()[CLOCK_KEY_PHC]].tolist() == expected.tolist()


def test_histogram_is_of_the_slot_alone(bench: CaptureBench) -> None:
    """Delays go into the histogram with the slot's index, and into no other."""
    bench.run(frame(), hwtstamp_ns=HW_NS - 5_000, cpu=CPUS[-1])
    index = bench.owned()[CLOCK_KEY_PHC]
    assert index // int(bench.config["slots_per_cpu"][0]) == CPUS[-1]
    assert bench.hists.sum() == bench.hists[index, hist_bucket(5_000)] == 1


def test_histogram_grows_over_windows(bench: CaptureBench) -> None:
    """Closing a window doesn't touch its histogram."""
    _delayed(bench, 1_000, 1_000)
    _delayed(bench, 1_000)
    assert bench.hists[bench.owned()[CLOCK_KEY_PHC], hist_bucket(1_000)] == 3


def test_negative_delays_count_as_0(bench: CaptureBench) -> None:
    """A stamp in the future is counted as such; its delay is 0 in sums and histogram."""
    window = _delayed(bench, -1, -(10**9), 700)
    assert (window["n_delay"], window["n_negative"]) == (3, 2)
    assert (window["delay_sum_ns"], window["delay_min_ns"], window["delay_max_ns"]) == (700, 0, 700)
    assert bench.hists[bench.owned()[CLOCK_KEY_PHC], 0] == 2


def test_delay_of_0_is_not_negative(bench: CaptureBench) -> None:
    """A packet stamped just now has delay 0."""
    window = _delayed(bench, 0)
    assert (window["n_delay"], window["n_negative"], window["delay_sum_ns"]) == (1, 0, 0)


def test_huge_delays_are_clamped(bench: CaptureBench) -> None:
    """A delay beyond 32 bits is counted as the largest one, in the last bucket."""
    window = _delayed(bench, 1 << 40)
    top = 0xFFFFFFFF
    assert (window["delay_sum_ns"], window["delay_min_ns"], window["delay_max_ns"]) == (top, top, top)
    assert bench.hists[bench.owned()[CLOCK_KEY_PHC], HIST_BUCKETS - 1] == 1


def test_squares_that_overflow_are_left_out(bench: CaptureBench) -> None:
    """A sum of squares that would wrap stays as it is, and the window says how often."""
    most = (1 << 64) // (0xFFFFFFFF >> 6) ** 2
    for _ in range(2):
        bench.run(frame(), repeat=2_050, hwtstamp_ns=HW_NS - 0xFFFFFFFF)
    window = bench.window()
    assert window["n_saturated"] == 4_100 - most
    assert window["delay_sq_sum"] == most * (0xFFFFFFFF >> 6) ** 2


def test_trailer_delays_are_by_the_clock_of_the_trailer() -> None:
    """Two switches have models of their own."""
    with CaptureBench() as bench:
        other = PORT + 0x100
        bench.introduce(PORT, other)
        bench.set_model(PORT, HW_NS)
        bench.models[1] = bench.models[0]
        bench.models["key"][1] = other
        bench.models["copy"]["phc0_ns"][1] = HW_NS + 400
        for key in (PORT, other):
            bench.stamped(HW_NS - 1_000, key)
        closed = bench.close_windows()
        sums = {int(window["clock_key"]): int(window["delay_sum_ns"]) for window in closed}
        assert sums == {PORT: 1_000, other: 1_400}


def test_model_runs_at_its_rate(bench: CaptureBench) -> None:
    """Model time goes on as monotonic time does, faster by adj / 2^shift."""
    mono0 = time.monotonic_ns() - 10**9
    bench.models["shift"][0] = 10
    bench.models["copy"][0, 0] = (mono0, HW_NS, 1, 1 << 62)  # 1/1024 faster
    window = _delayed(bench, 0)
    age = int(window["last"]["mono_ns"]) - mono0
    assert window["delay_sum_ns"] == age + (age >> 10)


# ---- no valid model --------------------------------------------------------------------------------------------


def _without_delay(window: np.void) -> bool:
    return (window["n_stamped"], window["n_delay"], window["n_no_model"]) == (1, 0, 1) and window[
        "delay_sum_ns"
    ] == window["delay_min_ns"] == window["delay_max_ns"] == 0


def test_no_model_no_delay(bench: CaptureBench) -> None:
    """Without a model for its clock a stamped packet has no delay, and is counted in no histogram."""
    bench.models["key"][0] = CLOCK_KEY_PHC + 1
    assert _without_delay(_delayed(bench, 1_000))
    assert not bench.hists.any()


def test_expired_model_gives_no_delay(bench: CaptureBench) -> None:
    """A model is not used after valid_until."""
    bench.set_model(CLOCK_KEY_PHC, valid_until_ns=time.monotonic_ns() - 1)
    assert _without_delay(_delayed(bench, 1_000))


def test_model_expires_within_a_window(bench: CaptureBench) -> None:
    """Expiry is looked at for each packet, also with a model taken over while it was valid."""
    # Shorter than the programs' refresh of their copy.
    until = time.monotonic_ns() + 300_000
    bench.set_model(CLOCK_KEY_PHC, valid_until_ns=until)
    bench.run(frame(), hwtstamp_ns=HW_NS)
    while time.monotonic_ns() <= until:
        pass
    bench.run(frame(), hwtstamp_ns=HW_NS)
    window = bench.window()
    # On a busy machine also the first may be late; the second always is.
    assert window["n_delay"] == int(window["first"]["mono_ns"] <= until)
    assert window["n_delay"] + window["n_no_model"] == window["n_stamped"] == 2


def test_copy_is_chosen_by_the_sequence(bench: CaptureBench) -> None:
    """With an odd sequence the second copy is the valid one; what stands in the first doesn't matter."""
    bench.set_model(CLOCK_KEY_PHC, seq=1)
    assert _delayed(bench, 1_000)["delay_sum_ns"] == 1_000


def test_copy_being_written_is_not_used(bench: CaptureBench) -> None:
    """While the writer fills the other copy, the programs go on with the published one."""
    bench.models["copy"][0, 1] = (1, 2, 3, 1 << 62)
    assert _delayed(bench, 1_000)["delay_sum_ns"] == 1_000


def test_entry_given_to_another_clock_ends_the_delays(bench: CaptureBench) -> None:
    """A model whose entry changed its key is not used for the former clock's next window."""
    assert _delayed(bench, 1_000)["n_delay"] == 1
    bench.models["key"][0] = PORT
    assert _without_delay(_delayed(bench, 1_000))


def test_model_in_the_last_entry_is_found(bench: CaptureBench) -> None:
    """Entries are searched by key; which one it is doesn't matter."""
    bench.models[-1] = bench.models[0]
    bench.models["key"][0] = PORT
    assert _delayed(bench, 1_000)["delay_sum_ns"] == 1_000
