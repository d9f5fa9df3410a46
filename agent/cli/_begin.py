"""What every command that captures does first."""

from __future__ import annotations

import argparse
import os
import resource

from agent.host.rtnl import require_answers
from agent.options import RunOptions, read_options, require_root


def begin(args: argparse.Namespace, command: str) -> RunOptions:
    """Check the options and the privilege, and enter the network namespace that the options name.

    Call it before anything heavy is imported and before any thread is started. Raises `UsageError` and
    `UnsupportedError`.
    """
    options = read_options(args)
    require_root(command)
    # Each BLAS thread would reserve memory; the agent's matrices are small.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # A ring takes a descriptor for each CPU and interface: the usual soft limit of 1024 is too low for large hosts.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if options.netns is not None:
        from agent.ffi.netns import enter_netns

        enter_netns(options.netns)
    require_answers()
    return options
