"""A real chronyd, fed by a real run: what it says about the clock is what the agent told it.

chronyd runs with -x and without CAP_SYS_TIME: it could not set a clock if it wanted to.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from agent.ffi.clocks import clock_pairs
from agent.refclock import chrony_line
from tests.kernel.agent_run import AgentRun, Frame
from tests.kernel.conftest import MakeTestbed
from tools.testbed import Testbed
from tools.testbed.build import built
from tools.testbed.simphc import TAI_MINUS_UTC_NS

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and BPF"),
]

AHEAD_NS = 5_000_000
"""How far the simulated clock is set ahead of this machine's UTC, up to the microseconds that setting it takes."""
MAX_ERROR_NS = 1_000_000
"""Wide: on a busy machine the packets' envelope may be."""
FLAGS = ("--stamp", "trailer", "--base-delay-ns", "2000", "--refclock-max-error", "1ms")


class Chronyd:
    """A chronyd of its own directory, with one reference clock and no network; a context manager."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.socket = directory / "agent.sock"
        self._daemon, self._client = built("chrony/usr/sbin/chronyd")[0], directory / "chronyd.sock"
        # The agent's own line, polled each second instead of every fourth. Selected, chronyd would report what is left
        # of the offset after its corrections, which -x only computes.
        line = chrony_line(self.socket, MAX_ERROR_NS).replace("poll 2", "poll 0 filter 1") + " noselect"
        self._config = directory / "chrony.conf"
        self._config.write_text(
            f"{line}\nport 0\ncmdport 0\nbindcmdaddress {self._client}\npidfile {directory}/chronyd.pid\n"
            f"logdir {directory}\nlog refclocks\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait for its socket."""
        drop = ["setpriv", "--bounding-set", "-sys_time", "--inh-caps", "-sys_time", "--"]
        flags = ["-x", "-d", "-U", "-u", "root", "-F", "0", "-f", str(self._config)]
        said = (self.directory / "chronyd.said").open("ab")
        with said:
            self._process = subprocess.Popen(
                [*drop, str(self._daemon), *flags], stdin=subprocess.DEVNULL, stdout=said, stderr=said
            )
        deadline = time.monotonic() + 20
        while not (self.socket.exists() and self._client.exists()):
            assert self._process.poll() is None, (self.directory / "chronyd.said").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def stop(self) -> None:
        """End it; its socket goes with it."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(20)
            self._process = None

    def ask(self, report: str) -> list[str]:
        """The fields of AGNT in one of chronyc's reports; empty if it has no such source."""
        client = self._daemon.parents[1] / "bin/chronyc"
        command = [str(client), "-c", "-h", str(self._client), report]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        rows = [line.split(",") for line in done.stdout.splitlines()]
        return next((row for row in rows if "AGNT" in row), [])

    def raw_offsets_ns(self) -> list[int]:
        """Every sample's offset as its log of reference clocks has it (UTC − realtime), ns."""
        log = self.directory / "refclocks.log"
        rows = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
        # Date, time, refid, which of a poll's samples, leap, pulse, raw offset, cooked offset, dispersion.
        return [round(float(row[6]) * 1e9) for row in rows if row[2:3] == ["AGNT"] and row[6] != "-"]

    def __enter__(self) -> Chronyd:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@pytest.fixture
def bed(testbed: MakeTestbed) -> Testbed:
    """Stamped traffic of a clock that is a known time ahead of this machine's UTC, and runs at its rate."""
    made = testbed(queues=1, drift_ppb=0, wander_ppb_per_sqrt_s=0.0, rate_pps=5_000)
    # It starts in TAI. Where the kernel knows no TAI − UTC, only a clock in UTC can be fed.
    made.phc.jump(AHEAD_NS if tai_utc_ns() else AHEAD_NS - TAI_MINUS_UTC_NS)
    made.start_traffic()
    return made


def tai_utc_ns() -> int:
    """TAI − UTC as the kernel has it."""
    pairs = clock_pairs(1)
    return round((int(pairs.tai_ns[0]) - int(pairs.realtime_ns[0])) * 1e-9) * 10**9


def true_ahead_ns(bed: Testbed, realtime_ns: int) -> int:
    """UTC by the simulated clock − CLOCK_REALTIME, by what the kernel computed for its stamps."""
    pairs = clock_pairs(5)
    best = pairs.best()
    mono_ns = realtime_ns - int(pairs.realtime_ns[best]) + int(pairs.mono_ns[best])
    return int(bed.phc.truth().phc_ns(mono_ns)) - tai_utc_ns() - realtime_ns


def fed(frame: Frame) -> bool:
    """Whether a sample went out."""
    return frame["ahead_ns"] is not None


def test_chronyd_sees_what_it_was_fed(bed: Testbed, tmp_path: Path) -> None:
    """Each offset in its log is one that the agent sent, to the ns; its estimate is the truth within the bound."""
    with (
        Chronyd(tmp_path) as chronyd,
        AgentRun(bed.cap, tmp_path / "state", *FLAGS, "--refclock", f"chrony:{chronyd.socket}") as run,
    ):
        run.wait_for("refclock", lambda frame: frame["sent"] >= 8)
        stats, source = chronyd.ask("sourcestats"), chronyd.ask("sources")
        assert run.stop() == 0
        told = [frame for frame in run.of_kind("refclock") if fed(frame)]
        logged = chronyd.raw_offsets_ns()
        errors = [abs(frame["ahead_ns"] - true_ahead_ns(bed, frame["realtime_ns"])) for frame in told]
    for frame, error in zip(told, errors, strict=True):
        assert min(abs(frame["ahead_ns"] - offset) for offset in logged) <= 1
        assert error <= frame["bound_ns"] <= MAX_ERROR_NS
    # sourcestats: name, samples, runs, span, frequency, its skew, offset (s; positive: the system clock is fast), …
    assert float(stats[6]) * 1e9 == pytest.approx(-AHEAD_NS, abs=MAX_ERROR_NS)
    # sources: mode, state, name, stratum, poll, reach, last receive, offset, raw offset, error (s)
    assert float(source[7]) * 1e9 == pytest.approx(-AHEAD_NS, abs=MAX_ERROR_NS)
    assert float(source[9]) * 1e9 >= max(frame["bound_ns"] for frame in told)
    assert chrony_line(chronyd.socket, MAX_ERROR_NS) in run.notes()


def test_a_restarted_chronyd_is_fed_again(bed: Testbed, tmp_path: Path) -> None:
    """Its socket vanishes and comes back: the samples between are counted as failed, those after it arrive."""
    with (
        Chronyd(tmp_path) as chronyd,
        AgentRun(bed.cap, tmp_path / "state", *FLAGS, "--refclock", f"chrony:{chronyd.socket}") as run,
    ):
        run.wait_for("refclock", fed)
        chronyd.stop()
        before = run.wait_for("refclock", lambda frame: frame["failed"] > 0)
        chronyd.start()
        run.wait_for("refclock", lambda frame: fed(frame) and frame["sent"] > before["sent"])
        deadline = time.monotonic() + 20
        while not (source := chronyd.ask("sources")) or int(source[5], 8) == 0:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert run.stop() == 0
        assert "no chronyd takes samples" in run.notes()


def test_without_a_known_base_delay_a_trailer_clock_is_refused(bed: Testbed, tmp_path: Path) -> None:
    """chronyd would be off by the path's delay, always to one side: exit code 2, and the flag that helps."""
    with AgentRun(
        bed.cap, tmp_path, "--stamp", "trailer", "--refclock", f"chrony:{tmp_path}/agent.sock"
    ) as run:
        assert run.wait() == 2
        assert "--base-delay-ns" in run.said()
