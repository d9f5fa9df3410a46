"""From errno and log to a cause."""

import errno
from pathlib import Path

import pytest

from agent.errors import AgentError, UnsupportedError
from agent.ffi.failures import ENOTSUPP, call_error, error_name, load_error, permission_cause, verifier_lines

_ALL_CAPS = (1 << 41) - 1

_LIBBPF_LOG = """libbpf: prog 'xdp_capture': BPF program load failed: Permission denied
libbpf: prog 'xdp_capture': -- BEGIN PROG LOAD LOG --
0: R1=ctx(off=0,imm=0) R10=fp0
1: (71) r0 = *(u8 *)(r1 +0)
R1 invalid mem access 'scalar'
processed 2 insns (limit 1000000) max_states_per_insn 0
-- END PROG LOAD LOG --
libbpf: failed to load object 'capture.bpf.o'
"""


def host(root: Path, caps: int, lockdown: str | None = None) -> tuple[Path, Path]:
    """A /proc and a /sys with these effective capabilities and this lockdown state."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/status").write_text(f"Name:\tx\nCapEff:\t{caps:016x}\n")
    (root / "sys/kernel/security").mkdir(parents=True)
    if lockdown:
        (root / "sys/kernel/security/lockdown").write_text(lockdown)
    return root / "proc", root / "sys"


def test_missing_capabilities_are_named(tmp_path: Path) -> None:
    """An ordinary user lacks all three."""
    cause, remedy = permission_cause(*host(tmp_path, 0))
    assert all(name in cause for name in ("CAP_BPF", "CAP_PERFMON", "CAP_NET_ADMIN"))
    assert "root" in remedy


def test_only_the_missing_ones_are_named(tmp_path: Path) -> None:
    """With CAP_BPF and CAP_NET_ADMIN granted, CAP_PERFMON is what is missing."""
    cause, _ = permission_cause(*host(tmp_path, 1 << 39 | 1 << 12))
    assert "CAP_PERFMON" in cause
    assert "CAP_BPF" not in cause


def test_lockdown_is_named(tmp_path: Path) -> None:
    """Root on a locked-down kernel: the mode is in the cause."""
    cause, _ = permission_cause(*host(tmp_path, _ALL_CAPS, "none integrity [confidentiality]\n"))
    assert "confidentiality" in cause


def test_a_sandbox_is_what_remains(tmp_path: Path) -> None:
    """Root without lockdown: somebody filters the system call."""
    cause, _ = permission_cause(*host(tmp_path, _ALL_CAPS, "[none] integrity confidentiality\n"))
    assert "seccomp" in cause


def test_the_verifier_comes_before_the_errno() -> None:
    """The verifier refuses with EACCES too: its words decide, not the errno."""
    error = load_error("load capture.bpf.o", -errno.EACCES, _LIBBPF_LOG)
    assert "invalid mem access 'scalar'" in error.what
    assert "CAP_" not in error.what
    assert error.log == _LIBBPF_LOG


def test_the_verifiers_lines_are_its_own() -> None:
    """libbpf's lines around the log are not part of it; a log without a verifier's has none."""
    lines = verifier_lines(_LIBBPF_LOG)
    assert lines[0].startswith("0: R1=ctx")
    assert lines[-1].startswith("processed 2 insns")
    assert verifier_lines("libbpf: elf: foo is not a valid eBPF object file\n") == []


def test_the_memlock_advice_is_dropped() -> None:
    """libbpf advises to raise RLIMIT_MEMLOCK on EPERM, which misleads since 5.11."""
    log = "libbpf: permission error while running as root; try raising 'ulimit -l' RLIMIT_MEMLOCK? current: 64\n"
    assert "MEMLOCK" not in str(load_error("create map x", -errno.EPERM, log))


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, -ENOTSUPP, errno.ENOSYS])
def test_what_the_kernel_cannot_do_is_unsupported(code: int) -> None:
    """Both kinds of not supported leave with exit code 3."""
    assert isinstance(call_error("do it", code), UnsupportedError)


def test_other_failures_name_the_errno() -> None:
    """An unforeseen errno is in the message by name."""
    error = call_error("read entry 4 of BPF map x", -errno.ENOENT)
    assert type(error) is AgentError
    assert "read entry 4 of BPF map x: ENOENT" in error.what
    assert error_name(524) == "ENOTSUPP (not supported)"


def test_too_many_open_files_are_not_blamed_on_the_verifier() -> None:
    """libbpf's log then ends with a program that passed."""
    error = load_error("load it", -errno.EMFILE, "-- BEGIN PROG LOAD LOG --\nprocessed 2 insns\n")
    assert "no more files" in error.what
    assert "LimitNOFILE" in error.remedy
