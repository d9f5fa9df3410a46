"""`agent decode`: a telemetry stream as JSON lines, or as one readable line a frame on a terminal."""

from __future__ import annotations

import argparse
import os
import signal
import stat
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

from agent.errors import UsageError

if TYPE_CHECKING:
    from agent.telemetry.decode import Decoder

_READ_BYTES = 64 << 10
_FOLLOW_PERIOD_S = 0.2

_EPILOG = """\
exit codes: 0 decoded to the end; 2 not a telemetry stream, or of a newer version; 5 the stream is truncated or
damaged: what came before that was given

examples:
  sudo agent run -i eth1 | agent decode                     JSON lines, or readable on a terminal
  agent decode run.telemetry --json | jq 'select(.t=="clock") | .drift_raw_ppb'
  agent decode run.telemetry --windows full --json          one line for each window
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare `agent decode`."""
    parser = subparsers.add_parser(
        "decode",
        help="turn msgpack telemetry into JSON lines or readable text",
        description="Decode the msgpack stream that `agent run` writes: JSON lines into a pipe or a file, "
        "one readable line a frame on a terminal. docs/telemetry.md explains every field.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="the stream (default, or -: standard input)")
    parser.add_argument("--json", action="store_true", help="JSON lines on a terminal too")
    parser.add_argument(
        "--windows",
        choices=("summary", "full", "none"),
        default="summary",
        help="a batch of windows as one line of sums (default), as one line a window (JSON only), or not at all",
    )
    parser.add_argument(
        "--follow", action="store_true", help="wait for more at the end of FILE, until the run's goodbye"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Decode to the end of the input; 0, or the exit code of what was wrong with it."""
    from agent.telemetry.decode import Decoder

    from_stdin = args.file in (None, "-")
    if args.follow and from_stdin:
        raise UsageError("--follow needs a FILE", "a pipe is followed to its end anyway")
    as_json = args.json or args.windows == "full" or not sys.stdout.isatty()
    decoder = Decoder()
    fd = _open(args.file)
    try:
        portions = _portions(fd, decoder, follow=args.follow, patient=from_stdin)
        _print_frames(decoder, portions, as_json, args.windows)
    finally:
        if not from_stdin:
            os.close(fd)
    decoder.finish()
    _say_what_is_missing(decoder)
    return 0


def _print_frames(decoder: Decoder, portions: Iterator[bytes], as_json: bool, detail: str) -> None:
    from agent.telemetry.jsonlines import to_lines
    from agent.telemetry.readable import Readable

    readable = Readable()
    write, flush = sys.stdout.write, sys.stdout.flush
    for portion in portions:
        for frame in decoder.feed(portion):
            if frame["t"] == "windows" and detail == "none":
                continue
            # What `agent replay` needs; nobody reads it.
            if frame["t"] == "inputs" and not as_json:
                continue
            records = decoder.records(frame) if frame["t"] == "windows" else None
            if as_json:
                for line in to_lines(frame, records, detail):  # type: ignore[arg-type]
                    write(line + "\n")
            else:
                write(readable.line(frame, records) + "\n")
            # Whoever reads us sees a frame when it came, not when a buffer is full.
            flush()


def _open(name: str | None) -> int:
    if name is None or name == "-":
        fd = sys.stdin.fileno()
        if os.isatty(fd):
            raise UsageError(
                "standard input is a terminal, there is nothing to decode",
                "name a FILE, or pipe: `agent run -i IF | agent decode`",
            )
        return fd
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror}", "check the path") from error
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        os.close(fd)
        raise UsageError(f"{name} is a directory", "name the file that the telemetry was written to")
    return fd


def _portions(fd: int, decoder: Decoder, *, follow: bool, patient: bool) -> Iterator[bytes]:
    """What is read from `fd`, until its end; with `follow`, until the run's goodbye."""
    with _Interrupts(patient=patient):
        while True:
            try:
                portion = os.read(fd, _READ_BYTES)
            except OSError as error:
                raise UsageError(
                    f"cannot read the stream on: {error.strerror}", "check the disk, or copy what can be read"
                ) from error
            if portion:
                yield portion
            elif not follow or decoder.complete:
                return
            else:
                time.sleep(_FOLLOW_PERIOD_S)


class _Interrupts:
    """Ctrl-C goes to a whole pipeline. The agent in it ends cleanly and says goodbye, which is to be decoded too.

    So a patient reader takes the first SIGINT for the writer's, and the second for its own.
    """

    def __init__(self, *, patient: bool) -> None:
        self._patient = patient

    def __enter__(self) -> None:
        if self._patient:
            self._before = signal.signal(signal.SIGINT, self._first)

    def __exit__(self, *_: object) -> None:
        if self._patient:
            signal.signal(signal.SIGINT, self._before)

    @staticmethod
    def _first(_signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _say_what_is_missing(decoder: Decoder) -> None:
    if decoder.missing_frames:
        print(
            f"agent: {decoder.missing_frames} frames are missing: the agent dropped them, its reader was too slow",
            file=sys.stderr,
        )
    if not decoder.complete:
        print(
            "agent: the stream ends without a goodbye: the run was killed, or is not over yet",
            file=sys.stderr,
        )
