"""An interface's hardware stamping: what it can do, what is switched on, and switching it (SIOC[GS]HWTSTAMP)."""

from __future__ import annotations

import errno
import fcntl
import socket
import struct
from dataclasses import dataclass
from typing import Any

from agent.errors import AgentError, UnsupportedError
from agent.ffi import _native
from agent.ffi.failures import call_error, error_name

_ffi, _lib = _native.ffi, _native.lib

FILTER_NONE: int = _lib.HWTSTAMP_FILTER_NONE
FILTER_ALL: int = _lib.HWTSTAMP_FILTER_ALL
TX_OFF: int = _lib.HWTSTAMP_TX_OFF
TX_ON: int = _lib.HWTSTAMP_TX_ON


@dataclass(frozen=True, slots=True)
class TsInfo:
    """What a driver says of its stamping (ETHTOOL_GET_TS_INFO). Some work although they don't say so: probe."""

    so_timestamping: int  # SOF_TIMESTAMPING_* bits
    phc_index: int  # N of /dev/ptpN; -1: none
    tx_types: int  # bit i: HWTSTAMP_TX_* value i
    rx_filters: int  # bit i: HWTSTAMP_FILTER_* value i

    @property
    def rx_hardware(self) -> bool:
        """Whether it says that it stamps received packets in hardware."""
        needed = _lib.SOF_TIMESTAMPING_RX_HARDWARE | _lib.SOF_TIMESTAMPING_RAW_HARDWARE
        return bool(self.so_timestamping & needed == needed)

    @property
    def rx_all(self) -> bool:
        """Whether it says that it can stamp every packet, not only PTP's."""
        return bool(self.rx_filters >> FILTER_ALL & 1)


@dataclass(frozen=True, slots=True)
class HwtstampConfig:
    """What is switched on now (struct hwtstamp_config)."""

    flags: int
    tx_type: int  # HWTSTAMP_TX_*
    rx_filter: int  # HWTSTAMP_FILTER_*

    @property
    def rx_on(self) -> bool:
        """Whether any received packets are stamped."""
        return self.rx_filter != FILTER_NONE


def interface_ioctl(ifname: str, request: int, data: Any) -> int:
    """An ioctl whose ifreq points to `data` (cffi), of an interface by name; the errno, 0 if it worked."""
    ifreq = struct.pack("16sP", ifname.encode(), int(_ffi.cast("uintptr_t", data)))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        try:
            fcntl.ioctl(control, request, ifreq.ljust(_ffi.sizeof("struct ifreq"), b"\0"))
        except OSError as error:
            return error.errno or errno.EIO
    return 0


def ts_info(interface: str | int) -> TsInfo:
    """The stamping abilities of an interface, by name or index. AgentError if it isn't there."""
    try:
        ifname = socket.if_indextoname(interface) if isinstance(interface, int) else interface
    except OSError as error:
        raise AgentError(f"there is no interface with index {interface} in this network namespace") from error
    info = _ffi.new("struct ethtool_ts_info *")
    info.cmd = _lib.ETHTOOL_GET_TS_INFO
    code = interface_ioctl(ifname, _lib.SIOCETHTOOL, info)
    if code == errno.EOPNOTSUPP:
        return TsInfo(so_timestamping=0, phc_index=-1, tx_types=0, rx_filters=0)
    if code:
        raise call_error(f"read the stamping abilities of {ifname}", code)
    return TsInfo(info.so_timestamping, info.phc_index, info.tx_types, info.rx_filters)


def hwtstamp_config(ifname: str) -> HwtstampConfig | None:
    """What stamping is switched on; None if the driver has none or cannot tell. AgentError if the interface is gone."""
    config = _ffi.new("struct hwtstamp_config *")
    code = interface_ioctl(ifname, _lib.SIOCGHWTSTAMP, config)
    if code in (errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL):
        return None
    if code:
        raise call_error(f"read the stamping configuration of {ifname}", code)
    return HwtstampConfig(config.flags, config.tx_type, config.rx_filter)


def set_hwtstamp_config(ifname: str, wanted: HwtstampConfig) -> HwtstampConfig:
    """Switches stamping; returns what the driver made of it (it may stamp more than asked for).

    Journal the present configuration first, and never take a PTP daemon's filter away. UnsupportedError if the driver
    has no such filter (ERANGE) or no stamping.
    """
    config = _ffi.new("struct hwtstamp_config *", [wanted.flags, wanted.tx_type, wanted.rx_filter])
    code = interface_ioctl(ifname, _lib.SIOCSHWTSTAMP, config)
    if code in (errno.ERANGE, errno.EOPNOTSUPP, errno.EINVAL):
        raise UnsupportedError(
            f"{ifname} cannot stamp with filter {wanted.rx_filter}, tx type {wanted.tx_type}: {error_name(code)}",
            "`ethtool -T` lists what it can",
        )
    if code:
        raise call_error(f"switch stamping on {ifname}", code)
    return HwtstampConfig(config.flags, config.tx_type, config.rx_filter)
