"""A PHC's rate, looked at before it is used: what is certain of it."""

from __future__ import annotations

import numpy as np
import pytest

from agent.errors import UnsupportedError
from agent.ffi.phc import PhcBurst
from agent.phcrate import rate_error_ppb


class SimulatedPhc:
    """A PHC that is off by a rate, and jumps where told: at the burst of that number."""

    def __init__(self, rate_ppb: float, read_ns: int = 2_000, dialled_ppb: float | None = 0.0) -> None:
        self.local_ns = 10**12
        self.jumps: dict[int, int] = {}
        self._rate, self._read_ns, self._dialled = rate_ppb, read_ns, dialled_ppb
        self._bursts = self._jumped_ns = 0

    def pause(self, seconds: float) -> None:
        """Time passes."""
        self.local_ns += round(seconds * 1e9)

    def read_burst(self, n: int) -> PhcBurst:
        """Reads one behind the other, the first the slowest."""
        self._jumped_ns += self.jumps.get(self._bursts, 0)
        self._bursts += 1
        t1, phc, t2 = [], [], []
        for slowness in range(n, 0, -1):
            t1.append(self.local_ns)
            t2.append(self.local_ns + slowness * self._read_ns)
            middle = (t1[-1] + t2[-1]) // 2
            phc.append(37 * 10**9 + self._jumped_ns + middle + round(middle * self._rate * 1e-9))
            self.local_ns = t2[-1]
        return PhcBurst("extended", "raw", *(np.array(a, dtype=np.int64) for a in (t1, phc, t2)))

    def frequency_ppb(self) -> float:
        """What is dialled in; refused where it is None."""
        if self._dialled is None:
            raise UnsupportedError("cannot read the frequency")
        return self._dialled


def _measured(phc: SimulatedPhc) -> float:
    return rate_error_ppb(phc, phc.pause)


@pytest.mark.parametrize("rate_ppb", [15_000_000.0, -3_000_000.0])
def test_a_wrong_rate_is_found(rate_ppb: float) -> None:
    """To within what reads of 2 us over 25 ms leave open, 80 ppm."""
    assert _measured(SimulatedPhc(rate_ppb)) == pytest.approx(rate_ppb, abs=100_000)


def test_slow_reads_prove_nothing() -> None:
    """Reads of 400 us leave more open than 1 %: no certain error is left of one."""
    assert _measured(SimulatedPhc(10_000_000.0, read_ns=400_000)) == 0.0


@pytest.mark.parametrize("burst", [1, 2, 3])
def test_a_jump_is_no_rate(burst: int) -> None:
    """A clock that is stepped by 2199 s while it is looked at is not taken for a fast one."""
    phc = SimulatedPhc(20_000.0)
    phc.jumps[burst] = 2199 * 10**9
    assert abs(_measured(phc)) < 100_000


def test_what_is_dialled_in_is_no_error() -> None:
    """A servo may pull a clock hard: its oscillator is as good as it was."""
    assert abs(_measured(SimulatedPhc(5_000_000.0, dialled_ppb=5_000_000.0))) < 100_000


def test_an_unreadable_frequency_counts_as_none() -> None:
    """A device that was opened for reading only."""
    assert _measured(SimulatedPhc(15_000_000.0, dialled_ppb=None)) > 14_000_000
