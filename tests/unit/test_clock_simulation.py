"""A clock of known truth, seen through queueing: what the clock tests feed on, and checks of itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agent.clock import Clock, ClockReport, Tag
from agent.ffi.clocks import ClockPairs, Steering
from agent.ffi.records import WINDOW_DTYPE

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Delay = Callable[[Floats, Ints, np.random.Generator], Floats]

RAW0 = 10_000_000_000_000
MONO0 = RAW0 + 123_456_789
HW0 = 1_700_000_000_000_000_000
REALTIME_AHEAD = HW0 - 37_000_000_000 - RAW0
BASE_DELAY_NS = 1_000


def steering(freq_ppb: float = 0.0) -> Steering:
    """Steering of which only the frequency is set."""
    return Steering(freq_ppb, 10_000, 0, 0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Lift:
    """Queueing: from `start_s` to `end_s`, packets of `paths` wait about `by_ns` more, scattered by `scatter_ns`."""

    start_s: float
    end_s: float
    by_ns: float
    scatter_ns: float
    paths: tuple[int, ...] = (0, 1, 2, 3)


def queueing(
    mean_ns: float = 15_000.0, lifts: Sequence[Lift] = (), bases: Sequence[float] = (0.0,) * 4
) -> Delay:
    """One-sided delay: 1 us base, exponential, every tenth packet in a burst; up to 100 us, and lifts above."""

    def delay(t: Floats, path: Ints, rng: np.random.Generator) -> Floats:
        waits = rng.exponential(mean_ns, len(t)) + (rng.random(len(t)) < 0.1) * rng.exponential(
            40_000, len(t)
        )
        out = BASE_DELAY_NS + np.asarray(bases)[path] + np.minimum(waits, 100_000)
        for lift in lifts:
            hit = (t >= lift.start_s) & (t < lift.end_s) & np.isin(path, lift.paths)
            out = out + hit * (lift.by_ns + rng.exponential(lift.scatter_ns, len(t)))
        return out

    return delay


class SimulatedClock:
    """A hardware clock with drift, random-walk frequency and jumps against raw; mono is raw, steered.

    Times are seconds since the start. `jumps` are (time, step of the hardware clock in ns), `rate_steps` and
    `steer_steps` (time, ppb), of the drift d(raw - hw) and of mono.
    """

    def __init__(
        self,
        seed: int,
        seconds: float,
        drift_ppb: float = 12_000.0,
        walk_ppb: float = 10.0,
        jumps: Sequence[tuple[float, int]] = (),
        rate_steps: Sequence[tuple[float, float]] = (),
        steer_steps: Sequence[tuple[float, float]] = (),
        hw0: int = HW0,
    ) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.seconds = seconds
        self.jumps = jumps
        self.steer_steps = steer_steps
        self.hw0 = hw0
        n = int(seconds * 1000) + 3000
        self.drift = drift_ppb + np.cumsum(rng.normal(0.0, walk_ppb * np.sqrt(1e-3), n))
        for at, change in rate_steps:
            self.drift[int(at * 1000) :] += change
        self._theta = np.concatenate(([0.0], np.cumsum(self.drift[:-1] * 1e-3)))

    def raw_ns(self, t: Floats) -> Ints:
        return RAW0 + np.rint(t * 1e9).astype(np.int64)

    def steer_ppb(self, t: float) -> float:
        return sum(change for at, change in self.steer_steps if t >= at)

    def mono_ns(self, t: Floats) -> Ints:
        ahead = np.zeros(len(t))
        for at, change in self.steer_steps:
            ahead += np.maximum(t - at, 0.0) * change
        return self.raw_ns(t) + (MONO0 - RAW0) + np.rint(ahead).astype(np.int64)

    def hw_ns(self, t: Floats) -> Ints:
        at = t * 1000.0
        i = at.astype(np.int64)
        theta = self._theta[i] + (at - i) * (self._theta[i + 1] - self._theta[i])
        out: Ints = self.hw0 + np.rint(t * 1e9).astype(np.int64) - np.rint(theta).astype(np.int64)
        for when, size in self.jumps:
            out += np.where(t >= when, size, 0)
        return out

    def offset_mono_ns(self, t: float) -> int:
        """The true mono - hw."""
        at = np.array([t])
        return int((self.mono_ns(at) - self.hw_ns(at))[0])

    def offset_at_mono_ns(self, mono_ns: int) -> int:
        """The true mono - hw at a mono time (steering is below 1e-4 over the nanoseconds at stake)."""
        t = (mono_ns - MONO0) * 1e-9
        for _ in range(3):
            t += (mono_ns - int(self.mono_ns(np.array([t]))[0])) * 1e-9
        return self.offset_mono_ns(t)

    def mean_drift_ppb(self, start_s: float, end_s: float) -> float:
        return float(self.drift[int(start_s * 1000) : int(end_s * 1000)].mean())

    def windows(
        self,
        start_s: float,
        end_s: float,
        delay: Delay,
        paths: int = 4,
        packets: int = 3,
        window_s: float = 1e-3,
    ) -> npt.NDArray[np.void]:
        """Closed windows of `paths` paths with `packets` packets each, as the kernel would emit them."""
        count = round((end_s - start_s) / window_s)
        path = np.tile(np.arange(paths), count)
        opened = start_s + np.repeat(np.arange(count), paths) * window_s
        t = np.sort(opened[:, None] + self.rng.random((count * paths, packets)) * window_s, axis=1).ravel()
        hw = self.hw_ns(t).reshape(-1, packets)
        waits = delay(t, np.repeat(path, packets), self.rng)
        mono = self.mono_ns(t + waits * 1e-9).reshape(-1, packets)
        row = np.arange(count * paths)
        lowest = np.argmin(mono - hw, axis=1)
        out = np.zeros(count * paths, WINDOW_DTYPE)
        for name, column in (("first", 0), ("last", packets - 1), ("envelope", lowest)):
            out[name]["mono_ns"] = mono[row, column]
            out[name]["hw_ns"] = hw[row, column]
        out["open_mono_ns"] = mono.min(axis=1)
        out["last_mono_ns"] = mono.max(axis=1)
        out["n"] = out["n_stamped"] = packets
        out["cpu"], out["queue"] = path % 2, path
        return out

    def pairs(self, t: float) -> ClockPairs:
        """One instant on the kernel's clocks, the mono read off by up to 15 ns."""
        at = np.array([t])
        raw, mono = self.raw_ns(at), self.mono_ns(at) + self.rng.integers(-15, 16, 1)
        realtime, width = raw + REALTIME_AHEAD, np.array([60])
        return ClockPairs(mono, raw, realtime, realtime, width, width, width)


@dataclass(frozen=True, slots=True)
class Run:
    """What a clock said in the course of a simulation."""

    clock: Clock
    reports: list[tuple[float, ClockReport]]

    @property
    def tags(self) -> list[tuple[float, Tag]]:
        """(time of the tick that reported it, tag)."""
        return [(t, tag) for t, report in self.reports for tag in report.tags]

    def at(self, t: float) -> ClockReport:
        """The report of the tick at `t`."""
        return min(self.reports, key=lambda item: abs(item[0] - t))[1]


def run(
    world: SimulatedClock,
    delay: Delay,
    tick_s: float = 0.1,
    paths: int = 4,
    packets: int = 3,
    on_tick: Callable[[Clock, float], None] | None = None,
) -> Run:
    """Run a trailer clock through the whole simulation, with the steering that it would read."""
    clock = Clock(0x0101, "trailer", BASE_DELAY_NS)
    reports = []
    for i in range(round(world.seconds / tick_s)):
        windows = world.windows(i * tick_s, (i + 1) * tick_s, delay, paths, packets)
        t = (i + 1) * tick_s + 0.0003
        pairs = world.pairs(t)
        clock.observe_windows(windows, pairs)
        if on_tick is not None:
            on_tick(clock, t)
        reports.append((t, clock.tick(pairs, steering(world.steer_ppb(t)))))
    return Run(clock, reports)


def test_delays_are_what_they_should_be() -> None:
    """Without queueing, the simulated envelope is the true offset plus the base delay."""
    world = SimulatedClock(1, 1.0)
    windows = world.windows(0.0, 0.1, lambda t, path, rng: np.full(len(t), float(BASE_DELAY_NS)))
    pair = windows["envelope"][7]
    measured = int(pair["mono_ns"]) - int(pair["hw_ns"])
    assert abs(measured - world.offset_at_mono_ns(int(pair["mono_ns"])) - BASE_DELAY_NS) <= 2
