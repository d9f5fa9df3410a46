"""What the system refuses anywhere in a command, such as memory or a descriptor, as an error for the user."""

from __future__ import annotations

import errno
import resource
from pathlib import Path

from agent.errors import AgentError, PartialError, UnsupportedError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def explain(error: OSError | MemoryError, proc: Path = Path("/proc")) -> AgentError:
    """The error that a refusal means, which nobody on the way could name better."""
    if isinstance(error, MemoryError) or error.errno == errno.ENOMEM:
        return UnsupportedError(
            "there is not enough memory", "free some, or raise the limit (`ulimit -v`, the unit's MemoryMax=)"
        )
    if error.errno in (errno.EMFILE, errno.ENFILE):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        return UnsupportedError(
            f"no more files can be opened (limit: {limit})",
            "raise the hard limit (`ulimit -Hn`, the unit's LimitNOFILE=): each CPU takes one an interface",
        )
    if not (proc / "self").exists():
        return UnsupportedError(f"{proc} is not mounted", "`mount -t proc proc /proc`")
    # Whoever writes a file of ours says so himself: what is left is what we print.
    if error.errno in _FULL and error.filename is None:
        return PartialError(
            f"standard output cannot be written: {error.strerror}; what was done stays done",
            "see that the disk has room, or write elsewhere",
        )
    return AgentError(f"a system call failed: {error}", "`agent doctor` may know why; else please report it")
