"""PTP hardware clocks: what comes out of the ioctls' structs, and errors. No PHC is needed."""

import errno
import struct
from pathlib import Path
from typing import Any

import pytest

from agent.errors import UnsupportedError, UsageError
from agent.ffi import _native
from agent.ffi.phc import (
    MAX_READS,
    Phc,
    PhcBusyError,
    PhcGoneError,
    burst_from_basic,
    burst_from_extended,
    burst_from_precise,
)

pytestmark = pytest.mark.rtnl

_lib = _native.lib


def times(*pairs: tuple[int, int]) -> bytes:
    """struct ptp_clock_time[] of (seconds, nanoseconds)."""
    return b"".join(struct.pack("<qII", sec, nsec, 0) for sec, nsec in pairs)


class SimulatedPhc(Phc):
    """A clock whose ioctls are answered from a table: method's request -> errno, 0 fills in a reading."""

    def __init__(self, answers: dict[int, int], raw_supported: bool = True) -> None:
        self.path = Path("/dev/ptp-simulated")
        self.fd = -1
        self.asked: list[int] = []
        self._answers = answers
        self._raw_supported = raw_supported
        self._method = None
        self._raw_refused = False

    def _ioctl(self, argument: Any, *requests: int) -> int:
        self.asked.append(requests[0])
        code = self._answers.get(requests[0], errno.EOPNOTSUPP)
        if requests[0] == _lib.PTP_SYS_OFFSET_EXTENDED2 and argument.rsv[0] and not self._raw_supported:
            return errno.EINVAL
        return code


def test_basic_reads_share_their_neighbours() -> None:
    """Two reads are system, phc, system, phc, system; the middle system read ends one and begins the other."""
    burst = burst_from_basic(times((1, 0), (37, 5), (1, 100), (37, 105), (1, 200), (9, 9)), 2)
    assert (burst.method, burst.local_clock) == ("basic", "realtime")
    assert burst.t1_ns.tolist() == [1_000_000_000, 1_000_000_100]
    assert burst.phc_ns.tolist() == [37_000_000_005, 37_000_000_105]
    assert burst.t2_ns.tolist() == [1_000_000_100, 1_000_000_200]


def test_extended_reads_are_triples() -> None:
    """[before, phc, after] for each read; what is behind the n-th is not looked at."""
    burst = burst_from_extended(
        times((5, 1), (6, 2), (5, 3), (5, 11), (6, 12), (5, 13), (0, 0), (0, 0), (0, 0)), 2, "raw"
    )
    assert burst.local_clock == "raw"
    assert burst.t1_ns.tolist() == [5_000_000_001, 5_000_000_011]
    assert burst.phc_ns.tolist() == [6_000_000_002, 6_000_000_012]
    assert burst.t2_ns.tolist() == [5_000_000_003, 5_000_000_013]


def test_precise_reads_have_no_width() -> None:
    """The hardware latched both clocks at once."""
    burst = burst_from_precise(times((1_800_000_000, 7), (42, 8)))
    assert len(burst) == 1
    assert burst.phc_ns.tolist() == [1_800_000_000_000_000_007]
    assert burst.t1_ns.tolist() == burst.t2_ns.tolist() == [42_000_000_008]


def test_epoch_nanoseconds_stay_exact() -> None:
    """Today's epoch in ns has more digits than a float64: every one is kept, before 1970 too."""
    burst = burst_from_extended(
        times((1_796_090_130, 879_383_543), (-1, 999_999_999), (2**33, 1)), 1, "realtime"
    )
    assert burst.t1_ns.tolist() == [1_796_090_130_879_383_543]
    assert burst.phc_ns.tolist() == [-1]
    assert burst.t2_ns.tolist() == [2**33 * 10**9 + 1]


def test_auto_takes_the_best_method_and_remembers_it() -> None:
    """Where PRECISE isn't supported EXTENDED is used, and PRECISE isn't tried again."""
    phc = SimulatedPhc({_lib.PTP_SYS_OFFSET_EXTENDED2: 0, _lib.PTP_SYS_OFFSET2: 0})
    assert phc.read_burst(5).method == "extended"
    phc.asked.clear()
    assert phc.read_burst(5).local_clock == "raw"
    assert phc.asked == [_lib.PTP_SYS_OFFSET_EXTENDED2]


def test_a_method_that_stops_working_is_looked_for_again() -> None:
    """A driver reset took EXTENDED: that read fails, the next one finds BASIC."""
    answers = {_lib.PTP_SYS_OFFSET_EXTENDED2: 0, _lib.PTP_SYS_OFFSET2: 0}
    phc = SimulatedPhc(answers)
    assert phc.read_burst(2).method == "extended"
    del answers[_lib.PTP_SYS_OFFSET_EXTENDED2]
    with pytest.raises(UnsupportedError):
        phc.read_burst(2)
    assert phc.read_burst(2).method == "basic"


def test_extended_falls_back_to_realtime_on_old_kernels() -> None:
    """Before 6.12 a clock id is EINVAL: realtime is used from then on."""
    phc = SimulatedPhc({_lib.PTP_SYS_OFFSET_EXTENDED2: 0}, raw_supported=False)
    assert phc.read_burst(3, "extended").local_clock == "realtime"
    phc.asked.clear()
    assert phc.read_burst(3, "extended").local_clock == "realtime"
    assert len(phc.asked) == 1


def test_basic_is_the_last_resort() -> None:
    """A clock with neither better method is read by BASIC; one with none says what it lacks."""
    assert SimulatedPhc({_lib.PTP_SYS_OFFSET2: 0}).read_burst(2).method == "basic"
    with pytest.raises(UnsupportedError, match="ptp-simulated"):
        SimulatedPhc({}).read_burst(2)


@pytest.mark.parametrize("code", [errno.EBUSY, errno.EAGAIN, errno.ETIMEDOUT])
def test_a_busy_clock_is_not_an_unsupported_one(code: int) -> None:
    """A clock that doesn't answer now is told apart, and the method is not given up."""
    phc = SimulatedPhc({_lib.PTP_SYS_OFFSET_PRECISE2: code, _lib.PTP_SYS_OFFSET2: 0})
    with pytest.raises(PhcBusyError):
        phc.read_burst(1)


def test_a_clock_that_went_away_is_said_to_be_gone() -> None:
    """ENODEV: unplugged or unbound."""
    with pytest.raises(PhcGoneError, match="gone"):
        SimulatedPhc({_lib.PTP_SYS_OFFSET_PRECISE2: errno.ENODEV}).read_burst(1)


@pytest.mark.parametrize("n", [0, -1, MAX_READS + 1])
def test_a_burst_has_a_size(n: int) -> None:
    """The kernel takes 1 to 25 reads at once."""
    with pytest.raises(UsageError, match="25"):
        SimulatedPhc({}).read_burst(n)


def test_a_missing_device_is_named() -> None:
    """No such file: the path and how to find the right one."""
    with pytest.raises(UsageError, match="/dev/ptp250"):
        Phc("/dev/ptp250")


@pytest.mark.parametrize("path", ["/dev/null", "/dev/zero"])
def test_a_device_of_another_kind_is_refused(path: str) -> None:
    """A character device that is no PTP clock answers ENOTTY."""
    with pytest.raises(UsageError, match="not a PTP clock"):
        Phc(path)


def test_an_interface_without_a_clock_is_refused() -> None:
    """The loopback device has no PHC."""
    with pytest.raises(UnsupportedError, match="no PTP hardware clock"):
        Phc(1)
