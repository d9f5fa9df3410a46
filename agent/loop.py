"""`agent run`, from packet to telemetry: one tick drains, estimates, plans, acts, measures, tells.

Read `Loop.run` first, then `_tick`. Everything that is changed on the host is journaled by the controllers and is
put back when the loop ends, however it ends; what a SIGKILL leaves, `agent restore` puts back.
"""

from __future__ import annotations

import gc
import resource
import socket
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from agent import stamping, tc
from agent.capture import Capture, CaptureTarget
from agent.clock.alignment import Alignment, ClockName, Reading
from agent.clock.interface import InterfaceClocks, TickInputs
from agent.clock.model import ModelWriter
from agent.clock.trust import JUMPS
from agent.clockconflicts import ClockConflicts
from agent.consumers import ConsumerPins, Consumers
from agent.consumerwaits import ConsumerTrace
from agent.control.controller import Controller
from agent.control.degrade import DegradeLadder, Health
from agent.control.events import ChangeEvent, Event
from agent.control.journal import Journal, require_complete, this_scope
from agent.control.observation import InterfaceObservation, Observation
from agent.control.plan import LaneReport
from agent.errors import AgentError, ConflictError, PartialError, UsageError
from agent.ffi.clocks import adjtimex_state, clock_pairs
from agent.ffi.hwtstamp import HwtstampConfig, hwtstamp_config
from agent.ffi.loadwatch import GLANCE_NS, LoadWatch, Woken
from agent.ffi.mempolicy import bind_memory, migrate_own_memory
from agent.ffi.phc import Phc
from agent.ffi.records import WINDOW_DTYPE, WindowArray
from agent.fixes import IdleLimit, binds_memory
from agent.hooks import read_facts
from agent.host.activity import traced
from agent.host.load import Drops, LoadSampler
from agent.host.masks import CpuMask
from agent.host.model import Host, Interface, read_host
from agent.host.netlink import query_links
from agent.host.paths import HostPaths, read_int, read_text
from agent.irqbalance import Irqbalance
from agent.irqtrace import IrqTrace
from agent.monosteering import MonoSteering
from agent.options import BASE_DELAY_NEEDED, BASE_DELAY_REMEDY, RunOptions
from agent.phcreader import PhcReader, PhcReading
from agent.pins import unpin
from agent.refclock import Refclock
from agent.rewrite import TimestampRewrite
from agent.signals import end_signals, signal_name
from agent.telemetry.encode import Encoder, delay_rows, host_facts
from agent.telemetry.schema import Frame, InterfaceHealth, SinkHealth

if TYPE_CHECKING:
    from agent.batch.stage import BatchStage

# Three ticks: its delays and load need some packets, and reading them costs more than a tick.
_CONTROL_NS = 600_000_000
_HEALTH_NS = 1_000_000_000
_PAIRS = 5


class Output(Protocol):
    """Where frames go: a telemetry stream or a terminal view. Never blocks."""

    def put(self, frame: Frame, *, keep: bool = False) -> None:
        """Take a frame."""

    @property
    def closed_reason(self) -> str | None:
        """Why nobody reads any more; None while somebody does."""

    def health(self) -> SinkHealth:
        """What was written and dropped so far."""


@dataclass(slots=True)
class Watch:
    """One interface under watch: what is captured on it, and the clocks that its packets showed."""

    interface: Interface
    capture: Capture
    models: ModelWriter
    phc: PhcReader | None
    nic_packets: int
    """The interface's own count when the capture began."""
    clocks: InterfaceClocks
    rewrite: TimestampRewrite | None
    end: str = ""
    """Why nothing is captured on it any more; empty while it is."""
    rx_queues: int = 0
    """Receive queues that it has now."""
    cpus: set[int] = field(default_factory=set)
    """CPUs that served this interface in the last control step."""
    # Growth since the last control step:
    packets: dict[tuple[int, int], int] = field(default_factory=dict)
    reordered: int = 0
    disturbed: bool = False
    tx_packets: npt.NDArray[np.int64] | int = 0

    @property
    def gone(self) -> bool:
        """Nothing is captured on it any more."""
        return bool(self.end)

    def count(self, windows: WindowArray) -> None:
        """Add closed windows to what the next control step sees."""
        width = self.capture.target.cpu_count
        pair = windows["queue"].astype(np.int64) * width + windows["cpu"]
        packets = np.bincount(pair, weights=windows["n"])
        for index in np.flatnonzero(packets).tolist():
            key = divmod(index, width)
            self.packets[key] = self.packets.get(key, 0) + int(packets[index])
        self.reordered += int(windows["n_reordered"].sum())


class Loop:
    """One run. Make it, `run` it once."""

    def __init__(self, options: RunOptions, output: Output) -> None:
        self._options = options
        self._output = output
        self._encoder = Encoder()
        self._watches: list[Watch] = []
        self._phcs: dict[int, PhcReader] = {}
        self._mono_steering = MonoSteering()
        self._refclock: Refclock | None = None
        self._batch: BatchStage | None = None
        self._alignment = Alignment()
        self._journals: dict[str, Journal] = {}
        self._degrade = DegradeLadder()
        self._notes: list[str] = []
        self.reports: list[LaneReport] = []
        """What the controller would do with each queue, and why: filled in when the run ends."""
        self._tick_ns = options.tick_ms * 1_000_000
        self._overruns = self._health_overruns = self._longest_tick_ns = 0
        self._lost = self._softnet_dropped = 0
        self._drops = Drops()
        self._control_mono_ns = self._health_mono_ns = time.monotonic_ns()
        self._health_cpu_ns = time.process_time_ns()

    def run(self) -> int:
        """Capture until told to stop; returns the exit code. Raises `AgentError` when it cannot begin.

        `hold_end_signals` has to be called before.
        """
        with ExitStack() as stack:
            self._open(stack)
            self._hello()
            # What start-up left behind is freed, and what it built stays: later collections need not visit it.
            gc.collect()
            gc.freeze()
            reason = self._ticks()
            return self._close(reason)

    # ---- beginning -------------------------------------------------------------------------------------------

    def _open(self, stack: ExitStack) -> None:
        options, paths = self._options, HostPaths()
        host = read_host(paths, options.interfaces, query_links())
        leaves = host.leaves()
        for leaf in leaves:
            scope = this_scope(leaf.name, options.netns)
            journal = stack.enter_context(Journal(options.state_dir, scope, paths))
            self._journals[leaf.name] = journal
            self._notes += journal.notes
        self._controller = Controller(
            host, self._journals, allow=options.allow, deny=options.deny, observe_only=options.observe
        )
        stack.callback(self._controller.close)
        self._notes += self._controller.notes
        for leaf in leaves:
            self._watches.append(self._watch(leaf, host, stack))
        if options.refclock is not None:
            self._refclock = self._feed(options.refclock, self._watches[0])
            stack.callback(self._refclock.close)
        self._bind_memory(host)
        self._idle_limit = IdleLimit(options.state_dir)
        stack.callback(self._idle_limit.close)
        loader = options.loader
        self._irq_trace = IrqTrace(host.topology.width, host.irqs, loader)  # type: ignore[arg-type]
        stack.callback(self._irq_trace.stop)
        self._trace_irqs()
        self._consumers = Consumers(paths, options.consumers)
        self._consumer_trace = self._trace_consumers(paths, stack) if options.consumers else None
        self._pins = None
        if options.pin_consumer and not options.observe:
            first = leaves[0]
            self._pins = ConsumerPins(host.topology, first.numa_node, self._journals[first.name])
        own = self._journals[leaves[0].name] if options.own else None
        irqs = set() if options.observe or "irq" in options.deny else _movable_irqs(host)
        self._irqbalance = Irqbalance(paths, irqs, own)
        if options.batch:
            from agent.batch.stage import BatchStage

            self._batch = BatchStage(options.state_dir, options.batch, options.batch_users, self._tick_ns)
            stack.callback(self._batch.close)
        self._load = LoadSampler(paths, host.topology, [leaf.name for leaf in leaves])

    def _bind_memory(self, host: Host) -> None:
        """By `--membind` or `agent doctor --fix` memory comes from the first interface's node, what there is too."""
        if not self._options.membind and not binds_memory(self._options.state_dir):
            return
        node, nodes = host.leaves()[0].numa_node, host.topology.nodes
        if node is None or nodes < 2:
            why = "this host has one NUMA node" if nodes < 2 else "the interface's NUMA node is not known"
            self._notes.append(f"memory is not bound to a NUMA node: {why}")
            return
        bind_memory(node)
        known = {cpu.node for cpu in host.topology.cpus.values() if cpu.node is not None}
        stayed = migrate_own_memory(sorted(known), node)
        self._notes.append(
            f"memory bound to NUMA node {node}" + (f", {stayed} pages stayed" if stayed else "")
        )

    def _trace_irqs(self) -> None:
        """Start the tracepoints that tell why a queue is slow; where the kernel refuses, the run goes on without."""
        try:
            self._irq_trace.start()
        except AgentError as error:
            self._notes.append(f"interrupts and softirqs are not traced: {error.what}")
        self._load_watch = LoadWatch(self._irq_trace.counters)

    def _trace_consumers(self, paths: HostPaths, stack: ExitStack) -> ConsumerTrace:
        """Watch what reaches the consumers; where the kernel refuses, as far as it lets us."""
        trace = stack.enter_context(ConsumerTrace(paths))
        if trace.note:
            self._notes.append(trace.note)
        return trace

    def _watch(self, interface: Interface, host: Host, stack: ExitStack) -> Watch:
        options, journal = self._options, self._journals[interface.name]
        for name in unpin(interface.ifindex):
            self._notes.append(f"{interface.name}: detached {name}, which `agent bpf attach` had left")
        facts = read_facts(interface)
        if options.stamp in ("skb", "xdp") and not options.observe:
            self._notes.append(stamping.switch_on(interface.name, journal))

        def before_clsact(direction: tc.Direction, creates_qdisc: bool) -> None:
            setting = tc.clsact_setting(interface.ifindex, direction, creates_qdisc)
            journal.record(setting, tc.ABSENT, tc.ATTACHED)

        packets = _nic_packets(interface.name)
        target = capture_target(interface, host)
        stamping_before = hwtstamp_config(interface.name)
        capture = stack.enter_context(Capture(target, facts, options, before_clsact))
        self._keep_stamping(interface.name, stamping_before)
        phc = None
        if facts.phc_index is not None and capture.stamp in ("xdp", "skb"):
            phc = self._phcs.get(facts.phc_index)
            if phc is None:
                device = stack.enter_context(Phc(interface.ifindex))
                phc = PhcReader(device, interface.name, options.phc_reads_per_s)
                self._phcs[facts.phc_index] = phc
        models = ModelWriter(capture.models)
        clocks = InterfaceClocks(options.base_delay_ns, models.forget)
        scale = options.rewrite_timestamps
        rewrite = None if scale is None else TimestampRewrite(interface.name, scale, capture.hand_on)
        return Watch(interface, capture, models, phc, packets, clocks, rewrite)

    def _keep_stamping(self, ifname: str, config: HwtstampConfig | None) -> None:
        """Some drivers (igc) lose RX stamping, a PTP daemon's too, when XDP comes or goes."""
        if note := stamping.keep(ifname, config):
            self._notes.append(note)

    def _feed(self, path: Path, watch: Watch) -> Refclock:
        """A feed of chronyd from an interface's clock. Raises if it has none, or another program does it already."""
        name, stamp = watch.interface.name, watch.capture.stamp
        if stamp == "none":
            raise UsageError(
                f"--refclock has no clock to feed: {name} has no hardware stamps ({watch.capture.reasons[-1]})",
                "name the interface whose clock is to be fed first, and see `agent doctor -i IF`",
            )
        conflicts = None
        if watch.phc is None:
            if self._options.base_delay_ns is None:
                raise UsageError(BASE_DELAY_NEEDED, BASE_DELAY_REMEDY)
        else:
            conflicts = ClockConflicts(HostPaths(), watch.phc.phc.path)
            conflict = conflicts.look()
            if conflict:
                raise ConflictError(
                    f"--refclock would carry time both ways: {conflict}",
                    "stop it, or take this clock out of its configuration; or run without --refclock",
                )
        return Refclock(
            path, name, self._options.refclock_max_error_ns, self._options.base_delay_ns, conflicts
        )

    def _hello(self) -> None:
        pairs = clock_pairs(_PAIRS)
        best = pairs.best()
        hello = self._encoder.hello(
            int(pairs.mono_ns[best]),
            int(pairs.realtime_ns[best]),
            host=host_facts(),
            interfaces=[
                {
                    "ifname": watch.interface.name,
                    "ifindex": watch.interface.ifindex,
                    "driver": watch.interface.driver,
                    "rx_queues": len(watch.interface.queues),
                    "hook": watch.capture.hook,
                    "stamp": watch.capture.stamp,
                    "loader": watch.capture.loader,
                    "reasons": watch.capture.reasons,
                }
                for watch in self._watches
            ],
            window_ns=self._options.window_ns,
            tick_ns=self._tick_ns,
            observe=self._options.observe,
            window_dtype=WINDOW_DTYPE,
        )
        self._output.put(hello, keep=True)

    # ---- the ticks -------------------------------------------------------------------------------------------

    def _ticks(self) -> str:
        """Tick until something ends the run; returns what did."""
        start = time.monotonic_ns()
        end = None if self._options.seconds is None else start + round(self._options.seconds * 1e9)
        due, control_due, health_due = start, start + _CONTROL_NS, start + _HEALTH_NS
        while True:
            due += self._tick_ns
            ended_by = self._wait(due)
            if ended_by is not None:
                return ended_by
            began = time.monotonic_ns()
            self._tick(began)
            if began >= control_due or self._controller.in_flight:
                self._control(began)
                control_due = began + _CONTROL_NS
            if began >= health_due:
                self._keep_up(began)
                health_due = began + _HEALTH_NS
            now = time.monotonic_ns()
            self._longest_tick_ns = max(self._longest_tick_ns, now - began)
            if now >= due + self._tick_ns:
                self._overruns += 1
                due = now
            if end is not None and now >= end:
                return f"--seconds {self._options.seconds:g} passed"
            if self._output.closed_reason is not None:
                return self._output.closed_reason
            if all(watch.gone for watch in self._watches):
                return "nothing is left to capture on"

    def _wait(self, due_ns: int) -> str | None:
        """Until the next tick is due, or a signal ends the run, whose name is returned.

        A load that comes meanwhile to a CPU that serves a queue is answered before the tick.
        """
        while True:
            now_ns = time.monotonic_ns()
            # The answer wants some packets that came under the new load.
            until_ns = min(due_ns, now_ns + GLANCE_NS) if self._controller.hurried else due_ns
            woken = self._load_watch.wait(until_ns, end_signals())
            if isinstance(woken, int):
                return signal_name(woken)
            now_ns = time.monotonic_ns()
            if woken is Woken.MOVED:
                self._tell(self._controller.load_moved(self._load_watch.shares, now_ns))
            # Suspected: what is measured from here on is kept apart from what was before.
            if woken is not Woken.DUE or self._controller.hurried:
                self._control(now_ns)
            if now_ns >= due_ns:
                return None

    def _tick(self, mono_ns: int) -> None:
        """Ring → array → clock → the kernel's model, for every interface."""
        steering = adjtimex_state()
        self._notes += self._mono_steering.observe(steering)
        frozen = self._degrade.level.name in ("frozen", "safe")
        readings: list[Reading] = []
        packets = 0
        for watch in self._watches:
            if watch.gone:
                continue
            name = watch.interface.name
            watch.capture.flush_overdue(mono_ns)
            windows = watch.capture.drain()
            frames: list[Frame] = [*self._encoder.windows(mono_ns, name, windows)]
            watch.count(windows)
            packets += int(windows["n"].sum())
            heard = tuple(watch.capture.announces())
            phc = self._read_phc(watch, mono_ns)
            # After the PHC: what is known of a clock is carried forward to the report's moment, never back.
            pairs = clock_pairs(_PAIRS)
            inputs = TickInputs(mono_ns, pairs, steering, phc, heard)
            # Recorded before the reports that come of it: a replay of the stream is fed the same.
            frames.append(self._encoder.inputs(name, watch.clocks.base_delay_ns, inputs))
            reports = watch.clocks.tick(windows, inputs)
            self._notes += [f"{name}: {change.text}" for change in watch.clocks.ptp.take_changes()]
            for clock, report in reports:
                clock_name = ClockName(name, clock.kind, clock.key)
                readings.append(Reading(clock_name, report, clock.base_delay_limit_ns))
                if report.model is not None and not frozen:
                    watch.models.write(clock.key, report.model)
                jumped = any(tag.kind in JUMPS for tag in report.tags)
                # A clock that no packet shows any more spoils no delay.
                if clock.key in windows["clock_key"]:
                    watch.disturbed |= jumped or report.state not in ("tracking", "relative")
                frames.append(self._encoder.clock(name, clock.kind, report))
            if watch.rewrite is not None:
                watch.rewrite.take(reports, pairs)
                self._notes += watch.rewrite.take_notes()
            if self._refclock is not None and watch is self._watches[0]:
                self._refclock.take(mono_ns, [report for _, report in reports], pairs)
                self._notes += self._refclock.take_notes()
            # Only now: the writer's thread wakes once, and not in the middle of all this.
            self._put_all(frames)
        if self._batch is not None:
            self._serve_consumers(self._batch, mono_ns, packets, readings)
        aligned = self._alignment.take(mono_ns, readings)
        if aligned is not None:
            self._output.put(self._encoder.alignment(mono_ns, aligned, self._alignment.omitted))

    def _serve_consumers(
        self, batch: BatchStage, mono_ns: int, packets: int, readings: Sequence[Reading]
    ) -> None:
        """Batch windows and clocks for whoever reads the pages."""
        level = self._degrade.level
        withheld = "observing only" if self._options.observe else ""
        if level.name in ("frozen", "safe"):
            withheld = f"degraded to {level.name}"
        items = batch.tick(mono_ns, packets, readings, withheld)
        self._notes += batch.take_notes()
        self._put_all(self._encoder.batch(mono_ns, item) for item in items)

    def _notice_gone(self) -> None:
        """Mark the interfaces that nothing is captured on any more, and tell it, once."""
        for watch in self._watches:
            if watch.gone:
                continue
            if not _is_present(watch.interface):
                watch.end = "is gone, or has another name now"
            elif not watch.capture.sees_packets:
                watch.end = f"has lost our {watch.capture.hook} program: somebody detached it"
            if watch.gone:
                self._notes.append(f"{watch.interface.name} {watch.end}: no longer captured")
                if self._refclock is not None and watch is self._watches[0]:
                    self._refclock.stop(f"{watch.interface.name} {watch.end}")

    def _notice_queues(self, watch: Watch) -> None:
        """Tell that somebody gave the interface more or fewer queues (`ethtool -L`) than the plan was made for."""
        queues = len(list((HostPaths().net(watch.interface.name) / "queues").glob("rx-*")))
        began = len(watch.interface.queues)
        if queues != (watch.rx_queues or began):
            self._notes.append(
                f"{watch.interface.name}: has {queues} receive queues now, and had {began} when the run began: all are "
                "measured, and those that are new are left where they are until `agent run` is started again"
            )
        watch.rx_queues = queues

    def _read_phc(self, watch: Watch, mono_ns: int) -> PhcReading | None:
        """This tick's reading of the interface's PHC, if it has one."""
        if watch.phc is None:
            return None
        reading = watch.phc.read(mono_ns)
        self._notes += watch.phc.take_notes()
        return reading

    # ---- control ---------------------------------------------------------------------------------------------

    def _control(self, mono_ns: int) -> None:
        """Delays and load → plan → change → effect; every event told."""
        self._notice_gone()
        load = self._load.sample(mono_ns)
        activity = self._irq_trace.sample(mono_ns)
        if activity is not None:
            self._output.put(self._encoder.irq(mono_ns, activity))
        load = traced(load, activity)
        span_ns, self._control_mono_ns = mono_ns - self._control_mono_ns, mono_ns
        seen = {}
        for watch in self._watches:
            if not watch.gone:
                seen[watch.interface.name] = self._observe(watch, mono_ns, span_ns)
        if self._batch is not None:
            self._batch.observe_delays([item.hw_to_stack or item.hook_delays for item in seen.values()])
        consumers = self._consumers.follow(mono_ns)
        self._notes += self._consumers.take_notes()
        waiting_bytes = 0
        if self._consumer_trace is not None:
            waits = self._consumer_trace.sample(self._consumers.threads, mono_ns)
            self._output.put(self._encoder.consumers(mono_ns, waits))
            load = replace(load, drops=replace(load.drops, ring=waits.ring_lost))
            waiting_bytes = waits.waiting_bytes
        self._drops = _sum_drops(self._drops, load.drops)
        self._softnet_dropped += sum(
            share.dropped
            for cpu, share in load.cpus.items()
            if any(cpu in watch.cpus for watch in self._watches)
        )
        observation = Observation(load, seen, consumers, waiting_bytes, activity)
        self._load_watch.serve({cpu for watch in self._watches for cpu in watch.cpus})
        self._tell(self._controller.tick(observation, mono_ns))
        if self._pins is not None and self._degrade.level.name not in ("frozen", "safe"):
            serving = CpuMask.of(cpu for watch in self._watches for cpu in watch.cpus)
            self._notes += self._pins.follow(self._consumers.threads, serving, mono_ns)

    def _observe(self, watch: Watch, mono_ns: int, span_ns: int) -> InterfaceObservation:
        """What one interface showed since the last control step; also the stream's `delay` frame."""
        capture, name = watch.capture, watch.interface.name
        hook = capture.hook_delays()
        from_stamp, from_xdp = capture.stack_delays()
        rows = [*delay_rows("hook", hook), *delay_rows("stack", from_stamp or from_xdp)]
        self._output.put(self._encoder.delay(mono_ns, name, span_ns, rows))
        decided = capture.adapt(sum(watch.packets.values()), span_ns / 1e9)
        if decided is not None:
            self._notes.append(f"{name}: {decided}")
        tx_packets = capture.tx_usage().astype(np.int64)
        observation = InterfaceObservation(
            hook_delays=hook,
            hw_to_stack=from_stamp,
            xdp_to_stack=from_xdp,
            hook_is_stack=capture.hook == "tc",
            packets=watch.packets,
            reordered=watch.reordered,
            clock_disturbed=watch.disturbed,
            tx_packets=tx_packets - watch.tx_packets,
        )
        watch.cpus = {cpu for _, cpu in (*hook, *from_stamp, *from_xdp)}
        watch.packets, watch.reordered, watch.disturbed, watch.tx_packets = {}, 0, False, tx_packets
        return observation

    def _tell(self, events: Iterable[Event]) -> None:
        """Events of the controller, as frames; a change on the packets' way is announced to the clocks."""
        for event in events:
            if isinstance(event, ChangeEvent):
                self._load_watch.settle(event.mono_ns)
                for watch in self._watches:
                    if watch.interface.name == event.ifname:
                        watch.clocks.setting_changed(
                            event.mono_ns, event.actuator, event.target, event.outcome
                        )
            self._output.put(self._encoder.event(event))

    # ---- how it is going -------------------------------------------------------------------------------------

    def _keep_up(self, mono_ns: int) -> None:
        """Once a second: follow the CPUs, step down where the agent or the host does not keep up, and tell it."""
        online = CpuMask.parse_list(read_text(HostPaths().cpu / "online") or "")
        for watch in self._watches:
            if not watch.gone:
                self._notes += [f"CPU {cpu} came online" for cpu in watch.capture.follow_cpus(online)]
                self._notice_queues(watch)
        if not self._options.observe and (note := self._idle_limit.follow()):
            self._notes.append(note)
        self._notes += self._irqbalance.follow(mono_ns)
        span_ns = mono_ns - self._health_mono_ns
        self._follow_level(
            Health(
                seconds=span_ns / 1e9,
                ring_lost=self._count_lost() - self._lost,
                tick_overruns=self._overruns - self._health_overruns,
                ticks=max(1, round(span_ns / self._tick_ns)),
                softnet_dropped=self._softnet_dropped,
                cpu_percent=self._cpu_percent(span_ns),
            ),
            mono_ns,
        )
        self._tell_health(mono_ns)

    def _tell_health(self, mono_ns: int) -> None:
        """How it went since the health frame before."""
        span_ns = mono_ns - self._health_mono_ns
        level = self._degrade.level
        frame = self._encoder.health(
            mono_ns,
            span_ns=span_ns,
            level=level.name,
            reason=level.reason,
            cpu_percent=self._cpu_percent(span_ns),
            rss_bytes=_rss_bytes(),
            tick_overruns=self._overruns,
            tick_max_ns=self._longest_tick_ns,
            interfaces=[_interface_health(watch) for watch in self._watches],
            host_drops={
                "softnet": self._drops.softnet,
                "socket": self._drops.socket,
                "interface": self._drops.interface,
                "ring": self._drops.ring,
                "tcp_out_of_order": self._drops.tcp_out_of_order,
            },
            sink=self._output.health(),
            notes=self._notes,
        )
        self._output.put(frame)
        if self._mono_steering.now is not None:
            phcs = [reader.facts() for reader in self._phcs.values()]
            self._output.put(
                self._encoder.steering(
                    mono_ns, self._mono_steering.now, self._mono_steering.adjustments, phcs
                )
            )
        for watch in self._watches:
            ptp = watch.clocks.ptp
            if ptp.masters or ptp.changes:
                self._output.put(
                    self._encoder.ptp(mono_ns, watch.interface.name, ptp, watch.capture.last_sync_ns)
                )
        if self._refclock is not None:
            self._output.put(self._encoder.refclock(mono_ns, self._refclock.facts()))
        self._health_mono_ns, self._health_cpu_ns = mono_ns, time.process_time_ns()
        self._lost, self._health_overruns = self._count_lost(), self._overruns
        self._softnet_dropped, self._longest_tick_ns = 0, 0
        self._notes, self._drops = [], Drops()

    def _count_lost(self) -> int:
        return sum(watch.capture.counters()["lost"] for watch in self._watches)

    def _cpu_percent(self, span_ns: int) -> float:
        return 100.0 * (time.process_time_ns() - self._health_cpu_ns) / span_ns

    def _follow_level(self, health: Health, mono_ns: int) -> None:
        """Apply what the degrade ladder decides: sample in the kernel, freeze the model, restore and only count.

        From freezing on interrupts are not traced either: that costs every CPU.
        """
        before = self._degrade.level
        level = self._degrade.update(health, mono_ns)
        if level == before:
            return
        self._notes.append(f"level {level.name}: {level.reason or 'the host keeps up again'}")
        self._tell(self._controller.set_level(level.name, mono_ns))
        held_back = ("frozen", "safe")
        if level.name in held_back and before.name not in held_back:
            self._load_watch = LoadWatch(None)
            self._irq_trace.stop()
        elif before.name in held_back and level.name not in held_back:
            self._trace_irqs()
        for watch in self._watches:
            if not watch.gone:
                watch.capture.set_sampling(level.sample_shift, frozen=level.name == "safe")

    # ---- the end ---------------------------------------------------------------------------------------------

    def _close(self, reason: str) -> int:
        """Restore, detach, drain the rest, say goodbye; returns the exit code."""
        mono_ns = time.monotonic_ns()
        self.reports = self._controller.explain(mono_ns)
        restored = self._controller.close()
        for watch in self._watches:
            self._put_all(self._encoder.windows(mono_ns, watch.interface.name, self._detach(watch)))
        for journal in self._journals.values():
            # Again, for what the controller did not write: clsact filters, stamping.
            rest = journal.restore()
            done = {(item.scope, item.target) for item in restored}
            restored += [item for item in rest if (item.scope, item.target) not in done]
            journal.close(rest)
        complete = all(item.complete for item in restored)
        gone = [f"{watch.interface.name} {watch.end}" for watch in self._watches if watch.gone]
        reader_left = self._output.closed_reason
        code = PartialError.exit_code if gone or reader_left or not complete else 0
        self._tell_health(time.monotonic_ns())
        self._output.put(
            self._encoder.goodbye(
                time.monotonic_ns(),
                reason=reason,
                exit_code=code,
                interfaces=[_interface_health(watch) for watch in self._watches],
                restored=[
                    {"target": item.target, "outcome": item.outcome, "reason": item.reason}
                    for item in restored
                ],
                sink=self._output.health(),
            ),
            keep=True,
        )
        if reader_left:
            raise PartialError(
                f"the reader of the telemetry went away ({reader_left}); stopped, and everything restored",
                "start the collector again, then `agent run`",
            )
        if gone:
            raise PartialError(
                f"the capture ended early: {'; '.join(gone)}",
                "start again when the interface is there and nobody detaches programs from it",
            )
        require_complete(restored)
        return code

    def _detach(self, watch: Watch) -> WindowArray:
        """The last windows; stamping is afterwards as it was right before."""
        name = watch.interface.name
        try:
            before = hwtstamp_config(name)
        except AgentError:  # gone, and its stamping with it
            return watch.capture.detach()
        windows = watch.capture.detach()
        try:
            self._keep_stamping(name, before)
        except AgentError as error:
            self._notes.append(str(error))
        return windows

    def _put_all(self, frames: Iterable[Frame]) -> None:
        for frame in frames:
            self._output.put(frame)


def capture_target(interface: Interface, host: Host) -> CaptureTarget:
    """What loading the programs for an interface depends on."""
    return CaptureTarget(
        ifname=interface.name,
        ifindex=interface.ifindex,
        rx_queues=max(1, len(interface.queues)),
        cpu_count=host.topology.width,
        online_cpus=tuple(host.topology.online),
    )


def _movable_irqs(host: Host) -> set[int]:
    """The interrupts of the watched interfaces' queues, but those that other devices share."""
    numbers = {queue.irq for leaf in host.leaves() for queue in leaf.queues}
    return {number for number in numbers if number is not None and not host.irqs[number].shared}


def _interface_health(watch: Watch) -> InterfaceHealth:
    capture = watch.capture
    counters = capture.counters() | {"drained": capture.drained}
    if watch.phc is not None:
        counters |= {
            "phc_reads": watch.phc.reads,
            "phc_refusals": watch.phc.refusals,
            "phc_adjustments": watch.phc.adjustments,
        }
    if capture.hook == "tc" and not watch.gone:
        # What another XDP program took never reaches tc: the NIC counted it, we did not.
        counters["unseen"] = max(
            0, _nic_packets(watch.interface.name) - watch.nic_packets - counters["packets"]
        )
    return {
        "ifname": watch.interface.name,
        "hook": capture.hook,
        "stamp": capture.stamp,
        "counters": counters,
    }


def _sum_drops(a: Drops, b: Drops) -> Drops:
    return Drops(
        a.softnet + b.softnet,
        a.socket + b.socket,
        a.interface + b.interface,
        a.ring + b.ring,
        a.tcp_out_of_order + b.tcp_out_of_order,
    )


def _is_present(interface: Interface) -> bool:
    """Whether the very interface that was opened is still there: names are given again."""
    try:
        return socket.if_nametoindex(interface.name) == interface.ifindex
    except OSError:
        return False


def _nic_packets(ifname: str) -> int:
    return read_int(HostPaths().net(ifname) / "statistics/rx_packets") or 0


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * resource.getpagesize()
