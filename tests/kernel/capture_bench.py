"""What the tests of the capture programs share: the programs loaded, packets made up, windows closed and drained.

Packets go through BPF_PROG_RUN on one CPU. The kernel's clock can't be set, so what is to be exact doesn't depend on
it: windows stay open until `close_windows`, and the model of `set_model` stands still.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from agent.ffi import records
from agent.ffi.bpf import BpfObject, ProgramSet, load, sk_buff_context, test_run
from agent.ffi.records import CONFIG_DTYPE, COUNTERS_DTYPE, WINDOW_DTYPE
from agent.ffi.rings import Rings

CPUS = tuple(sorted(os.sched_getaffinity(0)))
CPU = CPUS[0]
XDP_PASS = 2
TCX_NEXT = 0xFFFFFFFF
NEVER_NS = 1 << 40
"""A window length that no test lives to see the end of."""
PROBATION = 8
"""Packets in a row until a trailer clock is believed: the last of them is counted as stamped."""
HW_NS = 1_700_000_000 * 10**9
PORT = (0x1234 << 8) | 5
"""Key of device 0x1234, port 5."""
META_NEVER = 0xFFFFFFFF
SLOTS = 16
"""Slots of each CPU, unless `slots_per_cpu` says less."""
STACK_QUEUES = 4

_STAMPS = {
    "none": records.STAMP_NONE,
    "trailer": records.STAMP_TRAILER,
    "skb": records.STAMP_SKB,
    "xdp": records.STAMP_XDP,
}
Stamp = Literal["none", "trailer", "skb", "xdp"]
Hook = Literal["xdp", "tc"]


@contextmanager
def pinned(cpu: int) -> Iterator[None]:
    """The calling thread runs on one CPU."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def trailer(hw_ns: int, key: int = PORT, flags: int = 1) -> bytes:
    """The 16 bytes that a capture switch puts behind a frame."""
    seconds, nanoseconds = divmod(hw_ns, 10**9)
    return raw_trailer(seconds, nanoseconds, key, flags)


def raw_trailer(seconds: int, nanoseconds: int, key: int = PORT, flags: int = 1) -> bytes:
    """As `trailer`, whatever the numbers."""
    return struct.pack(">IIII", 0xDEADBEEF, seconds, nanoseconds, flags << 24 | key)


def frame(
    network: Literal["ipv4", "ipv6", "arp"] = "ipv4",
    payload: int = 40,
    tags: Sequence[int] = (),
    behind: bytes = b"",
) -> bytes:
    """An Ethernet frame with VLAN tags (their ethertypes), padded to 60 bytes before what stands `behind` it."""
    ethertype, body = {
        "ipv4": (0x0800, struct.pack(">BBH", 0x45, 0, 20 + payload) + bytes(5) + b"\x11" + bytes(10)),
        "ipv6": (0x86DD, struct.pack(">IHBB", 0x60000000, payload, 59, 64) + bytes(32)),
        "arp": (0x0806, struct.pack(">HHBBH", 1, 0x0800, 6, 4, 1) + bytes(20)),
    }[network]
    head = bytes.fromhex("020000000002020000000001")
    for number, tag in enumerate(tags):
        head += struct.pack(">HH", tag, number + 1)
    whole = head + struct.pack(">H", ethertype) + body
    if network != "arp":
        whole += b"\xaa" * payload
    return whole.ljust(60, b"\0") + behind


@cache
def _loaded(loader: Literal["libbpf", "bcc"]) -> BpfObject:
    """The programs of capture.bpf.c, once per process: the verifier takes a second, BCC's compiler three."""
    return load(loader, ProgramSet("capture", map_entries=map_entries()))


def map_entries() -> dict[str, int]:
    """Sizes for the CPUs that there are."""
    cpus = CPUS[-1] + 1
    return {
        "slots": cpus * SLOTS,
        "hists": cpus * SLOTS,
        "clocks": cpus * records.CLOCKS_PER_CPU,
        "stack_hists": cpus * STACK_QUEUES,
        "counters": cpus,
        "tx_queues": cpus,
        "ptp": cpus,
    }


class CaptureBench:
    """The capture programs with small maps, all as if just loaded; windows stay open until closed. A context manager.

    Without an object it is that of the process, whose maps are emptied. Further keywords are fields of struct
    agent_config.
    """

    def __init__(
        self,
        stamp: Stamp = "trailer",
        hook: Hook = "xdp",
        *,
        loader: Literal["libbpf", "bcc"] = "libbpf",
        loaded: BpfObject | None = None,
        ring_bytes: int = 64 << 10,
        **config: int,
    ) -> None:
        self.object = loaded or _loaded(loader)
        self.hook = hook
        for name in ("counters", "slots", "hists", "clocks", "models", "stack_hists", "tx_queues", "ptp"):
            self.raw(name)[:] = 0
        self.config = self.object.map("config").mmap()
        self.slots = self.object.map("slots").mmap()
        self.hists = self.object.map("hists").mmap()["bucket"]
        self.stack_hists = self.object.map("stack_hists").mmap()
        self.counters_by_cpu = self.object.map("counters").mmap()
        self.models = self.object.map("models").mmap()
        self.models["key"] = records.CLOCK_KEY_NONE
        setting = np.zeros((), dtype=CONFIG_DTYPE)
        fields = {
            "abi": records.AGENT_ABI,
            "ifindex": 77,
            "slots_per_cpu": SLOTS,
            "window_ns": NEVER_NS,
            "meta_mask": META_NEVER,
            "n_cpus": CPUS[-1] + 1,
            "stack_queues": STACK_QUEUES,
            "stamp": _STAMPS[stamp],
            "hook": records.HOOK_TC if hook == "tc" else records.HOOK_XDP,
        }
        for name, value in (fields | config).items():
            setting[name] = value
        self.object.map("config").update(0, setting.tobytes())
        self.rings = Rings(self.object.map("events"), CPUS, ring_bytes)
        self._scratch = np.zeros(1 << 14, dtype=WINDOW_DTYPE)

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """A map's values as bytes, also of the parts that only the programs know: [entries, value size]."""
        value = np.dtype([("bytes", np.uint8, self.object.map(name).value_size)])
        shared: npt.NDArray[np.uint8] = self.object.map(name).mmap(value)["bytes"]
        return shared

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.rings.close()

    # ---- packets ---------------------------------------------------------------------------------------------

    def run(
        self, data: bytes, *, repeat: int = 1, cpu: int = CPU, hwtstamp_ns: int = 0, gso_segs: int = 0
    ) -> int:
        """Run one packet through the program that owns the windows; returns its verdict, the kernel's number."""
        with pinned(cpu):
            if self.hook == "xdp":
                return test_run(self.object.prog_fd("xdp_capture"), data, repeat).retval
            context = sk_buff_context(hwtstamp_ns=hwtstamp_ns, gso_segs=gso_segs)
            return test_run(self.object.prog_fd("tc_ingress"), data, repeat, context).retval

    def stamped(self, hw_ns: int, key: int = PORT, **how: int) -> int:
        """Run an IPv4 packet with a trailer."""
        return self.run(frame(behind=trailer(hw_ns, key)), **how)

    def introduce(self, *keys: int, cpu: int = CPU, hw_ns: int = HW_NS) -> None:
        """Have the clocks of these trailers believed; the windows that this fills are thrown away."""
        for key in keys:
            for _ in range(PROBATION):
                self.stamped(hw_ns, key, cpu=cpu)
        self.close_windows(cpu)

    def set_model(
        self,
        key: int = PORT,
        phc_ns: int = HW_NS,
        *,
        valid_until_ns: int = 1 << 62,
        seq: int = 0,
        epoch: int = 0,
    ) -> None:
        """Push a model under which it is always `phc_ns`: D + ((D * -1) >> 0) is 0. The other copy has expired."""
        self.models["key"][0] = key
        self.models["seq"][0] = seq
        self.models["shift"][0] = 0
        self.models["epoch"][0] = epoch
        self.models["copy"][0] = (0, 0, 0, 0)
        self.models["copy"][0, seq & 1] = (time.monotonic_ns(), phc_ns, -1, valid_until_ns)

    # ---- windows ---------------------------------------------------------------------------------------------

    def flush(self, cpu: int = CPU) -> int:
        """Run the flush program on a CPU; returns what it does."""
        return test_run(self.object.prog_fd("flush"), cpu=cpu).retval

    def drain(self) -> npt.NDArray[np.void]:
        """What is in the rings: WINDOW_DTYPE[n]."""
        parts = []
        while count := self.rings.drain(self._scratch):
            parts.append(self._scratch[:count].copy())
        return np.concatenate(parts) if parts else self._scratch[:0].copy()

    def close_windows(self, *cpus: int) -> npt.NDArray[np.void]:
        """Close every open window of these CPUs (by default all), and drain."""
        before = int(self.config["window_ns"][0])
        self.config["window_ns"][0] = 0
        try:
            for cpu in cpus or CPUS:
                assert self.flush(cpu) == 0
                # With BCC a flush closes a few windows only.
                for _ in range(SLOTS):
                    if self.slots["open_mono_ns"][self._slots_of(cpu)].any():
                        assert self.flush(cpu) == 0
        finally:
            self.config["window_ns"][0] = before
        return self.drain()

    def _slots_of(self, cpu: int) -> slice:
        each = int(self.config["slots_per_cpu"][0])
        return slice(cpu * each, (cpu + 1) * each)

    def window(self, key: int | None = None) -> np.void:
        """Close all windows; the one of a clock, or the only one there was."""
        closed = self.close_windows()
        if key is not None:
            closed = closed[closed["clock_key"] == key]
        assert len(closed) == 1, closed
        only: np.void = closed[0]
        return only

    # ---- what was counted ------------------------------------------------------------------------------------

    def counters(self) -> dict[str, int]:
        """The counters, summed over the CPUs."""
        return {name: int(self.counters_by_cpu[name].sum()) for name in COUNTERS_DTYPE.names or ()}

    def owned(self) -> dict[int, int]:
        """Clock key -> slot index, of the slots in use."""
        return {int(self.slots["clock_key"][i]): i for i in np.flatnonzero(self.slots["in_use"]).tolist()}


def verdicts(window: np.void) -> dict[str, int]:
    """The counts of packets by what became of their stamp, those that aren't 0."""
    names = ("n", "n_stamped", "n_missing", "n_rejected", "n_duplicate", "n_reordered")
    return {name: int(window[name]) for name in names if window[name]}


def total(windows: npt.NDArray[Any], name: str) -> int:
    """A count, summed over windows."""
    return int(windows[name].astype(np.int64).sum())
