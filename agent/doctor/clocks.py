"""The kernel's clocks: what they are read from, and who steers them."""

from __future__ import annotations

from pathlib import Path

from agent.clockconflicts import ClockConflicts
from agent.doctor.check import Context, Finding, NotChecked, Table
from agent.host.paths import read_text
from agent.host.processes import named, running

_FAST = frozenset(
    {"tsc", "arch_sys_counter", "kvm-clock", "hyperv_clocksource_tsc_page", "xen", "timebase", "tod"}
)
_DAEMONS = ("chronyd", "ntpd", "openntpd", "systemd-timesyn", "ptp4l", "phc2sys", "ts2phc", "sfptpd", "ptpd")


def clock_source(context: Context) -> Finding:
    """What CLOCK_MONOTONIC is read from; every packet reads it."""
    base = context.paths.sys / "devices/system/clocksource/clocksource0"
    current = read_text(base / "current_clocksource")
    if current is None:
        raise NotChecked(f"{base} cannot be read")
    if current in _FAST:
        return Finding("ok", current)
    available = (read_text(base / "available_clocksource") or "").split()
    better = [name for name in available if name in _FAST]
    return Finding(
        "warn",
        f"{current} (available: {' '.join(available) or 'unknown'})",
        "each read goes to a device and takes 0.5 to 2 µs, and every packet reads the clock",
        f"boot with clocksource={better[0]}, if `dmesg` does not say that it is unstable"
        if better
        else "look in `dmesg` for why the TSC was given up (a BIOS setting, a hypervisor)",
    )


def tai_offset(context: Context) -> Finding:
    """Whether the kernel was told TAI − UTC; a PHC usually counts TAI."""
    context.need_live()
    from agent.ffi.clocks import adjtimex_state

    offset_s = adjtimex_state().tai_offset_s
    if offset_s:
        return Finding("ok", f"TAI − UTC is {offset_s} s")
    return Finding(
        "info",
        "TAI − UTC is 0: nobody told the kernel (it is 37 s since 2017)",
        "CLOCK_TAI equals UTC here, so a PHC in TAI is recognised by the 37 s alone",
        "`leapsectz right/UTC` in chrony.conf, or ptp4l/phc2sys with a grandmaster that announces it",
    )


def steering(context: Context) -> Finding:
    """Who disciplines the clocks. Steering is a known input, two daemons on one clock are a fault."""
    daemons = running(context.paths, _DAEMONS)
    system = [name for name in daemons if name not in ("ptp4l", "ts2phc")]
    if len(system) > 1:
        return Finding(
            "warn",
            f"several programs steer the system clock: {named(daemons)}",
            "they pull against each other; measured drift shows their quarrel",
            "keep one of them for the system clock (chronyd with a PHC refclock, or phc2sys)",
        )
    if not daemons:
        return Finding(
            "info",
            "nothing known steers the clocks",
            "the system clock drifts freely; the agent measures that too",
        )
    return Finding("ok", f"{named(daemons)}: its steering is read and taken out, not learnt as drift")


def phcs(context: Context) -> Finding:
    """The PTP hardware clocks of the host, and who carries their time to or from the system clock."""
    clocks, conflicts = [], []
    for clock in sorted((context.paths.sys / "class/ptp").glob("ptp*")):
        device = Path("/dev") / clock.name
        clocks.append(f"{device} ({read_text(clock / 'clock_name') or 'unnamed'})")
        conflict = ClockConflicts(context.paths, device).look()
        if conflict:
            conflicts.append(conflict)
    if conflicts:
        return Finding(
            "info",
            ", ".join(clocks),
            "; ".join(conflicts),
            "nothing to do, unless `agent run --refclock` is to feed chronyd: it would be refused",
        )
    if clocks:
        return Finding("ok", ", ".join(clocks))
    return Finding(
        "info",
        "no PTP hardware clock",
        "no anchor: offsets are known from capture-switch trailers, or delays are software-visible only",
    )


CHECKS: Table = (
    ("clock source", clock_source),
    ("TAI offset", tai_offset),
    ("steering", steering),
    ("hardware clocks", phcs),
)
