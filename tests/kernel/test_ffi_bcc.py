"""The BCC loader on a small source of both dialects: the same records as libbpf's."""

from pathlib import Path

import numpy as np
import pytest

from agent.errors import UnsupportedError
from agent.ffi import bcc_loader, bpf
from agent.ffi.bpf import BpfObject, ProgramSet
from agent.ffi.rings import Rings
from tests.kernel import ffi_probe

pytestmark = pytest.mark.kernel

_RECORD = np.dtype([("seq", "<u8"), ("length", "<u4"), ("cpu", "<u4")])

_SOURCE = """
#ifdef AGENT_BCC
#include <uapi/linux/bpf.h>
#define AGENT_SECTION(name)
#else
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#define AGENT_SECTION(name) SEC(name)
#endif
#include "both.h"

#ifdef AGENT_BCC
BPF_PERF_OUTPUT(events);
BPF_TABLE("array", u32, struct tally, tallies, TALLIES_ENTRIES);
static __always_inline struct tally *tally_at(u32 key)
{
  return tallies.lookup(&key);
}
static __always_inline void output(void *ctx, struct record *record)
{
  events.perf_submit(ctx, record, sizeof(*record));
}
#else
struct { __uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY); __type(key, __u32); __type(value, __u32); } events SEC(".maps");
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, __u32); __type(value, struct tally);
} tallies SEC(".maps");
static __always_inline struct tally *tally_at(__u32 key)
{
  return bpf_map_lookup_elem(&tallies, &key);
}
static __always_inline void output(void *ctx, struct record *record)
{
  bpf_perf_event_output(ctx, &events, BPF_F_CURRENT_CPU, record, sizeof(*record));
}
char _license[] SEC("license") = "GPL";
#endif

AGENT_SECTION("xdp.frags")
int both_xdp(struct xdp_md *ctx)
{
  struct tally *tally = tally_at(0);
  struct record record = {};

  if (!tally)
    return XDP_ABORTED;
  record.seq = tally->runs++;
  record.length = ctx->data_end - ctx->data;
  record.cpu = 7;
  output(ctx, &record);
  return XDP_PASS;
}
"""
_HEADER = """
#ifndef BOTH_H
#define BOTH_H
struct tally { __u64 runs; };
struct record { __u64 seq; __u32 length; __u32 cpu; };
#endif
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProgramSet:
    """A source for both loaders, with a header of its own, where `load` looks for it."""
    pytest.importorskip("bcc", reason="python3-bpfcc is not installed")
    (tmp_path / "both.h").write_text(_HEADER)
    (tmp_path / "both.bpf.c").write_text(_SOURCE)
    ffi_probe.compile_bpf(tmp_path / "both.bpf.c", tmp_path / "both.bpf.o")
    monkeypatch.setenv("AGENT_BPF_DIR", str(tmp_path))
    return ProgramSet("both", map_entries={"tallies": 3})


def records_of(loaded: BpfObject) -> bytes:
    """What the rings give after 20 packets of growing length."""
    out = np.zeros(100, _RECORD)
    with Rings(loaded.map("events"), ffi_probe.ONLINE, 65536, _RECORD) as rings:
        for length in range(20):
            bpf.test_run(loaded.prog_fd("both_xdp"), bytes(60 + length))
        n = rings.drain(out)
    return np.sort(out[:n], order="seq").tobytes()


def test_both_loaders_give_the_same_records(source: ProgramSet) -> None:
    """The same packets give the same bytes, whoever loaded the programs."""
    with bpf.load("libbpf", source) as by_libbpf, bpf.load("bcc", source) as by_bcc:
        assert (by_libbpf.loader, by_bcc.loader) == ("libbpf", "bcc")
        assert by_bcc.map("tallies").max_entries == by_libbpf.map("tallies").max_entries == 3
        expected = records_of(by_libbpf)
        assert len(expected) == 20 * _RECORD.itemsize
        assert records_of(by_bcc) == expected


def test_bcc_programs_have_their_flags(source: ProgramSet) -> None:
    """SEC("xdp.frags") counts for BCC too: the program attaches at a jumbo MTU."""
    with bpf.load("bcc", source) as loaded, ffi_probe.inside_veth_pair() as pair:
        ffi_probe.ip("link", "set", "outer", "mtu", "9000")
        with bpf.attach_xdp(loaded.prog_fd("both_xdp"), pair.inner, "native"):
            assert bpf.prog_info(loaded.prog_fd("both_xdp")).name == "both_xdp"


def test_a_source_that_does_not_compile_is_an_error(tmp_path: Path) -> None:
    """The compiler's refusal names the source and the headers used."""
    pytest.importorskip("bcc", reason="python3-bpfcc is not installed")
    broken = tmp_path / "broken.bpf.c"
    broken.write_text('SEC("xdp")\nint broken(struct xdp_md *ctx) { return nonsense; }\n')
    with pytest.raises(UnsupportedError, match=r"broken\.bpf\.c"):
        bcc_loader.load_source(broken, ProgramSet("broken"))
