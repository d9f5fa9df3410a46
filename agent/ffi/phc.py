"""PTP hardware clocks: bursts of reads against a local clock, capabilities, dialled frequency.

Three kinds of reads, best first: PRECISE (the hardware latches both clocks at once), EXTENDED (the local clock right
before and after the read of the device's lowest register), BASIC (the local clock before and after the whole read).
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from agent.errors import AgentError, UnsupportedError, UsageError
from agent.ffi import _native
from agent.ffi.failures import ENOTSUPP, call_error, error_name
from agent.ffi.hwtstamp import ts_info
from agent.ffi.records import IntArray

_ffi, _lib = _native.ffi, _native.lib

Method = Literal["precise", "extended", "basic"]
LocalClock = Literal["raw", "realtime"]

MAX_READS: int = _lib.PTP_MAX_SAMPLES
"""Reads that one ioctl can do (25)."""

_CLOCK_MONOTONIC_RAW = 4
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, ENOTSUPP)
_BUSY = (errno.EBUSY, errno.EAGAIN, errno.ETIMEDOUT)
_TIME_DTYPE = np.dtype([("sec", "<i8"), ("nsec", "<u4"), ("reserved", "<u4")])  # struct ptp_clock_time


class PhcBusyError(AgentError):
    """The device did not answer this time (EBUSY, EAGAIN, ETIMEDOUT): read less often, try again later."""


class PhcGoneError(AgentError):
    """The device has gone (ENODEV): unplugged, unbound or reset."""


@dataclass(frozen=True, slots=True)
class PhcBurst:
    """Reads of a PHC, each between two of a local clock; int64[n] arrays in ns, time order."""

    method: Method
    local_clock: LocalClock
    t1_ns: IntArray  # local clock before
    phc_ns: IntArray
    t2_ns: IntArray  # local clock after; equals t1 for PRECISE

    def __len__(self) -> int:
        return len(self.phc_ns)


@dataclass(frozen=True, slots=True)
class PhcCaps:
    """What the clock can do."""

    max_adj_ppb: int
    precise: bool  # PTP_SYS_OFFSET_PRECISE is announced
    adjust_phase: bool
    pps: bool
    external_stamps: int
    periodic_outputs: int


class Phc:
    """An open PTP hardware clock, by device path (`/dev/ptp0`) or by the index of its interface. Context manager.

    Raises UsageError if the path isn't there or is no PTP clock, UnsupportedError if the interface has no PHC.
    Nothing here changes the clock.
    """

    def __init__(self, device: Path | str | int) -> None:
        if isinstance(device, int):
            device = _device_of(device)
        self.path = Path(device)
        self.fd = _open(self.path)
        self._method: Method | None = None
        self._raw_refused = False
        try:
            self.caps()
        except BaseException:
            self.close()
            raise

    def caps(self) -> PhcCaps:
        """The clock's capabilities."""
        caps = _ffi.new("struct ptp_clock_caps *")
        code = self._ioctl(caps, _lib.PTP_CLOCK_GETCAPS2, _lib.PTP_CLOCK_GETCAPS)
        if code in (errno.ENOTTY, errno.EINVAL):
            raise UsageError(
                f"{self.path} is not a PTP clock", "name a /dev/ptpN (`ethtool -T IF` tells which)"
            )
        if code:
            raise self._error("read the capabilities", code)
        return PhcCaps(
            max_adj_ppb=caps.max_adj,
            precise=bool(caps.cross_timestamping),
            adjust_phase=bool(caps.adjust_phase),
            pps=bool(caps.pps),
            external_stamps=caps.n_ext_ts,
            periodic_outputs=caps.n_per_out,
        )

    def read_burst(self, n: int, method: Method | Literal["auto"] = "auto") -> PhcBurst:
        """Reads the clock `n` times (1..MAX_READS). `auto` takes the best method that works, and remembers it.

        Raises PhcBusyError (back off, try later), PhcGoneError, UnsupportedError if the method isn't supported.
        """
        if not 1 <= n <= MAX_READS:
            raise UsageError(f"a burst has 1 to {MAX_READS} reads, not {n}")
        if method != "auto":
            return self._read(n, method)
        if self._method is not None:
            try:
                return self._read(n, self._method)
            except UnsupportedError:
                self._method = None  # a firmware or driver reset may have taken it: look again the next time
                raise
        candidates: tuple[Method, ...] = ("precise", "extended", "basic")
        for candidate in candidates:
            try:
                burst = self._read(n, candidate)
            except UnsupportedError:
                if candidate == "basic":
                    raise
                continue
            self._method = candidate
            return burst
        raise AssertionError("unreachable")

    def frequency_ppb(self) -> float:
        """The frequency dialled into the clock (clock_adjtime, modes = 0), ppb: positive makes it run faster."""
        timex = _ffi.new("struct timex *")
        if _lib.clock_adjtime(_dynamic_clock_id(self.fd), timex) < 0:
            code = _ffi.errno
            if code == errno.EACCES:
                raise UnsupportedError(
                    f"cannot read the frequency of {self.path}: it could be opened for reading only",
                    "give the agent write access to the device",
                )
            raise self._error("read the frequency", code)
        return float(timex.freq) * 1000 / 65536  # ppm with 16 fractional bits

    def close(self) -> None:
        """Closes the device; a second call does nothing."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, n: int, method: Method) -> PhcBurst:
        if method == "precise":
            return self._read_precise(n)
        if method == "extended":
            return self._read_extended(n)
        offsets = _ffi.new("struct ptp_sys_offset *")
        offsets.n_samples = n
        code = self._ioctl(offsets, _lib.PTP_SYS_OFFSET2, _lib.PTP_SYS_OFFSET)
        if code:
            raise self._error("read (BASIC)", code)
        return burst_from_basic(bytes(_ffi.buffer(offsets.ts)), n)

    def _read_precise(self, n: int) -> PhcBurst:
        pairs = bytearray()
        for _ in range(n):
            one = _ffi.new("struct ptp_sys_offset_precise *")
            code = self._ioctl(one, _lib.PTP_SYS_OFFSET_PRECISE2, _lib.PTP_SYS_OFFSET_PRECISE)
            if code:
                raise self._error("read (PRECISE)", code)
            pairs += bytes(_ffi.buffer(_ffi.addressof(one, "device"))) + bytes(
                _ffi.buffer(_ffi.addressof(one, "sys_monoraw"))
            )
        return burst_from_precise(bytes(pairs))

    def _read_extended(self, n: int) -> PhcBurst:
        # Since 6.12 the word behind n_samples names the local clock; before, anything but 0 is EINVAL.
        for clock in (0,) if self._raw_refused else (_CLOCK_MONOTONIC_RAW, 0):
            offsets = _ffi.new("struct ptp_sys_offset_extended *")
            offsets.n_samples = n
            offsets.rsv[0] = clock
            code = self._ioctl(offsets, _lib.PTP_SYS_OFFSET_EXTENDED2, _lib.PTP_SYS_OFFSET_EXTENDED)
            if code == errno.EINVAL and clock:
                continue
            if code:
                raise self._error("read (EXTENDED)", code)
            self._raw_refused = clock == 0
            return burst_from_extended(bytes(_ffi.buffer(offsets.ts)), n, "raw" if clock else "realtime")
        raise self._error("read (EXTENDED)", code)

    def _ioctl(self, argument: Any, *requests: int) -> int:
        """Tries the requests (the newer one first) until the kernel knows one; the errno, 0 if it worked."""
        for request in requests:
            if _lib.ioctl(self.fd, request, _ffi.cast("void *", argument)) == 0:
                return 0
            if _ffi.errno != errno.ENOTTY:
                break
        return int(_ffi.errno)

    def _error(self, action: str, code: int) -> AgentError:
        what = f"cannot {action} of {self.path}: {error_name(code)}"
        if code in _BUSY:
            return PhcBusyError(what, "read it less often")
        if code in (errno.ENODEV, errno.ENXIO):
            return PhcGoneError(
                f"{self.path} has gone ({error_name(code)})", "check the interface and its driver"
            )
        if code in _UNSUPPORTED:
            return UnsupportedError(what, "the driver doesn't support this read: use another method")
        return call_error(f"{action} of {self.path}", code)


def _open(path: Path) -> int:
    try:
        # Reading the dialled frequency needs a writable fd before 6.14, although nothing is written.
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise UsageError(
            f"there is no PTP clock {path}", "`ethtool -T IF` tells which an interface has"
        ) from error
    except OSError as error:
        if error.errno in (errno.ENODEV, errno.ENXIO):
            raise PhcGoneError(f"{path} has gone", "check the interface and its driver") from error
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise call_error(f"open {path}", error.errno or 0) from error
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise call_error(f"open {path}", error.errno or 0) from error


def _device_of(ifindex: int) -> Path:
    info = ts_info(ifindex)
    if info.phc_index < 0:
        raise UnsupportedError(
            f"interface {ifindex} has no PTP hardware clock", "use --stamp trailer or --stamp none"
        )
    return Path(f"/dev/ptp{info.phc_index}")


def _dynamic_clock_id(fd: int) -> int:
    """FD_TO_CLOCKID of the kernel's documentation (clock_gettime(2), dynamic clocks)."""
    return (~fd << 3) | 3


def _times_ns(raw: bytes) -> IntArray:
    """struct ptp_clock_time[] to ns."""
    times = np.frombuffer(raw, dtype=_TIME_DTYPE)
    return times["sec"] * 1_000_000_000 + times["nsec"].astype(np.int64)


def burst_from_basic(ts: bytes, n: int) -> PhcBurst:
    """From ptp_sys_offset.ts: system, phc, system, phc, …, system; neighbours share the system reads."""
    times = _times_ns(ts)[: 2 * n + 1]
    return PhcBurst("basic", "realtime", times[0:-1:2].copy(), times[1::2].copy(), times[2::2].copy())


def burst_from_extended(ts: bytes, n: int, local_clock: LocalClock) -> PhcBurst:
    """From ptp_sys_offset_extended.ts: [system, phc, system] for each read."""
    times = _times_ns(ts).reshape(-1, 3)[:n]
    return PhcBurst("extended", local_clock, times[:, 0].copy(), times[:, 1].copy(), times[:, 2].copy())


def burst_from_precise(pairs: bytes) -> PhcBurst:
    """From (device, sys_monoraw) of each read."""
    times = _times_ns(pairs).reshape(-1, 2)
    return PhcBurst("precise", "raw", times[:, 1].copy(), times[:, 0].copy(), times[:, 1].copy())
