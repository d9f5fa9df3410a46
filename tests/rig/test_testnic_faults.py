"""Stamps that go wrong, one way after the other: what the agent says, and that its clock goes on by its own reads."""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.ffi.hwtstamp import TX_ON, HwtstampConfig, hwtstamp_config, set_hwtstamp_config
from tests.kernel.agent_run import AgentRun, agent
from tests.rig.testnic import CAPTURED, Wire

PASSIVE = ("--deny", "irq,rps,xps,napi")
RX_FAULTS = ("missing", "zero", "duplicate", "late", "wrapped")
COALESCED_US = 2_000
_MSG_ERRQUEUE = 0x2000
_SO_TIMESTAMPING = 37
_TX_HARDWARE, _RAW_HARDWARE = 1 << 0, 1 << 6


@dataclass(frozen=True, slots=True)
class Fault:
    """What was seen while packets' stamps were wrong in one way."""

    counts: dict[str, int]
    tags: list[dict[str, Any]]
    outside: int
    """Reports whose offset was off by more than their bound."""
    reports: int
    states: list[str]

    @property
    def kinds(self) -> set[str]:
        """The kinds of its tags."""
        return {tag["kind"] for tag in self.tags}

    @property
    def causes(self) -> str:
        """The causes of its tags."""
        return "; ".join(tag["cause"] for tag in self.tags)


def _until_samples(run: AgentRun, more: int) -> int:
    """Wait for that many more reports; mono of the last."""
    target = len(run.of_kind("clock")) + more
    run.wait_until(lambda: len(run.of_kind("clock")) >= target)
    return int(run.of_kind("clock")[-1]["mono_ns"])


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Fault]:
    """One run over all faults, good stamps between them. Packets wait for 2 ms until they are served."""
    spans = {}
    with Wire() as wire:
        wire.clock.set("rate_ppt", 20_000_000)
        wire.ethtool("-C", CAPTURED, "rx-usecs", str(COALESCED_US), "rx-frames", "64")
        wire.send(400)
        with AgentRun(
            wire.here, tmp_path_factory.mktemp("state"), "--stamp", "skb", *PASSIVE, interfaces=(CAPTURED,)
        ) as run:
            run.wait_for("clock", lambda frame: frame["state"] == "tracking")
            _until_samples(run, 15)
            for fault in RX_FAULTS:
                start_ns = time.monotonic_ns()
                wire.clock.set("rx_fault", fault)
                middle_ns = _until_samples(run, 15)
                wire.clock.set("rx_fault", "good")
                spans[fault] = (start_ns, middle_ns, _until_samples(run, 10))
            truth = wire.clock.truth()
            assert run.stop() == 0, run.said()
    windows = run.windows(CAPTURED)
    found = {}
    for fault, (start_ns, middle_ns, end_ns) in spans.items():
        during = windows[(windows["open_mono_ns"] >= start_ns) & (windows["last_mono_ns"] < middle_ns)]
        reports = [f for f in run.of_kind("clock") if start_ns <= f["mono_ns"] < end_ns]
        errors = [abs(f["offset_ns"] - truth.offset_ns(f["mono_ns"])) - f["bound_ns"] for f in reports]
        names = ("n", "n_stamped", "n_missing", "n_rejected", "n_duplicate", "n_reordered")
        found[fault] = Fault(
            {name: int(during[name].sum()) for name in names},
            [tag for frame in reports for tag in frame["tags"]],
            int(np.count_nonzero(np.array(errors) > 0)),
            len(reports),
            list(dict.fromkeys(frame["state"] for frame in reports)),
        )
    if "RIG_RESULTS" in os.environ:
        told = {
            name: {
                "counts": f.counts, "tags": f.tags, "outside": f.outside, "reports": f.reports, "states": f.states
            }
            for name, f in found.items()
        }  # fmt: skip
        Path(os.environ["RIG_RESULTS"], "testnic-faults.json").write_text(json.dumps(told, indent=1) + "\n")
    return found


@pytest.mark.parametrize("fault", RX_FAULTS)
def test_the_clock_goes_on_by_its_reads(faults: dict[str, Fault], fault: str) -> None:
    """Tracking all the while, the truth within the bound, and no jump of the clock is made up."""
    seen = faults[fault]
    assert seen.states == ["tracking"]
    assert seen.outside <= seen.reports // 100
    assert not seen.kinds & {"phase_step", "freq_step", "tai_utc", "bounce", "epoch_unset"}


@pytest.mark.parametrize("fault", ["missing", "zero"])
def test_stamps_that_do_not_come_are_told(faults: dict[str, Fault], fault: str) -> None:
    """No stamp, or one of 0: every packet is counted as missing, and the loss is tagged."""
    seen = faults[fault]
    assert seen.counts["n_missing"] >= 0.95 * seen.counts["n"] > 0
    assert "packets carry no hardware stamp any more" in seen.causes


def test_stamps_that_repeat_are_told(faults: dict[str, Fault]) -> None:
    """The same stamp on every packet: counted as duplicates, and tagged as stale."""
    seen = faults["duplicate"]
    assert seen.counts["n_duplicate"] >= 0.9 * seen.counts["n"]
    assert "stale" in seen.kinds


def test_late_stamps_are_a_change_of_the_path(faults: dict[str, Fault]) -> None:
    """Stamped when they are served, packets seem to have waited up to 2 ms less: the path, not the clock.

    A packet that comes alone waits all of it, the last of a burst the less the longer the burst.
    """
    sizes = [tag["size_ns"] for tag in faults["late"].tags if tag["kind"] == "path_change"]
    assert sizes
    assert -1.5 * COALESCED_US * 1000 < min(sizes) < -0.1 * COALESCED_US * 1000


def test_wrapped_stamps_are_told(faults: dict[str, Fault]) -> None:
    """2^32 ns behind: named as a wrap of the packets' stamps, not of the clock."""
    seen = faults["wrapped"]
    assert "wrap" in seen.kinds
    assert "the PHC itself reads well" in seen.causes


def test_a_refused_filter_is_told(tmp_path: Path) -> None:
    """The driver refuses to stamp (ERANGE): exit code 3, with the interface and what it refuses."""
    with Wire() as wire:
        wire.clock.set("refuse_filter", "Y")
        done = agent(
            "run", "-i", CAPTURED, "--netns", wire.here.name, "--state-dir", str(tmp_path), "--stamp", "skb"
        )
    assert done.returncode == 3
    assert b"tn0 cannot stamp with filter 1" in done.stderr


@pytest.mark.minutes
def test_stamping_that_is_lost_as_xdp_is_attached_is_switched_on_again(tmp_path: Path) -> None:
    """Some drivers do that: it is seen, put right and said; stamps come, and at the end stamping is off as before."""
    with Wire() as wire:
        wire.clock.set("lose_stamps_on_xdp", "Y")
        wire.send(400)
        flags = ("--stamp", "xdp", "--allow-reset", *PASSIVE)
        with AgentRun(wire.here, tmp_path, *flags, interfaces=(CAPTURED,)) as run:
            run.wait_until(lambda: bool(run.packets(CAPTURED)) and bool(run.notes()))
            run.wait_until(lambda: int(run.windows(CAPTURED)["n_stamped"].sum()) > 100)
            assert run.stop() == 0, run.said()
        assert "switched stamping off when a program came or went; it is on again" in run.notes()
        left = wire.here.call(lambda: hwtstamp_config(CAPTURED))
    assert left is not None
    assert not left.rx_on


@pytest.mark.parametrize("fault", ["good", "missing", "late", "next"])
def test_transmit_stamps_go_wrong_as_told(fault: str) -> None:
    """What a sender finds in its error queue: its own stamp, none, one that comes late, or that of the packet before.

    The agent uses no transmit stamps; this is what a PTP daemon beside it meets.
    """
    with Wire() as wire:
        wire.clock.set("tx_fault", fault)
        sent, got = wire.here.call(lambda: _transmit(wire, 3))
    if fault == "missing":
        assert got == [None, None, None]
    elif fault == "next":
        assert got[0] is None
        for before, stamp in zip(sent, got[1:], strict=False):
            assert stamp is not None
            assert before[0] <= stamp[0] <= before[1]
    else:
        for (start, end), stamp in zip(sent, got, strict=True):
            assert stamp is not None
            assert start <= stamp[0] <= end
            assert fault == "good" or stamp[1] >= 40_000_000


def _transmit(wire: Wire, packets: int) -> tuple[list[tuple[int, int]], list[tuple[int, int] | None]]:
    """Send packets with stamps asked for.

    Returns for each what the PHC showed (before, after) sending, and (its stamp, ns that it took to come) or None.
    """
    set_hwtstamp_config(CAPTURED, HwtstampConfig(0, TX_ON, 0))
    clock_id = (~os.open(_ptp_device(), os.O_RDWR) << 3) | 3
    sent, got = [], []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPING, _TX_HARDWARE | _RAW_HARDWARE)
        for _ in range(packets):
            began_ns = time.monotonic_ns()
            start = time.clock_gettime_ns(clock_id)
            sender.sendto(b"x", ("10.9.0.2", 20_000))
            sent.append((start, time.clock_gettime_ns(clock_id)))
            got.append(_stamp_of(sender, began_ns))
    return sent, got


def _ptp_device() -> str:
    from agent.ffi.hwtstamp import ts_info

    return f"/dev/ptp{ts_info(CAPTURED).phc_index}"


def _stamp_of(sender: socket.socket, began_ns: int) -> tuple[int, int] | None:
    while time.monotonic_ns() - began_ns < 500_000_000:
        try:
            _, ancillary, _, _ = sender.recvmsg(2048, 512, _MSG_ERRQUEUE | socket.MSG_DONTWAIT)
        except BlockingIOError:
            time.sleep(0.002)
            continue
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPING):
                seconds, ns = struct.unpack_from("@qq", data, 32)
                return seconds * 10**9 + ns, time.monotonic_ns() - began_ns
    return None
