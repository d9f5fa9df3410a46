"""What the running kernel has of what the agent can use."""

from __future__ import annotations

from agent.doctor.check import Context, Finding, NotChecked, Severity, Table
from agent.host.paths import read_int

_OLDEST = (5, 10)
_PROGRAMS_SINCE = (5, 18)
_FEATURES = {
    (6, 3): "XDP metadata (--stamp xdp) and the list of a device's XDP features",
    (6, 6): "TCX links (detach by themselves; before, a journaled clsact filter)",
    (6, 12): "PHC reads against CLOCK_MONOTONIC_RAW",
}
_LOOPBACK = 1


def version(context: Context) -> Finding:
    """The version, and what came later than it."""
    if context.kernel < _OLDEST:
        return Finding(
            "fail",
            f"{context.kernel_release} is older than 5.10",
            "BPF_PROG_RUN on a chosen CPU, by which idle windows are closed, came with 5.10",
            "use Linux 5.18 or newer; 6.6 or newer has all that matters",
        )
    if context.kernel < _PROGRAMS_SINCE:
        return Finding(
            "warn",
            f"{context.kernel_release} lacks, by its number, what the programs are made of: the skb's hardware stamp "
            "(5.16), bpf_loop (5.17) and XDP with fragments (5.18)",
            "they load only where the distribution has taken these back: `programs`, below, tries it",
            "use Linux 5.18 or newer; 6.6 or newer has all that matters",
        )
    later = [
        f"{'.'.join(map(str, since))}: {what}" for since, what in _FEATURES.items() if context.kernel < since
    ]
    if not later:
        return Finding("ok", f"{context.kernel_release} has everything the agent can use")
    severity: Severity = "info" if context.kernel >= (6, 6) else "warn"
    return Finding(
        severity,
        f"{context.kernel_release} lacks, by its number: {'; '.join(later)}",
        "the agent does without, and says so where it matters; distribution kernels may have them all the same",
        "use Linux 6.12 or newer for all of them",
    )


def btf(context: Context) -> Finding:
    """The kernel's own type information, which the prebuilt programs are fitted to."""
    if (context.paths.sys / "kernel/btf/vmlinux").exists():
        return Finding("ok", "/sys/kernel/btf/vmlinux is there")
    return Finding(
        "warn",
        "the kernel has no BTF (/sys/kernel/btf/vmlinux is missing)",
        "the prebuilt programs (--loader libbpf) cannot be loaded; BCC compiles them here instead, at 130 MB",
        "use a kernel with CONFIG_DEBUG_INFO_BTF=y, or --loader bcc",
    )


def jit(context: Context) -> Finding:
    """The BPF compiler: without it every packet costs several times as much."""
    enabled = read_int(context.paths.proc / "sys/net/core/bpf_jit_enable")
    if enabled is None:
        raise NotChecked("net.core.bpf_jit_enable cannot be read")
    if not enabled:
        return Finding(
            "warn",
            "the BPF JIT is off (net.core.bpf_jit_enable = 0)",
            "programs are interpreted: several times the cost per packet",
            "`sysctl net.core.bpf_jit_enable=1`",
        )
    if read_int(context.paths.proc / "sys/net/core/bpf_jit_harden") == 2:
        return Finding(
            "info",
            "the JIT is on, hardened for root too (net.core.bpf_jit_harden = 2)",
            "constants are blinded: somewhat more cost per packet",
            "`sysctl net.core.bpf_jit_harden=1` where root is trusted",
        )
    return Finding("ok", "on")


def tcx(context: Context) -> Finding:
    """Asked of the kernel itself: distributions backport it."""
    context.need_root()
    from agent.errors import UnsupportedError
    from agent.ffi.attach import tcx_programs

    try:
        tcx_programs(_LOOPBACK, "ingress")
    except UnsupportedError as error:
        return Finding(
            "info",
            f"not usable: {error.what}",
            "tc programs are attached by a clsact filter, which outlives a killed agent until `agent restore`",
            error.remedy,
        )
    return Finding("ok", "tc programs are attached by links, which the kernel detaches when the agent dies")


def programs(context: Context) -> Finding:
    """Load the capture programs through this kernel's verifier, attached to nothing, and free them again."""
    context.need_root()
    from agent.errors import AgentError
    from agent.ffi.bpf import ProgramSet, load, prog_info

    try:
        with load("auto", ProgramSet("capture")) as loaded:
            infos = [prog_info(fd) for fd in loaded.programs.values()]
    except AgentError as error:
        return Finding("fail", error.what, "without its programs the agent sees no packets", error.remedy)
    interpreted = [info.name for info in infos if not info.jited_len]
    sizes = ", ".join(f"{info.name} {info.verified_insns}" for info in infos)
    if interpreted:
        return Finding(
            "warn",
            f"loaded, but interpreted: {', '.join(interpreted)}",
            "the JIT refused them: several times the cost per packet",
            "`sysctl net.core.bpf_jit_enable=1`; net.core.bpf_jit_limit may be exhausted",
        )
    return Finding("ok", f"load and verify here ({sizes} instructions walked)")


def tracepoints(context: Context) -> Finding:
    """Attach to the interrupt and softirq tracepoints for a moment: they tell why a queue is slow."""
    context.need_root()
    from agent.errors import AgentError
    from agent.irqtrace import IrqTrace

    try:
        with IrqTrace(cpu_count=1, irqs=()):
            pass
    except AgentError as error:
        return Finding(
            "info",
            f"not usable: {error.what}",
            "plans and telemetry do not say what the CPUs are busy with; all else works",
            error.remedy,
        )
    return Finding("ok", "interrupts, softirqs and NAPI polls can be traced")


CHECKS: Table = (
    ("version", version),
    ("BTF", btf),
    ("JIT", jit),
    ("TCX", tcx),
    ("programs", programs),
    ("tracepoints", tracepoints),
)
