"""What attaching the agent costs in packets/s and TCP throughput through veth.

Two comparisons: the agent with XDP and tc against empty programs at the same hooks, and the agent with --hook tc
against nothing attached (XDP on veth costs TCP most of its speed, whoever attaches it). Both only observe, so that no
tuning hides or adds cost. The sides take turns as A B B A; a ratio is of neighbours.
"""

from __future__ import annotations

import contextlib
import functools
import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from agent.errors import AgentError
from tools.bench.agentprocess import AgentProcess
from tools.bench.empties import empty_programs
from tools.bench.figure import Effort, Figure, median_with_bootstrap
from tools.testbed import Testbed
from tools.testbed.build import built
from tools.testbed.program import Program
from tools.testbed.testbed import PORT, online_cpus

_PAIRS = 10
_UDP_S = 2.0
_TCP_S = 2  # iperf3 wants whole seconds
_WARM_UP_S = 0.3
_SETTLE_S = 1.5
# The sender sleeps between bursts only, and a sleep into the past still costs as much as ten packets.
_UNPACED_PPS = 100_000_000
_UNPACED = ("--burst", "10000", "--burst-percent", "100")
_TCP_PORT = 25_201
_READY_S = 5.0

_Side = Callable[[], contextlib.AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class _Speed:
    """What went through in one turn of one side."""

    packets_per_s: float
    tcp_gbit_per_s: float


class _Scene:
    """The testbed, and the three states of its capture interface."""

    def __init__(self, bed: Testbed, state_dir: Path, quick: bool) -> None:
        self._bed = bed
        self._state_dir = state_dir
        self._seconds = (0.7, 1) if quick else (_UDP_S, _TCP_S)
        (self._trafficgen,) = built("testbed/trafficgen")

    @contextlib.contextmanager
    def agent(self, hook: str) -> Iterator[None]:
        """`agent run --observe`, looking for trailers."""
        with AgentProcess(
            self._bed, self._state_dir, "--observe", "--hook", hook, "--stamp", "trailer"
        ) as agent:
            agent.wait_for_hello()
            time.sleep(_SETTLE_S)
            yield
            if not agent.running:
                raise AgentError(f"the agent ended before it was told to: {agent.said()}")
            agent.stop()

    def empty(self) -> contextlib.AbstractContextManager[object]:
        """Empty programs at the same hooks."""
        return empty_programs(self._bed.cap, self._bed.cap_if)

    def bare(self) -> contextlib.AbstractContextManager[object]:
        """Nothing attached."""
        return contextlib.nullcontext()

    def speed(self, side: _Side, udp: bool) -> _Speed:
        """One turn of a side."""
        with side():
            return _Speed(self._udp_packets_per_s() if udp else 0.0, self._tcp_gbit_per_s())

    def _received(self) -> tuple[int, int]:
        path = Path(f"/sys/class/net/{self._bed.cap_if}/statistics/rx_packets")
        return time.monotonic_ns(), int(self._bed.cap.read(path))

    def _udp_packets_per_s(self) -> float:
        """Packets that arrived per second, sent as fast as one CPU can, with a trailer each."""
        bed = self._bed
        sender = Program(
            bed.gen,
            [
                str(self._trafficgen),
                "--dst", bed.pair.right_ip, "--port", str(PORT), "--flows", str(bed.flows),
                "--rate", str(_UNPACED_PPS), *_UNPACED, "--cpu", str(online_cpus()[0]),
            ],
        )  # fmt: skip
        try:
            time.sleep(_WARM_UP_S)
            start_ns, before = self._received()
            time.sleep(self._seconds[0])
            end_ns, after = self._received()
            sender.stop()
        finally:
            sender.close()
        return (after - before) / (end_ns - start_ns) * 1e9

    def _tcp_gbit_per_s(self) -> float:
        """One TCP stream into the capture interface."""
        bed = self._bed
        server = bed.cap.popen(
            ["iperf3", "--server", "--one-off", "--port", str(_TCP_PORT), "--json"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            return self._iperf_client()
        finally:
            server.terminate()
            server.wait()

    def _iperf_client(self) -> float:
        command = [
            "iperf3", "--client", self._bed.pair.right_ip, "--port", str(_TCP_PORT), "--json",
            "--time", str(self._seconds[1]),
        ]  # fmt: skip
        deadline = time.monotonic() + _READY_S
        while True:  # until the server listens
            with self._bed.gen.popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as client:
                try:
                    out, _ = client.communicate(timeout=self._seconds[1] + _READY_S)
                finally:
                    client.kill()
            result = json.loads(out)
            if "error" not in result:
                return float(result["end"]["sum_received"]["bits_per_second"]) / 1e9
            if time.monotonic() > deadline:
                raise AgentError(f"iperf3: {result['error']}")
            time.sleep(0.05)


@contextlib.contextmanager
def _full_sockets(bed: Testbed) -> Iterator[None]:
    """Where the UDP packets end: sockets that nobody reads, so that no application's wake-ups are measured."""

    def bind(port: int) -> socket.socket:
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        receiver.bind((bed.pair.right_ip, port))
        return receiver

    with ExitStack() as stack:
        for port in range(PORT, PORT + bed.flows):
            stack.enter_context(bed.cap.call(functools.partial(bind, port)))
        yield


@dataclass(frozen=True, slots=True)
class _Pair:
    agent: _Speed
    other: _Speed


def _pairs(scene: _Scene, agent: _Side, other: _Side, udp: bool, count: int, effort: Effort) -> list[_Pair]:
    """Turns in the order A B, B A, A B, …"""
    pairs = []
    for number in range(count):
        if number % 2 == 0:
            first = scene.speed(agent, udp)
            pairs.append(_Pair(first, scene.speed(other, udp)))
        else:
            first = scene.speed(other, udp)
            pairs.append(_Pair(scene.speed(agent, udp), first))
        effort.say(f"throughput: pair {number + 1}: {pairs[-1]}")
    return pairs


def measure(effort: Effort) -> list[Figure]:
    """Packets/s and TCP against empty programs, TCP with --hook tc against nothing attached."""
    count = effort.repeat(_PAIRS, 3)
    with ExitStack() as stack:
        state_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agent-bench-")))
        bed = stack.enter_context(Testbed())
        scene = _Scene(bed, state_dir, effort.quick)
        stack.enter_context(_full_sockets(bed))
        xdp = _pairs(scene, lambda: scene.agent("xdp"), scene.empty, True, count, effort)
        tc = _pairs(scene, lambda: scene.agent("tc"), scene.bare, False, count, effort)
    return [
        _figure("packets/s", "UDP packets/s, agent / empty XDP and tc programs", xdp, _packets_per_s, 0.95),
        _figure("TCP", "one TCP stream, agent / empty XDP and tc programs", xdp, _tcp, 0.95),
        _figure("TCP, hook tc", "one TCP stream, agent --hook tc / nothing attached", tc, _tcp, 0.97),
    ]


def _packets_per_s(speed: _Speed) -> float:
    return speed.packets_per_s


def _tcp(speed: _Speed) -> float:
    return speed.tcp_gbit_per_s


def _figure(name: str, what: str, pairs: list[_Pair], of: Callable[[_Speed], float], target: float) -> Figure:
    value, spread = median_with_bootstrap([of(pair.agent) / of(pair.other) for pair in pairs])
    unit = "packets/s" if of is _packets_per_s else "Gbit/s"
    return Figure(
        name=name,
        what=what,
        value=value,
        unit="",
        target=target,
        direction="at least",
        spread=spread,
        samples=len(pairs),
        detail={
            f"agent, {unit}": float(np.median([of(pair.agent) for pair in pairs])),
            f"other, {unit}": float(np.median([of(pair.other) for pair in pairs])),
            "how": "agent run --observe; trailers on the UDP packets, one unpaced sender pinned to a CPU, 16 flows on "
            "4 queues, into full sockets, counted where they arrive; iperf3 between the namespaces; sides in the "
            "order A B B A",
        },
    )
