"""Loading by libbpf, maps and test runs in the real kernel."""

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from agent.errors import AgentError, UnsupportedError, UsageError
from agent.ffi import _native, bpf
from agent.ffi.bpf import BpfObject, LoadError, ProgramSet
from tests.kernel import ffi_probe

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled probe."""
    return ffi_probe.probe_object(tmp_path_factory.getbasetemp())


@pytest.fixture
def probe(path: Path) -> Iterator[BpfObject]:
    """The loaded probe."""
    with ffi_probe.load_probe(path) as loaded:
        yield loaded


def test_only_the_named_programs_are_loaded(path: Path) -> None:
    """A program that was not asked for is not loaded and cannot be had."""
    with ffi_probe.load_probe(path, "probe_plain") as loaded:
        assert loaded.prog_fd("probe_plain") >= 0
        with pytest.raises(UsageError, match="probe_tc"):
            loaded.prog_fd("probe_tc")


def test_a_refused_program_says_what_the_verifier_said(path: Path) -> None:
    """The verifier's words are in the message, its whole log in the error."""
    with pytest.raises(LoadError, match="invalid access to packet") as error:
        ffi_probe.load_probe(path, "probe_refused")
    assert "R1 offset is outside of the packet" in error.value.log
    assert error.value.exit_code == 3


def test_an_unknown_name_is_refused(path: Path) -> None:
    """A program or map name that the object doesn't have is named."""
    with pytest.raises(UsageError, match="no_such_map"):
        bpf.load_object_file(path, ProgramSet("ffi_probe", map_entries={"no_such_map": 1}))


def test_a_missing_object_names_the_make_target(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An object that was not built is reported with the target that builds it."""
    monkeypatch.setenv("AGENT_BPF_DIR", str(tmp_path))
    with pytest.raises(UnsupportedError) as error:
        bpf.load("libbpf", ProgramSet("capture"))
    assert "make bpf" in error.value.remedy


def test_a_file_that_is_no_object_is_refused(tmp_path: Path) -> None:
    """Garbage in place of an ELF file gives an error, not a crash."""
    garbage = tmp_path / "x.bpf.o"
    garbage.write_bytes(b"\x7fELF" + bytes(100))
    with pytest.raises(LoadError, match=r"x\.bpf\.o"):
        bpf.load_object_file(garbage, ProgramSet("x"))


def test_an_object_of_another_records_h_is_refused(tmp_path: Path) -> None:
    """A record laid out otherwise than in the native module is found before loading, with the remedy."""
    source = tmp_path / "other.bpf.c"
    source.write_text(
        "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\n"
        "struct window_record { __u64 open_mono_ns; __u64 seq; };\n"
        "struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, __u32);"
        ' __type(value, struct window_record); } m SEC(".maps");\n'
        'SEC("xdp") int p(struct xdp_md *c) { __u32 k = 0; return bpf_map_lookup_elem(&m, &k) ? 1 : 2; }\n'
    )
    with pytest.raises(AgentError, match="window_record differs") as error:
        bpf.load_object_file(ffi_probe.compile_bpf(source, tmp_path / "other.bpf.o"), ProgramSet("other"))
    assert "make all" in error.value.remedy


def test_without_capabilities_the_missing_ones_are_named(path: Path) -> None:
    """Without privileges the cause is the capabilities, not the memlock limit that libbpf blames."""
    code = (
        "import sys; from pathlib import Path; from agent.ffi import bpf\n"
        "try: bpf.load_object_file(Path(sys.argv[1]), bpf.ProgramSet('p', programs=('probe_plain',)))\n"
        "except bpf.LoadError as error: print(error)\n"
    )
    drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    done = subprocess.run(
        [*drop, sys.executable, "-c", code, path], capture_output=True, text=True, check=True
    )
    assert "CAP_BPF" in done.stdout
    assert "MEMLOCK" not in done.stdout


def test_map_entries_are_set_before_loading(path: Path) -> None:
    """The size that the caller wants is the size that the kernel has."""
    source = ProgramSet("ffi_probe", programs=("probe_tc",), map_entries={"values": 9})
    with bpf.load_object_file(path, source) as loaded:
        assert loaded.map("values").max_entries == 9
        assert len(loaded.map("values").mmap(np.dtype("u4"))) == 9


def test_a_mapping_is_the_map(probe: BpfObject) -> None:
    """What is written through the mapping is read by a lookup, and the other way round, at the kernel's stride."""
    values = probe.map("values")
    heads = values.mmap(np.dtype([("head", "<u4"), ("count", "<u8")]))
    heads["count"][2] = 0x1234
    assert int.from_bytes(values.lookup(2)[4:12], "little") == 0x1234
    values.update(3, b"\x01\x00\x00\x00" + bytes(13))
    assert heads["head"].tolist() == [0, 0, 0, 1]


def test_a_mapping_outlives_its_map(path: Path) -> None:
    """An array stays readable after the object is closed."""
    with ffi_probe.load_probe(path, "probe_tc") as loaded:
        counts = loaded.map("values").mmap(np.dtype([("head", "<u4"), ("count", "<u8")]))["count"]
        counts[1] = 7
    gc.collect()
    assert counts[1] == 7


def test_a_mapping_wider_than_the_value_is_refused(probe: BpfObject) -> None:
    """A record larger than the map's value means two builds: said so."""
    with pytest.raises(AgentError, match="different builds"):
        probe.map("values").mmap(np.dtype("u8,u8,u8"))


def test_a_map_that_cannot_be_mapped_gives_an_error(probe: BpfObject) -> None:
    """A map without BPF_F_MMAPABLE is named in the error."""
    with pytest.raises(AgentError, match="sockets"):
        probe.map("sockets").mmap(np.dtype("u4"))


def test_an_update_of_the_wrong_length_is_refused(probe: BpfObject) -> None:
    """The kernel would read beyond a short value: it never sees one."""
    with pytest.raises(UsageError, match="17 byte"):
        probe.map("values").update(0, b"short")


def test_an_index_out_of_range_is_an_error(probe: BpfObject) -> None:
    """Entry 4 of 4 isn't there."""
    with pytest.raises(AgentError, match="entry 4"):
        probe.map("values").lookup(4)


def test_shared_maps_are_the_same_maps(path: Path, probe: BpfObject) -> None:
    """With share, a second object works on the first one's maps."""
    source = ProgramSet("ffi_probe", programs=("probe_tc",))
    with bpf.load_object_file(path, source, share=probe) as second:
        assert bpf.map_info(second.map("values").fd).id == bpf.map_info(probe.map("values").fd).id


def open_fds() -> list[str]:
    """What this process has open, by what it is."""
    return sorted(fd.name for fd in Path("/proc/self/fd").iterdir())


def test_close_frees_every_fd(path: Path) -> None:
    """Loading and closing leaves no fd behind, and closing twice is fine."""
    before = open_fds()
    loaded = ffi_probe.load_probe(path)
    loaded.close()
    loaded.close()
    assert open_fds() == before


def test_prog_info_tells_what_was_loaded(probe: BpfObject) -> None:
    """Name, type, verified instructions and maps come from the kernel."""
    info = bpf.prog_info(probe.prog_fd("probe_tc"))
    assert (info.name, info.type) == ("probe_tc", "sched_cls")
    assert info.verified_insns > 5
    assert [bpf.map_info_by_id(map_id).name for map_id in info.map_ids] == ["values"]


def test_statistics_count_runs_only_while_enabled(probe: BpfObject) -> None:
    """Run counts grow inside enable_bpf_stats and not outside."""
    fd = probe.prog_fd("probe_plain")
    bpf.test_run(fd, bytes(64), repeat=50)
    outside = bpf.prog_info(fd).run_cnt
    with bpf.enable_bpf_stats():
        bpf.test_run(fd, bytes(64), repeat=100)
    assert bpf.prog_info(fd).run_cnt - outside >= 100


def test_a_run_gives_the_packet_back(probe: BpfObject) -> None:
    """The return value and the packet behind the program are the run's."""
    packet = bytes(range(64))
    done = bpf.test_run(probe.prog_fd("probe_plain"), packet, repeat=1000)
    assert (done.retval, done.data_out) == (2, packet)


def test_the_skb_context_goes_in_and_comes_out(probe: BpfObject) -> None:
    """hwtstamp and gso_segs of the context are what the program sees."""
    context = bpf.sk_buff_context(hwtstamp_ns=1_234_567_890_123, gso_segs=3)
    done = bpf.test_run(probe.prog_fd("probe_tc"), bytes(64), ctx=context)
    value = probe.map("values").lookup(0)
    assert int.from_bytes(value[4:12], "little") == 1_234_567_890_123
    assert _native.ffi.from_buffer("struct __sk_buff *", done.ctx_out).mark == 3
    assert done.retval == 0xFFFFFFFF  # TCX_NEXT, as unsigned


def test_the_xdp_context_names_device_and_queue(probe: BpfObject) -> None:
    """A run as queue 0 of the loopback device works; a queue that it doesn't have is EINVAL."""
    fd = probe.prog_fd("probe_redirect")
    assert bpf.test_run(fd, bytes(64), ctx=bpf.xdp_context(64, ifindex=1)).retval == 2
    with pytest.raises(AgentError, match="EINVAL"):
        bpf.test_run(fd, bytes(64), ctx=bpf.xdp_context(64, ifindex=1, rx_queue=500))


def test_a_run_on_a_cpu_runs_there(probe: BpfObject) -> None:
    """A raw tracepoint program runs once on the CPU that is named."""
    cpu = ffi_probe.ONLINE[-1]
    produced = probe.map("produced").mmap(np.dtype("2u8"))
    bpf.test_run(probe.prog_fd("probe_emit"), cpu=cpu)
    assert produced[:, 0].nonzero()[0].tolist() == [cpu]


def test_flush_skips_cpus_that_are_not_online(probe: BpfObject) -> None:
    """A CPU that isn't there doesn't stop the others."""
    assert bpf.flush_cpus(probe.prog_fd("probe_emit"), [*ffi_probe.ONLINE, 4000]) == len(ffi_probe.ONLINE)


def test_flush_of_another_program_type_is_an_error(probe: BpfObject) -> None:
    """An XDP program cannot be run per CPU, and that is said."""
    with pytest.raises(AgentError, match="on CPUs"):
        bpf.flush_cpus(probe.prog_fd("probe_plain"), [0])
