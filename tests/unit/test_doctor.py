"""The doctor's checks on file trees in the shape of real hosts, and its report."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest

from agent.doctor import (
    Check,
    Context,
    Finding,
    NotChecked,
    check,
    clocks,
    container,
    cpus,
    interface,
    kernel,
    loaders,
    network,
    privileges,
    spreading,
    worst,
)
from agent.errors import UsageError
from agent.host.processes import named, running
from tests.unit.test_host_model import FixtureHost

pytestmark = pytest.mark.rtnl

ALL_CAPABILITIES = "000001ffffffffff"
MOUNTS = """\
20 1 0:19 / / rw,relatime - ext4 /dev/root rw
21 20 0:20 / /proc rw,nosuid - proc proc rw
22 20 0:21 / /sys rw,nosuid - sysfs sysfs rw
"""


@pytest.fixture
def host(tmp_path: Path) -> FixtureHost:
    """A plain host of four CPUs without any trouble."""
    tree = FixtureHost(tmp_path)
    tree.cpus("0-3")
    tree.file(
        tree.paths.proc / "self/status", f"Name:\tagent\nUid:\t0\t0\t0\t0\nCapEff:\t{ALL_CAPABILITIES}\n"
    )
    tree.file(tree.paths.proc / "self/mountinfo", MOUNTS)
    return tree


def context(host: FixtureHost, ifname: str | None = None, kernel_release: str = "6.12.1") -> Context:
    """The fixture as the doctor sees it."""
    return Context(
        host.paths, ifname, kernel_release=kernel_release, state_dir=host.paths.proc.parent / "run"
    )


def assert_found(finding: Finding, severity: str, *parts: str) -> None:
    """The severity, the words that name the cause, and a reason and a remedy for everything that is wrong."""
    assert finding.severity == severity, finding
    for part in parts:
        assert part in finding.found, finding
    if severity in ("warn", "fail"):
        assert finding.why
        assert finding.remedy or "no other CPU" in finding.why


# ---- privileges ----------------------------------------------------------------------------------------------


def test_root_with_all_capabilities_is_well(host: FixtureHost) -> None:
    """Nothing is missing."""
    assert_found(privileges.privileges(context(host)), "ok", "CAP_BPF")


def test_user_is_told_to_use_sudo(host: FixtureHost) -> None:
    """Not being root makes a run impossible."""
    host.file(host.paths.proc / "self/status", "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0\n")
    assert_found(privileges.privileges(context(host)), "fail", "uid 1000")


def test_stripped_root_is_told_which_capability(host: FixtureHost) -> None:
    """Root in a container without CAP_BPF and CAP_PERFMON: those two are named."""
    host.file(host.paths.proc / "self/status", "Uid:\t0\t0\t0\t0\nCapEff:\t0000000000201000\n")
    finding = privileges.privileges(context(host))
    assert_found(finding, "fail", "CAP_PERFMON, CAP_BPF")
    assert "CAP_NET_ADMIN" not in finding.found


@pytest.mark.parametrize(
    ("text", "severity"),
    [("[none] integrity confidentiality", "ok"), ("none [integrity] confidentiality", "ok"),
     ("none integrity [confidentiality]", "warn")],
)  # fmt: skip
def test_lockdown(host: FixtureHost, text: str, severity: str) -> None:
    """Only confidentiality keeps BPF from what it needs."""
    host.file(host.paths.sys / "kernel/security/lockdown", text + "\n")
    assert_found(privileges.lockdown(context(host)), severity)


def test_memlock_is_not_blamed_on_new_kernels(host: FixtureHost) -> None:
    """Whatever the limit is, since 5.11 it is not the cause."""
    assert_found(privileges.memlock(context(host)), "ok", "not the cause")


def test_kernel_without_perf_events(host: FixtureHost) -> None:
    """No perf_event_paranoid means no perf events, and so no rings."""
    assert_found(privileges.perf_paranoid(context(host)), "fail", "no perf events")
    host.file(host.paths.proc / "sys/kernel/perf_event_paranoid", "4\n")
    assert_found(privileges.perf_paranoid(context(host)), "ok", "4")


def test_protect_kernel_tunables_is_found(host: FixtureHost) -> None:
    """A read-only bind mount over /proc/irq is found and named; the writable /sys is not."""
    host.file(
        host.paths.proc / "self/mountinfo", MOUNTS + "23 21 0:20 /irq /proc/irq ro,nosuid - proc proc rw\n"
    )
    finding = container.writable_trees(context(host))
    assert_found(finding, "warn", "/proc/irq")
    assert "/sys" not in finding.found
    assert "ProtectKernelTunables" in finding.remedy


def test_container_with_read_only_sys_is_found(host: FixtureHost) -> None:
    """The mount that counts is the one that the path is on."""
    host.file(host.paths.proc / "self/mountinfo", MOUNTS.replace("/sys rw", "/sys ro"))
    assert_found(container.writable_trees(context(host)), "warn", "/sys/class/net")
    host.file(host.paths.proc / "self/mountinfo", MOUNTS)
    assert_found(container.writable_trees(context(host)), "ok")


def test_bpffs(host: FixtureHost) -> None:
    """Wherever it is mounted; its absence is no fault."""
    assert_found(privileges.bpffs(context(host)), "info", "no bpffs")
    host.file(host.paths.proc / "self/mountinfo", MOUNTS + "24 22 0:30 / /sys/fs/bpf rw - bpf bpf rw\n")
    assert_found(privileges.bpffs(context(host)), "ok")


def test_journal_of_a_killed_run_is_found(host: FixtureHost) -> None:
    """A journal whose agent is gone asks for `agent restore`; one whose agent lives is only mentioned."""
    where = context(host)
    host.file(
        where.state_dir / "eth1@4026531840.journal", json.dumps({"agent_journal": 1, "pid": 812}) + "\n"
    )
    finding = privileges.leftovers(where)
    assert_found(finding, "warn", "eth1@4026531840")
    assert "agent restore" in finding.remedy
    host.file(host.paths.proc / "812/comm", "agent\n")
    assert_found(privileges.leftovers(where), "info", "pid 812")


def test_torn_journal_is_a_leftover(host: FixtureHost) -> None:
    """A journal that cannot be read is not an agent that runs."""
    where = context(host)
    host.file(where.state_dir / "eth1@1.journal", '{"pid": ')
    assert_found(privileges.leftovers(where), "warn", "eth1@1")


# ---- kernel --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("release", "severity", "parts"),
    [
        ("6.18.0", "ok", []),
        ("6.8.0-31-generic", "info", ["6.12"]),
        ("6.1.0-57-amd64", "warn", ["6.3", "6.6", "6.12"]),
        ("5.10.0", "warn", ["5.16", "5.17", "5.18"]),
        ("5.4.0", "fail", ["5.10"]),
    ],
)
def test_version_lists_what_is_missing(
    host: FixtureHost, release: str, severity: str, parts: list[str]
) -> None:
    """Each feature is named with the version it came with."""
    assert_found(kernel.version(context(host, kernel_release=release)), severity, *parts)


def test_unnumbered_kernel_is_not_guessed(host: FixtureHost) -> None:
    """A release without a number is said, not taken for an old one."""
    with pytest.raises(NotChecked, match="no version number"):
        kernel.version(context(host, kernel_release="custom"))


def test_btf(host: FixtureHost) -> None:
    """Without BTF the other loader is named."""
    finding = kernel.btf(context(host))
    assert_found(finding, "warn", "no BTF")
    assert "--loader bcc" in finding.remedy
    host.file(host.paths.sys / "kernel/btf/vmlinux", "")
    assert_found(kernel.btf(context(host)), "ok")


@pytest.mark.parametrize(
    ("enable", "harden", "severity"), [("1", "0", "ok"), ("1", "2", "info"), ("0", "0", "warn")]
)
def test_jit(host: FixtureHost, enable: str, harden: str, severity: str) -> None:
    """Off costs a lot, blinding costs a little."""
    host.file(host.paths.proc / "sys/net/core/bpf_jit_enable", enable)
    host.file(host.paths.proc / "sys/net/core/bpf_jit_harden", harden)
    assert_found(kernel.jit(context(host)), severity)


def test_questions_to_the_kernel_are_not_asked_about_a_tree(host: FixtureHost) -> None:
    """What only this machine's kernel can tell is not told about another host."""
    for function in (kernel.tcx, kernel.programs, clocks.tai_offset):
        with pytest.raises(NotChecked):
            function(context(host))


# ---- loaders -------------------------------------------------------------------------------------------------


def test_physics_library_is_not_taken_for_bcc(
    host: FixtureHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyPI's physics library of that name is told apart without importing it."""
    package = tmp_path / "site/bcc"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    spec = importlib.util.spec_from_file_location("bcc", package / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    assert_found(loaders.bcc(context(host)), "warn", "not the BPF Compiler Collection")
    (package / "libbcc.py").write_text("")
    (package / "__init__.py").write_text("class BPF(object):\n    pass\n")
    assert_found(loaders.bcc(context(host)), "ok")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert_found(loaders.bcc(context(host)), "info", "not installed")


def test_objects_that_are_not_built_are_named(
    host: FixtureHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are named, and the remedy builds them."""
    monkeypatch.setenv("AGENT_BPF_DIR", str(tmp_path))
    finding = loaders.libbpf_objects(context(host))
    assert_found(finding, "warn", "capture.bpf.o")
    assert "make bpf" in finding.remedy
    (tmp_path / "capture.bpf.o").write_bytes(b"")
    assert_found(loaders.libbpf_objects(context(host)), "ok")


# ---- clocks --------------------------------------------------------------------------------------------------


def test_slow_clock_source_is_told_with_the_fast_one(host: FixtureHost) -> None:
    """hpet although a TSC exists: what to boot with is in the remedy."""
    base = host.paths.sys / "devices/system/clocksource/clocksource0"
    host.file(base / "current_clocksource", "hpet\n")
    host.file(base / "available_clocksource", "hpet tsc acpi_pm\n")
    finding = clocks.clock_source(context(host))
    assert_found(finding, "warn", "hpet")
    assert "clocksource=tsc" in finding.remedy
    host.file(base / "current_clocksource", "tsc\n")
    assert_found(clocks.clock_source(context(host)), "ok")


def test_two_daemons_on_one_clock_are_a_fault(host: FixtureHost) -> None:
    """chronyd with ptp4l is usual; chronyd and phc2sys both steer the system clock."""
    host.file(host.paths.proc / "640/comm", "chronyd\n")
    host.file(host.paths.proc / "812/comm", "ptp4l\n")
    assert_found(clocks.steering(context(host)), "ok", "chronyd (pid 640)", "ptp4l (pid 812)")
    host.file(host.paths.proc / "813/comm", "phc2sys\n")
    assert_found(clocks.steering(context(host)), "warn", "phc2sys")


def test_phcs_are_listed(host: FixtureHost) -> None:
    """By device and name; none is said with what that means."""
    assert_found(clocks.phcs(context(host)), "info", "no PTP hardware clock")
    host.file(host.paths.sys / "class/ptp/ptp0/clock_name", "ice-0000\n")
    assert_found(clocks.phcs(context(host)), "ok", "/dev/ptp0 (ice-0000)")


def test_who_carries_a_phcs_time_is_told(host: FixtureHost) -> None:
    """With phc2sys on it, `agent run --refclock` would be refused: the doctor says so before."""
    host.file(host.paths.sys / "class/ptp/ptp0/clock_name", "ice-0000\n")
    host.file(host.paths.proc / "813/comm", "phc2sys\n")
    host.file(host.paths.proc / "813/cmdline", "phc2sys\0-a\0")
    (host.paths.proc / "813/fd").mkdir()
    (host.paths.proc / "813/fd/4").symlink_to("/dev/ptp0")
    finding = clocks.phcs(context(host))
    assert_found(finding, "info", "/dev/ptp0 (ice-0000)")
    assert "phc2sys (pid 813: `phc2sys -a`)" in finding.why
    assert "--refclock" in finding.remedy


# ---- cpus ----------------------------------------------------------------------------------------------------


def test_isolated_cpus_are_told(host: FixtureHost) -> None:
    """They are left alone, which explains plans that don't use them."""
    host.cpus("0-3", isolated="2-3", nohz_full="3")
    assert_found(cpus.topology(context(host)), "info", "isolated 2-3", "nohz_full 3")


def test_single_cpu_is_told(host: FixtureHost) -> None:
    """There is nowhere to move work to."""
    host.cpus("0")
    assert_found(cpus.topology(context(host)), "warn", "1 online")


def test_irqbalance_is_named_with_its_pid(host: FixtureHost) -> None:
    """Two owners of one affinity."""
    assert_found(cpus.other_owners(context(host)), "ok")
    host.file(host.paths.proc / "555/comm", "irqbalance\n")
    assert_found(cpus.other_owners(context(host)), "warn", "irqbalance (pid 555)")


@pytest.mark.parametrize(
    ("governor", "driver", "severity"),
    [("performance", "acpi-cpufreq", "ok"), ("ondemand", "acpi-cpufreq", "warn"), ("powersave", "intel_pstate", "ok"),
     ("powersave", "acpi-cpufreq", "warn")],
)  # fmt: skip
def test_governor(host: FixtureHost, governor: str, driver: str, severity: str) -> None:
    """`powersave` of intel_pstate is a hint to the hardware, of others it is the lowest frequency."""
    host.file(host.paths.cpu / "cpufreq/policy0/scaling_governor", governor + "\n")
    host.file(host.paths.cpu / "cpufreq/policy0/scaling_driver", driver + "\n")
    assert_found(cpus.governor(context(host)), severity, governor)


def test_deep_idle_states_count_unless_disabled(host: FixtureHost) -> None:
    """The deepest state that is enabled is the one that is told."""
    state = host.paths.cpu / "cpu0/cpuidle/state3"
    for name, text in (("latency", "133"), ("name", "C6"), ("disable", "0")):
        host.file(state / name, text + "\n")
    assert_found(cpus.idle_states(context(host)), "info", "C6", "133 µs")
    host.file(state / "disable", "1\n")
    assert_found(cpus.idle_states(context(host)), "ok")


def test_softnet_drops_are_added_up(host: FixtureHost) -> None:
    """The hexadecimal second column, over all CPUs."""
    host.file(
        host.paths.proc / "net/softnet_stat", "00ff 0000000a 00000002 0 0\n0001 00000001 00000000 0 0\n"
    )
    assert_found(network.softnet(context(host)), "warn", "11 packets dropped", "2 times")


# ---- interface -----------------------------------------------------------------------------------------------


def test_link_that_is_down_is_told(host: FixtureHost) -> None:
    """Administratively down and without carrier are different remedies."""
    directory = host.interface("eth1", 3)
    host.file(directory / "operstate", "down\n")
    host.file(directory / "flags", "0x1002\n")
    finding = interface.link(context(host, "eth1"))
    assert_found(finding, "warn", "administratively down")
    assert "ip link set eth1 up" in finding.remedy
    host.file(directory / "flags", "0x1003\n")
    assert_found(interface.link(context(host, "eth1")), "warn", "no carrier")
    host.file(directory / "operstate", "up\n")
    assert_found(interface.link(context(host, "eth1")), "ok")


def test_rps_masks_are_shown(host: FixtureHost) -> None:
    """Set masks as CPU lists, by queue."""
    directory = host.interface("eth1", 3, queues=2)
    assert_found(interface.steering(context(host, "eth1")), "ok", "RPS off")
    host.file(directory / "queues/rx-1/rps_cpus", "c\n")
    assert_found(interface.steering(context(host, "eth1")), "info", "RPS q1:2-3")


def test_device_drops_are_told(host: FixtureHost) -> None:
    """Only the counters that are not zero."""
    directory = host.interface("eth1", 3)
    host.file(directory / "statistics/rx_missed_errors", "7\n")
    host.file(directory / "statistics/rx_dropped", "0\n")
    finding = spreading.drops(context(host, "eth1"))
    assert_found(finding, "warn", "rx_missed_errors 7")
    assert "rx_dropped" not in finding.found


def test_small_mtu_needs_no_fragments(host: FixtureHost) -> None:
    """1500 fits; of a jumbo MTU a kernel before 6.3 cannot tell."""
    directory = host.interface("eth1", 3)
    assert_found(interface.jumbo(context(host, "eth1")), "ok", "1500")
    host.file(directory / "mtu", "9000\n")
    with pytest.raises(NotChecked, match=r"6\.3"):
        interface.jumbo(context(host, "eth1"))


# ---- the whole report ----------------------------------------------------------------------------------------


def test_bond_is_checked_by_its_leaves(host: FixtureHost) -> None:
    """Asked about a bond, the doctor looks at the interfaces below it."""
    host.interface("eth1", 3)
    host.interface("eth2", 4)
    bond = host.interface("bond0", 5)
    for leaf in ("eth1", "eth2"):
        (bond / f"lower_{leaf}").symlink_to(host.paths.net(leaf))
    groups = {item.group for item in check.run_checks(context(host, "bond0"))}
    assert {"interface eth1", "interface eth2"} <= groups
    assert "interface bond0" not in groups


def test_no_such_interface_is_a_usage_error(host: FixtureHost) -> None:
    """Before a report, with what there is."""
    host.interface("eth1", 3)
    with pytest.raises(UsageError, match="eth9"):
        check.run_checks(context(host, "eth9"))


def test_empty_tree_fails_no_check(tmp_path: Path) -> None:
    """Whatever is missing, each check answers; what it could not find out is said with the cause."""
    checks = check.run_checks(
        Context(FixtureHost(tmp_path).paths, kernel_release="6.12.1", state_dir=tmp_path)
    )
    assert len(checks) >= 20
    assert any(item.found.startswith("not checked: ") for item in checks)


def test_worst_severity_decides() -> None:
    """fail over warn over info over ok; nothing at all is ok."""

    def made(severity: check.Severity) -> Check:
        return Check("g", "n", severity, "", "", "")

    assert worst([made("ok"), made("warn"), made("info")]) == "warn"
    assert worst([made("fail"), made("ok")]) == "fail"
    assert worst([]) == "ok"


def test_processes_are_found_by_name(host: FixtureHost) -> None:
    """All pids of a name, in order."""
    for pid in (30, 4):
        host.file(host.paths.proc / f"{pid}/comm", "chronyd\n")
    assert named(running(host.paths, ("chronyd", "ptp4l"))) == "chronyd (pid 4 30)"


def test_report_aligns_wraps_and_counts() -> None:
    """Causes and remedies stand below what is wrong only, within the width, and the last line says what it means."""
    from agent.cli.doctor import report

    checks = [
        Check("kernel", "BTF", "ok", "there", "why not shown", "not shown"),
        Check("kernel", "JIT", "fail", "off " * 30, "it matters", "switch it on"),
    ]
    lines = list(report(checks, 80, colour=False))
    text = "\n".join(lines)
    assert all(len(line) <= 80 for line in lines)
    assert "not shown" not in text
    assert "→ switch it on" in text
    assert lines[-1] == "1 ok, 1 fail: `agent run` cannot work on this host"
    assert "\x1b[" not in text
    assert "\x1b[1;31mfail" in "\n".join(report(checks, 80, colour=True))
    assert lines[1].index("there") == lines[2].index("off")


def test_foreign_names_do_not_steer_the_terminal() -> None:
    """What a driver or another program is called is printed without control characters."""
    from agent.cli.doctor import report

    lines = report([Check("interface x", "XDP", "info", "taken by \x1b[2Jevil", "", "")], 80, colour=False)
    assert all(char.isprintable() for line in lines for char in line)


@pytest.mark.skipif(os.geteuid() != 0, reason="root sees more, and is what the doctor is run as")
def test_this_machine_gets_a_report() -> None:
    """On a real host no check breaks, and each finding that is not well says why or is a plain fact."""
    checks = check.run_checks(Context(ifname="lo"))
    assert not [item for item in checks if "Error" in item.found]
    assert {item.group for item in checks} >= {"privileges", "kernel", "interface lo"}
