"""Settings from flags and TOML: precedence, strictness, ranges."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from agent.errors import UsageError
from agent.options import (
    BatchPage,
    RunOptions,
    add_batch_arguments,
    add_refclock_arguments,
    add_rewrite_arguments,
    add_run_arguments,
    parse_duration_ns,
    read_options,
)


def _options(*flags: str) -> RunOptions:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_run_arguments(parser)
    add_refclock_arguments(parser)
    add_batch_arguments(parser)
    add_rewrite_arguments(parser)
    return read_options(parser.parse_args(flags))


@pytest.mark.parametrize(
    ("text", "expected_ns"),
    [("1ms", 1_000_000), ("100us", 100_000), ("1.5s", 1_500_000_000), ("7ns", 7)],
)
def test_durations_are_integer_ns(text: str, expected_ns: int) -> None:
    """A duration with any known unit becomes integer nanoseconds."""
    assert parse_duration_ns(text) == expected_ns


@pytest.mark.parametrize("text", ["", "2", "ms", "-1ms", "1 parsec", "1e3ms", "nan"])
def test_a_malformed_duration_is_refused(text: str) -> None:
    """What is no duration raises instead of becoming a default."""
    with pytest.raises(ValueError, match="no duration"):
        parse_duration_ns(text)


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    """A flag overrides the same setting of the file; the rest of the file stays."""
    file = tmp_path / "agent.toml"
    file.write_text('interfaces = ["eth7"]\nwindow = "2ms"\nstamp = "skb"\nhook = "tc"\n')
    options = _options("--config", str(file), "--window", "5ms")
    assert (options.interfaces, options.window_ns, options.stamp) == (("eth7",), 5_000_000, "skb")


@pytest.mark.parametrize(
    "line",
    [
        'intrefaces = ["eth1"]',
        'window = "2h"',
        "window = 5",
        "observe = 1",
        "seconds = true",
        "seconds = -1",
        "base_delay_ns = -5",
        "phc_reads_per_s = 0",
        "phc_reads_per_s = 126",
        'refclock = "ntpd:/run/x.sock"',
        'refclock = "chrony:run/x.sock"',
        'refclock = "chrony:/run/a b.sock"',
        'refclock_max_error = "1ns"',
        "rewrite_timestamps = 'utc'",
        "rewrite_timestamps = 'tai'\nobserve = true",
        "rewrite_timestamps = 'tai'\nstamp = 'none'",
        "rewrite_timestamps = 'tai'\nhook = 'xdp'",
        "batch = true",
        "batch = ['default']",
        "[batch.'../x']",
        "[batch.default]\ntarget_p99 = '10us'",
        "[batch.default]\ntarget = '10ms'",
        "[batch.default]\nmin_rate = 0",
        "[batch.default]\nmin_rate = inf",
        "[batch.default]\nmin_rate = nan",
        "[batch.default]\ntarget_p99 = '0s'",
        "[batch.default]\ntarget_p99 = '11s'",
        "batch_users = 'root'",
        "batch_users = ['no such user']",
        'refclock = "chrony:/run/x.sock"\nstamp = "none"',
        'refclock = "chrony:/run/x.sock"\nstamp = "trailer"',
        "ring_kib = 3",
        'stamp = "gps"',
        "allow = [1]",
        "interfaces = [",
        'interfaces = ["../../etc"]',
        'interfaces = ["eth1", "eth1"]',
    ],
)
def test_a_bad_setting_in_the_file_is_refused(tmp_path: Path, line: str) -> None:
    """Unknown keys, wrong types and values out of range end with a usage error that names the file or value."""
    file = tmp_path / "agent.toml"
    file.write_text(("" if line.startswith("interfaces") else 'interfaces = ["eth1"]\n') + line + "\n")
    with pytest.raises(UsageError):
        _options("--config", str(file))


def test_a_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    """A configuration file that is not there is named."""
    with pytest.raises(UsageError, match=r"nowhere\.toml"):
        _options("-i", "eth1", "--config", str(tmp_path / "nowhere.toml"))


def test_no_interface_is_a_usage_error() -> None:
    """Without an interface there is nothing to do, and the remedy says how to name one."""
    with pytest.raises(UsageError, match="no interface"):
        _options("--observe")


@pytest.mark.parametrize(
    "flags",
    [
        ("--stamp", "xdp", "--hook", "tc"),
        ("--stamp", "skb", "--hook", "xdp"),
        ("--stamp", "xdp", "--loader", "bcc"),
    ],
)
def test_contradictions_are_refused(flags: tuple[str, ...]) -> None:
    """A stamp that the chosen hook or loader cannot deliver is refused before anything is loaded."""
    with pytest.raises(UsageError):
        _options("-i", "eth1", *flags)


def test_lists_accumulate() -> None:
    """`--allow` and `--deny` take several names, by comma and by repetition."""
    options = _options("-i", "eth1", "--deny", "irq,rps", "--deny", "xps")
    assert options.deny == ("irq", "rps", "xps")


@pytest.mark.parametrize(
    "text",
    [
        "interfaces = " + "[" * 3000 + "]" * 3000,
        "seconds = 1" + "0" * 5000,
        "seconds = 1" + "0" * 400,
        'interfaces = "v\\u0000"',
        'netns = "a\\u0000b"',
        'window = "' + "9" * 5000 + 's"',
        "base_delay_ns = 10000000000",
        'state-dir = "x"\nstate_dir = "y"',
        "#" * (1 << 21),
    ],
    ids=["nested", "digits", "float", "nul", "nul-netns", "window", "base-delay", "twice", "huge"],
)
def test_hostile_files_are_usage_errors(tmp_path: Path, text: str) -> None:
    """Whatever is in the file, what is wrong with it is said in one sentence."""
    path = tmp_path / "agent.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"agent\.toml"):
        _options("-i", "eth1", "--config", str(path))


@pytest.mark.parametrize("name", ["v0\n", "v 0", "v0:1", "\u540d" * 6, "x" * 16])
def test_what_the_kernel_takes_for_no_name_is_refused(name: str) -> None:
    """Blanks, colons, and more than 15 bytes."""
    with pytest.raises(UsageError, match="cannot be an interface name"):
        _options("-i", name)


def test_a_name_that_is_no_text_is_refused() -> None:
    """The kernel takes any bytes; telemetry and journal have text only."""
    with pytest.raises(UsageError, match="not UTF-8"):
        _options("-i", "v\udcff")


def test_a_refclock_is_a_socket_of_chrony() -> None:
    """Flag and file say the same; the error limit is a duration."""
    options = _options("-i", "eth1", "--refclock", "chrony:/run/a.sock", "--refclock-max-error", "3us")
    assert (options.refclock, options.refclock_max_error_ns) == (Path("/run/a.sock"), 3_000)


def test_a_socket_path_longer_than_the_kernel_takes_is_refused() -> None:
    """sun_path has 108 bytes, one of them the end."""
    _options("-i", "eth1", "--refclock", "chrony:/" + "x" * 106)
    with pytest.raises(argparse.ArgumentError, match="107 bytes"):
        _options("-i", "eth1", "--refclock", "chrony:/" + "x" * 107)


def test_consumers_come_from_flags_and_file(tmp_path: Path) -> None:
    """A list in the file, a flag a consumer; moving them needs one to be named."""
    path = tmp_path / "agent.toml"
    path.write_text('consumers = ["feed", "42"]\npin_consumer = true\nmembind = true\n')
    options = _options("-i", "eth1", "--config", str(path))
    assert (options.consumers, options.pin_consumer, options.membind) == (("feed", "42"), True, True)
    assert _options("-i", "eth1", "--consumer", "a", "--consumer", "b").consumers == ("a", "b")
    with pytest.raises(UsageError, match="names nobody"):
        _options("-i", "eth1", "--pin-consumer")


def test_interrupts_that_may_not_be_moved_are_not_asked_for() -> None:
    """They would be nobody's."""
    assert _options("-i", "eth1", "--own").own
    for others in (["--observe"], ["--deny", "irq"]):
        with pytest.raises(UsageError, match="--own"):
            _options("-i", "eth1", "--own", *others)


def test_batch_pages_have_goals() -> None:
    """Flags name pages, `default` without a name; goals are those of every page, and root may report."""
    options = _options(
        "-i", "eth1", "--batch", "--batch", "left", "--target-p99", "9ms", "--min-rate", "1200"
    )
    assert options.batch == (
        BatchPage("default", 9_000_000, 1_200.0),
        BatchPage("left", 9_000_000, 1_200.0),
    )
    assert options.batch_users == (0,)
    assert _options("-i", "eth1").batch == ()


def test_batch_pages_of_the_file_have_their_own_goals(tmp_path: Path) -> None:
    """A table a page; a goal given by a flag is every page's, a page named by a flag replaces them all."""
    file = tmp_path / "agent.toml"
    text = "batch_users = ['0', '12']\n[batch.fast]\ntarget_p99 = '5ms'\n[batch.slow]\nmin_rate = 10\n"
    file.write_text(f"interfaces = ['eth1']\n{text}")
    flags = ("--config", str(file))
    options = _options(*flags)
    assert options.batch == (BatchPage("fast", 5_000_000, None), BatchPage("slow", None, 10.0))
    assert options.batch_users == (0, 0, 12)
    both = _options(*flags, "--target-p99", "1ms").batch
    assert both == (BatchPage("fast", 1_000_000, None), BatchPage("slow", 1_000_000, 10.0))
    assert _options(*flags, "--batch").batch == (BatchPage("default"),)


@pytest.mark.parametrize(
    "flags",
    [
        ("--target-p99", "9ms"),
        ("--min-rate", "10"),
        ("--batch", "--batch", "default"),
        ("--batch", "a/b"),
    ],
)
def test_batch_flags_that_make_no_sense_are_refused(flags: tuple[str, ...]) -> None:
    """Goals of nothing, a page named twice, a name that leaves the directory."""
    with pytest.raises(UsageError):
        _options("-i", "eth1", *flags)
