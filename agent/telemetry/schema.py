"""The telemetry stream's frames: what each field is, in one place.

A stream is a sequence of msgpack maps. These classes are the definition: the encoder builds them, the decoder
checks what it reads against them, and `docs/telemetry.md` explains them. Within a version, keys may be added but
never change their meaning, so a reader ignores keys and frame types that it does not know.

Every `*_ns` that is a moment or an offset is an integer; floats are figures with a spread (sigma, bound, quantile).
What is unknown or unbounded is nil, never NaN or infinity. `mono` is CLOCK_MONOTONIC of the capture host.
"""

from __future__ import annotations

from typing import TypedDict

TELEMETRY_VERSION = 1
MAGIC = "agent-telemetry"

# `magic` is the first key of the first frame, a map of at most 15 keys: so bytes 1 to 22 of any stream are these.
STREAM_MARK = b"\xa5magic\xaf" + MAGIC.encode()
STREAM_MARK_OFFSET = 1

# What the encoder keeps to and the decoder allows: a hostile length must not become an allocation.
MAX_FRAME_BYTES = 8 << 20
MAX_DATA_BYTES = 4 << 20
MAX_TEXT_BYTES = 64 << 10
MAX_ITEMS = 8192
MAX_DEPTH = 16
MAX_BATCH_RECORDS = 4096
MAX_DELAY_ROWS = 4096
MAX_IRQ_CPUS = 128


class Frame(TypedDict):
    """What every frame begins with."""

    v: int
    """TELEMETRY_VERSION."""
    t: str
    """The frame's type."""
    seq: int
    """Counts the frames of the stream from 0, dropped ones included: a gap is what the sink had to drop."""
    mono_ns: int
    """When the frame was made."""


class HostFacts(TypedDict):
    """The machine that captures."""

    hostname: str
    kernel: str
    machine: str
    boot_id: str
    """mono is comparable between two streams if this is the same in both."""


class InterfaceFacts(TypedDict):
    """How one interface is captured."""

    ifname: str
    ifindex: int
    driver: str
    rx_queues: int
    hook: str
    """`xdp`, `xdp-generic` or `tc`."""
    stamp: str
    """`xdp`, `skb`, `trailer` or `none`."""
    loader: str
    """`libbpf` or `bcc`."""
    reasons: list[str]
    """Why this hook and this stamp."""


class RecordLayout(TypedDict):
    """The window record as `numpy.dtype` takes it; nested fields have dotted names (`first.mono_ns`)."""

    names: list[str]
    formats: list[str]
    """numpy type strings with their byte order, such as `<u8`."""
    offsets: list[int]
    itemsize: int


class Hello(Frame):
    """`hello`: the first frame of a run; never dropped."""

    magic: str
    agent_version: str
    realtime_ns: int
    """CLOCK_REALTIME at `mono_ns`."""
    host: HostFacts
    interfaces: list[InterfaceFacts]
    window_ns: int
    tick_ns: int
    observe: bool
    """Nothing on the host is changed."""
    window_record: RecordLayout


class Windows(Frame):
    """`windows`: closed windows of one interface, in the order in which they were drained."""

    ifname: str
    n: int
    """Records in `data`."""
    data: bytes
    """`n` records, laid out as hello's `window_record` says."""


class SteeringItem(TypedDict):
    """What adjtimex(2) shows of how the kernel's clock is steered; `agent.ffi.clocks.Steering`."""

    freq_ppb: float
    tick_us: int
    offset_ns: int
    time_constant: int
    status: int
    max_error_us: int
    est_error_us: int
    tai_offset_s: int


class BurstItem(TypedDict):
    """One burst of PHC reads, each between two reads of a local clock."""

    method: str
    """`precise`, `extended` or `basic`."""
    local_clock: str
    """`raw` or `realtime`."""
    reads: bytes
    """`<i8` [3, n], ns: local clock before, PHC, local clock after."""
    pairs: bytes
    """As in `inputs`: the kernel's clocks around the burst."""


class PhcInput(TypedDict):
    """What a tick learnt of the PHC."""

    steered_ppb: float
    """How much another program changed its dialled frequency since the tick before."""
    burst: BurstItem | None
    """nil: no read was due, or the device refused."""


class Inputs(Frame):
    """`inputs`: what the clocks of one interface were fed in one tick, besides the `windows` before it.

    With the `change` frames, which tell them that packets go another way, this is all: `agent replay` feeds it again.
    """

    ifname: str
    base_delay_ns: int | None
    """The least delay of the packets' path as the user gave it; nil: not known."""
    pairs: bytes
    """`<i8` [7, n], ns: n instants on the kernel's clocks. Rows: mono, raw, realtime, tai; width of the bracket of
    mono, of realtime, of tai."""
    steering: SteeringItem
    phc: PhcInput | None
    """nil: no PHC stamps here."""
    announces: list[AnnounceItem]
    """PTP's Announce messages that passed."""


class AnnounceItem(TypedDict):
    """One PTP message as it was on the wire, from its header on."""

    mono_ns: int
    message: bytes


class TagItem(TypedDict):
    """A verdict about a clock."""

    kind: str
    """wrap, bounce, phase_step, tai_utc, freq_step, stale, missing, epoch_unset, outlier, path_change."""
    mono_ns: int
    size_ns: int
    cause: str


class ModelItem(TypedDict):
    """PHC time at mono, as the kernel computes it: phc0 + D + ((D * adj) >> shift), D = mono - mono0."""

    mono0_ns: int
    phc0_ns: int
    adj: int
    shift: int
    valid_until_mono_ns: int
    epoch: int


class PredictionItem(TypedDict):
    """The offset expected later."""

    horizon_s: float
    offset_ns: int
    sigma_ns: float | None
    p99_ns: float | None


class ClockFrame(Frame):
    """`clock`: the estimate of one hardware clock."""

    ifname: str
    key: int
    """CLOCK_KEY_PHC, or (device id << 8 | port id) of a trailer clock."""
    kind: str
    """`phc` or `trailer`."""
    state: str
    """`init`, `tracking`, `relative`, `holdover`, `software` or `invalid`."""
    reason: str
    """Why holdover, software or invalid."""
    timescale: str
    """What the hardware clock counts: `tai`, `utc`, `unset` (from 1970) or `unknown`."""
    offset_ns: int
    """mono - hardware. In state `relative` it includes the path's unknown base delay, which the bound covers."""
    sigma_ns: float | None
    bound_ns: float | None
    """p99 of |error of offset_ns|."""
    drift_mono_ppb: float
    """d(mono - hardware)/dt."""
    drift_raw_ppb: float
    """d(raw - hardware)/dt: the oscillators."""
    drift_sigma_ppb: float | None
    drift_bound_ppb: float | None
    kernel_drift_ppb: float | None
    """The in-kernel ladder's own figure, against mono."""
    kernel_drift_baseline_ns: int
    tags: list[TagItem]
    model: ModelItem | None
    """What the kernel uses from now on; nil: it has none."""
    predictions: list[PredictionItem]
    samples: int
    """Observations used since the clock was last reset."""


class PhcItem(TypedDict):
    """How one PTP hardware clock is read and steered."""

    ifname: str
    """The interface that it was found by; others may share it."""
    device: str
    method: str
    """How it is read and against which local clock (`extended against raw`); empty before the first reading."""
    pause_ns: int
    """How long it is left alone after its latest refusal; 0: it answers."""
    frequency_ppb: float | None
    """Dialled in by whoever steers it; positive: runs faster. nil: cannot be read."""
    max_adjustment_ppb: int
    """The most that can be dialled in."""


class SteeringFrame(Frame):
    """`steering`: what other programs dial into the clocks; it is taken out of the drifts of `clock` frames."""

    mono_frequency_ppb: float
    """Dialled into CLOCK_MONOTONIC and CLOCK_REALTIME (adjtimex): d(mono - raw)/dt."""
    mono_adjustments: int
    """How often it was found changed since the run began."""
    synchronised: bool
    """A daemon says that it keeps CLOCK_REALTIME right."""
    tai_utc_s: int
    """TAI - UTC as somebody told the kernel; 0: nobody did."""
    phcs: list[PhcItem]


class RefclockItem(TypedDict):
    """How a reference clock of chronyd is fed."""

    path: str
    """The socket of chronyd's SOCK driver."""
    ifname: str
    """The interface whose clock is fed."""
    trouble: str
    """Why the latest sample did not go out; empty: it did."""
    realtime_ns: int | None
    """CLOCK_REALTIME of the latest sample; nil: it did not go out."""
    ahead_ns: int | None
    """How far UTC by the hardware clock was ahead of CLOCK_REALTIME then."""
    bound_ns: float | None
    """p99 of its error."""
    max_error_ns: int
    """A sample with a larger bound is not sent."""
    sent: int
    refused: int
    """Samples that were not trusted."""
    failed: int
    """Samples that chronyd did not take."""


class RefclockFrame(Frame, RefclockItem):
    """`refclock`: how chronyd is fed; with `--refclock` only."""


class BatchItem(TypedDict):
    """A page of batch windows: what its consumers reported, and what they are given."""

    page: str
    max_wait_us: int | None
    """What was chosen; nil: nothing is known to choose by."""
    max_items: int | None
    valid_until_mono_ns: int
    """Until when consumers may go by it; 0: it is not published, and their defaults hold."""
    reason: str
    """Why it is not published."""
    consumers: int
    """Attached now."""
    batches: int
    """Reported since the start, and believed."""
    missed: int
    """Overwritten by a consumer before they were read."""
    refused: int
    """That cannot have been as reported."""
    items_per_s: float
    """Of all consumers of the page, over the latest 2 s."""
    expected_items_per_s: float
    """In the next tick, by the growth of the packets' rate."""
    service_base_ns: float | None
    """A batch of b items takes base + item * b."""
    service_item_ns: float | None
    service_sigma_ns: float | None
    delay_p99_ns: float | None
    """Of packets before they reach a consumer, of the interface with the largest."""
    predicted_p99_ns: float | None
    """From an item's arrival at its consumer until its batch is done."""
    predicted_mean_ns: float | None
    measured_items: int
    """Since the frame before."""
    measured_p99_ns: float | None
    measured_mean_ns: float | None
    target_p99_ns: int | None
    min_rate: float | None


class BatchFrame(Frame, BatchItem):
    """`batch`: a page of batch windows; with `--batch` only."""


class ClockName(TypedDict):
    """One of the clocks of `clock` frames."""

    ifname: str
    kind: str
    key: int


class AlignedPair(TypedDict):
    """How two hardware clocks stand to each other."""

    first: ClockName
    second: ClockName
    at_mono_ns: int
    """The instant of CLOCK_MONOTONIC that the offset is for."""
    valid: bool
    """Both clocks are trustworthy, and a second has passed since the last jump of either."""
    reason: str
    """Why it is not valid."""
    offset_ns: int
    """first - second."""
    sigma_ns: float | None
    bound_ns: float | None
    """p99 of |error of offset_ns|, unknown base delays included; the local clock's own error falls out."""
    drift_ppb: float
    """d(first - second)/dt: positive when the first gains."""
    drift_bound_ppb: float | None


class AlignmentFrame(Frame):
    """`alignment`: the hardware clocks of a run against each other; where there are two or more."""

    pairs: list[AlignedPair]
    omitted: int
    """Clocks that were not compared, beyond the first 12."""


class PtpMaster(TypedDict):
    """The PTP time source of a domain, by the Announces that pass on the wire."""

    domain: int
    grandmaster: str
    source: str
    """The port that announces it: clock identity and port number."""
    clock_class: int
    """6: locked to its reference, 7: in holdover, 52 and 187: degraded, 248: never had one."""
    steps_removed: int
    utc_offset_s: int | None
    """TAI - UTC as the grandmaster has it; nil: it doesn't know."""
    time_traceable: bool
    announce_interval_s: float


class PtpFrame(Frame):
    """`ptp`: PTP on the wire of one interface; where there is any."""

    ifname: str
    masters: list[PtpMaster]
    """Of each domain; empty: none is announced any more."""
    changes: int
    """Of a time source, since the run began. Each is noted in `health`, and named in the causes of jumps after it."""
    sync_mono_ns: int | None
    """When a Sync was last seen."""


class DelayRow(TypedDict):
    """Delay of the packets of one (queue, CPU) pair."""

    queue: int
    cpu: int
    where: str
    """`hook`: hardware stamp to the stamping hook; `stack`: on to the stack's entry, on the CPU that RPS chose
    (sampled packets; from the XDP hook where there is no clock model)."""
    n: int
    p50_ns: float | None
    p99_ns: float | None


class Delay(Frame):
    """`delay`: quantiles since the previous frame of this interface; the busiest pairs first."""

    ifname: str
    span_ns: int
    rows: list[DelayRow]
    omitted: int
    """Pairs beyond MAX_DELAY_ROWS that were left out."""


class IrqCpu(TypedDict):
    """Interrupts and softirqs of one CPU; shares are of its time."""

    cpu: int
    irq: float
    """In handlers of interrupts."""
    softirqs: dict[str, float]
    """By vector (`net_rx`, `timer`, …), less the interrupts that came in between."""
    rx_wait_p50_ns: float | None
    """From when NET_RX was raised to when it began."""
    rx_wait_p99_ns: float | None
    polls_per_s: float
    """Polls of NAPIs."""
    packets_per_poll: float
    exhausted: float
    """Share of the polls that used their whole budget: more was waiting."""


class IrqLine(TypedDict):
    """One interrupt of the captured interfaces."""

    irq: int
    per_s: float
    share: float
    """Of one CPU's time, in its handlers."""


class Irq(Frame):
    """`irq`: where the CPUs' time in interrupts and softirqs went since the previous frame; the busiest first."""

    span_ns: int
    cpus: list[IrqCpu]
    irqs: list[IrqLine]
    omitted: int
    """CPUs beyond MAX_IRQ_CPUS that were left out."""


class ConsumerRow(TypedDict):
    """One consumer's process; what was dropped and read is of the span, the rest is now."""

    pid: int
    name: str
    read: int
    """Packets that it read and whose wait is known."""
    undated: int
    wait_p50_ns: float | None
    """From the stack's entry until it read them."""
    wait_p99_ns: float | None
    sockets: int
    """Of kinds that are told of: UDP, AF_PACKET, AF_XDP."""
    backlog_bytes: int
    dropped: dict[str, int]
    """By cause: `udp`, `packet`, `xdp_full`, `xdp_no_frame`, `xdp_other`."""


class ConsumerFrame(Frame):
    """`consumer`: what reached the programs that the packets are for, since the previous frame."""

    span_ns: int
    consumers: list[ConsumerRow]
    queues_full: int


# `from` is a keyword of Python.
PlannedChange = TypedDict(
    "PlannedChange", {"actuator": str, "target": str, "queues": list[int], "from": str, "to": str}
)
"""One setting that a plan wants: values as the kernel's file shows them, and the receive queues that it serves."""


class Plan(Frame):
    """`plan`: what the controller wants, or decided not to do."""

    ifname: str
    plan: int
    """Numbers the plans of this run; change and effect frames refer to it."""
    decided_by: str
    reason: str
    applied: bool
    """False: only said (`--observe`, or the gain is below the threshold)."""
    now_p99_ns: float | None
    predicted_p99_ns: float | None
    changes: list[PlannedChange]
    cause: str
    """What the CPUs that serve these queues are busy with; empty where that is not traced."""


_ChangeValues = TypedDict("_ChangeValues", {"from": str, "to": str})


class Change(Frame, _ChangeValues):
    """`change`: one setting was written, or refused."""

    ifname: str
    plan: int
    actuator: str
    target: str
    queues: list[int]
    outcome: str
    """`applied`, `refused`, `rolled_back` or `restored`."""
    read_back: str
    reason: str


class DelayFigures(TypedDict):
    """Delay over a span; the interval covers the p99 with about 95 %."""

    n: int
    p50_ns: float | None
    p99_ns: float | None
    p99_low_ns: float | None
    p99_high_ns: float | None


class Effect(Frame):
    """`effect`: what a plan came to, measured."""

    ifname: str
    plan: int
    outcome: str
    """`kept`, `rolled_back` or `undecided`."""
    reason: str
    before: DelayFigures
    after: DelayFigures
    predicted_p99_ns: float | None
    lost_before: int
    """Packets lost anywhere on the host, in the span that `before` is of."""
    lost_after: int


class Conflict(Frame):
    """`conflict`: somebody else changed a setting of ours; it is left to them for a while."""

    ifname: str
    target: str
    expected: str
    found: str
    owner: str
    """Who it probably is; empty where nobody is known."""


class InterfaceHealth(TypedDict):
    """One interface since the run began."""

    ifname: str
    hook: str
    stamp: str
    """What is in force now."""
    counters: dict[str, int]
    """The kernel's counters (`struct cpu_counters`), summed over the CPUs; and `drained`.
    produced = drained + lost + what is still in the rings."""


class SinkHealth(TypedDict):
    """This stream's own losses since it began."""

    written_frames: int
    written_bytes: int
    dropped_frames: int
    dropped_bytes: int
    queued_bytes: int


class HostDrops(TypedDict):
    """Packets lost on the host since the previous health frame, by whomever."""

    softnet: int
    socket: int
    interface: int
    ring: int
    """By the sockets of the consumers that were named: AF_PACKET, AF_XDP."""
    tcp_out_of_order: int


class Health(Frame):
    """`health`: is the agent keeping up, and is the host."""

    span_ns: int
    """Since the previous one."""
    level: str
    """`full`, `sampled`, `frozen` or `safe`: the degrade ladder."""
    reason: str
    """Why not `full`."""
    cpu_percent: float
    """Of one core, this process."""
    rss_bytes: int
    tick_overruns: int
    """Ticks since the start that took longer than their period."""
    tick_max_ns: int
    """The longest tick of the span."""
    interfaces: list[InterfaceHealth]
    host_drops: HostDrops
    sink: SinkHealth
    notes: list[str]
    """What was decided or noticed since the previous one, for people."""


class RestoredItem(TypedDict):
    """One setting at the end."""

    target: str
    outcome: str
    reason: str


class Goodbye(Frame):
    """`goodbye`: the last frame of a run that ended by itself; after it, nothing is in flight."""

    reason: str
    exit_code: int
    interfaces: list[InterfaceHealth]
    """produced = drained + lost holds exactly here."""
    restored: list[RestoredItem]
    sink: SinkHealth


FRAME_TYPES: dict[str, type[Frame]] = {
    "hello": Hello,
    "windows": Windows,
    "inputs": Inputs,
    "clock": ClockFrame,
    "alignment": AlignmentFrame,
    "steering": SteeringFrame,
    "refclock": RefclockFrame,
    "batch": BatchFrame,
    "ptp": PtpFrame,
    "delay": Delay,
    "irq": Irq,
    "consumer": ConsumerFrame,
    "plan": Plan,
    "change": Change,
    "effect": Effect,
    "conflict": Conflict,
    "health": Health,
    "goodbye": Goodbye,
}
"""Every frame of this version by its `t`."""
