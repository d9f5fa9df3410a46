"""What attaching the agent costs in packets/s and TCP throughput through veth.

Two comparisons: the agent with XDP and tc against empty programs at the same hooks, and the agent with --hook tc
against nothing attached (XDP on veth costs TCP most of its speed, whoever attaches it).

The two sides are two veth pairs between the same namespaces, the agent on one of them; traffic goes through them in
short turns, A B B A, and a ratio is of neighbouring turns. So the machine's other load falls on both alike. The
agent's process (its CPU time is a figure of its own) runs during both; it only observes, so that no tuning hides or
adds cost.
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
from tools.testbed import Namespace, SimulatedPhc, VethPair, sweep_stale
from tools.testbed.bpfobject import TCX_EGRESS, TestbedObject
from tools.testbed.build import built
from tools.testbed.namespace import add_veth, stop
from tools.testbed.simphc import PHC_DTYPE
from tools.testbed.testbed import CONFIG_DTYPE, PORT, online_cpus

_QUEUES = 4
_FLOWS = 16
_PAIRS = 60
_UDP_S = 0.3
_TCP_MBYTES = {"xdp": 150, "tc": 400}  # some 0.3 s each
_SETTLE_S = 2.5
# The sender sleeps between bursts only, and a sleep into the past still costs as much as ten packets.
_UNPACED = ("--rate", "100000000", "--burst", "10000", "--burst-percent", "100")
_TCP_PORT = 25_201
_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class _Turns:
    """Speeds of neighbouring turns."""

    agent: list[float]
    other: list[float]

    @property
    def ratios(self) -> list[float]:
        return [agent / other for agent, other in zip(self.agent, self.other, strict=True)]


class _Scene:
    """Two veth pairs between two namespaces, with the same stamping sender on both. A context manager."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> _Scene:
        try:
            self._set_up()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _set_up(self) -> None:
        sweep_stale()
        self._trafficgen, objectfile = built("testbed/trafficgen", "bpf/testbed.bpf.o")
        self.state_dir = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="agent-bench-")))
        self.gen = self._stack.enter_context(Namespace("gen"))
        self.cap = self._stack.enter_context(Namespace("cap"))
        stamping = TestbedObject(objectfile)
        self._stack.callback(stamping.close)
        config = stamping.map("tb_config", CONFIG_DTYPE)
        config["port"], config["flows"], config["queues"] = PORT, _FLOWS, _QUEUES
        config["device_id"], config["port_id"] = 7, 3
        phc = SimulatedPhc(stamping.map("tb_phc", PHC_DTYPE), 12_000, 5.0, 0, 0.0, seed=1)
        phc.start()
        self._stack.callback(phc.close)
        self.pairs = [self._pair(number, stamping) for number in range(2)]

    def _pair(self, number: int, stamping: TestbedObject) -> VethPair:
        """A pair whose UDP packets are stamped and end in sockets that nobody reads: no wake-ups are measured."""
        pair = add_veth(self.gen, self.cap, f"gen{number}", f"cap{number}", number, _QUEUES)
        self.gen.call(
            lambda: stamping.attach("stamp_egress", socket.if_nametoindex(pair.left_if), TCX_EGRESS)
        )

        def bind(port: int) -> socket.socket:
            receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            receiver.bind((pair.right_ip, port))
            return receiver

        for port in range(PORT, PORT + _FLOWS):
            self._stack.enter_context(self.cap.call(functools.partial(bind, port)))
        return pair

    def packets_per_s(self, pair: VethPair) -> float:
        """Packets that arrived per second in one turn, sent as fast as one CPU can, with a trailer each."""
        counter = Path(f"/sys/class/net/{pair.right_if}/statistics/rx_packets")
        command = [
            str(self._trafficgen), "--dst", pair.right_ip, "--port", str(PORT), "--flows", str(_FLOWS), *_UNPACED,
            "--cpu", str(online_cpus()[0]), "--seconds", str(_UDP_S),
        ]  # fmt: skip
        before = int(self.cap.read(counter))
        sender = self.gen.popen(command, stdout=subprocess.PIPE)
        try:
            out, _ = sender.communicate(timeout=_TIMEOUT_S)
        finally:
            stop(sender)
        return (int(self.cap.read(counter)) - before) / float(json.loads(out)["seconds"])

    def tcp_gbit_per_s(self, mbytes: int, pair: VethPair) -> float:
        """One TCP stream in one turn."""
        command = [
            "iperf3", "--client", pair.right_ip, "--port", str(_TCP_PORT), "--json", "--bytes", f"{mbytes}M",
        ]  # fmt: skip
        client = self.gen.popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            out, _ = client.communicate(timeout=_TIMEOUT_S)
        finally:
            stop(client)
        result = json.loads(out)
        if "error" in result:
            raise AgentError(f"iperf3: {result['error']}")
        return float(result["end"]["sum_received"]["bits_per_second"]) / 1e9

    @contextlib.contextmanager
    def agent(self, hook: str) -> Iterator[None]:
        """`agent run --observe` on the first pair, looking for trailers."""
        arguments = ("--observe", "--hook", hook, "--stamp", "trailer")
        with AgentProcess(self.cap, self.pairs[0].right_if, self.state_dir, *arguments) as agent:
            agent.wait_for_hello()
            time.sleep(_SETTLE_S)
            yield
            if not agent.running:
                raise AgentError(f"the agent ended before it was told to: {agent.said()}")
            agent.stop()

    @contextlib.contextmanager
    def tcp_server(self) -> Iterator[None]:
        """iperf3 for both pairs."""
        server = self.cap.popen(
            ["iperf3", "--server", "--port", str(_TCP_PORT)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            deadline = time.monotonic() + _TIMEOUT_S
            while not self.cap.call(_listening):
                if time.monotonic() > deadline:
                    raise AgentError("iperf3 did not start to listen")
                time.sleep(0.02)
            yield
        finally:
            stop(server)

    def turns(self, speed: Callable[[VethPair], float], count: int) -> _Turns:
        """A B, B A, A B, …"""
        turns = _Turns([], [])
        sides = list(zip((turns.agent, turns.other), self.pairs, strict=True))
        for pair in self.pairs:
            speed(pair)  # the first packets of a path are slower
        for number in range(count):
            for speeds, pair in sides if number % 2 == 0 else reversed(sides):
                speeds.append(speed(pair))
        return turns


def _listening() -> bool:
    """Whether the server's port is open in the calling thread's namespace."""
    mark = f":{_TCP_PORT:04X} "
    tables = (Path(f"/proc/thread-self/net/{name}") for name in ("tcp", "tcp6"))
    return any(mark in table.read_text() for table in tables)


def measure(effort: Effort) -> list[Figure]:
    """Packets/s and TCP against empty programs, TCP with --hook tc against nothing attached."""
    count = effort.repeat(_PAIRS, 8)
    with _Scene() as scene, scene.tcp_server():

        def tcp(hook: str) -> _Turns:
            return scene.turns(functools.partial(scene.tcp_gbit_per_s, _TCP_MBYTES[hook]), count)

        with empty_programs(scene.cap, scene.pairs[1].right_if), scene.agent("xdp"):
            effort.say("throughput: packets/s, XDP")
            udp = scene.turns(scene.packets_per_s, count)
            effort.say("throughput: TCP, XDP")
            tcp_xdp = tcp("xdp")
        with scene.agent("tc"):
            effort.say("throughput: TCP, hook tc")
            tcp_tc = tcp("tc")
    return [
        _figure("packets/s", "UDP packets/s, agent / empty XDP and tc programs", udp, "packets/s", 0.95),
        _figure("TCP", "one TCP stream, agent / empty XDP and tc programs", tcp_xdp, "Gbit/s", 0.95),
        _figure("TCP, hook tc", "one TCP stream, agent --hook tc / nothing attached", tcp_tc, "Gbit/s", 0.97),
    ]


def _figure(name: str, what: str, turns: _Turns, unit: str, target: float) -> Figure:
    value, spread = median_with_bootstrap(turns.ratios)
    return Figure(
        name=name,
        what=what,
        value=value,
        unit="",
        target=target,
        direction="at least",
        spread=spread,
        samples=len(turns.ratios),
        detail={
            f"agent, {unit}": float(np.median(turns.agent)),
            f"other, {unit}": float(np.median(turns.other)),
            "how": "agent run --observe on one of two veth pairs, short turns in the order A B B A, ratios of "
            f"neighbours; UDP: trailers, one unpaced sender pinned to a CPU, {_FLOWS} flows on {_QUEUES} queues, into "
            "full sockets, counted where they arrive; TCP: iperf3 between the namespaces",
        },
    )
