"""CPU shares and drop counters as differences."""

from __future__ import annotations

import pytest

from agent.host.cpus import read_cpus
from agent.host.load import LoadSampler
from tests.unit.test_host_model import FixtureHost, host

__all__ = ["host"]


def _stat(host: FixtureHost, rows: dict[int, str]) -> None:
    lines = ["cpu  0 0 0 0 0 0 0 0 0 0"] + [f"cpu{cpu} {row}" for cpu, row in rows.items()]
    host.file(host.paths.proc / "stat", "\n".join([*lines, "intr 0", "ctxt 0", "btime 0"]) + "\n")


def _softnet(host: FixtureHost, rows: dict[int, tuple[int, int, int]]) -> None:
    text = "".join(
        " ".join(f"{n:08x}" for n in (processed, dropped, squeezed, *[0] * 9, cpu, 0, 0)) + "\n"
        for cpu, (processed, dropped, squeezed) in rows.items()
    )
    host.file(host.paths.proc / "net/softnet_stat", text)


def test_shares_are_keyed_by_cpu_id(host: FixtureHost) -> None:
    """With CPU 1 offline, the second row of `/proc/stat` belongs to CPU 2."""
    host.cpus("0,2", possible="0-3")
    sampler = LoadSampler(host.paths, read_cpus(host.paths))
    _stat(host, {0: "0 0 0 0 0 0 0 0 0 0", 2: "0 0 0 0 0 0 0 0 0 0"})
    _softnet(host, {0: (0, 0, 0), 2: (0, 0, 0)})
    assert sampler.sample(1_000_000_000).cpus == {}
    _stat(host, {0: "0 0 0 100 0 0 0 0 0 0", 2: "10 0 0 20 0 0 70 0 0 0"})
    _softnet(host, {0: (5, 0, 0), 2: (900, 3, 2)})
    load = sampler.sample(2_000_000_000)
    assert load.seconds == 1.0
    assert load.cpus[0].idle == 1.0
    assert load.cpus[2].softirq == pytest.approx(0.7)
    assert load.cpus[2].busy == pytest.approx(0.8)
    assert (load.cpus[2].processed, load.cpus[2].dropped, load.cpus[2].squeezed) == (900, 3, 2)
    assert load.drops.softnet == 3


def test_softnet_counters_wrap(host: FixtureHost) -> None:
    """They are 32 bits wide; a wrap is no negative difference."""
    host.cpus("0")
    sampler = LoadSampler(host.paths, read_cpus(host.paths))
    _stat(host, {0: "0 0 0 0 0 0 0 0 0 0"})
    _softnet(host, {0: (0xFFFFFFFE, 0, 0)})
    sampler.sample(1)
    _stat(host, {0: "0 0 0 10 0 0 0 0 0 0"})
    _softnet(host, {0: (3, 0, 0)})
    assert sampler.sample(2).cpus[0].processed == 5


def test_socket_and_interface_drops(host: FixtureHost) -> None:
    """UDP buffer errors, NIC drops and out-of-order TCP segments are differences too."""
    host.cpus("0")
    host.interface("eth0", 2)
    sampler = LoadSampler(host.paths, read_cpus(host.paths), ["eth0"])
    _stat(host, {0: "0 0 0 0 0 0 0 0 0 0"})

    def counters(udp: int, nic: int, ofo: int) -> None:
        host.file(
            host.paths.proc / "net/snmp", f"Udp: InDatagrams InErrors RcvbufErrors\nUdp: 9 {udp} {udp}\n"
        )
        host.file(host.paths.proc / "net/netstat", f"TcpExt: SyncookiesSent TCPOFOQueue\nTcpExt: 0 {ofo}\n")
        host.file(host.paths.net("eth0") / "statistics/rx_dropped", f"{nic}\n")

    counters(1, 10, 100)
    sampler.sample(1)
    counters(4, 12, 105)
    drops = sampler.sample(2).drops
    assert (drops.socket, drops.interface, drops.tcp_out_of_order, drops.lost) == (3, 2, 5, 5)
