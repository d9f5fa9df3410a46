"""What is measured: frames, phases of traffic and load, the static sides. `scenario.toml` has the figures."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

PATH = Path(__file__).with_name("scenario.toml")


@dataclass(frozen=True, slots=True)
class FrameShape:
    """A frame, uint8[channels, height, width], and the packets that it is sent in."""

    channels: int
    height: int
    width: int
    packet_bytes: int
    mtu: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.channels * self.height * self.width

    @property
    def packets(self) -> int:
        """Packets a frame."""
        return -(-self.size // self.packet_bytes)


@dataclass(frozen=True, slots=True)
class Model:
    """The detector: pooling, convolutions of so many filters, and layers of the head by their width."""

    pool: int
    convolutions: int
    filters: int
    head: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of traffic. Bursts of `burst` frames come `rate` / `burst` times a second, each frame with jitter."""

    name: str
    seconds: float
    rate: float
    burst: int
    jitter_us: float
    """Mean of the exponential delay of each burst."""
    load: str
    """Which CPU the background load is on: `consumer`, `sender` or `none`."""

    def times_ns(self, random: np.random.Generator) -> npt.NDArray[np.int64]:
        """When the frames are due, ns from the phase's beginning, ascending."""
        bursts = int(self.rate * self.seconds / self.burst)
        starts = np.arange(bursts) * 1e9 * self.burst / self.rate
        starts += random.exponential(1e3 * self.jitter_us, bursts)
        return np.repeat(np.sort(starts), self.burst).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Scenario:
    """All of it."""

    seed: int
    pairs: int
    warmup_s: float
    priorities: dict[str, int]
    """Real-time priority (SCHED_RR) of the camera, the service and the load."""
    frame: FrameShape
    model: Model
    waiting_frames: int
    """As many frames wait for their batch at most; more are dropped."""
    rcvbuf_kib: int
    """Receive buffer of a tuned consumer."""
    phases: tuple[Phase, ...]
    load_percent: int
    load_period_us: int
    usual: tuple[int, int]
    """(max_wait_us, max_items) of the side with kernel defaults."""
    sweep_s: float
    """Length of each phase while static windows are looked for."""
    waits_us: tuple[int, ...]
    sizes: tuple[int, ...]
    sustained_rates: tuple[float, ...]
    sustained_s: float
    sustained_drops: float
    """Share of frames."""
    sustained_repeats: int


def read(path: Path = PATH) -> Scenario:
    """The scenario of a file."""
    table: dict[str, Any] = tomllib.loads(path.read_text())
    model, consumer, load = table["model"], table["consumer"], table["load"]
    static, sustained = table["static"], table["sustained"]
    return Scenario(
        seed=table["seed"],
        pairs=table["pairs"],
        warmup_s=table["warmup_s"],
        priorities=table["priority"],
        frame=FrameShape(**table["frame"]),
        model=Model(model["pool"], model["convolutions"], model["filters"], tuple(model["head"])),
        waiting_frames=consumer["waiting_frames"],
        rcvbuf_kib=consumer["rcvbuf_kib"],
        phases=tuple(Phase(**phase) for phase in table["phase"]),
        load_percent=load["percent"],
        load_period_us=load["period_us"],
        usual=(static["usual"][0], static["usual"][1]),
        sweep_s=static["sweep_s"],
        waits_us=tuple(static["waits_us"]),
        sizes=tuple(static["sizes"]),
        sustained_rates=tuple(map(float, sustained["rates"])),
        sustained_s=sustained["seconds"],
        sustained_drops=sustained["drops_percent"] / 100,
        sustained_repeats=sustained["repeats"],
    )
