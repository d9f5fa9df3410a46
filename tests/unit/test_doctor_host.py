"""The doctor's checks of containers, CPUs, the network stack and an interface's place, on trees like real hosts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from agent.doctor import (
    NotChecked,
    container,
    cpus,
    interface,
    interrupts,
    locality,
    network,
    privileges,
    spreading,
)
from agent.doctor.check import Context, run_checks
from agent.errors import UsageError
from agent.ffi.ethtool import Rss, is_symmetric_key
from agent.host.coalescing import Coalescing
from agent.host.consumers import consumer_threads, find_pids, memory_by_node
from tests.unit.test_doctor import MOUNTS, assert_found, context
from tests.unit.test_doctor import host as host
from tests.unit.test_host_model import FixtureHost

# Toeplitz keys: Microsoft's of the RSS verification suite, and the repeated one of Woo and Park.
MICROSOFT_KEY = bytes.fromhex(
    "6d5a56da255b0ec24167253d43a38fb0d0ca2bcbae7b30b477cb2da38030f20c6a42b73bbeac01fa"
)
SYMMETRIC_KEY = bytes.fromhex("6d5a" * 20)


def status(host: FixtureHost, uid: int, capabilities: int, cpus_allowed: str = "0-3") -> None:
    """Write who the agent's process is."""
    host.file(
        host.paths.proc / "self/status",
        f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}\nCapEff:\t{capabilities:016x}\nCpus_allowed_list:\t{cpus_allowed}\n",
    )


def process(
    host: FixtureHost, pid: int, name: str, cpus_allowed: str = "f", tids: tuple[int, ...] = ()
) -> Path:
    """Write a process with threads."""
    directory = host.paths.proc / str(pid)
    host.file(directory / "comm", name[:15] + "\n")
    host.file(directory / "cmdline", f"/usr/bin/{name}\0--fast\0")
    for tid in (pid, *tids):
        for task in (directory / f"task/{tid}", *([directory] if tid == pid else [])):
            host.file(task / "comm", name[:15] + "\n")
            host.file(task / "stat", f"{tid} ({name[:15]}) S 1 0 {' '.join(['0'] * 16)} {4000 + tid} 0 0\n")
            host.file(task / "status", f"Name:\t{name[:15]}\nCpus_allowed:\t{cpus_allowed}\n")
    return directory


def nic(host: FixtureHost, node: int = 0, irqs: tuple[int, ...] = (31, 32)) -> Path:
    """A PCI NIC `eth1` with a queue for each interrupt, in a host of two nodes of two CPUs."""
    host.cpus("0-3")
    for number, cpulist in ((0, "0-1"), (1, "2-3")):
        host.file(host.paths.sys / f"devices/system/node/node{number}/cpulist", cpulist + "\n")
    directory = host.interface("eth1", 3, queues=len(irqs), device="pci0000:00/0000:01:00.0", irqs=list(irqs))
    host.file(directory / "device/numa_node", f"{node}\n")
    host.interrupts([(irq, f"eth1-TxRx-{queue}") for queue, irq in enumerate(irqs)])
    for irq in irqs:
        served_by(host, irq, 0)
    return directory


def served_by(host: FixtureHost, irq: int, cpu: int) -> None:
    """Bind an interrupt to a CPU."""
    host.file(host.paths.irq(irq) / "smp_affinity", f"{1 << cpu:x}\n")
    for name in ("smp_affinity_list", "effective_affinity_list"):
        host.file(host.paths.irq(irq) / name, f"{cpu}\n")


# ---- containers ----------------------------------------------------------------------------------------------


def test_raw_io_does_not_allow_writing_irqs(host: FixtureHost) -> None:
    """CAP_SYS_RAWIO alone is told for what it is; CAP_DAC_OVERRIDE and uid 0 are what allows it."""
    status(host, 1000, 1 << 17)
    finding = container.irq_writes(context(host))
    assert_found(finding, "warn", "CAP_SYS_RAWIO is granted, but", "EACCES")
    assert "CAP_DAC_OVERRIDE" in finding.remedy
    status(host, 1000, 1 << 1)
    assert_found(container.irq_writes(context(host)), "ok", "CAP_DAC_OVERRIDE")
    status(host, 0, 0)
    assert_found(container.irq_writes(context(host)), "ok", "root owns the files")


def test_rootless_container_cannot_work(host: FixtureHost) -> None:
    """Capabilities of a user namespace count for nothing here."""
    host.file(host.paths.proc / "self/uid_map", "         0     100000      65536\n")
    status(host, 0, (1 << 41) - 1)
    assert_found(container.namespaces(context(host)), "fail", "user namespace")
    assert_found(container.irq_writes(context(host)), "warn", "root of a user namespace")


def test_missing_namespaces_are_named_with_the_manifest(host: FixtureHost) -> None:
    """A pod without hostPID and hostNetwork: both are named, and what the manifest has to say."""
    host.file(host.paths.proc / "self/uid_map", "0 0 4294967295\n")
    host.file(host.paths.proc / "self/mountinfo", MOUNTS.replace("ext4", "overlay"))
    host.file(host.paths.proc / "1/comm", "agent\n")
    host.interface("eth0", 2)
    finding = container.namespaces(context(host))
    assert_found(finding, "warn", "PID and network")
    for needed in ("hostNetwork: true", "hostPID: true", "privileged: true", "/run/agent"):
        assert needed in finding.remedy


def test_container_with_the_hosts_namespaces_is_well(host: FixtureHost) -> None:
    """With the kernel's threads and the NIC to be seen nothing is missing."""
    host.file(host.paths.proc / "self/mountinfo", MOUNTS.replace("ext4", "overlay"))
    host.file(host.paths.proc / "1/comm", "systemd\n")
    host.file(host.paths.proc / "2/comm", "kthreadd\n")
    nic(host)
    assert_found(container.namespaces(context(host)), "ok", "in a container")


def test_cpuset_of_the_agent_is_told(host: FixtureHost) -> None:
    """A container with a cpuset sees all CPUs, but runs on a few."""
    status(host, 0, 0, cpus_allowed="2-3")
    assert_found(container.cpu_limits(context(host)), "info", "2-3 of 0-3")
    status(host, 0, 0, cpus_allowed="0-7")
    assert_found(container.cpu_limits(context(host)), "ok")


def test_moving_threads_takes_a_capability(host: FixtureHost) -> None:
    """Root without CAP_SYS_NICE can run, but moves no threads."""
    needed = sum(1 << bit for bit in (12, 21, 38, 39))
    status(host, 0, needed)
    assert_found(privileges.privileges(context(host)), "info", "without CAP_SYS_NICE")
    status(host, 0, needed | 1 << 23)
    assert_found(privileges.privileges(context(host)), "ok")


# ---- CPUs ----------------------------------------------------------------------------------------------------


def test_irqbalance_that_leaves_irqs_alone(host: FixtureHost) -> None:
    """What it was told to ban is read from its command line."""
    host.file(host.paths.proc / "555/comm", "irqbalance\n")
    host.file(host.paths.proc / "555/cmdline", "/usr/sbin/irqbalance\0--banirq=31\0--banirq=32\0")
    assert_found(cpus.other_owners(context(host)), "warn", "irqbalance (pid 555)", "IRQ 31, 32")


def test_tuned_is_another_owner(host: FixtureHost) -> None:
    """Not only irqbalance writes affinities."""
    host.file(host.paths.proc / "70/comm", "tuned\n")
    assert_found(cpus.other_owners(context(host)), "info", "tuned (pid 70)")


def test_each_idle_state_is_listed_with_its_exit_latency(host: FixtureHost) -> None:
    """Ascending, the slowest of all CPUs for each."""
    for cpu, number, name, latency in ((0, 1, "C1", 2), (1, 1, "C1", 3), (1, 3, "C6", 133)):
        state = host.paths.cpu / f"cpu{cpu}/cpuidle/state{number}"
        for file, text in (("latency", str(latency)), ("name", name), ("disable", "0")):
            host.file(state / file, text + "\n")
    finding = cpus.idle_states(context(host))
    assert_found(finding, "info", "C1 3 µs, C6 133 µs")
    assert "cpu_dma_latency" in finding.remedy


def test_hybrid_and_smt_are_told(host: FixtureHost) -> None:
    """Efficiency cores serve a queue more slowly; siblings share a core."""
    host.file(host.paths.sys / "devices/cpu_atom/cpus", "2-3\n")
    host.file(host.paths.cpu / "smt/active", "1\n")
    host.file(host.paths.cpu / "cpu0/topology/core_id", "0\n")
    assert_found(cpus.topology(context(host)), "ok", "2-3 are efficiency cores", "SMT")


def test_slower_cpus_are_told_by_their_capacity(host: FixtureHost) -> None:
    """Where no list of efficiency cores exists, as on arm64."""
    host.file(host.paths.cpu / "cpu0/topology/core_id", "0\n")
    for cpu, capacity in enumerate((1024, 1024, 460, 460)):
        host.file(host.paths.cpu / f"cpu{cpu}/cpu_capacity", f"{capacity}\n")
    assert_found(cpus.topology(context(host)), "ok", "2-3 are slower")


def test_host_without_topology_is_told(host: FixtureHost) -> None:
    """Nothing is guessed about cores."""
    assert_found(cpus.topology(context(host)), "info", "no topology")


# ---- the network stack ---------------------------------------------------------------------------------------


def test_squeezes_are_told_by_cpu(host: FixtureHost) -> None:
    """The 13th column names the CPU: offline ones have no line."""
    line = "000000ff 00000000 {:08x} " + "0 " * 9 + "{:08x}"
    host.file(host.paths.proc / "net/softnet_stat", line.format(0, 0) + "\n" + line.format(5, 7) + "\n")
    finding = network.softnet(context(host))
    assert_found(finding, "info", "CPU 7: 5")
    assert "netdev_budget" in finding.remedy


def test_busy_polling_of_all_sockets_is_told(host: FixtureHost) -> None:
    """busy_read above 0 makes every reading socket poll."""
    sysctl = host.paths.proc / "sys/net/core"
    host.file(sysctl / "busy_read", "50\n")
    host.file(sysctl / "busy_poll", "0\n")
    assert_found(network.busy_polling(context(host)), "info", "busy_read 50")
    host.file(sysctl / "busy_read", "0\n")
    assert_found(network.busy_polling(context(host)), "ok")


def test_nic_of_dpdk_is_named_with_its_user(host: FixtureHost) -> None:
    """A NIC bound to vfio-pci is no interface; a GPU bound to it is not the agent's affair."""
    drivers = host.paths.sys / "bus/pci/drivers/vfio-pci"
    for address, kind in (("0000:65:00.0", "0x020000"), ("0000:17:00.0", "0x030000")):
        for name, text in (("class", kind), ("vendor", "0x8086"), ("device", "0x1592")):
            host.file(drivers / address / name, text + "\n")
    host.file(host.paths.proc / "900/comm", "dpdk-testpmd\n")
    (host.paths.proc / "900/fd").mkdir()
    (host.paths.proc / "900/fd/7").symlink_to("/dev/vfio/12")
    finding = network.taken_nics(context(host))
    assert_found(
        finding, "info", "NIC 0000:65:00.0 (8086:1592) is bound to vfio-pci", "dpdk-testpmd (pid 900)"
    )
    assert "0000:17:00.0" not in finding.found
    with pytest.raises(UsageError) as caught:
        run_checks(context(host, "eth9"))
    assert "NIC 0000:65:00.0 (8086:1592) is bound to vfio-pci" in caught.value.remedy


# ---- an interface's interrupts -------------------------------------------------------------------------------


def test_managed_interrupts_are_known_without_writing(host: FixtureHost) -> None:
    """Since 6.12 the file of a managed interrupt has no write permission; before, debugfs tells."""
    nic(host)
    assert_found(interrupts.movable(context(host, "eth1")), "ok", "31-32")
    (host.paths.irq(31) / "smp_affinity").chmod(0o444)
    assert_found(interrupts.movable(context(host, "eth1")), "info", "IRQ 31 managed", "others are not")
    host.file(host.paths.sys / "kernel/debug/irq/irqs/32", "dstate: 0x1\n            IRQD_AFFINITY_MANAGED\n")
    assert_found(interrupts.movable(context(host, "eth1")), "info", "IRQ 31-32 managed")


def test_interrupt_of_two_devices_is_told(host: FixtureHost) -> None:
    """An interrupt that serves another device is said never to be moved."""
    nic(host)
    host.interrupts([(31, "eth1-TxRx-0"), (32, "eth1-TxRx-1, usb3")])
    finding = interrupts.sharing(context(host, "eth1"))
    assert_found(finding, "info", "32 (eth1-TxRx-1, usb3)")
    assert "never moved" in finding.why


def test_virtual_functions_are_told(host: FixtureHost) -> None:
    """A PF says how many VFs share its wire; a VF says whose it is."""
    directory = nic(host)
    host.file(directory / "device/sriov_numvfs", "8\n")
    assert_found(interrupts.sharing(context(host, "eth1")), "info", "8 virtual functions")
    physical = host.paths.sys / "devices/pci0000:00/0000:01:00.7"
    physical.mkdir()
    (directory / "device/physfn").symlink_to(physical)
    assert_found(interrupts.sharing(context(host, "eth1")), "info", "virtual function of 0000:01:00.7")


def test_interrupt_on_an_isolated_cpu_is_a_warning(host: FixtureHost) -> None:
    """An isolated CPU that serves an interrupt is disturbed by it."""
    nic(host)
    host.cpus("0-3", isolated="3")
    served_by(host, 32, 3)
    finding = interrupts.placement(context(host, "eth1"))
    assert_found(finding, "warn", "CPU 3: 32")
    assert "CPUs 3 are isolated" in finding.why


def test_interrupts_crowded_on_one_cpu_are_told(host: FixtureHost) -> None:
    """Two queues on one CPU although there are four."""
    nic(host)
    assert_found(interrupts.placement(context(host, "eth1")), "info", "CPU 0: 31-32")
    served_by(host, 32, 1)
    assert_found(interrupts.placement(context(host, "eth1")), "ok")


def test_coalescing_is_told_with_what_it_adds() -> None:
    """Adaptive, long and short: what a packet waits after its stamp."""
    assert_found(
        interrupts.coalescing_finding("eth1", Coalescing(50, 0, False)),
        "info",
        "rx-usecs 50",
        "adaptive-rx off",
    )
    adaptive = interrupts.coalescing_finding("eth1", Coalescing(3, 0, True))
    assert_found(adaptive, "info", "adaptive-rx on")
    assert "without effect" in adaptive.remedy
    assert_found(interrupts.coalescing_finding("eth1", Coalescing(3, 0, False)), "ok", "rx-usecs 3")


def test_napi_deferral_is_told(host: FixtureHost) -> None:
    """Both files are needed for it to be on."""
    directory = nic(host)
    host.file(directory / "napi_defer_hard_irqs", "2\n")
    host.file(directory / "gro_flush_timeout", "0\n")
    assert_found(interrupts.polling(context(host, "eth1")), "ok", "softirq")
    host.file(directory / "gro_flush_timeout", "200000\n")
    assert_found(interrupts.polling(context(host, "eth1")), "info", "2 times by 200000 ns")


def test_napi_threads_are_listed_with_their_cpus(host: FixtureHost) -> None:
    """With threaded NAPI the threads' CPUs count."""
    directory = nic(host)
    host.file(directory / "threaded", "1\n")
    process(host, 70, "napi/eth1-8193", cpus_allowed="4")
    finding = interrupts.polling(context(host, "eth1"))
    assert_found(finding, "info", "napi/eth1-8193 on 2")


# ---- NUMA ----------------------------------------------------------------------------------------------------


def test_interrupts_of_another_node_are_a_warning(host: FixtureHost) -> None:
    """The CPU, its node and the NIC's are named."""
    nic(host, node=1)
    served_by(host, 32, 2)
    finding = locality.irq_locality(context(host, "eth1"))
    assert_found(finding, "warn", "the NIC is on node 1", "IRQ 31 on CPU 0")
    assert "IRQ 32" not in finding.found
    served_by(host, 31, 3)
    assert_found(locality.irq_locality(context(host, "eth1")), "ok")


def test_unknown_node_of_the_nic_is_not_guessed(host: FixtureHost) -> None:
    """numa_node −1 is no node 0."""
    nic(host, node=-1)
    with pytest.raises(NotChecked, match="-1"):
        locality.irq_locality(context(host, "eth1"))


def with_consumer(host: FixtureHost, pid: int) -> Context:
    """The fixture with one consumer of `eth1`."""
    return Context(host.paths, "eth1", kernel_release="6.12.1", consumers=(pid,))


def test_consumer_far_from_the_nic_is_a_warning(host: FixtureHost) -> None:
    """Its threads' CPUs are of another node."""
    nic(host, node=0)
    process(host, 4242, "capture", cpus_allowed="c", tids=(4243,))
    finding = locality.consumer_cpus(with_consumer(host, 4242))
    assert_found(finding, "warn", "pid 4242 on CPUs 2-3")
    assert "not of the NIC's node 0" in finding.why
    assert "agent exec --numa eth1" in finding.remedy


def test_consumer_on_the_interrupts_cpu_is_a_warning(host: FixtureHost) -> None:
    """Bound to the CPU that serves the queues."""
    nic(host, node=0)
    process(host, 4242, "capture", cpus_allowed="1")
    finding = locality.consumer_cpus(with_consumer(host, 4242))
    assert_found(finding, "warn", "pid 4242 on CPUs 0")
    assert "each delays the other" in finding.why
    process(host, 4242, "capture", cpus_allowed="2")
    assert_found(locality.consumer_cpus(with_consumer(host, 4242)), "ok")


def test_consumer_memory_of_another_node_is_a_warning(host: FixtureHost) -> None:
    """Pages are counted in their own size: one huge page outweighs many small ones."""
    nic(host, node=0)
    directory = process(host, 4242, "capture")
    host.file(
        directory / "numa_maps",
        "7f00 default anon=100 dirty=100 N0=90 N1=10 kernelpagesize_kB=4\n"
        "7f01 default file=/hugepages huge anon=4 N1=4 kernelpagesize_kB=2048\n"
        "7f02 default stack\n",
    )
    assert memory_by_node(host.paths, 4242) == {0: 90 << 12, 1: (10 << 12) + (4 << 21)}
    finding = locality.consumer_memory(with_consumer(host, 4242))
    assert_found(finding, "warn", "node 1: 8 MiB")
    assert "migratepages 4242 all 0" in finding.remedy
    host.file(directory / "numa_maps", "7f00 default anon=100 N0=99 N1=1 kernelpagesize_kB=4\n")
    assert_found(locality.consumer_memory(with_consumer(host, 4242)), "ok")


def test_consumers_are_found_by_number_and_name(host: FixtureHost) -> None:
    """Names longer than the kernel keeps are told apart by the program's file name."""
    process(host, 10, "capture-consumer-a", tids=(11, 12))
    process(host, 20, "capture-consumer-b")
    process(host, 30, "feed")
    found = find_pids(host.paths, ["capture-consumer-a", "feed", "20", "99", "nothing"])
    assert found == {"capture-consumer-a": (10,), "feed": (30,), "20": (20,), "99": (), "nothing": ()}
    assert [thread.tid for thread in consumer_threads(host.paths, [10, 99])] == [10, 11, 12]


# ---- queues, rings, RSS --------------------------------------------------------------------------------------


def toeplitz(key: bytes, data: bytes) -> int:
    """The hash as Microsoft's RSS specification words it: for each set bit, the 32 key bits that begin there."""
    bits = int.from_bytes(key, "big")
    width = 8 * len(key)
    result = 0
    for i in range(8 * len(data)):
        if data[i // 8] >> (7 - i % 8) & 1:
            result ^= bits >> (width - 32 - i) & 0xFFFFFFFF
    return result


def test_toeplitz_reference_value() -> None:
    """Microsoft's verification suite: 66.9.149.187:2794 to 161.142.100.80:1766 hashes to 0x51ccc178."""
    flow = bytes([66, 9, 149, 187, 161, 142, 100, 80]) + (2794).to_bytes(2, "big") + (1766).to_bytes(2, "big")
    assert toeplitz(MICROSOFT_KEY, flow) == 0x51CCC178


@pytest.mark.parametrize(("key", "symmetric"), [(MICROSOFT_KEY, False), (SYMMETRIC_KEY, True)])
def test_symmetry_of_a_key_is_that_of_the_hash(key: bytes, symmetric: bool) -> None:
    """What is said of a key holds for hashes of random flows and their reverses."""
    assert is_symmetric_key(key) == symmetric
    draw = random.Random(1)
    equal = []
    for _ in range(50):
        source, destination, sport, dport = (draw.randbytes(n) for n in (4, 4, 2, 2))
        there = toeplitz(key, source + destination + sport + dport)
        equal.append(there == toeplitz(key, destination + source + dport + sport))
    assert all(equal) == symmetric


def test_rss_is_told(host: FixtureHost) -> None:
    """An asymmetric hash, queues without entries, and UDP by address alone are each said with a remedy."""
    spread = Rss(table=(0, 1, 2, 3) * 32, key=MICROSOFT_KEY, function="toeplitz", symmetric_input=False)
    finding = spreading.rss_finding("eth1", spread, 6, ("source address", "destination address"))
    assert_found(finding, "info", "not symmetric", "128 entries over queues 0-3")
    assert "queues 4-5 get no hashed packet" in finding.why
    assert "rx-flow-hash udp4 sdfn" in finding.remedy
    made = Rss((0, 1), SYMMETRIC_KEY, "toeplitz", False)
    assert_found(spreading.rss_finding("eth1", made, 2, None), "ok", "toeplitz, symmetric")
    mixed = Rss((0, 1), MICROSOFT_KEY, "toeplitz", True)
    assert_found(spreading.rss_finding("eth1", mixed, 2, None), "ok", ", symmetric")


def test_short_rings_are_told() -> None:
    """Half of what the device takes, or less."""
    assert_found(spreading.ring_finding("eth1", 512, 4096), "info", "512", "4096")
    assert_found(spreading.ring_finding("eth1", 4096, 4096), "ok", "4096")


@pytest.mark.parametrize(
    ("name", "counts"),
    [("rx_no_buffer_count", True), ("rx_out_of_buffer", True), ("rx_queue_0_drops", True), ("rx_missed_errors", True),
     ("port.rx_discards", True), ("rx_no_dma_resources", True), ("rx_drops", True), ("tx_dropped", False),
     ("rx_packets", False), ("rx_queue_0_xdp_drops", False), ("rx_csum_offload_errors", False)],
)  # fmt: skip
def test_drivers_counters_of_lost_packets(name: str, counts: bool) -> None:
    """Names of igb, ixgbe, i40e, mlx5, virtio_net and veth; what an XDP program drops is not the ring's loss."""
    assert spreading.is_ring_drop(name) == counts


@pytest.mark.parametrize(
    ("driver", "words"), [("igb", "down and up"), ("i40e", "rebuilt"), ("new", "not known")]
)
def test_cost_of_attaching_is_told(host: FixtureHost, driver: str, words: str) -> None:
    """What each driver does when XDP is attached."""
    directory = nic(host)
    (host.paths.sys / f"bus/pci/drivers/{driver}").mkdir(parents=True)
    (directory / "device/driver").symlink_to(host.paths.sys / f"bus/pci/drivers/{driver}")
    assert_found(interface.attach_cost(context(host, "eth1")), "info", driver, words)
