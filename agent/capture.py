"""One interface being captured: programs attached, windows drained, counters and histograms read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from agent import hooks, tc
from agent.errors import ConflictError, UnsupportedError
from agent.ffi import records
from agent.ffi.bpf import BpfObject, Link, ProgramSet, attach_xdp, flush_cpus, load
from agent.ffi.records import CONFIG_DTYPE, WINDOW_DTYPE
from agent.ffi.rings import Rings
from agent.options import RunOptions
from agent.rewrite import HandedOn

_STAMPS = {
    "none": records.STAMP_NONE,
    "trailer": records.STAMP_TRAILER,
    "skb": records.STAMP_SKB,
    "xdp": records.STAMP_XDP,
}
# A probed trailer stamp is given up for `none` after this many packets without an accepted one.
_PROBE_PACKETS = 2_000
# XDP->stack metadata on about this many packets per second and CPU: more would keep GRO from merging.
_STACK_SAMPLES_PER_S = 1_000
_META_NEVER = 0xFFFFFFFF
# A record in a perf ring: its header, its size, and padding to 8 bytes.
_SAMPLE_BYTES = WINDOW_DTYPE.itemsize + 16


@dataclass(frozen=True, slots=True)
class CaptureTarget:
    """The interface and the machine, as far as loading depends on them."""

    ifname: str
    ifindex: int
    rx_queues: int
    cpu_count: int
    """Highest possible CPU id + 1."""
    online_cpus: tuple[int, ...]


Delays = dict[tuple[int, int], npt.NDArray[np.int64]]
"""(receive queue, CPU) -> growth of a delay histogram, int64[HIST_BUCKETS], since the last read."""


class Capture:
    """One interface's programs, rings and maps. A context manager: leaving it detaches.

    `hook` and `stamp` are what is in force; `reasons` says why, for people.
    """

    def __init__(
        self,
        target: CaptureTarget,
        facts: hooks.HookFacts,
        options: RunOptions,
        before_clsact: Callable[[tc.Direction, bool], None],
    ) -> None:
        """Load and attach. Raises what `hooks.choose`, loading and attaching raise, with nothing left attached."""
        self.target = target
        self._options = options
        self._before_clsact = before_clsact
        self._attached: dict[str, Link | tc.ClsactFilter] = {}
        self._loaded = ExitStack()
        try:
            choice = self._attach(hooks.choose(facts, options))
        except BaseException:
            self.close()
            raise
        self.hook: str = choice.hook
        self.stamp: str = choice.stamp
        self.reasons: list[str] = list(choice.reasons)
        self._probing = choice.stamp_probed
        self._scratch = np.zeros(4096, dtype=WINDOW_DTYPE)
        self._hist_seen: dict[int, tuple[int, npt.NDArray[np.uint32]]] = {}
        self._stack_seen: dict[int, np.void] = {}
        self._announces_seen = np.zeros(target.cpu_count, dtype=np.uint32)
        self._stack_samples_seen = np.zeros(target.cpu_count, dtype=np.uint64)

    # ---- attaching -------------------------------------------------------------------------------------------

    def _attach(self, choice: hooks.HookChoice) -> hooks.HookChoice:
        """Load the programs for a choice and attach them; where `auto` chose XDP and it is refused, use tc."""
        try:
            self._load(choice)
            if choice.hook != "tc":
                mode: Literal["native", "generic"] = "generic" if choice.hook == "xdp-generic" else "native"
                program = "xdp_capture_meta" if choice.stamp == "xdp" else "xdp_capture"
                self._attached["xdp"] = attach_xdp(self._object.prog_fd(program), self.target.ifindex, mode)
        except (UnsupportedError, ConflictError) as refusal:
            # Stamps from XDP metadata were asked for by name: going on without them would be something else.
            if choice.hook == "tc" or self._options.hook != "auto" or choice.stamp == "xdp":
                raise
            self.close()
            choice = replace(choice, hook="tc", reasons=(*choice.reasons, f"hook tc instead: {refusal.what}"))
            self._load(choice)
        directions: tuple[tc.Direction, ...] = ("ingress", "egress")
        for direction in directions:
            program = f"tc_{direction}"
            self._attached[program] = tc.attach_tc(
                self._object.prog_fd(program), self.target.ifindex, direction, self._before_clsact
            )
        return choice

    def _load(self, choice: hooks.HookChoice) -> None:
        slots, stack_queues = _slots_per_cpu(self.target.rx_queues), _stack_queues(self.target.rx_queues)
        cpus = self.target.cpu_count
        source = ProgramSet(
            name="capture_xdpmeta" if choice.stamp == "xdp" else "capture",
            map_entries={
                "slots": cpus * slots,
                "hists": cpus * slots,
                "clocks": cpus * records.CLOCKS_PER_CPU,
                "stack_hists": cpus * stack_queues,
                "counters": cpus,
                "tx_queues": cpus,
                "ptp": cpus,
            },
            device_bound=("xdp_capture_meta",) if choice.stamp == "xdp" else (),
            ifindex=self.target.ifindex,
        )
        self._object: BpfObject = self._loaded.enter_context(load(self._options.loader, source))  # type: ignore[arg-type]
        config = np.zeros((), dtype=CONFIG_DTYPE)
        config["abi"] = records.AGENT_ABI
        config["ifindex"] = self.target.ifindex
        config["stamp"] = _STAMPS[choice.stamp]
        config["hook"] = records.HOOK_TC if choice.hook == "tc" else records.HOOK_XDP
        config["slots_per_cpu"] = slots
        config["window_ns"] = self._options.window_ns
        config["meta_mask"] = _META_NEVER
        config["n_cpus"] = cpus
        config["stack_queues"] = stack_queues
        self._object.map("config").update(0, config.tobytes())
        self._config = self._object.map("config").mmap()
        self._slots = self._object.map("slots").mmap()
        self._hists = self._object.map("hists").mmap()
        self._stack_hists = self._object.map("stack_hists").mmap()
        self._counters = self._object.map("counters").mmap()
        self._tx_queues = self._object.map("tx_queues").mmap()
        self._ptp = self._object.map("ptp").mmap()
        self.models: npt.NDArray[Any] = self._object.map("models").mmap()
        self._rings = self._loaded.enter_context(
            Rings(
                self._object.map("events"), self.target.online_cpus, _ring_bytes(self._options, self.target)
            )
        )

    # ---- windows ---------------------------------------------------------------------------------------------

    def flush_overdue(self, mono_ns: int) -> None:
        """Close the open windows of queues that went idle, on those CPUs only that have one overdue by a window."""
        # 0 is no open window: one less is the largest unsigned number, so it is never overdue.
        overdue = (self._slots["open_mono_ns"] - 1 < mono_ns - 2 * self._options.window_ns).nonzero()[0]
        if len(overdue):
            slots_per_cpu = len(self._slots) // self.target.cpu_count
            flush_cpus(self._object.prog_fd("flush"), sorted({i // slots_per_cpu for i in overdue.tolist()}))

    def follow_cpus(self, online: Iterable[int]) -> list[int]:
        """Open rings on CPUs that came online since; returns which."""
        return [cpu for cpu in online if cpu not in self._rings.fds and self._rings.add_cpu(cpu)]

    def drain(self) -> npt.NDArray[np.void]:
        """The windows closed since the last drain: a view of WINDOW_DTYPE[n], valid until the next call."""
        count = self._rings.drain(self._scratch)
        while count == len(self._scratch):
            grown = np.zeros(2 * len(self._scratch), dtype=WINDOW_DTYPE)
            grown[:count] = self._scratch
            self._scratch = grown
            count += self._rings.drain(self._scratch[count:])
        return self._scratch[:count]

    # ---- histograms and counters -----------------------------------------------------------------------------

    def hook_delays(self) -> Delays:
        """Delay up to the stamping hook, by the CPU that ran it; the clocks of a queue are summed."""
        grown: Delays = {}
        for slot in np.flatnonzero(self._slots["in_use"]).tolist():
            head = self._slots[slot]
            generation = int(head["generation"])
            now = self._hists["bucket"][slot].copy()
            known, before = self._hist_seen.get(slot, (-1, now))
            self._hist_seen[slot] = (generation, now)
            # A slot that changed hands goes on counting in the same buckets: its first reading is no growth.
            if known == generation:
                _add(grown, (int(head["queue"]), int(head["cpu"])), now - before)
        return grown

    def stack_delays(self) -> tuple[Delays, Delays]:
        """Delay of sampled packets up to the stack's entry, by the CPU behind RPS.

        The first is from the hardware stamp (empty without a valid clock model), the second from the XDP hook.
        """
        from_stamp: Delays = {}
        from_xdp: Delays = {}
        samples = self._counters["stack_samples"].copy()
        queues = len(self._stack_hists) // self.target.cpu_count
        for cpu in np.flatnonzero(samples != self._stack_samples_seen).tolist():
            for queue in range(queues):
                index = cpu * queues + queue
                now = self._stack_hists[index].copy()
                before = self._stack_seen.get(index)
                self._stack_seen[index] = now
                for grown, field in ((from_stamp, "hw_to_stack"), (from_xdp, "xdp_to_stack")):
                    buckets = now[field]["bucket"]
                    _add(
                        grown, (queue, cpu), buckets if before is None else buckets - before[field]["bucket"]
                    )
        self._stack_samples_seen = samples
        return from_stamp, from_xdp

    def counters(self) -> dict[str, int]:
        """The kernel's counters, summed over the CPUs."""
        names = self._counters.dtype.names or ()
        return {name: int(self._counters[name].sum()) for name in names}

    @property
    def loader(self) -> str:
        """Who loaded the programs: `libbpf` or `bcc`."""
        return self._object.loader

    @property
    def drained(self) -> int:
        """Window records that reached user space so far."""
        return self._rings.drained

    def tx_usage(self) -> npt.NDArray[np.uint64]:
        """Packets sent so far, [CPU, TX queue]."""
        return np.array(self._tx_queues["packets"])

    # ---- PTP messages ----------------------------------------------------------------------------------------

    def announces(self) -> list[tuple[int, bytes]]:
        """The Announce messages since the last call, as (mono_ns, message) in order; of very many the latest."""
        counts = self._ptp["n_announce"].copy()
        found: list[tuple[int, bytes]] = []
        for cpu in (counts != self._announces_seen).nonzero()[0].tolist():
            count, seen = int(counts[cpu]), int(self._announces_seen[cpu])
            fresh = min((count - seen) & 0xFFFFFFFF, records.PTP_ANNOUNCES)
            for number in range(count - fresh, count):
                entry = self._ptp["announce"][cpu, number & (records.PTP_ANNOUNCES - 1)].copy()
                # The packet path may have come round to it meanwhile: then it is one of the next call's.
                if (int(self._ptp["n_announce"][cpu]) - number) & 0xFFFFFFFF < records.PTP_ANNOUNCES:
                    found.append((int(entry["mono_ns"]), entry["message"].tobytes()))
            self._announces_seen[cpu] = count
        return sorted(found)

    @property
    def last_sync_ns(self) -> int:
        """When a Sync message was last seen, mono; 0: never."""
        return int(self._ptp["sync_mono_ns"].max())

    # ---- settings of the running programs --------------------------------------------------------------------

    def adapt(self, packets: int, elapsed_s: float) -> str | None:
        """Follow the traffic: sampling rate of the stack delay, and a probed stamp that never came.

        `packets` is how many were seen in the last `elapsed_s`. Returns what was decided, for people, if anything.
        """
        per_cpu = packets / max(elapsed_s, 1e-3) / max(1, int(np.count_nonzero(self._counters["packets"])))
        mask = 1
        while per_cpu / mask > _STACK_SAMPLES_PER_S:
            mask *= 2
        self._config["meta_mask"][0] = mask - 1 if self.hook == "xdp" else _META_NEVER
        if self._probing:
            total = self.counters()
            if total["stamped"]:
                self._probing = False
            elif total["packets"] >= _PROBE_PACKETS:
                self._probing = False
                self.stamp = "none"
                self._config["stamp"][0] = records.STAMP_NONE
                reason = f"stamp none: {total['packets']} packets came without a trailer; only software delays are seen"
                self.reasons.append(reason)
                return reason
        return None

    @property
    def sees_packets(self) -> bool:
        """Whether the program that owns the windows is still attached (of a clsact filter it is taken for granted)."""
        owner = self._attached["tc_ingress" if self.hook == "tc" else "xdp"]
        return not isinstance(owner, Link) or owner.attached

    def set_sampling(self, shift: int, frozen: bool) -> None:
        """The degrade ladder's hold on the kernel side: look at one packet in 2^shift; `frozen` only counts."""
        self._config["sample_mask"][0] = (1 << shift) - 1
        self._config["frozen"][0] = int(frozen)

    def hand_on(self, clock: HandedOn | None) -> None:
        """Write receive timestamps of that clock from now on, or leave the kernel's own."""
        if clock is not None:
            self._config["rewrite_key"][0] = clock.key
            self._config["rewrite_base_ns"][0] = clock.base_ns
        self._config["rewrite"][0] = int(clock is not None)

    def pin(self, directory: Path) -> None:
        """Keep everything attached after this process has ended: links are pinned in a directory of a bpffs."""
        for name, attachment in self._attached.items():
            if isinstance(attachment, Link):
                attachment.pin(directory / name)
                attachment.close()
        self._attached.clear()

    def detach(self) -> npt.NDArray[np.void]:
        """Detach, close every open window and drain: from here on produced = drained + lost holds for good.

        Returns the last windows, as `drain` does.
        """
        self._close_attached()
        time.sleep(self._options.window_ns / 1e9)  # no packet comes any more: now every window is overdue
        slots_per_cpu = len(self._slots) // self.target.cpu_count
        for _ in range(slots_per_cpu):  # BCC's flush closes a few windows at a time
            opened = np.flatnonzero(self._slots["open_mono_ns"])
            if not len(opened):
                break
            flush_cpus(self._object.prog_fd("flush"), np.unique(opened // slots_per_cpu).tolist())
        return self.drain()

    def close(self) -> None:
        """Detach and free everything; a second call does nothing."""
        self._close_attached()
        self._loaded.close()

    def _close_attached(self) -> None:
        while self._attached:
            self._attached.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _add(delays: Delays, key: tuple[int, int], grown: npt.NDArray[Any]) -> None:
    if grown.any():
        counts = grown.astype(np.int64)
        delays[key] = delays[key] + counts if key in delays else counts


def _ring_bytes(options: RunOptions, target: CaptureTarget) -> int:
    """What was asked for, or a power of two that holds two ticks of windows of the queues that a CPU may serve."""
    if options.ring_kib is not None:
        return options.ring_kib * 1024
    queues = min(target.rx_queues, max(4, 2 * target.rx_queues // len(target.online_cpus)))
    windows = 2 * (options.tick_ms * 1_000_000 // options.window_ns + 1) * queues
    return min(4 << 20, max(64 << 10, 1 << (windows * _SAMPLE_BYTES - 1).bit_length()))


def _slots_per_cpu(rx_queues: int) -> int:
    """Room for two clocks on every queue, in a table that stays sparse; a power of two.

    One CPU serves few of a large NIC's queues, and BCC's flush looks at no more than 128.
    """
    return min(128, max(32, 1 << (2 * rx_queues - 1).bit_length()))


def _stack_queues(rx_queues: int) -> int:
    return min(64, 1 << max(0, rx_queues - 1).bit_length())
