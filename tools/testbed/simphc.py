"""A simulated PTP hardware clock whose true time is known exactly.

The clock runs in the kernel: `stamp_egress` computes phc = phc0 + D + ((D·adj) >> 40), D = mono − mono0, from the
segment in force. A thread here publishes one segment after the other, each before it takes effect, and keeps them:
they are the truth. Everything is in integers.

The oscillator is defined against CLOCK_MONOTONIC_RAW: it runs slow by `drift_ppb`, plus a random walk of its
frequency. Segments are in CLOCK_MONOTONIC (what the kernel can read), so the frequency that somebody dials into mono
(adjtimex) is read before each segment and taken out; what remains is measured by clock pairs, and `Truth` uses those.
"""

from __future__ import annotations

import ctypes
import random
import threading
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SHIFT = 40
STEP_NS = 10_000_000
TAI_MINUS_UTC_NS = 37_000_000_000
_PPB = 1_000_000_000
_LEAD_NS = 1_000_000  # a segment is published at least this long before it begins

SEGMENT_DTYPE = np.dtype([("mono0_ns", "<u8"), ("phc0_ns", "<u8"), ("adj", "<i8")])
PHC_DTYPE = np.dtype([("seq", "<u4"), ("pad", "<u4"), ("segment", SEGMENT_DTYPE, (2,))])

_libc = ctypes.CDLL(None, use_errno=True)


class _Timex(ctypes.Structure):
    """The leading fields of struct timex; modes=0 only reads."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),  # ppm << 16
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("constant", ctypes.c_long),
        ("precision", ctypes.c_long),
        ("tolerance", ctypes.c_long),
        ("time", ctypes.c_long * 2),
        ("tick", ctypes.c_long),  # us per USER_HZ tick, nominally 10000
        ("rest", ctypes.c_long * 32),
    )


def mono_steering_ppb() -> float:
    """The frequency that is dialled into CLOCK_MONOTONIC now (adjtimex), against raw."""
    timex = _Timex()
    _libc.adjtimex(ctypes.byref(timex))
    freq: int = timex.freq
    tick: int = timex.tick
    return freq / 65536 * 1000 + (tick - 10_000) * 100_000


def clock_pair(reads: int = 5) -> tuple[int, int]:
    """(mono, raw) of one moment: the read least disturbed of several."""
    best: tuple[int, int, int] | None = None
    for _ in range(reads):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        raw = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        if best is None or after - before < best[0]:
            best = (after - before, (before + after) // 2, raw)
    assert best is not None
    return best[1], best[2]


@dataclass(frozen=True, slots=True)
class Jump:
    """A phase step of the simulated PHC: from `mono_ns` on it shows `size_ns` more than before."""

    mono_ns: int
    size_ns: int


@dataclass(frozen=True, slots=True)
class Truth:
    """What the simulated PHC really showed, by segment, and how mono ran against raw meanwhile.

    `mono0_ns`, `phc0_ns`, `adj`: int64[n], one per segment. `pair_mono_ns`, `pair_raw_ns`: int64[m].
    """

    mono0_ns: npt.NDArray[np.int64]
    phc0_ns: npt.NDArray[np.int64]
    adj: npt.NDArray[np.int64]
    pair_mono_ns: npt.NDArray[np.int64]
    pair_raw_ns: npt.NDArray[np.int64]
    jumps: tuple[Jump, ...]

    def phc_ns(self, mono_ns: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """PHC time at moments of mono: the integers that the kernel computed for them. int64, shape as given."""
        mono = np.asarray(mono_ns, dtype=np.int64)
        segment = np.maximum(np.searchsorted(self.mono0_ns, mono, side="right") - 1, 0)
        delta = mono - self.mono0_ns[segment]
        result: npt.NDArray[np.int64] = self.phc0_ns[segment] + delta + ((delta * self.adj[segment]) >> SHIFT)
        return result

    def offset_ns(self, mono_ns: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """The true offset mono − PHC at moments of mono. int64, shape as given."""
        result: npt.NDArray[np.int64] = np.asarray(mono_ns, dtype=np.int64) - self.phc_ns(mono_ns)
        return result

    def delay_ns(self, mono_ns: npt.ArrayLike, hw_ns: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """How long before `mono_ns` the stamps `hw_ns` were really taken, in PHC time. int64, shape as given."""
        result: npt.NDArray[np.int64] = self.phc_ns(mono_ns) - np.asarray(hw_ns, dtype=np.int64)
        return result

    def near_jump(self, mono_ns: npt.ArrayLike, within_ns: int) -> npt.NDArray[np.bool_]:
        """Whether moments lie within `within_ns` of a jump. bool, shape as given."""
        mono = np.asarray(mono_ns, dtype=np.int64)
        near = np.zeros(mono.shape, dtype=bool)
        for jump in self.jumps:
            near |= np.abs(mono - jump.mono_ns) <= within_ns
        return near

    def drift_mono_ppb(self, end_mono_ns: int, span_ns: int = 1_000_000_000) -> float:
        """Mean d(mono − PHC)/dt against mono over the span before `end_mono_ns`, jumps taken out."""
        gained = self._gained_on_phc(end_mono_ns, span_ns)
        return gained / span_ns * _PPB

    def drift_raw_ppb(self, end_mono_ns: int, span_ns: int = 1_000_000_000) -> float:
        """Mean d(raw − PHC)/dt against raw over the span before `end_mono_ns`, jumps taken out."""
        raw_gain = self._raw_gain(end_mono_ns, span_ns)  # d(raw - mono)/d mono
        mono_gain = self._gained_on_phc(end_mono_ns, span_ns) / span_ns
        return (raw_gain + mono_gain) / (1 + raw_gain) * _PPB

    def _gained_on_phc(self, end_mono_ns: int, span_ns: int) -> int:
        start, end = self.phc_ns([end_mono_ns - span_ns, end_mono_ns]).tolist()
        stepped = sum(j.size_ns for j in self.jumps if end_mono_ns - span_ns < j.mono_ns <= end_mono_ns)
        return int(span_ns - (end - start - stepped))

    def _raw_gain(self, end_mono_ns: int, span_ns: int) -> float:
        """Slope of raw − mono over the span, by least squares (the reads have some 20 ns of noise each)."""
        inside = (self.pair_mono_ns > end_mono_ns - span_ns) & (self.pair_mono_ns <= end_mono_ns)
        if np.count_nonzero(inside) < 2:
            raise ValueError("no clock pairs in the span: the simulated PHC did not run then")
        mono = (self.pair_mono_ns[inside] - end_mono_ns).astype(np.float64)
        gained = self.pair_raw_ns[inside] - self.pair_mono_ns[inside]
        gained_from_first = (gained - gained[0]).astype(np.float64)
        centred = mono - mono.mean()
        return float(centred @ gained_from_first / (centred @ centred))


class SimulatedPhc:
    """Runs the clock in the mmapped map value `shared` (PHC_DTYPE, shape (1,)) from `start()` to `close()`.

    drift_ppb: how much slower than raw the PHC runs, so d(local − PHC)/dt = +drift_ppb. wander_ppb_per_sqrt_s:
    random-walk frequency noise, the same walk for the same seed. jump_ns: the PHC steps by this (positive: forward,
    so the offset mono − PHC falls) `jump_at_s` after the start; 0: no jump.
    """

    def __init__(
        self,
        shared: npt.NDArray[np.void],
        drift_ppb: int,
        wander_ppb_per_sqrt_s: float,
        jump_ns: int,
        jump_at_s: float,
        seed: int,
    ) -> None:
        self._shared = shared
        self._drift_ppb = drift_ppb
        self._jump_ns = jump_ns
        self._jump_at_ns = int(jump_at_s * 1e9)
        self._walk_adj = wander_ppb_per_sqrt_s * (STEP_NS / 1e9) ** 0.5 * (1 << SHIFT) / _PPB
        self._random = random.Random(seed)
        self._wander = 0  # in units of adj
        # PHC time at the start of the last segment in 2^-40 ns: without the fraction, each of 100 segments a second
        # would lose half a nanosecond.
        self._phc0_fine = 0
        self._segments: list[tuple[int, int, int]] = []
        self._pairs: list[tuple[int, int]] = []
        self._jumps: list[Jump] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="simulated-phc", daemon=True)
        self.start_mono_ns = 0

    def start(self) -> None:
        """Set the clock to TAI and let it run."""
        self.start_mono_ns, _ = pair = clock_pair()
        tai = time.clock_gettime_ns(time.CLOCK_TAI)
        if tai - time.clock_gettime_ns(time.CLOCK_REALTIME) < _PPB:  # nobody told the kernel of leap seconds
            tai += TAI_MINUS_UTC_NS
        self._pairs.append(pair)
        self._phc0_fine = tai << SHIFT
        self._append(self.start_mono_ns)
        self._shared["segment"][0, :] = np.array([self._segments[0]], dtype=SEGMENT_DTYPE)
        self._thread.start()

    def jump(self, size_ns: int) -> Jump:
        """Step the PHC by `size_ns` as soon as possible (within two steps of 10 ms)."""
        with self._lock:
            self._jump_ns = size_ns
            self._jump_at_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC) - self.start_mono_ns
            known = len(self._jumps)
        while len(self._jumps) == known:
            time.sleep(0.001)
        return self._jumps[-1]

    def truth(self) -> Truth:
        """Everything up to now."""
        with self._lock:
            segments = np.array(self._segments, dtype=np.int64)
            pairs = np.array(self._pairs, dtype=np.int64)
            return Truth(
                mono0_ns=segments[:, 0],
                phc0_ns=segments[:, 1],
                adj=segments[:, 2],
                pair_mono_ns=pairs[:, 0],
                pair_raw_ns=pairs[:, 1],
                jumps=tuple(self._jumps),
            )

    def close(self) -> None:
        """Stop publishing; the last segment stays in force."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _adj(self) -> int:
        """adj of a segment that begins now: PHC rate against mono, less one, times 2^40."""
        phc_per_raw = 1 - self._drift_ppb / _PPB + self._wander / (1 << SHIFT)
        mono_per_raw = 1 + mono_steering_ppb() / _PPB
        return round((phc_per_raw / mono_per_raw - 1) * (1 << SHIFT))

    def _append(self, mono0_ns: int) -> None:
        self._segments.append((mono0_ns, self._phc0_fine >> SHIFT, self._adj()))

    def _run(self) -> None:
        step = 0
        while not self._stop.is_set():
            # Wake up in the middle of the current step, when the segment before it is no longer read by anybody.
            wake = self.start_mono_ns + step * STEP_NS + STEP_NS // 2
            self._stop.wait(max(0, wake - time.clock_gettime_ns(time.CLOCK_MONOTONIC)) / 1e9)
            now, raw = clock_pair()
            # A thread that woke up late leaves steps out, never the truth: the old segment lasts longer.
            due = max(step + 1, (now + _LEAD_NS - self.start_mono_ns) // STEP_NS + 1)
            for _ in range(due - step):
                self._wander += round(self._random.gauss(0, 1) * self._walk_adj)
            step = due
            with self._lock:
                self._pairs.append((now, raw))
                self._publish(self.start_mono_ns + step * STEP_NS)

    def _publish(self, mono0_ns: int) -> None:
        old_mono0, _, old_adj = self._segments[-1]
        self._phc0_fine += (mono0_ns - old_mono0) * ((1 << SHIFT) + old_adj)
        if self._jump_ns and mono0_ns - self.start_mono_ns >= self._jump_at_ns:
            self._phc0_fine += self._jump_ns << SHIFT
            self._jumps.append(Jump(mono0_ns, self._jump_ns))
            self._jump_ns = 0
        self._append(mono0_ns)
        seq = int(self._shared["seq"][0])
        self._shared["segment"][0, (seq + 1) & 1] = self._segments[-1]
        self._shared["seq"][0] = seq + 1
