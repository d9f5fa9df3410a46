"""What `agent run` and `agent plan` are asked to do: flags, a TOML file, defaults, in that order."""

from __future__ import annotations

import argparse
import os
import pwd
import re
import tomllib
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TypeVar, cast

from agent.batch.layout import DEFAULT_PAGE, page_path
from agent.errors import UsageError

_T = TypeVar("_T")

STAMPS = ("auto", "xdp", "skb", "trailer", "none")
HOOKS = ("auto", "xdp", "xdp-generic", "tc")
LOADERS = ("auto", "libbpf", "bcc")
SCALES = ("realtime", "tai")

WINDOW_MIN_NS = 100_000
WINDOW_MAX_NS = 1_000_000_000

_DURATION = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*(ns|us|µs|ms|s|m|h)")
_BASE_DELAY_MAX_NS = 1_000_000_000
# The most that one ioctl a tick can do: 25 reads, five times a second.
_PHC_READS_MAX = 125
# sun_path of sockaddr_un, with its terminating NUL (unix(7)).
_SOCKET_PATH_MAX = 107
BASE_DELAY_NEEDED = (
    "--refclock needs a known base delay where stamps come from trailers: their clock is known only up to what the "
    "path adds at the least, and chronyd would be off by that"
)
BASE_DELAY_REMEDY = "measure the wire-to-hook delay of an idle packet and give it with --base-delay-ns"
_CONFIG_MAX_BYTES = 1 << 20
_UNIT_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "ms": 1_000_000,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}


@dataclass(frozen=True, slots=True)
class BatchPage:
    """A page of batch windows, and what they are for: the least latency, unless a target leaves room for more."""

    name: str
    target_p99_ns: int | None = None
    min_rate: float | None = None
    """Items a second that a consumer must be able to serve."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """One run's settings, checked. Durations are in the unit that the name says."""

    interfaces: tuple[str, ...]
    netns: str | None = None
    seconds: float | None = None
    window_ns: int = 1_000_000
    observe: bool = False
    stamp: str = "auto"
    hook: str = "auto"
    loader: str = "auto"
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    consumers: tuple[str, ...] = ()
    pin_consumer: bool = False
    membind: bool = False
    own: bool = False
    allow_reset: bool = False
    base_delay_ns: int | None = None
    phc_reads_per_s: int = 100
    refclock: Path | None = None
    refclock_max_error_ns: int = 10_000
    rewrite_timestamps: str | None = None
    batch: tuple[BatchPage, ...] = ()
    batch_users: tuple[int, ...] = (0,)
    ring_kib: int | None = None
    tick_ms: int = 200
    state_dir: Path = Path("/run/agent")


def add_run_arguments(parser: argparse.ArgumentParser, seconds: str = "run until SIGINT") -> None:
    """Declare the flags that `run` and `plan` share; `seconds` is the default of `--seconds`, in words."""
    add_capture_arguments(parser)
    parser.add_argument(
        "--seconds", type=float, metavar="N", help=f"end by itself after N seconds (default: {seconds})"
    )
    act = parser.add_argument_group("what may be changed")
    act.add_argument("--observe", action="store_true", default=None, help="change nothing on the host")
    act.add_argument(
        "--allow",
        type=_names,
        action="extend",
        metavar="NAME[,NAME]",
        help="actuators to allow beyond the default (irq, rps, xps, napi): coalesce",
    )
    act.add_argument(
        "--deny", type=_names, action="extend", metavar="NAME[,NAME]", help="actuators never to use"
    )
    act.add_argument(
        "--consumer",
        dest="consumers",
        action="append",
        metavar="PID|NAME",
        help="a program that the packets are for: the plan keeps them off CPUs that its threads are bound to; repeat",
    )
    act.add_argument(
        "--pin-consumer",
        action="store_true",
        default=None,
        help="move the consumers' threads too: off the CPUs that process packets, onto the NIC's NUMA node",
    )
    act.add_argument(
        "--membind",
        action="store_true",
        default=None,
        help="take the agent's own memory from the first interface's NUMA node (a consumer's: `agent exec --numa IF`)",
    )
    act.add_argument(
        "--own",
        action="store_true",
        default=None,
        help="ask a running irqbalance to leave the interfaces' interrupts to the agent; it gets them back at the end",
    )
    act.add_argument("--state-dir", type=Path, metavar="DIR", help="journal and locks (default /run/agent)")


def add_refclock_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of feeding other programs with the time, which `run` alone does."""
    feed = parser.add_argument_group("whom to tell the time")
    feed.add_argument(
        "--refclock",
        type=_refclock,
        metavar="chrony:SOCK",
        help="feed the first interface's hardware clock to chronyd, whose `refclock SOCK` driver listens there",
    )
    feed.add_argument(
        "--refclock-max-error",
        dest="refclock_max_error_ns",
        type=_max_error,
        metavar="TIME",
        help="send no sample whose p99 bound is above this, 100ns to 100ms (default 10us)",
    )


def add_rewrite_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flag of receive timestamps for unmodified applications, which `run` alone writes."""
    parser.add_argument(
        "--rewrite-timestamps",
        choices=SCALES,
        help="what SO_TIMESTAMP and SO_TIMESTAMPNS show is made of the hardware clock, in this time scale (realtime: "
        "UTC); packets with a hardware stamp show that, others the clock's time when they passed tc ingress",
    )


def add_batch_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of serving consumers with batch windows, which `run` alone does."""
    batch = parser.add_argument_group("consumers that work in batches")
    batch.add_argument(
        "--batch",
        dest="batch_names",
        nargs="?",
        const=DEFAULT_PAGE,
        action="append",
        metavar="PAGE",
        help="work out how long consumers should wait for a batch, and of how many items, and publish it with the "
        "clocks on a page in the state directory; repeat for several pages",
    )
    batch.add_argument(
        "--target-p99",
        dest="target_p99_ns",
        type=_target_p99,
        metavar="TIME",
        help="keep the latency up to the end of a batch below this, 100us to 10s, with as few batches as that takes "
        "(default: the least latency)",
    )
    batch.add_argument(
        "--min-rate",
        type=_min_rate,
        metavar="N",
        help="items a second that a consumer has to be able to serve in batches of the published size",
    )
    batch.add_argument(
        "--batch-user",
        dest="batch_users",
        type=_user,
        action="append",
        metavar="USER",
        help="whose consumers may report what their batches took, besides root's; repeat for several",
    )


def add_capture_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of everything that captures. Every default is None, so that the file can fill in."""
    where = parser.add_argument_group("what to watch")
    where.add_argument(
        "-i",
        "--interface",
        dest="interfaces",
        action="append",
        metavar="IF",
        help="interface to capture on; repeat for several (a bond or VLAN is resolved to its leaves)",
    )
    where.add_argument("--netns", metavar="NAME", help="network namespace that the interfaces are in")
    where.add_argument(
        "--window",
        dest="window_ns",
        type=_window,
        metavar="TIME",
        help="span of one in-kernel aggregate, 100us to 1s (default 1ms)",
    )
    how = parser.add_argument_group("how to measure")
    how.add_argument("--stamp", choices=STAMPS, help="where the hardware stamp comes from (default auto)")
    how.add_argument(
        "--hook",
        choices=HOOKS,
        help="where packets are seen; auto takes native XDP only where attaching does not reset the NIC",
    )
    how.add_argument(
        "--allow-reset",
        action="store_true",
        default=None,
        help="native XDP also where the driver resets its rings or the link on attach",
    )
    how.add_argument(
        "--loader",
        choices=LOADERS,
        help="libbpf: prebuilt objects; bcc: compiled here, for kernels without BTF",
    )
    how.add_argument(
        "--base-delay-ns",
        type=whole_base_delay_ns,
        metavar="NS",
        help="known wire-to-hook delay of an idle packet; without a PHC only the delay above it is known",
    )
    how.add_argument(
        "--phc-reads-per-s",
        type=_phc_reads_per_s,
        metavar="N",
        help=f"budget of reads of each PTP hardware clock, 1 to {_PHC_READS_MAX} (default 100)",
    )
    how.add_argument(
        "--ring-kib",
        type=_ring_kib,
        metavar="KIB",
        help="perf ring per CPU, a power of two (default: room for two ticks of windows)",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE.toml", help="the same settings from a file; flags win over it"
    )


def read_options(args: argparse.Namespace) -> RunOptions:
    """The checked options of parsed flags and the file that `--config` names. Raises `UsageError`."""
    values: dict[str, object] = {}
    if args.config is not None:
        values |= _from_file(args.config)
    for field in fields(RunOptions):
        given = getattr(args, field.name, None)
        if given is not None:
            values[field.name] = tuple(given) if isinstance(given, list) else given
    values["batch"] = _batch_pages(values.get("batch", ()), args)
    values["batch_users"] = (0, *cast(tuple[int, ...], values.get("batch_users", ())))
    interfaces = values.get("interfaces")
    if not interfaces:
        raise UsageError("no interface named", 'give one with -i IF, or `interfaces = ["IF"]` in the file')
    options = replace(RunOptions(interfaces=()), **values)  # type: ignore[arg-type]
    _check(options)
    return options


def require_root(command: str) -> None:
    """Raise `UnsupportedError` unless this process may load BPF programs."""
    from agent.errors import UnsupportedError

    if os.geteuid() != 0:
        raise UnsupportedError(
            f"`agent {command}` needs root: it loads BPF programs and reads per-CPU perf rings",
            f"run `sudo agent {command} …`; in a container, run as root and grant CAP_BPF, CAP_PERFMON, "
            "CAP_NET_ADMIN and CAP_SYS_ADMIN",
        )


def parse_duration_ns(text: str) -> int:
    """A duration such as `1ms`, `250us`, `1.5s` in integer ns. Raises `ValueError`."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no duration; write 500us, 1ms, 1s")
    return round(float(match[1]) * _UNIT_NS[match[2]])


def _check(options: RunOptions) -> None:
    if len(set(options.interfaces)) != len(options.interfaces):
        raise UsageError("an interface is named twice", "name each once")
    for name in options.interfaces:
        # As the kernel's dev_valid_name() has it.
        if name in ("", ".", "..") or len(os.fsencode(name)) > 15 or re.search(r"[/:\s]", name):
            raise UsageError(f"{name!r} cannot be an interface name", "`ip link` lists them")
        if re.search("[\ud800-\udfff]", name):  # how bytes that are no text reach us
            raise UsageError(
                f"the interface name {name!r} is not UTF-8", "rename it: telemetry has text only"
            )
    if options.seconds is not None and not 0 < options.seconds < 1e9:
        raise UsageError(
            f"--seconds {options.seconds}: must be above 0 and below 1e9", "leave it out to run until SIGINT"
        )
    if not WINDOW_MIN_NS <= options.window_ns <= WINDOW_MAX_NS:
        raise UsageError(f"window of {options.window_ns} ns", "choose 100us to 1s")
    for choice, known, flag in (
        (options.stamp, STAMPS, "stamp"),
        (options.hook, HOOKS, "hook"),
        (options.loader, LOADERS, "loader"),
    ):
        if choice not in known:
            raise UsageError(f"{flag} {choice!r} is not known", f"choose one of {', '.join(known)}")
    if options.pin_consumer and not options.consumers:
        raise UsageError("--pin-consumer names nobody to move", "name the programs with --consumer PID|NAME")
    if options.own and (options.observe or "irq" in options.deny):
        raise UsageError(
            "--own takes interrupts that the agent is not to move",
            "leave out --own, or --observe and --deny irq",
        )
    if any(not word.strip() for word in options.consumers):
        raise UsageError("--consumer is empty", "name a process id, or a program")
    if options.stamp == "xdp" and options.hook == "tc":
        raise UsageError(
            "--stamp xdp needs the XDP hook, --hook tc was asked for", "use --stamp skb with --hook tc"
        )
    if options.stamp == "skb" and options.hook in ("xdp", "xdp-generic"):
        raise UsageError(
            "--stamp skb is read at tc ingress, --hook xdp was asked for", "use --hook tc, or --stamp xdp"
        )
    if options.refclock is not None and options.stamp == "none":
        raise UsageError(
            "--refclock has no clock to feed: --stamp none takes no hardware stamps",
            "use another stamp source",
        )
    if options.refclock is not None and options.stamp == "trailer" and options.base_delay_ns is None:
        raise UsageError(BASE_DELAY_NEEDED, BASE_DELAY_REMEDY)
    if options.rewrite_timestamps is not None:
        _check_rewrite(options)
    for page in options.batch:
        try:
            page_path(options.state_dir, page.name)
        except ValueError as error:
            raise UsageError(f"--batch: {error}", "choose another name for the page") from error
    if len({page.name for page in options.batch}) != len(options.batch):
        raise UsageError("a page of batch windows is named twice", "name each once")
    if options.stamp == "xdp" and options.loader == "bcc":
        raise UsageError(
            "--stamp xdp cannot be loaded by BCC: it resolves no kernel functions (kfuncs)",
            "use --loader libbpf, or --stamp skb",
        )


def _check_rewrite(options: RunOptions) -> None:
    if options.rewrite_timestamps not in SCALES:
        raise UsageError(
            f"rewrite_timestamps {options.rewrite_timestamps!r} is not known",
            f"choose one of {', '.join(SCALES)}",
        )
    if options.observe:
        raise UsageError(
            "--rewrite-timestamps changes what applications see, --observe changes nothing",
            "leave out one of them",
        )
    if options.stamp in ("none", "xdp") or options.hook in ("xdp", "xdp-generic"):
        raise UsageError(
            "--rewrite-timestamps writes at tc ingress, by the stamps that are seen there",
            "use --stamp skb, trailer or auto, and --hook tc or auto",
        )


def _from_file(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            data = file.read(_CONFIG_MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "check the path of --config") from error
    if len(data) > _CONFIG_MAX_BYTES:
        raise UsageError(f"{path} is larger than a configuration can be", "check the path of --config")
    try:
        table = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}", "see docs/configuration.md") from error
    values: dict[str, object] = {}
    for key, value in table.items():
        name, checked = _entry(path, key, value)
        if name in values:
            raise UsageError(f"{path}: {key!r} is given twice, with - and with _", "give it once")
        values[name] = checked
    return values


# Key in the file -> (field, how a value is checked). Unknown keys are refused: a typo must not be ignored.
def _entry(path: Path, key: str, value: object) -> tuple[str, object]:
    name = key.replace("-", "_")
    try:
        if name in ("interfaces", "allow", "deny", "consumers"):
            items = [value] if isinstance(value, str) else value
            if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
                raise ValueError("must be a list of names")
            return name, tuple(_text(item) for item in items)
        if name == "window":
            return "window_ns", parse_duration_ns(_text(value))
        if name in ("netns", "stamp", "hook", "loader", "rewrite_timestamps"):
            return name, _text(value)
        if name == "state_dir":
            return name, Path(_text(value))
        if name in ("observe", "allow_reset", "pin_consumer", "membind", "own"):
            return name, _typed(value, bool)
        if name == "seconds":
            return name, value if isinstance(value, float) else float(_typed(value, int, "a number"))
        if name == "base_delay_ns":
            return name, whole_base_delay_ns(str(_typed(value, int)))
        if name == "phc_reads_per_s":
            return name, _phc_reads_per_s(str(_typed(value, int)))
        if name == "refclock":
            return name, _refclock(_text(value))
        if name == "refclock_max_error":
            return "refclock_max_error_ns", _max_error(_text(value))
        if name == "batch":
            return name, _batch_tables(_typed(value, dict))
        if name == "batch_users":
            return name, tuple(_user(_text(user)) for user in _typed(value, list))
        if name == "ring_kib":
            return name, _ring_kib(str(_typed(value, int)))
    except (ValueError, OverflowError, argparse.ArgumentTypeError) as error:
        raise UsageError(f"{path}: {key} = {value!r}: {error}", "see docs/configuration.md") from error
    raise UsageError(
        f"{path}: unknown setting {key!r}", "see docs/configuration.md for the settings there are"
    )


def _batch_tables(tables: dict[str, object]) -> tuple[BatchPage, ...]:
    """`[batch.PAGE]` tables, each with its own goals."""
    pages = []
    for page, table in tables.items():
        goals: dict[str, object] = {}
        for key, value in _typed(table, dict).items():
            name = key.replace("-", "_")
            if name == "target_p99":
                goals["target_p99_ns"] = _target_p99(_text(value))
            elif name == "min_rate":
                goals[name] = _min_rate(str(value if isinstance(value, float) else _typed(value, int)))
            else:
                raise ValueError(f"unknown setting {key!r} of page {page!r}")
        pages.append(BatchPage(page, **goals))  # type: ignore[arg-type]
    return tuple(pages)


def _batch_pages(from_file: object, args: argparse.Namespace) -> tuple[BatchPage, ...]:
    """The pages of the file, or those that flags name; goals given by flags are those of every page."""
    names = getattr(args, "batch_names", None)
    pages = cast(tuple[BatchPage, ...], from_file) if names is None else tuple(map(BatchPage, names))
    goals = {name: getattr(args, name, None) for name in ("target_p99_ns", "min_rate")}
    given = {name: value for name, value in goals.items() if value is not None}
    if given and not pages:
        raise UsageError("--target-p99 and --min-rate are goals of batch windows", "give --batch, too")
    return tuple(replace(page, **given) for page in pages)


_CALLED: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    str: "a text in quotes",
    list: "a list",
    dict: "a table",
}


def _typed(value: object, kind: type[_T], called: str = "") -> _T:
    # bool is an int to Python, but `seconds = true` is a mistake.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"must be {called or _CALLED[kind]}")
    return value


def _text(value: object) -> str:
    text = _typed(value, str)
    if "\0" in text:
        raise ValueError("has a NUL character, which no name has")
    return text


def _window(text: str) -> int:
    try:
        return parse_duration_ns(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _whole_number(text: str) -> int:
    # int() takes underscores and digits of other scripts too, and refuses thousands of digits in its own words.
    if re.fullmatch(r"-?[0-9]{1,15}", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at most 15 digits")
    return int(text)


def whole_base_delay_ns(text: str) -> int:
    """Read the least delay of a path as argparse wants it: whole nanoseconds, up to a second."""
    number = _whole_number(text)
    if not 0 <= number <= _BASE_DELAY_MAX_NS:
        raise argparse.ArgumentTypeError(f"must be from 0 to {_BASE_DELAY_MAX_NS} (1 s)")
    return number


def _phc_reads_per_s(text: str) -> int:
    number = _whole_number(text)
    if not 1 <= number <= _PHC_READS_MAX:
        raise argparse.ArgumentTypeError(
            f"must be from 1 to {_PHC_READS_MAX}: some devices stop answering above"
        )
    return number


def _refclock(text: str) -> Path:
    driver, _, path = text.partition(":")
    if driver != "chrony":
        raise argparse.ArgumentTypeError(
            "write chrony:/path/of/the/socket, as in chrony.conf's `refclock SOCK`"
        )
    # chrony.conf splits at blanks, and the driver's parameter at colons.
    if not path.startswith("/") or re.search(r"[\s:]", path) or len(os.fsencode(path)) > _SOCKET_PATH_MAX:
        raise argparse.ArgumentTypeError(
            f"the socket's path must begin with /, have no blank or colon and at most {_SOCKET_PATH_MAX} bytes"
        )
    return Path(path)


def _max_error(text: str) -> int:
    number = _window(text)
    if not 100 <= number <= 100_000_000:
        raise argparse.ArgumentTypeError("must be from 100ns to 100ms")
    return number


def _target_p99(text: str) -> int:
    number = _window(text)
    if not 100_000 <= number <= 10_000_000_000:
        raise argparse.ArgumentTypeError("must be from 100us to 10s")
    return number


def _min_rate(text: str) -> float:
    try:
        number = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of items a second") from error
    if not 0.0 < number <= 1e9:
        raise argparse.ArgumentTypeError("must be above 0 and at most 1e9 items a second")
    return number


def _user(text: str) -> int:
    if re.fullmatch(r"[0-9]{1,10}", text):
        return int(text)
    try:
        return pwd.getpwnam(text).pw_uid
    except KeyError as error:
        raise argparse.ArgumentTypeError(f"there is no user {text!r} on this host") from error


def _ring_kib(text: str) -> int:
    number = _whole_number(text)
    if number < 4 or number > 65536 or number & (number - 1):
        raise argparse.ArgumentTypeError("must be a power of two from 4 to 65536")
    return number
