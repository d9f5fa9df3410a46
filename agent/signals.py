"""The signals that end a run: held back from its start on, and taken between two ticks.

So nothing cuts the restoring short, a second Ctrl-C neither. SIGHUP is one of them, since a terminal that closes must
not leave the host changed; under `nohup`, which ignores it, it is none.
"""

from __future__ import annotations

import signal


def hold_end_signals() -> None:
    """Block them for `wait_for_end_signal`; call it before anything heavy is imported.

    A thread inherits the mask of its maker. One that was made before (numpy's BLAS has some, unless told otherwise)
    would be given the signal, and the process would die of it without putting anything back.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _end_signals())


def wait_for_end_signal(timeout_s: float) -> str | None:
    """The name of the one that came, waited for at most so long; None if none did."""
    caught = signal.sigtimedwait(_end_signals(), timeout_s)
    return None if caught is None else signal.Signals(caught.si_signo).name


def _end_signals() -> set[signal.Signals]:
    hangup = set() if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else {signal.SIGHUP}
    return {signal.SIGINT, signal.SIGTERM} | hangup
