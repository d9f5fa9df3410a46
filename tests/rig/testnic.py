"""Pairs of testnic interfaces, their ends in two namespaces, and the truth about their clocks."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from tools.testbed.namespace import Namespace, run_ip, stop

REPOSITORY = Path(__file__).resolve().parents[2]
DEBUGFS = Path("/sys/kernel/debug/testnic")
CAPTURED, FAR = "tn0", "tn1"
ADDRESS = "10.9.0.1"


def module_path() -> Path:
    """The driver as built for this kernel."""
    version = ".".join(os.uname().release.split(".")[:2])
    return REPOSITORY / f"build/rig/testnic-{version}/testnic.ko"


class ClockTruth:
    """What a clock really did, from the driver's history: arrays with a row each 20 ms and two at each change."""

    def __init__(self, history: str) -> None:
        rows = np.array([line.split() for line in history.splitlines()], dtype=np.int64)
        self.mono_ns: npt.NDArray[np.int64] = rows[:, 1]
        self.phc_ns: npt.NDArray[np.int64] = rows[:, 2]
        self.rate_ppb: npt.NDArray[np.float64] = rows[:, 3] / 1000

    def offset_ns(self, mono_ns: int) -> int:
        """mono - PHC at an instant of mono; nothing steers mono in the guest, so it runs as raw does."""
        row = self._row(mono_ns)
        gained = (mono_ns - int(self.mono_ns[row])) * float(self.rate_ppb[row]) * 1e-9
        return int(self.mono_ns[row]) - int(self.phc_ns[row]) - round(gained)

    def drift_ppb(self, mono_ns: int) -> float:
        """d(raw - PHC)/dt at an instant of mono."""
        return -float(self.rate_ppb[self._row(mono_ns)])

    def _row(self, mono_ns: int) -> int:
        row = int(np.searchsorted(self.mono_ns, mono_ns, side="right")) - 1
        assert row >= 0, "the instant is before the history"
        return row


class HardwareClock:
    """The clock of one testnic interface, and its faults."""

    def __init__(self, ifname: str) -> None:
        self._directory = DEBUGFS / ifname

    def set(self, name: str, value: int | str) -> None:
        """Write one of the driver's files in debugfs: `rate_ppt`, `jump_ns`, `rx_fault`, …"""
        (self._directory / name).write_text(f"{value}")

    def truth(self) -> ClockTruth:
        """Its history up to now, at most 163 s of it."""
        return ClockTruth((self._directory / "history").read_text())


class Wire:
    """testnic loaded, all ends up and silent but for what a test sends. A context manager: it unloads the driver.

    Of pair n, `tn{2n}` (10.9.n.1) is in the namespace `here` and `tn{2n+1}` (10.9.n.2) in `far`; `clocks[n]` is that of
    the former.
    """

    def __init__(self, pairs: int = 1) -> None:
        subprocess.run(["insmod", module_path(), f"pairs={pairs}"], check=True)
        self.here, self.far = Namespace("cap"), Namespace("gen")
        for number in range(2 * pairs):
            namespace = self.far if number & 1 else self.here
            ifname, peer = f"tn{number}", number ^ 1
            run_ip("link", "set", ifname, "netns", namespace.name)
            run_ip(
                "-n", namespace.name, "-batch", "-",
                batch=f"link set {ifname} addrgenmode none address {_mac(number)}\n"
                f"addr add {_address(number)}/24 dev {ifname}\n"
                f"neigh add {_address(peer)} lladdr {_mac(peer)} nud permanent dev {ifname}\n"
                f"link set {ifname} up\n",
            )  # fmt: skip
        self.clocks = [HardwareClock(f"tn{2 * pair}") for pair in range(pairs)]
        self._senders: list[subprocess.Popen[bytes]] = []

    @property
    def clock(self) -> HardwareClock:
        """That of the first pair."""
        return self.clocks[0]

    def send(self, rate: int, pair: int = 0, port: int = 20_000) -> None:
        """Send UDP packets from the far end of a pair, until `silence` or the end."""
        command = [str(REPOSITORY / "build/testbed/trafficgen"), "--dst", _address(2 * pair)]
        command += ["--rate", str(rate), "--flows", "8", "--port", str(port)]
        self._senders.append(self.far.popen(command, stdout=subprocess.DEVNULL))

    def ethtool(self, *arguments: str) -> None:
        """Run `ethtool` among the captured ends."""
        assert self.here.popen(["ethtool", *arguments]).wait(30) == 0

    def silence(self) -> None:
        """Stop sending."""
        while self._senders:
            stop(self._senders.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.silence()
        self.here.close()
        self.far.close()
        subprocess.run(["rmmod", "testnic"], check=True)


def _address(number: int) -> str:
    return f"10.9.{number // 2}.{number % 2 + 1}"


def _mac(number: int) -> str:
    return f"02:54:4e:00:00:{number + 1:02x}"
