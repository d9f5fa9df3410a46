"""The terminal view of a run: what the frames say, repainted in place.

`State` folds frames, `render` makes lines of it (pure), `StatusView` paints them. The painter writes through a sink:
a terminal that is stopped (Ctrl-S) does not hold up the loop.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from agent.telemetry.figures import count, duration, exact, ppb, printable, size
from agent.telemetry.readable import (
    Readable,
    aligned_line,
    batch_line,
    clock_name,
    phc_line,
    ptp_line,
    refclock_line,
)
from agent.telemetry.schema import Frame, SinkHealth
from agent.telemetry.sink import Sink

_LOG_LINES = 200
_LOG_AT_LEAST = 4
_CLOCKS_SHOWN = 4
_PAIRS_SHOWN = 3
_PAGES_SHOWN = 3
_BAR_WIDTH = 24
_BAR_FROM_NS, _BAR_TO_NS = 256.0, 1e9  # the histogram's own range
_NARROW = 60
_PAINT_PERIOD_S = 0.25
_BUSIEST = 3
_PLAIN_PERIOD_S = 1.0
_VIEW_QUEUE_BYTES = 128 << 10
_UNKNOWN_SIZE = os.terminal_size((80, 24))

_ASCII = str.maketrans(
    {"█": "#", "░": "-", "µ": "u", "±": "~", "→": ">", "…": "~", "–": "-"},
)


@dataclass(slots=True)
class InterfaceState:
    """What is known about one interface."""

    facts: dict[str, Any]
    counters: dict[str, int] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    """Counters per second, over the last health span."""
    clocks: dict[int, dict[str, Any]] = field(default_factory=dict)
    delays: list[dict[str, Any]] = field(default_factory=list)
    ptp: dict[str, Any] | None = None
    phc: dict[str, Any] | None = None
    """How its hardware clock is read, if it is the first that this clock stamps for."""


@dataclass(slots=True)
class State:
    """Everything shown, as the frames so far left it."""

    hello: dict[str, Any] | None = None
    now_ns: int = 0
    busiest: list[dict[str, Any]] = field(default_factory=list)
    """CPUs with the most time in interrupts and softirqs."""
    consumers: list[dict[str, Any]] = field(default_factory=list)
    interfaces: dict[str, InterfaceState] = field(default_factory=dict)
    health: dict[str, Any] | None = None
    refclock: dict[str, Any] | None = None
    batch: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By page."""
    aligned: list[dict[str, Any]] = field(default_factory=list)
    goodbye: dict[str, Any] | None = None
    log: deque[str] = field(default_factory=lambda: deque(maxlen=_LOG_LINES))
    _readable: Readable = field(default_factory=Readable)

    def take(self, frame: Frame) -> None:
        """Fold one frame in; types that are not shown are ignored."""
        content: dict[str, Any] = dict(frame)
        kind = content["t"]
        self.now_ns = max(self.now_ns, content["mono_ns"])
        if kind == "hello":
            self.hello = content
            self._readable.begin(content["mono_ns"])
            self.interfaces = {item["ifname"]: InterfaceState(item) for item in content["interfaces"]}
            for item in content["interfaces"]:
                for reason in item["reasons"]:
                    self._event(content["mono_ns"], f"{item['ifname']}: {reason}")
        elif kind == "clock":
            self._interface(content["ifname"]).clocks[content["key"]] = content
            name = clock_name(content["kind"], content["key"])
            for tag in content["tags"]:
                text = f"{content['ifname']} {name}: {tag['kind'].upper()} {duration(tag['size_ns'])}: {tag['cause']}"
                self._event(tag["mono_ns"], text)
        elif kind == "steering":
            for phc in content["phcs"]:
                self._interface(phc["ifname"]).phc = phc
        elif kind == "alignment":
            self.aligned = content["pairs"]
        elif kind == "refclock":
            self.refclock = content
        elif kind == "batch":
            self.batch[content["page"]] = content
        elif kind == "ptp":
            self._interface(content["ifname"]).ptp = content
        elif kind == "delay":
            self._interface(content["ifname"]).delays = content["rows"]
        elif kind == "irq":
            self.busiest = content["cpus"][:_BUSIEST]
        elif kind == "consumer":
            self.consumers = content["consumers"]
        elif kind in ("plan", "change", "effect", "conflict"):
            self.log.append(self._readable.line(content))
        elif kind == "health":
            self._take_health(content)
        elif kind == "goodbye":
            self.goodbye = content
            self.log.append(self._readable.line(content))

    def _take_health(self, content: dict[str, Any]) -> None:
        self.health = content
        span_s = content["span_ns"] / 1e9
        for item in content["interfaces"]:
            interface = self._interface(item["ifname"])
            interface.facts |= {"hook": item["hook"], "stamp": item["stamp"]}
            before, interface.counters = interface.counters, item["counters"]
            if span_s > 0:
                interface.rates = {
                    name: max(0, value - before.get(name, 0)) / span_s
                    for name, value in interface.counters.items()
                }
        for note in content["notes"]:
            self._event(content["mono_ns"], note)

    def _interface(self, ifname: str) -> InterfaceState:
        return self.interfaces.setdefault(ifname, InterfaceState({"ifname": ifname}))

    def _event(self, mono_ns: int, text: str) -> None:
        start_ns = self.hello["mono_ns"] if self.hello else mono_ns
        self.log.append(printable(f"{(mono_ns - start_ns) / 1e9:9.3f} {text}"))


def render(state: State, width: int, height: int) -> list[str]:
    """At most `height` lines of at most `width` columns. Lines that begin with `!` tell of losses or trouble."""
    top = [*_head(state), *_trouble(state)]
    blocks = [(_facts(interface), interface.delays) for interface in state.interfaces.values()]
    top += _aligned(state.aligned)
    top += _busiest(state.busiest)
    top += [printable(line) for line in _consumers(state.consumers[:_PAGES_SHOWN])]
    top += [printable(batch_line(page)) for page in list(state.batch.values())[:_PAGES_SHOWN]]
    fixed = len(top) + sum(len(facts) for facts, _ in blocks)
    log_wanted = min(_LOG_AT_LEAST, len(state.log))
    room = max(0, height - fixed - log_wanted - 1)
    lines = top
    for index, (facts, delays) in enumerate(blocks):
        lines += facts
        rows = _delays(delays, max(0, room // (len(blocks) - index)), width)
        room -= len(rows)
        lines += rows
    left = height - len(lines)
    if state.log and left > 1:
        lines.append("events")
        lines += [f"  {line}" for line in list(state.log)[-(left - 1) :]]
    return [_clip(line, width) for line in lines[:height]]


def one_line(state: State) -> str:
    """The state in one line, for terminals that cannot move the cursor."""
    parts = [_up(state)]
    if state.health:
        parts.append(f"{state.health['level']}, cpu {state.health['cpu_percent']:.1f} %")
    for name, interface in state.interfaces.items():
        parts.append(f"{name} {count(interface.rates.get('packets', 0))} packets/s")
        for clock in interface.clocks.values():
            parts.append(
                f"{clock_name(clock['kind'], clock['key'])} {clock['state']} {ppb(clock['drift_raw_ppb'])} "
                f"± {ppb(clock['drift_bound_ppb']).lstrip('+')}"
            )
        worst = max((row["p99_ns"] or 0.0 for row in interface.delays), default=None)
        if worst is not None:
            parts.append(f"worst p99 {duration(worst)}")
        if interface.counters.get("lost"):
            parts.append(f"LOST {interface.counters['lost']} windows")
    return printable("  ".join(parts))


# ---- the parts -----------------------------------------------------------------------------------------------


def _up(state: State) -> str:
    seconds = (state.now_ns - state.hello["mono_ns"]) // 10**9 if state.hello else 0
    return f"up {seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _head(state: State) -> list[str]:
    if state.hello is None:
        return ["agent: starting"]
    host = state.hello["host"]
    parts = [f"agent {state.hello['agent_version']} on {host['hostname']} ({host['kernel']})", _up(state)]
    if state.hello["observe"]:
        parts.append("observing only")
    if state.goodbye is not None:
        parts.append(f"ended: {state.goodbye['reason']}")
    if state.health is not None:
        health = state.health
        parts.append(f"cpu {health['cpu_percent']:.1f} %  rss {size(health['rss_bytes'])}")
    return [printable("   ".join(parts))]


def _trouble(state: State) -> Iterator[str]:
    refclock = state.refclock
    if refclock is not None:
        yield printable(("! " if refclock["trouble"] else "") + refclock_line(refclock))
    health = state.health
    if health is None:
        return
    if health["level"] != "full":
        yield printable(f"! degraded to {health['level']}: {health['reason']}")
    drops = [f"{name} {value}" for name, value in health["host_drops"].items() if value]
    if drops:
        yield printable(f"! drops on the host in the last {duration(health['span_ns'])}: {', '.join(drops)}")
    if health["tick_overruns"]:
        yield f"! {health['tick_overruns']} tick overruns, longest tick {duration(health['tick_max_ns'])}"
    for name, interface in state.interfaces.items():
        if lost := interface.counters.get("lost"):
            yield printable(f"! {name}: {lost} windows lost in full rings (--ring-kib makes them larger)")


def _aligned(pairs: list[dict[str, Any]]) -> Iterator[str]:
    for pair in pairs[:_PAIRS_SHOWN]:
        yield printable(aligned_line(pair))
    if len(pairs) > _PAIRS_SHOWN:
        yield f"{len(pairs) - _PAIRS_SHOWN} more pairs of clocks"


def _facts(interface: InterfaceState) -> list[str]:
    facts, counters, rates = interface.facts, interface.counters, interface.rates
    name = facts["ifname"]
    lines = [
        f"{name}   {facts.get('driver', '?')}, {facts.get('rx_queues', '?')} queues   hook {facts.get('hook', '?')}   "
        f"stamp {facts.get('stamp', '?')}   loader {facts.get('loader', '?')}"
    ]
    if counters:
        lines.append(
            f"  {count(rates.get('packets', 0))} packets/s   {count(8 * rates.get('bytes', 0), 'bit/s')}   "
            f"{count(rates.get('produced', 0))} windows/s   {counters.get('drained', 0)} drained, "
            f"{counters.get('lost', 0)} lost"
        )
    if interface.phc is not None:
        lines.append(f"  {phc_line(interface.phc)}")
    if interface.ptp is not None:
        lines.append(f"  {ptp_line(interface.ptp)}")
    clocks = list(interface.clocks.values())
    for clock in clocks[:_CLOCKS_SHOWN]:
        lines += _clock(clock)
    if len(clocks) > _CLOCKS_SHOWN:
        lines.append(f"  {len(clocks) - _CLOCKS_SHOWN} more clocks")
    return [printable(line) for line in lines]


def _clock(clock: dict[str, Any]) -> list[str]:
    reason = f" ({clock['reason']})" if clock["reason"] else ""
    lines = [f"  {clock_name(clock['kind'], clock['key'])}   {clock['state']}{reason}   {clock['timescale']}"]
    if clock["bound_ns"] is None:
        return lines
    bound = ppb(clock["drift_bound_ppb"]).lstrip("+")
    lines.append(
        f"    drift {ppb(clock['drift_raw_ppb'])} ± {bound} (raw)  {ppb(clock['drift_mono_ppb'])} (mono)  "
        f"kernel {ppb(clock['kernel_drift_ppb'])}   offset {exact(clock['offset_ns'])} ± {duration(clock['bound_ns'])}"
    )
    return lines


def _busiest(rows: list[dict[str, Any]]) -> list[str]:
    """The CPUs with the most softirq and interrupt time, in a line."""
    cpus = [
        f"cpu{row['cpu']} {sum(row['softirqs'].values()):.0%} softirq {row['irq']:.0%} irq"
        + (f", net_rx waits {duration(row['rx_wait_p99_ns'])}" if row["rx_wait_p99_ns"] else "")
        for row in rows
    ]
    return [f"busiest  {'   '.join(cpus)}"] if cpus else []


def _consumers(rows: list[dict[str, Any]]) -> list[str]:
    """A line for each consumer: what it waits for, and what it lost."""
    lines = []
    for row in rows:
        dropped = sum(row["dropped"].values())
        waits = f"waits p99 {duration(row['wait_p99_ns'])}" if row["read"] else "wait unknown"
        lines.append(
            f"consumer {row['name']} ({row['pid']})  {waits}  {dropped} dropped  {row['backlog_bytes']} B waiting"
        )
    return lines


def _delays(rows: list[dict[str, Any]], room: int, width: int) -> list[str]:
    """The header and as many rows as fit, those with the highest p99 first where not all do."""
    if not rows or room < 2:
        return []
    shown = sorted(rows, key=lambda row: row["p99_ns"] or 0.0, reverse=True)[: room - 1]
    shown.sort(key=lambda row: (row["where"], row["queue"], row["cpu"]))
    bars = width >= _NARROW
    lines = [f"  {'delay':<6} {'queue':>5} {'cpu':>4} {'packets':>8} {'p50':>8} {'p99':>8}"]
    if len(shown) < len(rows):
        lines[0] += f"   (the {len(shown)} worst of {len(rows)})"
    lines += [
        f"  {row['where']:<6} {row['queue']:>5} {row['cpu']:>4} {count(row['n']):>8} {duration(row['p50_ns']):>8} "
        f"{duration(row['p99_ns']):>8}" + (f"  {_bar(row['p50_ns'], row['p99_ns'])}" if bars else "")
        for row in shown
    ]
    return lines


def _bar(p50_ns: float | None, p99_ns: float | None) -> str:
    """p50 in full blocks and on to p99 in light ones, on a logarithmic scale over the histogram's range."""

    def blocks(value: float | None) -> int:
        share = math.log(max(value or 0.0, _BAR_FROM_NS) / _BAR_FROM_NS) / math.log(_BAR_TO_NS / _BAR_FROM_NS)
        return min(_BAR_WIDTH, round(share * _BAR_WIDTH))

    middle = blocks(p50_ns)
    return "█" * middle + "░" * max(0, blocks(p99_ns) - middle)


def _clip(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    return line[: width - 1] + "…" if width > 0 else ""


# ---- the painter ---------------------------------------------------------------------------------------------


class StatusView:
    """Shows frames on a terminal: an output of the loop, like a telemetry stream.

    Repaints in place at most four times a second, at the terminal's present size; where the terminal cannot
    (TERM=dumb), it writes one line a second. When it is closed, the last picture stays on the screen.
    """

    def __init__(
        self,
        fd: int,
        term: str | None = None,
        encoding: str | None = None,
        terminal_size: Callable[[int], os.terminal_size] = os.get_terminal_size,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is written before the first frame. `term` and `encoding` are by default the environment's."""
        self.state = State()
        self._fd = fd
        self._sink = Sink(fd, _VIEW_QUEUE_BYTES)
        self._plain = (os.environ.get("TERM", "") if term is None else term) in ("", "dumb")
        self._ascii = not (encoding or sys.stdout.encoding or "ascii").lower().startswith("utf")
        self._colour = not self._plain and "NO_COLOR" not in os.environ
        self._terminal_size = terminal_size
        self._clock = clock
        self._painted_at = -math.inf
        self._painted_size: os.terminal_size | None = None

    def put(self, frame: Frame, *, keep: bool = False) -> None:
        """Take a frame, and repaint if it is time."""
        self.state.take(frame)
        now = self._clock()
        period = _PLAIN_PERIOD_S if self._plain else _PAINT_PERIOD_S
        if keep or frame["t"] == "goodbye" or now - self._painted_at >= period:
            self._painted_at = now
            self._paint()

    @property
    def closed_reason(self) -> str | None:
        """Why the terminal takes nothing any more (it hung up)."""
        return self._sink.closed_reason

    def health(self) -> SinkHealth:
        """What became of the pictures."""
        return self._sink.health()

    def close(self, timeout_s: float = 1.0) -> bool:
        """Finish what is being painted; whether the terminal took all of it."""
        return self._sink.close(timeout_s)

    def _paint(self) -> None:
        if self._plain:
            self._write(one_line(self.state) + "\n")
            return
        now_size = self._size()
        columns, rows = max(now_size.columns, 1), max(now_size.lines, 2)
        text = ""
        if self._painted_size is None:
            text += "\n" * rows  # what was on the screen moves up instead of being overwritten
        if self._painted_size != now_size:
            text += "\x1b[2J"
            self._painted_size = now_size
        # One column and one row are left free, so that nothing wraps or scrolls.
        lines = render(self.state, columns - 1, rows - 1)
        body = "".join(f"{self._styled(index, line)}\x1b[K\r\n" for index, line in enumerate(lines))
        self._write(f"{text}\x1b[H{body}\x1b[J")

    def _size(self) -> os.terminal_size:
        try:
            size = self._terminal_size(self._fd)
        except OSError:
            return _UNKNOWN_SIZE
        # Serial consoles and fresh pseudo-terminals say 0 x 0.
        return size if size.columns and size.lines else _UNKNOWN_SIZE

    def _styled(self, index: int, line: str) -> str:
        if not self._colour or not (index == 0 or line.startswith("!")):
            return line
        return f"\x1b[{'1' if index == 0 else '1;33'}m{line}\x1b[0m"

    def _write(self, text: str) -> None:
        if self._ascii:
            self._sink.put(text.translate(_ASCII).encode("ascii", "replace"))
        else:
            self._sink.put(text.encode("utf-8", "replace"))
