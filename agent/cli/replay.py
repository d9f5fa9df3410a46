"""`agent replay`: the clock on a recording, offline."""

from __future__ import annotations

import argparse
import os
import sys
from math import isfinite
from typing import TYPE_CHECKING

from agent.errors import PartialError, UsageError
from agent.options import whole_base_delay_ns

if TYPE_CHECKING:
    from agent.replay.plot import Plot
    from agent.replay.samples import Forecasting

_HORIZONS = "0.001,0.01,0.1,1,10,60"
_MAX_HORIZON_S = 86_400

_EPILOG = """\
FILE is one of
  CSV         header local_ns,hw_ns,read_delay_ns (and if wanted seq,hw_seq,hw_clock), integers, empty = missing;
              a first line `# local=realtime` where the local clock isn't CLOCK_MONOTONIC_RAW
  telemetry   what `agent run` wrote: the same clocks are fed the same inputs and give the same states
  pcap(ng)    nanosecond captures whose frames carry a switch's time stamp: Arista 7130 (Metamako) and Cisco Nexus 3550
              (Exablaze) trailers, Arista 7280 (0xD28B) headers

exit codes: 0 replayed to the end; 2 the file or an option can't be used (the line or packet is named); 3 the weights
of lstm are damaged; 5 the file breaks off or is damaged: what came before is replayed and summed up

examples:
  agent replay phc.csv                          errors of each expert at each horizon, tags, stability
  agent replay phc.csv --json | jq -c 'select(.tag and .tag != "missing") | [.i, .tag, .cause]'
  agent replay phc.csv --horizons 1,30 --experts hold,alr,kalman3 --plot phc.png
  agent run -i eth1 > run.telemetry; agent replay run.telemetry --json
  zcat phc.csv.gz | agent replay -

docs/replay.md has every field.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "replay",
        help="run the clock on a recording: states, tags, predictions, and how good they were",
        description="Feed a recording to the clock that runs live, and tell what it made of every sample: offset, "
        "drift, bound, state, tag, predictions. A prediction made at a sample uses that one and earlier ones only; "
        "at the end each is held against what was measured later.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE", help="the recording; - reads standard input")
    parser.add_argument(
        "--json", action="store_true", help="one JSON object a sample, then one with the summary"
    )
    parser.add_argument(
        "--horizons",
        metavar="S,S,…",
        default=_HORIZONS,
        help=f"how far to predict, in s (default {_HORIZONS})",
    )
    parser.add_argument(
        "--experts",
        metavar="E,E,…",
        help="which experts take part (default: all but lstm; an unknown one lists them)",
    )
    parser.add_argument(
        "--base-delay-ns",
        type=whole_base_delay_ns,
        metavar="N",
        help="captures: the least delay of the packets' path, if it is known (telemetry has it recorded)",
    )
    parser.add_argument(
        "--plot", metavar="FILE.png", help="draw offset, prediction errors with bounds, and tags"
    )
    parser.add_argument(
        "--progress", action="store_true", help="tell the progress on stderr, terminal or not"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Replay the file, tell the rows and the summary; 0, or the exit code of what was wrong with it."""
    # Each BLAS thread would reserve memory; the clock's matrices are small.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from agent.replay.jsonlines import RowWriter, summary_line
    from agent.replay.progress import Progress
    from agent.replay.recording import open_file, open_replay
    from agent.replay.session import Session
    from agent.replay.table import table

    plot = _plot(args.plot)
    forecasting = _forecasting(args)
    broken: PartialError | None = None
    with open_file(args.file) as file:
        replay = open_replay(file, args.file, forecasting, args.base_delay_ns)
        session = Session(replay, plot)
        writer = RowWriter(names_clocks=replay.names_clocks) if args.json else None
        progress = Progress(file, wanted=args.progress)
        write = sys.stdout.write
        try:
            for row in session.rows():
                if writer is not None:
                    write(writer.line(row, replay.horizons_s(row.clock)) + "\n")
                progress.step()
        except PartialError as error:
            broken = error
        finally:
            progress.close()
    clocks = session.summaries()
    if args.json:
        print(summary_line({"file": args.file, **replay.facts()}, clocks))
    else:
        print(
            "\n\n".join("\n".join(table(clock)) for clock in clocks)
            or "no clock: no packet of it carried a stamp"
        )
    if plot is not None:
        plot.draw(args.file)
    if broken is not None:
        raise broken
    return 0


def _plot(name: str | None) -> Plot | None:
    if name is None:
        return None
    from agent.replay.plot import Plot

    return Plot(name)


def _forecasting(args: argparse.Namespace) -> Forecasting:
    from agent.clock.forecast import STANDARD_EXPERTS, Mixture
    from agent.replay.samples import Forecasting

    try:
        horizons = tuple(float(text) for text in args.horizons.split(","))
    except ValueError:
        raise UsageError(
            f"--horizons {args.horizons}: not numbers", f"give seconds, such as {_HORIZONS}"
        ) from None
    if not all(isfinite(h) and 1e-9 <= h <= _MAX_HORIZON_S for h in horizons):
        raise UsageError(
            f"--horizons {args.horizons}: outside 1 ns … {_MAX_HORIZON_S} s",
            f"give seconds, such as {_HORIZONS}",
        )
    if len({f"{h:g}" for h in horizons}) < len(horizons):
        raise UsageError(
            f"--horizons {args.horizons}: some are alike in six digits, by which they are named",
            "give each once, ascending",
        )
    experts = STANDARD_EXPERTS if args.experts is None else tuple(args.experts.split(","))
    try:
        Mixture(horizons, experts)
    except ValueError as error:
        raise UsageError(str(error), "see `agent replay --help`") from None
    return Forecasting(horizons, experts)
