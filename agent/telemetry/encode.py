"""Frames from what the loop has in hand: clock reports, controller events, counters; and their bytes."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack

from agent import __version__
from agent.control.events import ChangeEvent, ConflictEvent, EffectEvent, Event, PlanEvent
from agent.telemetry import schema
from agent.telemetry.schema import (
    AlignedPair,
    AlignmentFrame,
    BatchFrame,
    BatchItem,
    BurstItem,
    Change,
    ClockFrame,
    ClockName,
    Conflict,
    ConsumerFrame,
    Delay,
    DelayFigures,
    DelayRow,
    Effect,
    Frame,
    Goodbye,
    Health,
    Hello,
    HostDrops,
    HostFacts,
    Inputs,
    InterfaceFacts,
    InterfaceHealth,
    Irq,
    IrqCpu,
    PhcItem,
    Plan,
    PtpFrame,
    RecordLayout,
    RefclockFrame,
    RefclockItem,
    RestoredItem,
    SinkHealth,
    SteeringFrame,
    SteeringItem,
    Windows,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from agent.clock import ClockReport
    from agent.clock.alignment import Aligned
    from agent.clock.alignment import ClockName as AlignedClock
    from agent.clock.interface import TickInputs
    from agent.clock.ptp import PtpWatch
    from agent.consumerwaits import ConsumerWaits
    from agent.control.observation import Delays
    from agent.control.quantiles import Figures
    from agent.ffi.clocks import ClockPairs, Steering
    from agent.host.activity import CpuActivity, IrqActivity
    from agent.phcreader import PhcReading


def pack(frame: Frame) -> bytes:
    """The frame's bytes in the stream."""
    data: bytes = msgpack.packb(frame, use_bin_type=True)
    return data


def finite(value: float | None) -> float | None:
    """The value as a plain float; None where it is unknown (NaN) or unbounded."""
    return None if value is None or not math.isfinite(value) else float(value)


def record_layout(dtype: np.dtype[Any]) -> RecordLayout:
    """A structured dtype as plain data: nested fields flattened to dotted names, so that any reader can use it."""
    names: list[str] = []
    formats: list[str] = []
    offsets: list[int] = []

    def walk(inner: np.dtype[Any], prefix: str, base: int) -> None:
        fields: Mapping[str, Any] = inner.fields or {}
        for name, (field, offset, *_) in fields.items():
            if field.fields is not None:
                walk(field, f"{prefix}{name}.", base + offset)
            else:
                names.append(prefix + name)
                formats.append(field.str)
                offsets.append(base + offset)

    walk(dtype, "", 0)
    return {"names": names, "formats": formats, "offsets": offsets, "itemsize": dtype.itemsize}


def host_facts(proc: Path = Path("/proc")) -> HostFacts:
    """This machine. `boot_id` is empty where procfs does not tell it."""
    uname = os.uname()
    try:
        boot_id = (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot_id = ""
    return {
        "hostname": uname.nodename,
        "kernel": uname.release,
        "machine": uname.machine,
        "boot_id": boot_id,
    }


class Encoder:
    """Makes the frames of one stream and numbers them."""

    def __init__(self) -> None:
        self._seq = 0

    def _frame(self, kind: str, mono_ns: int) -> Frame:
        frame: Frame = {"v": schema.TELEMETRY_VERSION, "t": kind, "seq": self._seq, "mono_ns": mono_ns}
        self._seq += 1
        return frame

    def hello(
        self,
        mono_ns: int,
        realtime_ns: int,
        *,
        host: HostFacts,
        interfaces: list[InterfaceFacts],
        window_ns: int,
        tick_ns: int,
        observe: bool,
        window_dtype: np.dtype[Any],
    ) -> Hello:
        """The first frame. `magic` is its first key: the stream's first bytes tell what it is."""
        return {
            "magic": schema.MAGIC,
            **self._frame("hello", mono_ns),
            "agent_version": __version__,
            "realtime_ns": realtime_ns,
            "host": host,
            "interfaces": interfaces,
            "window_ns": window_ns,
            "tick_ns": tick_ns,
            "observe": observe,
            "window_record": record_layout(window_dtype),
        }

    def windows(self, mono_ns: int, ifname: str, windows: npt.NDArray[np.void]) -> Iterator[Windows]:
        """Frames with the records of `WINDOW_DTYPE[n]`: none for none, several where there are very many."""
        for start in range(0, len(windows), schema.MAX_BATCH_RECORDS):
            batch = windows[start : start + schema.MAX_BATCH_RECORDS]
            yield {
                **self._frame("windows", mono_ns),
                "ifname": ifname,
                "n": len(batch),
                "data": batch.tobytes(),
            }

    def inputs(self, ifname: str, base_delay_ns: int | None, inputs: TickInputs) -> Inputs:
        """What the clocks of an interface are fed in this tick."""
        return {
            **self._frame("inputs", inputs.mono_ns),
            "ifname": ifname,
            "base_delay_ns": base_delay_ns,
            "pairs": _table(inputs.pairs),
            "steering": _steering(inputs.steering),
            "phc": None
            if inputs.phc is None
            else {"steered_ppb": float(inputs.phc.steered_ppb), "burst": _burst(inputs.phc)},
            "announces": [{"mono_ns": mono_ns, "message": data} for mono_ns, data in inputs.announces],
        }

    def clock(self, ifname: str, kind: str, report: ClockReport) -> ClockFrame:
        """One clock's report; `kind` is the `Clock`'s."""
        model = report.model
        return {
            **self._frame("clock", report.mono_ns),
            "ifname": ifname,
            "key": report.key,
            "kind": kind,
            "state": report.state,
            "reason": report.reason,
            "timescale": report.timescale,
            "offset_ns": report.offset_ns,
            "sigma_ns": finite(report.sigma_ns),
            "bound_ns": finite(report.bound_ns),
            "drift_mono_ppb": float(report.drift_mono_ppb),
            "drift_raw_ppb": float(report.drift_raw_ppb),
            "drift_sigma_ppb": finite(report.drift_sigma_ppb),
            "drift_bound_ppb": finite(report.drift_bound_ppb),
            "kernel_drift_ppb": finite(report.kernel_drift_ppb),
            "kernel_drift_baseline_ns": report.kernel_drift_baseline_ns,
            "tags": [
                {"kind": tag.kind, "mono_ns": tag.mono_ns, "size_ns": tag.size_ns, "cause": tag.cause}
                for tag in report.tags
            ],
            "model": None
            if model is None
            else {
                "mono0_ns": model.mono0_ns,
                "phc0_ns": model.phc0_ns,
                "adj": model.adj,
                "shift": model.shift,
                "valid_until_mono_ns": model.valid_until_mono_ns,
                "epoch": model.epoch,
            },
            "predictions": [
                {
                    "horizon_s": prediction.horizon_s,
                    "offset_ns": prediction.offset_ns,
                    "sigma_ns": finite(prediction.sigma_ns),
                    "p99_ns": finite(prediction.p99_ns),
                }
                for prediction in report.predictions
            ],
            "samples": report.samples,
        }

    def alignment(self, mono_ns: int, pairs: Iterable[Aligned], omitted: int) -> AlignmentFrame:
        """The clocks against each other; `omitted` of them were not compared."""
        return {
            **self._frame("alignment", mono_ns),
            "pairs": [_aligned_pair(pair) for pair in pairs],
            "omitted": omitted,
        }

    def steering(
        self, mono_ns: int, steering: Steering, adjustments: int, phcs: list[PhcItem]
    ) -> SteeringFrame:
        """What is dialled into the clocks; `adjustments` are those of mono."""
        return {
            **self._frame("steering", mono_ns),
            "mono_frequency_ppb": steering.freq_ppb,
            "mono_adjustments": adjustments,
            "synchronised": steering.synchronised,
            "tai_utc_s": steering.tai_offset_s,
            "phcs": phcs,
        }

    def refclock(self, mono_ns: int, facts: RefclockItem) -> RefclockFrame:
        """How chronyd is fed."""
        return {**self._frame("refclock", mono_ns), **facts}

    def batch(self, mono_ns: int, facts: BatchItem) -> BatchFrame:
        """A page of batch windows."""
        return {**self._frame("batch", mono_ns), **facts}

    def ptp(self, mono_ns: int, ifname: str, ptp: PtpWatch, sync_mono_ns: int) -> PtpFrame:
        """The PTP time sources on an interface's wire; `sync_mono_ns` 0: no Sync was seen."""
        return {
            **self._frame("ptp", mono_ns),
            "ifname": ifname,
            "masters": [
                {
                    "domain": domain,
                    "grandmaster": master.grandmaster,
                    "source": master.source,
                    "clock_class": master.clock_class,
                    "steps_removed": master.steps_removed,
                    "utc_offset_s": master.utc_offset_s,
                    "time_traceable": master.time_traceable,
                    "announce_interval_s": master.interval_s,
                }
                for domain, master in sorted(ptp.masters.items())
            ],
            "changes": ptp.changes,
            "sync_mono_ns": sync_mono_ns or None,
        }

    def delay(self, mono_ns: int, ifname: str, span_ns: int, rows: Iterable[DelayRow]) -> Delay:
        """Delay quantiles of one interface; see `delay_rows`."""
        busiest = sorted(rows, key=lambda row: -row["n"])
        return {
            **self._frame("delay", mono_ns),
            "ifname": ifname,
            "span_ns": span_ns,
            "rows": busiest[: schema.MAX_DELAY_ROWS],
            "omitted": max(0, len(busiest) - schema.MAX_DELAY_ROWS),
        }

    def irq(self, mono_ns: int, activity: IrqActivity) -> Irq:
        """Where the CPUs' time in interrupts and softirqs went."""
        busiest = sorted(activity.cpus.items(), key=lambda item: -item[1].softirq - item[1].irq)
        return {
            **self._frame("irq", mono_ns),
            "span_ns": round(activity.seconds * 1e9),
            "cpus": [_irq_cpu(cpu, seen) for cpu, seen in busiest[: schema.MAX_IRQ_CPUS]],
            "irqs": [
                {"irq": number, "per_s": rate.per_s, "share": rate.share}
                for number, rate in activity.irqs.items()
            ],
            "omitted": max(0, len(busiest) - schema.MAX_IRQ_CPUS),
        }

    def consumers(self, mono_ns: int, waits: ConsumerWaits) -> ConsumerFrame:
        """What reached the named consumers."""
        return {
            **self._frame("consumer", mono_ns),
            "span_ns": round(waits.seconds * 1e9),
            "consumers": [
                {
                    "pid": seen.pid,
                    "name": seen.name,
                    "read": seen.n,
                    "undated": seen.undated,
                    "wait_p50_ns": finite(seen.p50_ns),
                    "wait_p99_ns": finite(seen.p99_ns),
                    "sockets": seen.sockets.sockets,
                    "backlog_bytes": seen.sockets.backlog_bytes,
                    "dropped": seen.sockets.by_cause(),
                }
                for seen in waits.consumers
            ],
            "queues_full": waits.queues_full,
        }

    def event(self, event: Event) -> Plan | Change | Effect | Conflict:
        """What the controller tells."""
        if isinstance(event, PlanEvent):
            return self._plan(event)
        if isinstance(event, ChangeEvent):
            return self._change(event)
        if isinstance(event, EffectEvent):
            return self._effect(event)
        return self._conflict(event)

    def _plan(self, event: PlanEvent) -> Plan:
        return {
            **self._frame("plan", event.mono_ns),
            "ifname": event.ifname,
            "plan": event.plan,
            "decided_by": event.decided_by,
            "reason": event.reason,
            "applied": event.applied,
            "now_p99_ns": finite(event.now_p99_ns),
            "predicted_p99_ns": finite(event.predicted_p99_ns),
            "changes": [
                {
                    "actuator": change.target.actuator,
                    "target": str(change.target),
                    "queues": list(change.queues),
                    "from": change.from_text,
                    "to": change.to_text,
                }
                for change in event.changes
            ],
            "cause": event.cause,
        }

    def _change(self, event: ChangeEvent) -> Change:
        return {
            **self._frame("change", event.mono_ns),
            "ifname": event.ifname,
            "plan": event.plan,
            "actuator": event.actuator,
            "target": event.target,
            "queues": list(event.queues),
            "from": event.before,
            "to": event.after,
            "outcome": event.outcome,
            "read_back": event.read_back,
            "reason": event.reason,
        }

    def _effect(self, event: EffectEvent) -> Effect:
        return {
            **self._frame("effect", event.mono_ns),
            "ifname": event.ifname,
            "plan": event.plan,
            "outcome": event.outcome,
            "reason": event.reason,
            "before": _delay_figures(event.before),
            "after": _delay_figures(event.after),
            "predicted_p99_ns": finite(event.predicted_p99_ns),
            "lost_before": event.lost_before,
            "lost_after": event.lost_after,
        }

    def _conflict(self, event: ConflictEvent) -> Conflict:
        return {
            **self._frame("conflict", event.mono_ns),
            "ifname": event.ifname,
            "target": event.target,
            "expected": event.expected,
            "found": event.found,
            "owner": event.owner,
        }

    def health(
        self,
        mono_ns: int,
        *,
        span_ns: int,
        level: str,
        reason: str,
        cpu_percent: float,
        rss_bytes: int,
        tick_overruns: int,
        tick_max_ns: int,
        interfaces: list[InterfaceHealth],
        host_drops: HostDrops,
        sink: SinkHealth,
        notes: Sequence[str],
    ) -> Health:
        """How the agent and the host are doing."""
        return {
            **self._frame("health", mono_ns),
            "span_ns": span_ns,
            "level": level,
            "reason": reason,
            "cpu_percent": float(cpu_percent),
            "rss_bytes": rss_bytes,
            "tick_overruns": tick_overruns,
            "tick_max_ns": tick_max_ns,
            "interfaces": interfaces,
            "host_drops": host_drops,
            "sink": sink,
            "notes": list(notes),
        }

    def goodbye(
        self,
        mono_ns: int,
        *,
        reason: str,
        exit_code: int,
        interfaces: list[InterfaceHealth],
        restored: list[RestoredItem],
        sink: SinkHealth,
    ) -> Goodbye:
        """The last frame."""
        return {
            **self._frame("goodbye", mono_ns),
            "reason": reason,
            "exit_code": exit_code,
            "interfaces": interfaces,
            "restored": restored,
            "sink": sink,
        }


def _aligned_pair(pair: Aligned) -> AlignedPair:
    return {
        "first": _clock_name(pair.first),
        "second": _clock_name(pair.second),
        "at_mono_ns": pair.mono_ns,
        "valid": not pair.doubt,
        "reason": pair.doubt,
        "offset_ns": pair.offset_ns,
        "sigma_ns": finite(pair.sigma_ns),
        "bound_ns": finite(pair.bound_ns),
        "drift_ppb": float(pair.drift_ppb),
        "drift_bound_ppb": finite(pair.drift_bound_ppb),
    }


def _clock_name(name: AlignedClock) -> ClockName:
    return {"ifname": name.ifname, "kind": name.kind, "key": name.key}


def _table(pairs: ClockPairs) -> bytes:
    """Rows of `pairs` in the order of its fields, `<i8`."""
    return b"".join(getattr(pairs, field.name).astype("<i8").tobytes() for field in fields(pairs))


def _steering(steering: Steering) -> SteeringItem:
    return {
        "freq_ppb": float(steering.freq_ppb),
        "tick_us": steering.tick_us,
        "offset_ns": steering.offset_ns,
        "time_constant": steering.time_constant,
        "status": steering.status,
        "max_error_us": steering.max_error_us,
        "est_error_us": steering.est_error_us,
        "tai_offset_s": steering.tai_offset_s,
    }


def _burst(reading: PhcReading) -> BurstItem | None:
    burst = reading.burst
    if burst is None:
        return None
    reads = (burst.t1_ns, burst.phc_ns, burst.t2_ns)
    return {
        "method": burst.method,
        "local_clock": burst.local_clock,
        "reads": b"".join(column.astype("<i8").tobytes() for column in reads),
        "pairs": _table(reading.pairs),
    }


def _irq_cpu(cpu: int, seen: CpuActivity) -> IrqCpu:
    return {
        "cpu": cpu,
        "irq": seen.irq,
        "softirqs": dict(seen.vectors),
        "rx_wait_p50_ns": finite(seen.wait_p50_ns),
        "rx_wait_p99_ns": finite(seen.wait_p99_ns),
        "polls_per_s": seen.polls_per_s,
        "packets_per_poll": seen.packets_per_poll,
        "exhausted": seen.exhausted,
    }


def _delay_figures(figures: Figures) -> DelayFigures:
    return {
        "n": figures.n,
        "p50_ns": finite(figures.p50_ns),
        "p99_ns": finite(figures.p99_ns),
        "p99_low_ns": finite(figures.p99_low_ns),
        "p99_high_ns": finite(figures.p99_high_ns),
    }


def delay_rows(where: str, delays: Delays) -> Iterator[DelayRow]:
    """Rows of a delay frame from histograms by (queue, CPU), each int64[HIST_BUCKETS]."""
    if not delays:
        return
    import numpy as np

    from agent.ffi.records import hist_quantile

    counts = np.stack(list(delays.values()))
    totals = counts.sum(axis=1).tolist()
    quantiles = hist_quantile(counts, (0.5, 0.99)).tolist()
    for (queue, cpu), n, (p50, p99) in zip(delays, totals, quantiles, strict=True):
        yield {
            "queue": queue,
            "cpu": cpu,
            "where": where,
            "n": n,
            "p50_ns": finite(p50),
            "p99_ns": finite(p99),
        }
