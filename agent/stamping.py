"""RX hardware stamping of a NIC: switched on only when asked for by name, journaled, put back.

A filter that is on already belongs to somebody (a PTP daemon): it is used as it is, and never changed.
"""

from __future__ import annotations

from agent.control.journal import Journal
from agent.control.settings import Setting, register_kind
from agent.errors import AgentError
from agent.ffi.hwtstamp import FILTER_ALL, HwtstampConfig, hwtstamp_config, set_hwtstamp_config


class HwtstampSetting:
    """The stamping configuration of an interface as a journaled setting: `flags tx_type rx_filter`."""

    def read(self, target: str) -> bytes:
        """The configuration now. Raises `OSError` when the interface is gone or cannot tell."""
        return _value(_read(target))

    def write(self, target: str, value: bytes) -> None:
        """Switch to a configuration that `read` gave."""
        flags, tx_type, rx_filter = (int(word) for word in value.split())
        try:
            set_hwtstamp_config(target, HwtstampConfig(flags, tx_type, rx_filter))
        except AgentError as error:
            raise OSError(str(error)) from error

    def same(self, a: bytes, b: bytes) -> bool:
        """Equal figures."""
        return a.split() == b.split()

    def belongs(self, target: str, ifname: str, ifindex: int) -> bool:
        """Its own."""
        return target == ifname


register_kind("hwtstamp", HwtstampSetting())


def switch_on(ifname: str, journal: Journal) -> str:
    """Stamp every received packet, unless stamping is on already; returns what was done, for people.

    Raises `UnsupportedError` if the driver cannot stamp all packets, and what `Journal.record` raises; nothing is
    changed then.
    """
    try:
        config = _read(ifname)
    except OSError as error:
        return f"stamping of {ifname} cannot be read ({error}): probing for stamps"
    if config.rx_on:
        return f"stamping of {ifname} is on (filter {config.rx_filter}) and is left as it is"
    wanted = HwtstampConfig(config.flags, config.tx_type, FILTER_ALL)
    setting = Setting("hwtstamp", ifname, namespaced=True)
    journal.record(setting, _value(config), _value(wanted))
    made = set_hwtstamp_config(ifname, wanted)
    if made != wanted:  # drivers may stamp more than was asked for: that is then what restore must find
        try:
            journal.record(setting, _value(wanted), _value(made))
        except AgentError:
            set_hwtstamp_config(ifname, config)
            raise
    return f"stamping of {ifname} switched on (filter {made.rx_filter}); it is switched off again at the end"


def keep(ifname: str, before: HwtstampConfig | None) -> str | None:
    """Put stamping back to what it was right `before` where attaching or detaching a program switched it off.

    Returns what happened, for people; None where nothing did. Raises `AgentError` if the driver refuses.
    """
    if before is None or not before.rx_on:
        return None
    now = hwtstamp_config(ifname)
    if now is None or now.rx_on:
        return None
    set_hwtstamp_config(ifname, before)
    return (
        f"{ifname}: the driver switched stamping off when a program came or went; it is on again "
        f"(filter {before.rx_filter})"
    )


def _value(config: HwtstampConfig) -> bytes:
    return f"{config.flags} {config.tx_type} {config.rx_filter}".encode()


def _read(ifname: str) -> HwtstampConfig:
    try:
        config = hwtstamp_config(ifname)
    except AgentError as error:
        raise OSError(str(error)) from error
    if config is None:
        raise OSError("the driver does not tell")
    return config
