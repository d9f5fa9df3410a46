"""Hardware time through the page: exact, bounded, and None where nobody knows it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent import stamp
from agent.batch.layout import PublishedClock
from agent.batch.publisher import PagePublisher
from agent.clock import ClockModel
from agent.stamp import PhcClock, PhcTime

S = 1_000_000_000
UID = os.geteuid()
NOW_NS = 5_000 * S
PHC_NS = 1_790_000_000 * S + 123_456_789
ADJ = round(12e-6 * 2**40)


def a_clock(ifname: str = "eth1", key: int = 7, **changed: Any) -> PublishedClock:
    """A clock that gains 12 ppm, known to 500 ns and 40 ppb."""
    clock = PublishedClock(
        ifname=ifname,
        key=key,
        epoch=3,
        mono0_ns=NOW_NS + 1_000,
        phc0_ns=PHC_NS,
        adj=ADJ,
        valid_until_ns=NOW_NS + 2 * S,
        since_ns=NOW_NS - 10 * S,
        at_mono_ns=NOW_NS,
        bound_ns=500,
        growth_ppb=40,
        shift=40,
        kind="phc",
        timescale="tai",
    )
    return clock._replace(**changed)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Causes are looked at where they are kept."""
    caplog.set_level(logging.ERROR)


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[PagePublisher]:
    """An agent's page with one clock."""
    with PagePublisher(tmp_path, "default") as publisher:
        publisher.publish_clocks(NOW_NS, [a_clock()])
        yield publisher


def clock(state_dir: Path, ifname: str | None = None, key: int | None = None) -> PhcClock:
    """A consumer's clock."""
    return PhcClock(ifname, key, state_dir=state_dir, owner_uid=UID)


@pytest.mark.parametrize("mono_ns", [NOW_NS - 9 * S, NOW_NS, NOW_NS + 1_000, NOW_NS + 2 * S - 1])
def test_it_is_what_the_kernel_computes(tmp_path: Path, publisher: PagePublisher, mono_ns: int) -> None:
    """To the nanosecond, before and after the model's origin, with a bound that grows both ways."""
    model = ClockModel(NOW_NS + 1_000, PHC_NS, ADJ, 40, NOW_NS + 2 * S, 3)
    bound_ns = 500 + 40 * abs(mono_ns - NOW_NS) // S + 1
    assert clock(tmp_path).time(mono_ns) == PhcTime(model.phc_ns(mono_ns), bound_ns, "tai", 3)


@pytest.mark.parametrize("adj", [ADJ, -ADJ, 0, 110_000_000])
def test_hardware_time_and_back(
    tmp_path: Path, publisher: PagePublisher, monkeypatch: pytest.MonkeyPatch, adj: int
) -> None:
    """`mono` is the inverse of `time`, to 1 ns, with the same bound; and None where `time` is."""
    monkeypatch.setattr(stamp, "monotonic_ns", lambda: NOW_NS)
    publisher.publish_clocks(NOW_NS, [a_clock(adj=adj)])
    own = clock(tmp_path)
    for mono_ns in (NOW_NS - 9 * S, NOW_NS, NOW_NS + 1_999_999_990):
        there = own.time(mono_ns)
        assert there is not None
        back = own.mono(there.phc_ns)
        assert back is not None
        assert abs(back.mono_ns - mono_ns) <= 1
        assert abs(back.bound_ns - there.bound_ns) <= 1
    assert own.mono(PHC_NS + 3 * S) is None
    assert "does not reach" in own.trouble
    assert own.mono(PHC_NS - 11 * S) is None
    assert "jumped" in own.trouble


def test_a_new_model_is_used_at_once(tmp_path: Path, publisher: PagePublisher) -> None:
    """What the agent published last is what counts."""
    own = clock(tmp_path)
    before = own.time(NOW_NS)
    publisher.publish_clocks(NOW_NS, [a_clock(phc0_ns=PHC_NS + 77)])
    after = own.time(NOW_NS)
    assert before is not None
    assert after is not None
    assert after.phc_ns - before.phc_ns == 77


def test_beyond_the_model_there_is_no_time(tmp_path: Path, publisher: PagePublisher) -> None:
    """An agent that stopped vouches for nothing more; one that goes on is believed again."""
    own = clock(tmp_path)
    assert own.time(NOW_NS) is not None
    assert own.time(NOW_NS + 2 * S) is None
    assert "does not reach that far" in own.trouble
    publisher.publish_clocks(NOW_NS, [a_clock(valid_until_ns=NOW_NS + 4 * S)])
    assert own.time(NOW_NS + 2 * S) is not None
    assert own.trouble == ""


def test_who_asks_for_mono_alone_finds_a_killed_agents_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed agent's page stays as it was, with a model that reaches no further; the next agent's is another file."""
    now_ns = NOW_NS
    monkeypatch.setattr(stamp, "monotonic_ns", lambda: now_ns)
    killed = PagePublisher(tmp_path, "default")
    killed.publish_clocks(NOW_NS, [a_clock()])
    own = clock(tmp_path)
    assert own.mono(PHC_NS) is not None
    os.close(killed._lock)  # as the kernel does for a process that is killed
    with PagePublisher(tmp_path, "default") as publisher:
        publisher.publish_clocks(NOW_NS, [a_clock(epoch=4, valid_until_ns=NOW_NS + 9 * S)])
        now_ns += 3 * S
        assert own.mono(PHC_NS + 3 * S) is None
        now_ns += S
        assert own.mono(PHC_NS + 3 * S) is not None


def test_before_a_jump_there_is_no_time(tmp_path: Path, publisher: PagePublisher) -> None:
    """The present model says nothing about what the clock showed before it jumped."""
    own = clock(tmp_path)
    assert own.time(NOW_NS - 10 * S) is not None
    assert own.time(NOW_NS - 10 * S - 1) is None
    assert "jumped" in own.trouble


def test_without_an_agent_there_is_no_time(tmp_path: Path) -> None:
    """None, and the cause; no exception."""
    own = clock(tmp_path)
    assert own.time(time.monotonic_ns()) is None
    assert "there is no page" in own.trouble


def test_an_agent_that_comes_later_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its page is looked for four times a second, not at each question."""
    now_ns = NOW_NS
    monkeypatch.setattr(stamp, "monotonic_ns", lambda: now_ns)
    own = clock(tmp_path)
    assert own.time(NOW_NS) is None
    with PagePublisher(tmp_path, "default") as publisher:
        publisher.publish_clocks(NOW_NS, [a_clock()])
        assert own.time(NOW_NS) is None
        now_ns += S // 4
        assert own.time(NOW_NS) is not None


def test_of_several_clocks_one_has_to_be_named(tmp_path: Path, publisher: PagePublisher) -> None:
    """By its interface, and by its key where an interface has several; no other one is given instead."""
    clocks = [a_clock("eth1", 7, phc0_ns=1), a_clock("eth2", 7, phc0_ns=2), a_clock("eth2", 8, phc0_ns=3)]
    publisher.publish_clocks(NOW_NS, clocks)
    ambiguous = clock(tmp_path)
    assert ambiguous.time(NOW_NS + 1_000) is None
    assert "eth1 phc 7, eth2 phc 7, eth2 phc 8" in ambiguous.trouble
    for ifname, key, phc_ns in (("eth1", None, 1), ("eth2", 7, 2), ("eth2", 8, 3), (None, 8, 3)):
        found = clock(tmp_path, ifname, key).time(NOW_NS + 1_000)
        assert found is not None
        assert found.phc_ns == phc_ns
    assert clock(tmp_path, "eth3").time(NOW_NS) is None


def test_the_function_reads_the_default_page(
    tmp_path: Path, publisher: PagePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`phc_time(mono_ns)` is a `PhcClock` of the default page, kept from call to call."""
    monkeypatch.setattr(stamp, "PhcClock", lambda ifname: clock(tmp_path, ifname))
    stamp._clock_of.cache_clear()
    assert stamp.phc_time(NOW_NS) == clock(tmp_path).time(NOW_NS)
    assert stamp.phc_time(NOW_NS, "eth9") is None
    stamp._clock_of.cache_clear()


def test_importing_it_loads_no_bpf_and_no_arrays() -> None:
    """A consumer pays neither for BPF nor for NumPy or SciPy."""
    code = "import sys, agent.stamp; print(*sorted(name.partition('.')[0] for name in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
    assert not {"numpy", "scipy", "cffi", "_cffi_backend", "asyncio"} & set(loaded.split())
