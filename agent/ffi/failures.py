"""Turns an errno of bpf(2), perf_event_open(2) and friends into an error that names the cause.

The kernel says EPERM for a missing privilege, for lockdown and for a seccomp filter alike, and libbpf then advises to
raise RLIMIT_MEMLOCK, which has not mattered since 5.11. So the cause is looked up instead of repeated.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from agent.errors import AgentError, UnsupportedError
from agent.ffi import _native

ENOTSUPP = 524  # the kernel's internal "not supported", which leaks out of bpf(2)

_CAPABILITIES = {12: "CAP_NET_ADMIN", 38: "CAP_PERFMON", 39: "CAP_BPF"}
_CAP_SYS_ADMIN = 21
_LOG_LINES = 12


class LoadError(UnsupportedError):
    """The kernel refused a program or a map; `log` is all that libbpf and the verifier said."""

    def __init__(self, what: str, remedy: str, log: str) -> None:
        super().__init__(what, remedy)
        self.log = log


class NativeLog:
    """What libbpf prints in this thread between entering and reading `text`."""

    def __enter__(self) -> NativeLog:
        # Each time: BCC shares libbpf in this process and puts its own callback in.
        _native.lib.agent_log_install()
        _native.lib.agent_log_clear()
        return self

    def __exit__(self, *_: object) -> None:
        _native.lib.agent_log_clear()

    @property
    def text(self) -> str:
        """All messages so far, newest kept when there were more than 16 MiB."""
        return str(_native.ffi.string(_native.lib.agent_log_text()).decode(errors="replace"))


def error_name(code: int) -> str:
    """`EINVAL (Invalid argument)`, from a positive or negative errno."""
    code = abs(code)
    name = "ENOTSUPP" if code == ENOTSUPP else errno.errorcode.get(code, f"errno {code}")
    return f"{name} ({os.strerror(code)})" if code != ENOTSUPP else "ENOTSUPP (not supported)"


def permission_cause(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> tuple[str, str]:
    """Why this process is refused with EPERM or EACCES, and what helps: (cause, remedy)."""
    effective = 0
    for line in (proc / "self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            effective = int(line.split()[1], 16)
    if not effective >> _CAP_SYS_ADMIN & 1:
        missing = [name for bit, name in _CAPABILITIES.items() if not effective >> bit & 1]
        if missing:
            return f"this process lacks {', '.join(missing)}", "run as root, or grant these capabilities"
    lockdown = sys / "kernel/security/lockdown"
    if lockdown.exists():
        mode = lockdown.read_text().partition("[")[2].partition("]")[0]
        if mode not in ("", "none"):
            return f"the kernel is locked down ({mode})", "boot with lockdown=none or without Secure Boot"
    return (
        "a seccomp filter, an LSM or the container forbids it although the capabilities are there",
        "allow bpf() and perf_event_open() in the container's or unit's profile",
    )


def verifier_lines(log: str) -> list[str]:
    """The last lines of the verifier's own log within libbpf's output (or of a bare verifier log)."""
    begin, end = "-- BEGIN PROG LOAD LOG --", "-- END PROG LOAD LOG --"
    if begin in log:
        log = log.rpartition(begin)[2].partition(end)[0]
    elif "processed " not in log:
        return []
    return [line for line in log.splitlines() if line.strip()][-_LOG_LINES:]


def _libbpf_lines(log: str) -> list[str]:
    lines = [line.removeprefix("libbpf: ") for line in log.splitlines() if line.startswith("libbpf: ")]
    # It advises to raise the memlock limit on every EPERM, which misleads since 5.11.
    return [line for line in lines if "PROG LOAD LOG" not in line and "RLIMIT_MEMLOCK" not in line]


def load_error(action: str, code: int, log: str = "") -> LoadError:
    """The error for a failed load: `action` is what was being done, `code` the errno, `log` libbpf's messages."""
    code = abs(code)
    if code in (errno.EMFILE, errno.ENFILE):
        # libbpf's log ends with a program that passed, which isn't the cause.
        return LoadError(
            f"cannot {action}: no more files can be opened",
            "raise the hard limit (`ulimit -Hn`, LimitNOFILE=)",
            log,
        )
    verifier = verifier_lines(log)
    if verifier:
        return LoadError(
            f"cannot {action}: the verifier refused the program:\n    " + "\n    ".join(verifier),
            "this kernel's verifier is stricter than the tested ones: try --loader bcc or --hook tc, and report it",
            log,
        )
    if code in (errno.EPERM, errno.EACCES):
        cause, remedy = permission_cause()
        return LoadError(f"cannot {action}: {cause}", remedy, log)
    said = _libbpf_lines(log)[-4:]
    detail = ":\n    " + "\n    ".join(said) if said else ""
    if code == errno.ENOMEM:
        return LoadError(f"cannot {action}: out of memory{detail}", "use smaller rings or fewer slots", log)
    return LoadError(f"cannot {action}: {error_name(code)}{detail}", "see `agent doctor`", log)


def call_error(action: str, code: int) -> AgentError:
    """The error for a failed call on a loaded object (map access, test run, query)."""
    code = abs(code)
    if code in (errno.EPERM, errno.EACCES):
        cause, remedy = permission_cause()
        return UnsupportedError(f"cannot {action}: {cause}", remedy)
    if code in (errno.EOPNOTSUPP, ENOTSUPP, errno.ENOSYS):
        return UnsupportedError(f"cannot {action}: {error_name(code)}", "use a newer kernel")
    return AgentError(f"cannot {action}: {error_name(code)}")
