"""The live clock on a simulated host of known truth: delays of packets under queueing, and what a tick costs."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agent.clock import Clock, ClockModel
from agent.ffi.clocks import ClockPairs, Steering
from agent.ffi.phc import PhcBurst
from agent.ffi.records import HIST_BUCKETS, WINDOW_DTYPE, hist_bucket, hist_quantile
from tools.bench.clock.oscillator import TCXO, Floats
from tools.bench.clock.recipe import Recipe, draw
from tools.bench.clock.session import Session
from tools.bench.clock.traces import LOCAL_START_NS
from tools.bench.figure import Figure, median_with_bootstrap

_TICK_S = 0.1
_MONO_AHEAD_NS = 123_456_789
_TAI_AHEAD_NS = 37_000_000_000
_READS = 10
_READ_NS = 1_500.0
_PACKETS_PER_S = 20_000
_BASE_DELAY_NS = 2_000.0
_WARM_UP_S = 20.0
_SPAN_TICKS = 50
"""Ticks whose histogram gives one p50 and one p99: five seconds."""
_CLOCKS = 8
_WINDOW_S = 1e-3
_PATHS = 2


class SimulatedHost:
    """A PHC of known truth against raw, mono at raw's own rate; reads of it, and packets that wait."""

    def __init__(self, seed: int, duration_s: float) -> None:
        self._trace = draw(Recipe("host", TCXO, 10, duration_s), seed)
        self._random = np.random.default_rng(seed)
        self.steering = Steering(0.0, 10_000, 0, 0, 0, 0, 0, 0)

    def raw_ns(self, time_s: Floats) -> NDArray[np.int64]:
        """CLOCK_MONOTONIC_RAW."""
        return LOCAL_START_NS + np.rint(time_s * 1e9).astype(np.int64)

    def mono_ns(self, time_s: Floats) -> NDArray[np.int64]:
        """CLOCK_MONOTONIC."""
        return self.raw_ns(time_s) + _MONO_AHEAD_NS

    def hw_ns(self, time_s: Floats) -> NDArray[np.int64]:
        """The PHC."""
        offset = np.rint(self._trace.offset_ns(time_s)).astype(np.int64) + self._trace.base_ns
        result: NDArray[np.int64] = self.raw_ns(time_s) - offset
        return result

    def pairs(self, time_s: float) -> ClockPairs:
        """One instant on the kernel's clocks, mono read off by up to 15 ns."""
        at = np.array([time_s])
        raw, mono = self.raw_ns(at), self.mono_ns(at) + self._random.integers(-15, 16, 1)
        realtime = self.hw_ns(at) - _TAI_AHEAD_NS
        width = np.array([60])
        return ClockPairs(mono, raw, realtime, realtime, width, width, width)

    def burst(self, time_s: float) -> PhcBurst:
        """Ten reads, four of them disturbed on either side by about 20 us."""
        at: Floats = time_s + np.arange(_READS, dtype=np.float64) * 60e-6
        waits = self._random.exponential(20e-6, (2, _READS)) * (self._random.random((2, _READS)) < 0.2)
        half = _READ_NS / 2 * 1e-9 + np.abs(self._random.normal(0, 10e-9, (2, _READS)))
        before, after = half + waits
        return PhcBurst("extended", "raw", self.raw_ns(at - before), self.hw_ns(at), self.raw_ns(at + after))

    def waits_ns(self, time_s: Floats) -> Floats:
        """Delay of packets: a base, an exponential queue, and every 3 s one second of ten times as long a one."""
        mean = np.where(time_s % 3.0 < 1.0, 80_000.0, 8_000.0)
        result: Floats = _BASE_DELAY_NS + self._random.exponential(mean)
        return result

    def windows(self, start_s: float, end_s: float) -> NDArray[np.void]:
        """Closed windows of 1 ms on two paths, three packets each."""
        count = round((end_s - start_s) / _WINDOW_S) * _PATHS
        opened = start_s + np.arange(count) // _PATHS * _WINDOW_S
        arrival = np.sort(opened[:, None] + self._random.random((count, 3)) * _WINDOW_S, axis=1)
        hw = self.hw_ns(arrival.ravel()).reshape(arrival.shape)
        mono = self.mono_ns((arrival + self.waits_ns(arrival) * 1e-9).ravel()).reshape(arrival.shape)
        row, lowest = np.arange(count), np.argmin(mono - hw, axis=1)
        out = np.zeros(count, WINDOW_DTYPE)
        for name, column in (("first", 0), ("last", 2), ("envelope", lowest)):
            out[name]["mono_ns"], out[name]["hw_ns"] = mono[row, column], hw[row, column]
        out["open_mono_ns"], out["last_mono_ns"] = mono.min(axis=1), mono.max(axis=1)
        out["n"] = out["n_stamped"] = 3
        out["cpu"] = out["queue"] = row % _PATHS
        return out


@dataclass(frozen=True, slots=True)
class DelayErrors:
    """Per span: error of the p50 in ns, and of the p99 as a share of it."""

    p50_ns: Floats
    p99_share: Floats


def measure_delay(session: Session) -> list[Figure]:
    """Delay quantiles as the kernel's model and histogram give them, against the delays injected."""
    seeds = list(range(session.effort.repeat(8, 2)))
    parts = session.map("delays under queueing", delay_errors, seeds)
    p50 = np.concatenate([p.p50_ns for p in parts])
    p99 = 100 * np.concatenate([p.p99_share for p in parts])
    how = {
        "how": f"PHC reads in bursts at {1 / _TICK_S:g} Hz, one in three disturbed by 20 us; {_PACKETS_PER_S} "
        f"packets/s that wait 8 or 80 us; each error is of {_SPAN_TICKS * _TICK_S:g} s of packets"
    }
    return [
        Figure(
            "delay-p50", "error of the median delay, the 99 % quantile of all spans",
            float(np.quantile(np.abs(p50), 0.99)) / 1000, "us", 1.0, "at most", None, len(p50),
            how | {"largest_us": float(np.abs(p50).max()) / 1000, "median_us": float(np.median(np.abs(p50))) / 1000},
        ),
        Figure(
            "delay-p99", "error of the p99 delay, the 99 % quantile of all spans",
            float(np.quantile(np.abs(p99), 0.99)), "%", 6.0, "at most", None, len(p99),
            how | {"largest_percent": float(np.abs(p99).max()), "median_percent": float(np.median(np.abs(p99)))},
        ),
    ]  # fmt: skip


def delay_errors(seed: int) -> DelayErrors:
    """Errors over one simulated host of two minutes."""
    duration_s = 120.0
    host = SimulatedHost(seed, duration_s)
    clock = Clock(0x0100_0000, "phc")
    counts = np.zeros(HIST_BUCKETS, dtype=np.int64)
    true: list[NDArray[np.int64]] = []
    p50, p99 = [], []
    model: ClockModel | None = None
    for tick in range(round(duration_s / _TICK_S)):
        start = tick * _TICK_S
        if model is not None and start >= _WARM_UP_S:
            arrival = (
                start
                + np.sort(np.random.default_rng((seed, tick)).random(round(_PACKETS_PER_S * _TICK_S)))
                * _TICK_S
            )
            delay = np.rint(host.waits_ns(arrival)).astype(np.int64)
            measured = _phc_ns(model, host.mono_ns(arrival + delay * 1e-9)) - host.hw_ns(arrival)
            counts += np.bincount(hist_bucket(measured), minlength=HIST_BUCKETS)
            true.append(delay)
        now = start + _TICK_S
        pairs = host.pairs(now)
        clock.observe_anchor(host.burst(now - 0.002), pairs)
        model = clock.tick(pairs, host.steering).model
        if len(true) == _SPAN_TICKS:
            seen = hist_quantile(counts, (0.5, 0.99))
            exact = np.quantile(np.concatenate(true), (0.5, 0.99))
            p50.append(float(seen[0] - exact[0]))
            p99.append(float(seen[1] / exact[1] - 1))
            counts[:] = 0
            true = []
    return DelayErrors(np.array(p50), np.array(p99))


def _phc_ns(model: ClockModel, mono_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """`ClockModel.phc_ns` of many: the same integers."""
    span = mono_ns - model.mono0_ns
    result: NDArray[np.int64] = model.phc0_ns + span + ((span * model.adj) >> model.shift)
    return result


def measure_tick(session: Session) -> list[Figure]:
    """One tick of eight clocks, each with 100 ms of windows of two paths and a burst of PHC reads."""
    ticks = session.effort.repeat(300, 60)
    host = SimulatedHost(1, ticks * _TICK_S + 1)
    clocks = [Clock(0x0100_0000 + n, "phc") for n in range(_CLOCKS)]
    whole, ticking = [], []
    for tick in range(ticks):
        now = (tick + 1) * _TICK_S
        # All eight see the same host: what they compute doesn't depend on it, and drawing isn't measured.
        windows, burst = host.windows(now - _TICK_S, now), host.burst(now - 0.002)
        pairs = host.pairs(now + 0.0003)
        start = time.perf_counter()
        for clock in clocks:
            clock.observe_windows(windows, pairs)
            clock.observe_anchor(burst, pairs)
        observed = time.perf_counter()
        for clock in clocks:
            clock.tick(pairs, host.steering)
        end = time.perf_counter()
        whole.append(1000 * (end - start))
        ticking.append(1000 * (end - observed))
    settled = ticks // 3
    value, spread = median_with_bootstrap(whole[settled:])
    return [
        Figure(
            "live-tick",
            "observing 100 ms of windows and a burst of reads, and a tick, of eight clocks",
            value,
            "ms",
            1.0,
            "at most",
            spread,
            ticks - settled,
            {
                "tick_alone_ms": float(np.median(ticking[settled:])),
                "p99_ms": float(np.quantile(whole[settled:], 0.99)),
                "windows_per_clock": len(windows),
            },
        )
    ]
