"""What a container keeps from the agent: namespaces of its own, read-only trees, and what a manifest has to grant."""

from __future__ import annotations

from agent.doctor.check import Context, Finding, NotChecked, Table
from agent.doctor.mounts import mount_of, mounts
from agent.doctor.privileges import credentials
from agent.host.paths import HostPaths, read_text

# What `agent run` writes to, below proc and sys.
_WRITTEN = (("proc", "irq"), ("sys", "class/net"))
_CONTAINER_ROOTS = frozenset({"overlay", "fuse.fuse-overlayfs", "aufs"})
_KTHREADD = 2
_MANIFEST = (
    "Kubernetes: `hostNetwork: true`, `hostPID: true`, `securityContext: {privileged: true, runAsUser: 0}` (nothing "
    "less makes /proc/irq writable), and hostPath volumes for /sys/fs/bpf and /run/agent, or the journal is lost with "
    "the pod; Docker: `--privileged --network host --pid host -v /run/agent:/run/agent`"
)


def namespaces(context: Context) -> Finding:
    """The user, PID and network namespaces: in others than the host's, root is not root and much is not to be seen."""
    paths = context.paths
    if _own_user_namespace(paths):
        return Finding(
            "fail",
            "a user namespace of its own (a rootless container)",
            "capabilities count only inside it: the kernel loads no such BPF programs and takes no writes to /proc/irq",
            f"run as root of the host. {_MANIFEST}",
        )
    # The kernel's own threads are in the host's PID namespace only.
    own_pids = (
        read_text(paths.proc / "1/comm") is not None
        and read_text(paths.proc / f"{_KTHREADD}/comm") != "kthreadd"
    )
    missing = ["PID"] if own_pids else []
    if _is_container(paths) and not _has_hardware(paths):
        missing.append("network")
    if missing:
        lost = {
            "PID": "NAPI threads, consumers, irqbalance and PTP daemons of the host are not to be seen",
            "network": "the host's NICs are not in it",
        }
        return Finding(
            "warn",
            f"the host's {' and '.join(missing)} namespace is missing",
            "; ".join(lost[name] for name in missing),
            _MANIFEST,
        )
    return Finding(
        "ok", "in a container, with the host's namespaces" if _is_container(paths) else "the host's own"
    )


def writable_trees(context: Context) -> Finding:
    """/proc/irq and /sys/class/net mounted read-only, as containers and ProtectKernelTunables do."""
    table = mounts(context.paths)
    read_only = []
    for root, below in _WRITTEN:
        mount = mount_of(table, f"/{root}/{below}")
        if mount is not None and "ro" in mount.options:
            read_only.append(f"/{root}/{below}")
    if read_only:
        return Finding(
            "warn",
            f"mounted read-only: {', '.join(read_only)}",
            "settings there cannot be changed (EROFS): the agent can only observe",
            f"in a systemd unit ProtectKernelTunables=no; in a container: {_MANIFEST}",
        )
    return Finding("ok", "/proc/irq and /sys/class/net are mounted writable")


def irq_writes(context: Context) -> Finding:
    """Who may write /proc/irq: the owner of its files, root. No capability for raw I/O has to do with it."""
    who = credentials(context.paths)
    folklore = "CAP_SYS_RAWIO, which some guides name, is not looked at there"
    if _own_user_namespace(context.paths):
        return Finding(
            "warn",
            "root of a user namespace may not write /proc/irq/N/smp_affinity (EACCES)",
            f"the files belong to the host's root, and capabilities do not reach out of the namespace; {folklore}",
            "run as root of the host",
        )
    if who.uid == 0 or who.has("CAP_DAC_OVERRIDE"):
        if who.uid == 0:
            return Finding("ok", f"root owns the files: it may write them; {folklore}")
        return Finding("ok", f"CAP_DAC_OVERRIDE: it may write root's files; {folklore}")
    granted = "CAP_SYS_RAWIO is granted, but " if who.has("CAP_SYS_RAWIO") else ""
    return Finding(
        "warn",
        f"{granted}this process may not write /proc/irq/N/smp_affinity (EACCES)",
        "the kernel checks the files' owner and mode alone (root, 0644), and then that the interrupt may be moved; "
        "CAP_SYS_RAWIO doesn't allow it",
        "run as uid 0 or grant CAP_DAC_OVERRIDE (AmbientCapabilities= in a unit), and have /proc mounted writable",
    )


def cpu_limits(context: Context) -> Finding:
    """Which CPUs the agent itself may run on: a cpuset, or the unit's CPUAffinity=."""
    from agent.host.cpus import read_cpus
    from agent.host.masks import CpuMask

    allowed = CpuMask.parse_list(credentials(context.paths).fields.get("Cpus_allowed_list", "").strip())
    online = read_cpus(context.paths).online
    if not allowed:
        raise NotChecked("the kernel does not tell which CPUs are allowed")
    if online - allowed:
        return Finding(
            "info",
            f"this process may run on CPUs {allowed & online} of {online}",
            "it is a cpuset or CPUAffinity=: what the agent needs itself is taken from the work on these CPUs",
            "leave it, unless the consumer or the queues' interrupts are on these CPUs",
        )
    return Finding("ok", "every online CPU")


def _own_user_namespace(paths: HostPaths) -> bool:
    uid_map = (read_text(paths.proc / "self/uid_map") or "").split()
    return bool(uid_map) and uid_map != ["0", "0", "4294967295"]


def _is_container(paths: HostPaths) -> bool:
    root = mount_of(mounts(paths), "/")
    return root is not None and root.fstype in _CONTAINER_ROOTS


def _has_hardware(paths: HostPaths) -> bool:
    return any((entry / "device").exists() for entry in (paths.sys / "class/net").glob("*"))


CHECKS: Table = (
    ("namespaces", namespaces),
    ("writable /proc and /sys", writable_trees),
    ("writing /proc/irq", irq_writes),
    ("CPUs of the agent", cpu_limits),
)
