"""The signals that end a run: held back from its start on, and taken between two ticks.

So nothing cuts the restoring short, a second Ctrl-C neither. SIGHUP is one of them, since a terminal that closes must
not leave the host changed; under `nohup`, which ignores it, it is none.
"""

from __future__ import annotations

import signal


def hold_end_signals() -> None:
    """Block them, to be waited for between the ticks; call it before anything heavy is imported.

    A thread inherits the mask of its maker. One that was made before (numpy's BLAS has some, unless told otherwise)
    would be given the signal, and the process would die of it without putting anything back.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, end_signals())


def signal_name(number: int) -> str:
    """The name of one that came."""
    return signal.Signals(number).name


def end_signals() -> frozenset[signal.Signals]:
    """Those that end the run."""
    hangup = set() if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else {signal.SIGHUP}
    return frozenset({signal.SIGINT, signal.SIGTERM} | hangup)
