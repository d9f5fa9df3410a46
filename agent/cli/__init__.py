"""The command line: one module a subcommand, errors said once, exit codes documented.

Exit codes: 0 done, 1 a fault in this program, 2 usage, 3 host unsupported, 4 conflict with
another owner, 5 partly done, 130 interrupted before the work began.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from agent import __version__
from agent.cli._refusals import explain
from agent.errors import AgentError, UsageError

# Subcommand -> its line in `agent --help`. Only the module of the chosen one is imported.
_COMMANDS = {
    "run": "measure, predict, tune and undo on one or more interfaces (the main job)",
    "plan": "show what `run` would change and why, changing nothing",
    "restore": "put back what a killed run left changed",
    "doctor": "check what this host can and cannot do, each with cause and remedy",
    "decode": "turn msgpack telemetry into JSON lines or readable text",
    "replay": "run the clock on a recording: states, tags, predictions, and how good they were",
    "exec": "start a program with its CPUs and memory on a NIC's NUMA node",
    "demo": "run the agent on a self-made testbed with a known true clock",
    "bpf": "verify, attach or detach the BPF programs by hand",
}

_EPILOG = """\
exit codes: 0 done, 2 usage, 3 host unsupported, 4 conflict with another owner, 5 partly done

examples:
  sudo agent doctor -i eth1                 what works here, what does not, what to do about it
  sudo agent run -i eth1 --observe          watch only
  sudo agent run -i eth1 | agent decode     tune, and read the telemetry as JSON lines
  sudo agent restore                        after a crash or SIGKILL: every setting back
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code; every expected failure is told on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        _occupy_standard_descriptors()
        args = _parser(arguments).parse_args(arguments)
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except AgentError as error:
        return _end(f"agent: {error}", error.exit_code)
    except KeyboardInterrupt:
        return _end("agent: interrupted", 130)
    except BrokenPipeError:
        # Our own stdout closed under us (`agent doctor | head`): nothing left to say to anybody.
        return _end("", 0)
    except (OSError, MemoryError) as error:
        refusal = explain(error)
        return _end(f"agent: {refusal}", refusal.exit_code)


def _end(said: str, code: int) -> int:
    """Say why it ends. What a stream does not take is let go: Python would fail on it at exit, with another code."""
    for stream, text in ((sys.stdout, ""), (sys.stderr, said)):
        try:
            if text:
                print(text, file=stream)
            stream.flush()
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(null, stream.fileno())
            os.close(null)
    return code


def _occupy_standard_descriptors() -> None:
    """See that descriptors 0 to 2 are open: else the next file that is opened, a journal say, gets what is printed.

    Raises `UsageError` where there is no standard output (`>&-`).
    """
    missing_stdout = sys.stdout is None
    while (fd := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    # `print` would take standard output for a missing standard error, and mix with the telemetry.
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    if missing_stdout:
        raise UsageError("standard output is closed", "leave it open, or redirect it to a file or /dev/null")


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="agent",
        description="eBPF-backed capture agent: stamps packets in the kernel, tracks the NIC's clock, predicts "
        "drift and capture delay, tunes IRQs and queues, measures whether it helped and undoes what did not.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"agent {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    chosen = next((word for word in arguments if word in _COMMANDS), None)
    for name, line in _COMMANDS.items():
        if name == chosen:
            importlib.import_module(f"agent.cli.{name}").add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=line)
    return parser
