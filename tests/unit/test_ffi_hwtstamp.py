"""Stamping abilities and configuration of interfaces that every machine has."""

import pytest

from agent.errors import AgentError, UnsupportedError
from agent.ffi.hwtstamp import (
    FILTER_ALL,
    TX_OFF,
    HwtstampConfig,
    TsInfo,
    hwtstamp_config,
    set_hwtstamp_config,
    ts_info,
)

pytestmark = pytest.mark.rtnl


def test_the_loopback_device_stamps_in_software_only() -> None:
    """No PHC, no hardware stamps, by name and by index."""
    info = ts_info("lo")
    assert info == ts_info(1)
    assert info.phc_index == -1
    assert not info.rx_hardware
    assert not info.rx_all


def test_a_driver_without_stamping_has_no_configuration() -> None:
    """Neither read nor switched on; the refusal names the interface."""
    assert hwtstamp_config("lo") is None
    with pytest.raises(UnsupportedError, match="lo cannot stamp"):
        set_hwtstamp_config("lo", HwtstampConfig(0, TX_OFF, FILTER_ALL))


def test_a_missing_interface_is_named() -> None:
    """By name and by index."""
    with pytest.raises(AgentError, match="agt-none"):
        hwtstamp_config("agt-none")
    with pytest.raises(AgentError, match="987654"):
        ts_info(987654)


def test_rx_hardware_needs_stamps_and_their_raw_form() -> None:
    """SOF_TIMESTAMPING_RX_HARDWARE (4) alone is not enough, RAW_HARDWARE (64) belongs to it."""
    assert not TsInfo(4, 0, 0, 0).rx_hardware
    assert TsInfo(4 | 64, 0, 0, 1 << FILTER_ALL).rx_hardware
    assert TsInfo(4 | 64, 0, 0, 1 << FILTER_ALL).rx_all
