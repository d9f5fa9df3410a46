"""What the flags of a run come to: hooks, stamps, loaders, rings, and watching only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.agent_run import AgentRun
from tests.kernel.frames import send, trailer, udp4
from tools.testbed.namespace import VethPair

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and BPF"),
]

PACKETS = 400
PROBATION = 7  # a clock is believed at its eighth sighting


def stamped_frames() -> Iterator[bytes]:
    """Frames with the trailer of one clock."""
    return (udp4() + trailer(1) for _ in range(PACKETS))


@pytest.mark.parametrize(
    ("flags", "hook"),
    [
        (("--hook", "xdp"), "xdp"),
        (("--hook", "tc"), "tc"),
        (("--hook", "xdp-generic"), "xdp-generic"),
        (("--loader", "bcc"), "xdp"),
    ],
)
def test_trailers_are_read_by_every_hook_and_loader(
    pair: VethPair, tmp_path: Path, flags: tuple[str, str], hook: str
) -> None:
    """The same packets give the same counts whoever sees them."""
    with AgentRun(pair.right, tmp_path, "--stamp", "trailer", *flags) as run:
        (interface,) = run.wait_for("hello")["interfaces"]
        send(pair.left, stamped_frames())
        assert run.stop() == 0
        windows = run.windows()
    assert interface["hook"] == hook
    assert interface["loader"] == ("bcc" if "bcc" in flags else "libbpf")
    assert windows["n"].sum() == PACKETS
    assert windows["n_stamped"].sum() == PACKETS - PROBATION
    assert windows["n_rejected"].sum() == PROBATION


def test_an_skb_stamp_that_never_comes_is_missing(pair: VethPair, tmp_path: Path) -> None:
    """veth stamps nothing: every packet counts, all as missing, and it is said that stamping cannot be read."""
    with AgentRun(pair.right, tmp_path, "--stamp", "skb") as run:
        (interface,) = run.wait_for("hello")["interfaces"]
        send(pair.left, stamped_frames())
        assert run.stop() == 0
        windows = run.windows()
        assert "stamping of cap0 cannot be read" in run.notes()
    assert (interface["hook"], interface["stamp"]) == ("tc", "skb")
    assert windows["n"].sum() == windows["n_missing"].sum() == PACKETS


def test_a_probed_trailer_is_given_up(pair: VethPair, tmp_path: Path) -> None:
    """`--stamp auto` and 2,000 packets without a trailer: the stamp is `none` from then on, and it is said."""
    with AgentRun(pair.right, tmp_path) as run:
        run.started()
        send(pair.left, (udp4() for _ in range(2_500)))
        run.wait_for("health", lambda frame: any("without a trailer" in note for note in frame["notes"]))
        assert run.stop() == 0
        assert run.of_kind("goodbye")[0]["interfaces"][0]["stamp"] == "none"


def test_a_ring_too_small_loses_and_counts_every_record(pair: VethPair, tmp_path: Path) -> None:
    """With 4 KiB records are lost, and produced = drained + lost is exact; the stream's records are the drained."""
    flags = ("--stamp", "trailer", "--ring-kib", "4", "--window", "100us")
    with AgentRun(pair.right, tmp_path, *flags) as run:
        run.started()
        send(pair.left, (udp4() + trailer(1) for _ in range(20_000)))
        assert run.stop() == 0
        counters, windows = run.counters(), run.windows()
    assert counters["lost"] > 0
    assert counters["produced"] == counters["drained"] + counters["lost"]
    assert counters["drained"] == len(windows)
    assert counters["packets"] == 20_000


def test_observing_changes_nothing(pair: VethPair, tmp_path: Path) -> None:
    """Every file of the interface's queues and its settings reads the same before, during and after."""

    def snapshot() -> dict[str, bytes]:
        found = {}
        base = Path("/sys/class/net/cap0")
        for path in (*base.glob("*"), *base.glob("queues/*/*")):
            try:
                found[str(path)] = path.read_bytes()
            except OSError:
                found[str(path)] = b"unreadable"
        return found

    before = pair.right.call(snapshot)
    with AgentRun(pair.right, tmp_path, "--observe") as run:
        assert run.wait_for("hello")["observe"] is True
        send(pair.left, stamped_frames())
        run.wait_for("health")
        during = pair.right.call(snapshot)
        assert run.stop() == 0
        assert not run.of_kind("change")
    assert during == before
    assert pair.right.call(snapshot) == before
    assert not list(tmp_path.iterdir())


def test_a_run_leaves_napi_deferral_alone(pair: VethPair, tmp_path: Path) -> None:
    """Deferring interrupts makes packets wait: no run sets it, whatever it found."""
    files = [Path("/sys/class/net/cap0") / name for name in ("napi_defer_hard_irqs", "gro_flush_timeout")]
    if not all(pair.right.call(file.exists) for file in files):
        pytest.skip("this kernel has no deferral of interrupts")
    before = [pair.right.read(file) for file in files]
    with AgentRun(pair.right, tmp_path) as run:
        run.started()
        for _ in range(10):
            send(pair.left, stamped_frames())
            run.wait_for("delay")
            assert [pair.right.read(file) for file in files] == before
        assert run.stop() == 0
    assert [pair.right.read(file) for file in files] == before
