"""Frames of every kind on the wire, and what the windows say of them."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from agent.ffi.records import CLOCK_KEY_NONE, WindowArray
from tests.kernel.agent_run import AgentRun
from tests.kernel.frames import TRAILER_BYTES, arp, send, tagged, trailer, udp4, udp6
from tools.testbed.namespace import VethPair, netns_pair

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and BPF"),
]

DEVICE = 7
SENT = 40  # frames of each kind
PROBATION = 7  # a clock is believed at its eighth sighting

# Frames behind which a switch puts its trailer; each kind has a port, and so a clock, of its own. All of these ports
# find room in the table of one CPU and queue.
PORTS = (1, 2, 3, 4, 5, 6, 8)
WITH_TRAILER: dict[str, bytes] = {
    "ipv4": udp4(),
    "ipv6": udp6(),
    "vlan": tagged(udp4(), 0x8100),
    "qinq": tagged(udp4(), 0x88A8, 0x8100),
    "arp": arp(),
    "jumbo": udp4(payload=8_900),
    "shortest": udp4(payload=0).ljust(60, b"\0"),
}
_random = random.Random(20_261_201)
WITHOUT: dict[str, Callable[[], bytes]] = {
    "plain": udp4,
    "bare header": lambda: udp4()[:14],
    "shorter than a trailer": lambda: udp4()[:15],
    "shorter than a frame with trailer": lambda: udp4(payload=0),
    "padding of zeros": lambda: udp4() + bytes(TRAILER_BYTES),
    "plain ipv6": udp6,
    "jumbo": lambda: udp4(payload=8_900),
}
NOISE: dict[str, Callable[[], bytes]] = {
    "random bytes": lambda: udp4() + _random.randbytes(TRAILER_BYTES),
    "all ones": lambda: udp4() + b"\xff" * TRAILER_BYTES,
    "a second of 1e9 ns": lambda: udp4() + bytes.fromhex("00000000 6a000000 3b9aca00 01000703"),
}


@dataclass(frozen=True, slots=True)
class Counted:
    """One run's windows and counters, all kinds of frames sent in turn."""

    windows: WindowArray
    counters: dict[str, int]
    sent: int

    def of_clock(self, key: int) -> dict[str, int]:
        """Sums over the windows of one clock."""
        own = self.windows[self.windows["clock_key"] == key]
        return {name: int(own[name].sum()) for name in ("n", "n_stamped", "n_missing", "n_rejected")}


@pytest.fixture(scope="module")
def jumbo_pair() -> Iterator[VethPair]:
    """A veth pair with an MTU of 9000."""
    with netns_pair(mtu=9000) as made:
        yield made


@pytest.fixture(scope="module", params=["xdp", "tc"])
def counted(
    request: pytest.FixtureRequest, jumbo_pair: VethPair, tmp_path_factory: pytest.TempPathFactory
) -> Counted:
    """A run over all kinds of frames, with either hook."""
    arguments = ("--hook", request.param, "--stamp", "trailer")
    with AgentRun(jumbo_pair.right, tmp_path_factory.mktemp("state"), *arguments) as run:
        run.started()
        sent = 0
        for port, frame in zip(PORTS, WITH_TRAILER.values(), strict=True):
            sent += send(jumbo_pair.left, (frame + trailer(port, DEVICE) for _ in range(SENT)))
        for make in (*WITHOUT.values(), *NOISE.values()):
            sent += send(jumbo_pair.left, (make() for _ in range(SENT)))
        assert run.stop() == 0
        return Counted(run.windows(), run.counters(), sent)


@pytest.mark.parametrize("kind", WITH_TRAILER)
def test_trailers_are_found_behind_every_kind_of_frame(counted: Counted, kind: str) -> None:
    """All frames of a kind are stamped, but for those that its clock needs to prove itself."""
    key = DEVICE << 8 | PORTS[[*WITH_TRAILER].index(kind)]
    believed = SENT - PROBATION
    assert counted.of_clock(key) == {"n": believed, "n_stamped": believed, "n_missing": 0, "n_rejected": 0}


def test_frames_without_a_trailer_are_missing(counted: Counted) -> None:
    """Plain, short and padded frames have no stamp; none is taken for one."""
    assert counted.of_clock(CLOCK_KEY_NONE)["n_missing"] == SENT * len(WITHOUT)


def test_noise_is_rejected(counted: Counted) -> None:
    """What looks like a trailer and isn't, and clocks on probation, are counted apart."""
    rejected = SENT * len(NOISE) + PROBATION * len(WITH_TRAILER)
    assert counted.of_clock(CLOCK_KEY_NONE)["n_rejected"] == rejected


def test_no_clock_is_invented(counted: Counted) -> None:
    """The windows know exactly the clocks that there are."""
    keys = {CLOCK_KEY_NONE, *(DEVICE << 8 | port for port in PORTS)}
    assert set(np.unique(counted.windows["clock_key"]).tolist()) == keys


def test_every_frame_is_counted_once(counted: Counted) -> None:
    """Windows and counters agree with what was sent, and produced = drained + lost."""
    assert counted.windows["n"].sum() == counted.counters["packets"] == counted.sent
    assert counted.counters["produced"] == counted.counters["drained"] + counted.counters["lost"]


def test_every_packet_of_a_window_has_one_verdict(counted: Counted) -> None:
    """n = stamped + missing + rejected, in each window."""
    windows = counted.windows
    assert (windows["n"] == windows["n_stamped"] + windows["n_missing"] + windows["n_rejected"]).all()
