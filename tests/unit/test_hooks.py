"""The choice of hook and stamp from facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.errors import ConflictError, UnsupportedError
from agent.hooks import HookFacts, choose
from agent.options import RunOptions

VETH = HookFacts("v0", "veth", True, True, None, False, None, False, None)
IGB = HookFacts("eth1", "igb", True, False, 0, True, None, False, 20_000.0)
MLX5 = HookFacts("eth2", "mlx5_core", True, True, 1, True, None, False, -1_500.0)


def _run(**settings: object) -> RunOptions:
    return replace(RunOptions(interfaces=("x",)), **settings)  # type: ignore[arg-type]


def test_veth_gets_native_xdp_and_a_trailer_probe() -> None:
    """veth swaps XDP without a reset and has no PHC: its metadata stamp is never taken for real."""
    choice = choose(VETH, _run())
    assert (choice.hook, choice.stamp, choice.stamp_probed) == ("xdp", "trailer", True)


def test_a_driver_that_resets_on_attach_gets_tc() -> None:
    """Without --allow-reset, native XDP is not attached where that resets the NIC."""
    choice = choose(IGB, _run())
    assert (choice.hook, choice.stamp) == ("tc", "skb")


def test_the_metadata_stamp_is_taken_when_asked_for() -> None:
    """With --stamp xdp and --allow-reset, a driver with the timestamp kfunc is stamped in XDP."""
    choice = choose(MLX5, _run(allow_reset=True, stamp="xdp"))
    assert (choice.hook, choice.stamp) == ("xdp", "xdp")


def test_the_metadata_stamp_is_never_chosen_unasked() -> None:
    """A device-bound program can crash the kernel when its interface goes, so auto takes the skb stamp and says why."""
    choice = choose(MLX5, _run(allow_reset=True))
    assert choice.stamp == "skb"
    assert any("never chosen unasked" in reason for reason in choice.reasons)


def test_a_metadata_stamp_without_the_xdp_hook_falls_to_skb() -> None:
    """Where XDP would reset the NIC, the same hardware stamp is read from the skb."""
    choice = choose(MLX5, _run())
    assert (choice.hook, choice.stamp) == ("tc", "skb")


def test_a_taken_slot_sends_auto_to_tc_and_names_the_owner() -> None:
    """An XDP program of somebody else is never replaced; auto uses tc and says whose it is."""
    choice = choose(
        replace(VETH, xdp_owner="program 'xsk_def_prog' (id 7)", xdp_owner_redirects=True), _run()
    )
    assert choice.hook == "tc"
    assert any("xsk_def_prog" in reason and "unseen" in reason for reason in choice.reasons)


@pytest.mark.parametrize("hook", ["xdp", "xdp-generic"])
def test_a_taken_slot_refuses_xdp_by_name(hook: str) -> None:
    """XDP asked for by name on a taken slot is a conflict that names the owner."""
    with pytest.raises(ConflictError, match="id 7"):
        choose(replace(VETH, xdp_owner="program 'x' (id 7)"), _run(hook=hook))


def test_no_native_xdp_is_named() -> None:
    """XDP asked for by name on a driver without it is refused with the remedy."""
    facts = replace(VETH, driver="tg3", native_xdp=False)
    assert choose(facts, _run()).hook == "tc"
    with pytest.raises(UnsupportedError, match="tg3"):
        choose(facts, _run(hook="xdp"))


def test_stamp_xdp_by_name_where_attaching_resets_is_refused() -> None:
    """--stamp xdp under --hook auto on a driver that resets names the way out."""
    with pytest.raises(UnsupportedError, match="needs native XDP"):
        choose(MLX5, _run(stamp="xdp"))


def test_bcc_gets_no_kfunc_stamp() -> None:
    """BCC resolves no kfuncs: auto takes the skb stamp instead."""
    assert choose(MLX5, _run(loader="bcc", allow_reset=True)).stamp == "skb"


def test_rewriting_timestamps_takes_tc() -> None:
    """There each packet's own stamp is at hand, also where XDP would be free of cost."""
    choice = choose(VETH, _run(rewrite_timestamps="tai"))
    assert choice.hook == "tc"
    assert any("rewritten" in reason for reason in choice.reasons)


E1000E = replace(IGB, driver="e1000e", native_xdp=False, phc_index=2, phc_rate_error_ppb=15_000_000.0)


@pytest.mark.parametrize("stamp", ["skb", "xdp"])
def test_a_phc_that_keeps_no_time_is_refused_by_name(stamp: str) -> None:
    """Stamps of a clock that runs 1.5 % fast are refused where they are asked for, with the clock and its rate."""
    with pytest.raises(UnsupportedError, match=r"/dev/ptp2 runs 1\.5 % fast") as refused:
        choose(E1000E, _run(stamp=stamp))
    assert "--stamp none" in refused.value.remedy


def test_auto_leaves_a_phc_that_keeps_no_time_alone() -> None:
    """Although the driver stamps packets now, auto looks for trailers and says why."""
    choice = choose(E1000E, _run())
    assert choice.stamp == "trailer"
    assert any("refused as a time source" in reason for reason in choice.reasons)


def test_a_crystal_far_off_is_no_fault() -> None:
    """200 ppm is worse than any crystal, and still a clock."""
    assert choose(replace(IGB, phc_rate_error_ppb=-200_000.0), _run()).stamp == "skb"


def test_stamps_in_xdp_are_refused_before_they_were_made() -> None:
    """A kernel that cannot say whether the driver has XDP is older than XDP's metadata: named, with what to use."""
    with pytest.raises(UnsupportedError, match=r"Linux 6\.3") as refused:
        choose(replace(MLX5, native_xdp=None, xdp_rx_timestamp=False), _run(stamp="xdp", allow_reset=True))
    assert "--stamp skb" in refused.value.remedy
