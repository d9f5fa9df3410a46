"""`agent demo`: run the agent on a self-made testbed and compare what it says with what is true.

The agent is started as itself, `agent run -i cap0 --netns …` with its telemetry in a pipe. The testbed plays the
rest of the world: a switch with a simulated PHC, a sender, an application, and kernel load that arrives where the
packets are steered to.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from agent.errors import PartialError, UnsupportedError, UsageError
from agent.options import require_root

if TYPE_CHECKING:
    from tools.testbed import Testbed, Truth
    from tools.testbed.agentrun import AgentRun
    from tools.testbed.evidence import Evidence, Outside

_SETTLED_S = 6.0  # the drift estimate gets as good as it will after about 5 s
_MIN_SECONDS = 2.0
_MAX_SECONDS = 86_400.0
_MAX_DRIFT_PPB = 500_000
_MAX_JUMP_NS = 1_000_000_000_000
_MAX_RATE_PPS = 1_000_000.0
_JUMP_AT = 0.6  # of the run


@dataclass(frozen=True, slots=True)
class Scenario:
    """What the testbed is told to do."""

    seconds: float
    drift_ppb: int
    jump_ns: int
    rate_pps: float
    seed: int

    def in_words(self) -> str:
        """For the title."""
        return f"{self.rate_pps:g} packets/s for {self.seconds:g} s, PHC slow by {self.drift_ppb} ppb, seed {self.seed}"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare `agent demo`."""
    parser = subparsers.add_parser(
        "demo",
        help="run the agent on a self-made testbed with a known true clock",
        description="Set up two network namespaces, a switch with a simulated clock, traffic and background load; run "
        "the agent there as on any host; compare its figures with the truth; leave nothing behind.",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the readable summary")
    parser.add_argument(
        "--seconds", type=float, default=12.0, metavar="N", help="how long the agent runs (default 12)"
    )
    parser.add_argument(
        "--drift-ppb", type=int, default=12_000, metavar="X",
        help="d(local clock - PHC)/dt in ppb: the simulated PHC runs slow by X (default 12000)",
    )  # fmt: skip
    parser.add_argument(
        "--jump-ns", type=int, default=250_000, metavar="J",
        help="the PHC steps by J ns on the way; 0: it doesn't (default 250000)",
    )  # fmt: skip
    parser.add_argument(
        "--rate", type=float, default=20_000, metavar="PPS", help="packets per second (default 20000)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, metavar="S", help="of the clock's wander and the traffic"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the demo; exit code 0 when everything in it holds, else `PartialError` with what does not."""
    scenario = _checked(args)
    require_root("demo")
    _need_testbed()
    from tools.testbed.evidence import reasons, summarise
    from tools.testbed.report import picture, table

    with _end_signals_as_interrupt():
        evidence, truth, outside = _demonstrate(scenario)
    summary = summarise(evidence, truth, outside)
    if args.json:
        print(json.dumps(summary))
    else:
        unicode = (sys.stdout.encoding or "").lower().startswith("utf")
        lines = table(summary, f"agent demo: {scenario.in_words()}")
        print("\n".join([*lines, "", *picture(evidence, outside, truth.jumps, unicode)]))
    failed = reasons(summary, outside.exit_code)
    if failed:
        raise PartialError("the demo does not hold: " + "; ".join(failed))
    return 0


def _checked(args: argparse.Namespace) -> Scenario:
    if not _MIN_SECONDS <= args.seconds <= _MAX_SECONDS:
        raise UsageError(
            f"--seconds {args.seconds:g}: too short to show anything, or too long",
            f"from {_MIN_SECONDS:g} to {_MAX_SECONDS:g}",
        )
    if not 0 < args.rate <= _MAX_RATE_PPS:
        raise UsageError(
            f"--rate {args.rate:g}: not a packet rate", f"above 0, up to {_MAX_RATE_PPS:g} per second"
        )
    if abs(args.drift_ppb) > _MAX_DRIFT_PPB:
        raise UsageError(
            f"--drift-ppb {args.drift_ppb}: no oscillator is that far off", f"within ±{_MAX_DRIFT_PPB}"
        )
    if abs(args.jump_ns) > _MAX_JUMP_NS:
        raise UsageError(f"--jump-ns {args.jump_ns}: too large", f"within ±{_MAX_JUMP_NS}")
    if args.seconds < _SETTLED_S:
        _say(
            f"{args.seconds:g} s is short: the drift is settled after about {_SETTLED_S:g} s, expect a larger error"
        )
    return Scenario(args.seconds, args.drift_ppb, args.jump_ns, args.rate, args.seed)


def _need_testbed() -> None:
    try:
        import tools.testbed  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name not in ("tools", "tools.testbed"):
            raise
        raise UnsupportedError(
            "the testbed is not installed with this agent", "run `make demo` in a checkout of the source"
        ) from None


def _say(text: str) -> None:
    print(f"demo: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _end_signals_as_interrupt() -> Iterator[None]:
    """Let SIGTERM, and SIGHUP unless `nohup` ignores it, clean up as Ctrl-C does."""

    def interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    handled = [number for number, handler in before.items() if handler != signal.SIG_IGN]
    for number in handled:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, before[number])


def _demonstrate(scenario: Scenario) -> tuple[Evidence, Truth, Outside]:
    """Run agent and testbed together; what was said, what was true, what was seen from outside."""
    from tools.testbed import Testbed
    from tools.testbed.agentrun import AgentRun
    from tools.testbed.evidence import Evidence, Outside
    from tools.testbed.testbed import online_cpus

    cpus = online_cpus()
    if len(cpus) == 1:
        _say(
            "one CPU only: packets can't be served elsewhere, so no load comes and no change is to be expected"
        )
    with contextlib.ExitStack() as stack:
        state_dir = stack.enter_context(tempfile.TemporaryDirectory(prefix="agent-demo-"))
        bed = stack.enter_context(
            Testbed(
                rate_pps=scenario.rate_pps, drift_ppb=scenario.drift_ppb, seed=scenario.seed, rps_cpu=cpus[-1]
            )
        )  # fmt: skip
        evidence = Evidence(clock_key=bed.device_id << 8 | bed.port_id)
        before = bed.settings()
        bed.start_consumer()
        bed.start_traffic()
        agent = AgentRun(bed, scenario.seconds, state_dir, evidence)
        stack.callback(agent.close)
        agent.wait_for_hello()
        noise_mono_ns = _bring_load(bed) if len(cpus) > 1 else None
        _watch(scenario, bed, agent)
        exit_code = agent.finish()
        end_mono_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        restored = bed.settings() == before
        if exit_code != 0:
            print(agent.stderr(), file=sys.stderr)
        bed.stop_traffic()
        outside = Outside(
            noise_mono_ns=noise_mono_ns,
            end_mono_ns=end_mono_ns,
            seconds=agent.seconds,
            cpu_percent=agent.cpu_percent,
            rss_mib=agent.rss_bytes / (1 << 20),
            exit_code=exit_code,
            restored=restored,
            consumer=bed.stop_consumer(),
        )
        return evidence, bed.phc.truth(), outside


def _bring_load(bed: Testbed) -> int:
    """Load the CPU that the packets are steered to; returns when, mono ns."""
    bed.start_noise()
    _say(
        f"background load comes to CPU {bed.noise_cpu}, where the capture interface's packets are steered to"
    )
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def _watch(scenario: Scenario, bed: Testbed, agent: AgentRun) -> None:
    """Look at the agent while it runs, and let the PHC jump on the way."""
    start = time.monotonic()
    jumped = scenario.jump_ns == 0
    while not agent.ended() and time.monotonic() - start < scenario.seconds:
        agent.sample()
        if not jumped and time.monotonic() - start >= _JUMP_AT * scenario.seconds:
            bed.phc.jump(scenario.jump_ns)
            jumped = True
            _say(f"the PHC steps by {scenario.jump_ns:+d} ns")
        time.sleep(0.05)
