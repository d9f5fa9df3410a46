"""SIGKILL at random moments of a run that changes settings, then `agent restore`: is every byte back?

The moments are random (fixed seed) within the phases in which a run can be hit: while it starts and attaches, between
and behind the writes of a plan, while the plan is judged, and while it puts everything back. The agent has a reason to
change settings: background load where RPS steers the packets to, or transmit queues that two CPUs share.
"""

from __future__ import annotations

import contextlib
import functools
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from agent.ffi.bpf import tcx_programs, xdp_owner
from tools.bench.agentprocess import AgentProcess
from tools.bench.figure import Effort, Figure
from tools.testbed import Testbed
from tools.testbed.build import built
from tools.testbed.program import Program
from tools.testbed.testbed import online_cpus

_KILLS = 50
_SEED = 20_261_201
_MIN_WRITTEN = 30
"""Fewer runs than this that had written something, and the figure says nothing."""
_PHASES = ("writing", "judging", "restoring", "writing", "starting", "restoring", "writing", "judging")
_SPAN_S = {"starting": 1.5, "writing": 0.003, "judging": 2.5, "restoring": 0.01}
_ARGUMENTS = ("--hook", "xdp", "--stamp", "trailer")
_DENY = {"rps": (), "xps": ("--deny", "rps")}  # what is denied would come first
_PLAN_S = 8.0
_POLL_S = 0.0002
_TX_PORT = 40_000

Settings = dict[str, bytes]
"""Path within a namespace's /sys -> content."""


@dataclass(frozen=True, slots=True)
class Kill:
    """When and how to kill a run."""

    lever: str
    """`rps` or `xps`: what the agent is given a reason to change."""
    phase: str
    delay_s: float
    """From the phase's beginning."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a killed run left, and what was left of that after `agent restore`."""

    journaled: int
    """Changes in its journal when it died."""
    changed: tuple[str, ...]
    """Settings that differed from before when it died."""
    wrong: tuple[str, ...]
    """What was not as before afterwards: settings, attachments, journals, the exit code."""


class Scene:
    """A testbed on which the agent finds something to change. A context manager."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> Scene:
        try:
            self._bed = self._stack.enter_context(
                Testbed(rps_cpu=online_cpus()[-1], rate_pps=5_000, noise_pps=2_500)
            )
            self._state_dir = Path(
                self._stack.enter_context(tempfile.TemporaryDirectory(prefix="agent-bench-"))
            )
            (self._trafficgen,) = built("testbed/trafficgen")
            self._bed.start_consumer()
            self._bed.start_traffic()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def settings(self) -> Settings:
        """Every setting of every interface and queue in both namespaces."""
        found: Settings = {}
        for namespace in (self._bed.gen, self._bed.cap):
            found |= namespace.call(functools.partial(_read_settings, namespace.name))
        return found

    def kill(self, kill: Kill) -> Outcome:
        """Run, kill, restore, compare."""
        before = self.settings()
        arguments = (*_ARGUMENTS, *_DENY[kill.lever])
        with (
            self._reason(kill.lever) as begin,
            AgentProcess(self._bed.cap, self._bed.cap_if, self._state_dir, *arguments) as agent,
        ):
            self._die(agent, kill, begin)
        journaled = self._journaled()
        changed = _differences(before, self.settings())
        wrong = [f"exit code {code}" for code in [self._restore()] if code != 0]
        after = self.settings()
        wrong += _differences(before, after)
        wrong += self._attached()
        wrong += [f"journal {path.name} left" for path in self._state_dir.glob("*.journal")]
        self._put_back(before, after)
        return Outcome(journaled, tuple(changed), tuple(wrong))

    def _die(self, agent: AgentProcess, kill: Kill, begin: Callable[[], None]) -> None:
        if kill.phase != "starting":
            agent.wait_for_hello()
            begin()
            deadline = time.monotonic() + _PLAN_S
            while not self._journaled() and time.monotonic() < deadline:
                time.sleep(_POLL_S)
        if kill.phase == "restoring":
            agent.signal(signal.SIGTERM)
        time.sleep(kill.delay_s)
        agent.signal(signal.SIGKILL)
        agent.wait()

    @contextlib.contextmanager
    def _reason(self, lever: str) -> Iterator[Callable[[], None]]:
        """Yields what brings the reason to change something; the end takes it away."""
        with ExitStack() as stack:

            def bring_load() -> None:
                self._bed.start_noise()
                stack.callback(self._bed.stop_noise)

            def nothing() -> None:
                """The senders are there from the start."""

            if lever == "xps":
                for cpu in {online_cpus()[0], online_cpus()[-1]}:
                    stack.enter_context(contextlib.closing(self._sender(cpu)))
            yield bring_load if lever == "rps" else nothing

    def _sender(self, cpu: int) -> Program:
        bed = self._bed
        arguments = ["--dst", bed.pair.left_ip, "--port", str(_TX_PORT), "--rate", "2000", "--cpu", str(cpu)]
        return Program(bed.cap, [str(self._trafficgen), *arguments])

    def _journaled(self) -> int:
        """Entries in the journals, the header of each not counted."""
        return sum(max(0, path.read_bytes().count(b"\n") - 1) for path in self._state_dir.glob("*.journal"))

    def _restore(self) -> int:
        command = [sys.executable, "-m", "agent", "restore", "--state-dir", str(self._state_dir)]
        return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode

    def _attached(self) -> list[str]:
        """Programs that are still on the capture interface."""

        def look() -> list[str]:
            ifindex = socket.if_nametoindex(self._bed.cap_if)
            owner = xdp_owner(ifindex)
            found = [] if owner is None else [f"XDP program {owner}"]
            found += [f"tc ingress program {prog_id}" for prog_id in tcx_programs(ifindex, "ingress")]
            return found + [f"tc egress program {prog_id}" for prog_id in tcx_programs(ifindex, "egress")]

        return self._bed.cap.call(look)

    def _put_back(self, before: Settings, after: Settings) -> None:
        """So that one failure doesn't spoil the runs behind it."""
        prefix = f"{self._bed.cap.name}:"
        for path in _differences(before, after):
            if path.startswith(prefix) and path in before:
                self._bed.cap.write(Path(path.removeprefix(prefix)), before[path])


def _read_settings(namespace: str) -> Settings:
    base = Path("/sys/class/net")
    files = [*base.glob("*/queues/*/*")]
    files += [path for name in ("threaded", "napi_defer_hard_irqs", "gro_flush_timeout", "tx_queue_len", "mtu")
              for path in base.glob(f"*/{name}")]  # fmt: skip
    found = {}
    for path in files:
        # Some are listed yet not readable: xps_* of a device with one queue.
        with contextlib.suppress(OSError):
            found[f"{namespace}:{path}"] = path.read_bytes()
    return found


def _differences(before: Settings, after: Settings) -> list[str]:
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def plan_kills(count: int, seed: int = _SEED) -> list[Kill]:
    """Phases in turn, both levers in each; the moments are random."""
    numbers = random.Random(seed)
    kills = []
    for index in range(count):
        phase = _PHASES[index % len(_PHASES)]
        lever = ("rps", "xps")[index // len(_PHASES) % 2 ^ index % 2]
        kills.append(Kill(lever, phase, numbers.uniform(0, _SPAN_S[phase])))
    return kills


def measure(effort: Effort) -> list[Figure]:
    """Runs after which everything was back."""
    kills = plan_kills(effort.repeat(_KILLS, 6))
    outcomes: list[tuple[Kill, Outcome]] = []
    with Scene() as scene:
        for kill in kills:
            outcomes.append((kill, scene.kill(kill)))
            outcome = outcomes[-1][1]
            effort.say(
                f"kill {len(outcomes)}: {kill.lever}, {kill.phase} + {kill.delay_s * 1000:.1f} ms: "
                f"{outcome.journaled} changes journaled, {len(outcome.changed)} in force; "
                f"{'; '.join(outcome.wrong) or 'everything back'}"
            )
    written = [kill for kill, outcome in outcomes if outcome.journaled]
    back = sum(not outcome.wrong for _, outcome in outcomes)
    needed = _MIN_WRITTEN * len(kills) // _KILLS
    return [
        Figure(
            name="kill",
            what=f"SIGKILL at {len(kills)} random moments, then `agent restore`: runs with everything back",
            # Runs that wrote nothing have nothing to put back: too few others, and it wasn't measured.
            value=back if len(written) >= needed else 0,
            unit="runs",
            target=len(kills),
            direction="exactly",
            spread=None,
            samples=len(kills),
            detail={
                "runs that had journaled changes": len(written),
                "runs with changed settings in force when killed": sum(bool(o.changed) for _, o in outcomes),
                "settings in force when killed, in all": sum(len(o.changed) for _, o in outcomes),
                "kills by phase": dict(Counter(kill.phase for kill in kills)),
                "settings by kind": dict(Counter(Path(path).name for _, o in outcomes for path in o.changed)),
                "not back": {str(kill): "; ".join(o.wrong) for kill, o in outcomes if o.wrong},
                "how": "agent run on the testbed; compared byte for byte: every file of every queue, threaded NAPI, "
                "deferral, MTU of all interfaces in both namespaces; XDP and TCX programs; journals",
            },
        )
    ]
