"""Builds `agent.ffi._native`: cffi in API mode over libbpf, libc and native.c.

The declarations come from `bpf/records.h` (the wire, the one definition of every record), from the headers here (what
the C sources of the same names give), and, below, the calls of libbpf and libc that Python makes itself. The C compiler
checks all of them against the real headers.
"""

import re
from pathlib import Path

from cffi import FFI

_ROOT = Path(__file__).resolve().parents[2] if "__file__" in globals() else Path.cwd()

_KERNEL_TYPES = "".join(
    f"typedef {c} {kernel};\n"
    for kernel, c in {
        "__u8": "unsigned char",
        "__u16": "unsigned short",
        "__u32": "unsigned int",
        "__u64": "unsigned long long",
        "__s32": "int",
        "__s64": "long long",
    }.items()
)

_LIBC = """
int mount(const char *source, const char *target, const char *fstype, unsigned long flags, const void *data);
int setns(int fd, int nstype);
int unshare(int flags);
#define CLONE_NEWNET ...
#define CLONE_NEWNS ...
#define MS_BIND ...
#define MS_REC ...
#define MS_SLAVE ...

long syscall(long number, ...);
#define SYS_set_mempolicy ...
#define SYS_get_mempolicy ...
#define SYS_migrate_pages ...
#define MPOL_BIND ...
#define SYS_sched_setattr ...
struct agent_sched_attr {
    __u32 size, sched_policy;
    __u64 sched_flags;
    __s32 sched_nice;
    __u32 sched_priority;
    __u64 sched_runtime, sched_deadline, sched_period;
};
"""

_CLOCKS = """
struct timex {
    unsigned int modes;
    long offset;
    long freq;
    long maxerror;
    long esterror;
    int status;
    long constant;
    long tick;
    int tai;
    ...;
};
int adjtimex(struct timex *buf);
int clock_adjtime(int clock, struct timex *buf);
#define STA_PLL ...
#define STA_UNSYNC ...
#define STA_FREQHOLD ...
#define STA_NANO ...
#define TIME_ERROR ...

int ioctl(int fd, unsigned long request, ...);

struct ptp_clock_time {
    int64_t sec;
    uint32_t nsec;
    uint32_t reserved;
};
struct ptp_clock_caps {
    int max_adj;
    int n_alarm;
    int n_ext_ts;
    int n_per_out;
    int pps;
    int n_pins;
    int cross_timestamping;
    int adjust_phase;
    int rsv[12];
};
struct ptp_sys_offset {
    unsigned int n_samples;
    unsigned int rsv[3];
    struct ptp_clock_time ts[51];
};
struct ptp_sys_offset_extended {
    unsigned int n_samples;
    unsigned int rsv[3];
    struct ptp_clock_time ts[25][3];
};
struct ptp_sys_offset_precise {
    struct ptp_clock_time device;
    struct ptp_clock_time sys_realtime;
    struct ptp_clock_time sys_monoraw;
    unsigned int rsv[4];
};
#define PTP_MAX_SAMPLES ...
#define PTP_CLOCK_GETCAPS ...
#define PTP_CLOCK_GETCAPS2 ...
#define PTP_SYS_OFFSET ...
#define PTP_SYS_OFFSET2 ...
#define PTP_SYS_OFFSET_EXTENDED ...
#define PTP_SYS_OFFSET_EXTENDED2 ...
#define PTP_SYS_OFFSET_PRECISE ...
#define PTP_SYS_OFFSET_PRECISE2 ...

struct ifreq { ...; };
struct hwtstamp_config {
    int flags;
    int tx_type;
    int rx_filter;
};
struct ethtool_ts_info {
    uint32_t cmd;
    uint32_t so_timestamping;
    int32_t phc_index;
    uint32_t tx_types;
    uint32_t rx_filters;
    ...;
};
#define SIOCETHTOOL ...
#define SIOCGIFMTU ...
#define SIOCGHWTSTAMP ...
#define SIOCSHWTSTAMP ...
#define ETHTOOL_GET_TS_INFO ...
#define HWTSTAMP_FILTER_NONE ...
#define HWTSTAMP_FILTER_ALL ...
#define HWTSTAMP_TX_OFF ...
#define HWTSTAMP_TX_ON ...
#define SOF_TIMESTAMPING_RX_HARDWARE ...
#define SOF_TIMESTAMPING_TX_HARDWARE ...
#define SOF_TIMESTAMPING_RAW_HARDWARE ...
"""

_LIBBPF = """
struct bpf_object;
struct bpf_program;
struct bpf_map;

struct bpf_object *bpf_object__open_file(const char *path, const void *opts);
int bpf_object__load(struct bpf_object *obj);
void bpf_object__close(struct bpf_object *obj);
struct btf *bpf_object__btf(const struct bpf_object *obj);

struct bpf_program *bpf_object__next_program(const struct bpf_object *obj, struct bpf_program *prog);
const char *bpf_program__name(const struct bpf_program *prog);
int bpf_program__set_autoload(struct bpf_program *prog, bool autoload);
int bpf_program__set_flags(struct bpf_program *prog, uint32_t flags);
uint32_t bpf_program__flags(const struct bpf_program *prog);
void bpf_program__set_ifindex(struct bpf_program *prog, uint32_t ifindex);
int bpf_program__fd(const struct bpf_program *prog);

struct bpf_map *bpf_object__next_map(const struct bpf_object *obj, const struct bpf_map *map);
const char *bpf_map__name(const struct bpf_map *map);
int bpf_map__set_max_entries(struct bpf_map *map, uint32_t max_entries);
int bpf_map__reuse_fd(struct bpf_map *map, int fd);
int bpf_map__fd(const struct bpf_map *map);

struct bpf_prog_load_opts {
    size_t sz;
    uint32_t prog_flags;
    uint32_t prog_ifindex;
    uint32_t kern_version;
    uint32_t log_level;
    uint32_t log_size;
    char *log_buf;
    ...;
};
int bpf_prog_load(int type, const char *name, const char *license, const void *insns, size_t insn_cnt,
                  const struct bpf_prog_load_opts *opts);

struct bpf_link_create_opts {
    size_t sz;
    uint32_t flags;
    ...;
};
int bpf_link_create(int prog_fd, int target_fd, int attach_type, const struct bpf_link_create_opts *opts);
int bpf_raw_tracepoint_open(const char *name, int prog_fd);
int bpf_link_detach(int link_fd);
int bpf_obj_pin(int fd, const char *pathname);
int bpf_obj_get(const char *pathname);

struct bpf_xdp_attach_opts {
    size_t sz;
    int old_prog_fd;
    ...;
};
struct bpf_xdp_query_opts {
    size_t sz;
    uint32_t prog_id;
    uint32_t drv_prog_id;
    uint32_t hw_prog_id;
    uint32_t skb_prog_id;
    uint8_t attach_mode;
    ...;
};
int bpf_xdp_attach(int ifindex, int prog_fd, uint32_t flags, const struct bpf_xdp_attach_opts *opts);
int bpf_xdp_detach(int ifindex, uint32_t flags, const struct bpf_xdp_attach_opts *opts);
int bpf_xdp_query(int ifindex, int flags, struct bpf_xdp_query_opts *opts);

struct bpf_prog_query_opts {
    size_t sz;
    uint32_t *prog_ids;
    uint32_t prog_cnt;
    ...;
};
int bpf_prog_query_opts(int target_fd, int type, struct bpf_prog_query_opts *opts);

struct bpf_test_run_opts {
    size_t sz;
    const void *data_in;
    void *data_out;
    uint32_t data_size_in;
    uint32_t data_size_out;
    const void *ctx_in;
    void *ctx_out;
    uint32_t ctx_size_in;
    uint32_t ctx_size_out;
    uint32_t retval;
    int repeat;
    uint32_t duration;
    uint32_t flags;
    uint32_t cpu;
    ...;
};
int bpf_prog_test_run_opts(int prog_fd, struct bpf_test_run_opts *opts);

int bpf_map_lookup_elem(int fd, const void *key, void *value);
int bpf_map_update_elem(int fd, const void *key, const void *value, uint64_t flags);
int bpf_prog_get_fd_by_id(uint32_t id);
int bpf_map_get_fd_by_id(uint32_t id);
int bpf_link_get_fd_by_id(uint32_t id);
int bpf_link_get_next_id(uint32_t start_id, uint32_t *next_id);
int bpf_obj_get_info_by_fd(int bpf_fd, void *info, uint32_t *info_len);
int bpf_enable_stats(int type);

struct bpf_prog_info {
    uint32_t type;
    uint32_t id;
    uint8_t tag[8];
    uint32_t jited_prog_len;
    uint32_t xlated_prog_len;
    uint64_t load_time;
    uint32_t created_by_uid;
    uint32_t nr_map_ids;
    uint64_t map_ids;
    char name[16];
    uint32_t ifindex;
    uint64_t run_time_ns;
    uint64_t run_cnt;
    uint64_t recursion_misses;
    uint32_t verified_insns;
    ...;
};
struct bpf_map_info {
    uint32_t type;
    uint32_t id;
    uint32_t key_size;
    uint32_t value_size;
    uint32_t max_entries;
    uint32_t map_flags;
    char name[16];
    ...;
};
struct agent_tracing_link {
    uint32_t type;
    uint32_t id;
    uint32_t prog_id;
    uint32_t attach_type;
    uint32_t target_obj_id;
    uint32_t target_btf_id;
    ...;
};

struct xdp_md {
    uint32_t data;
    uint32_t data_end;
    uint32_t data_meta;
    uint32_t ingress_ifindex;
    uint32_t rx_queue_index;
    uint32_t egress_ifindex;
};
struct __sk_buff {
    uint32_t len;
    uint32_t mark;
    uint32_t queue_mapping;
    uint32_t priority;
    uint32_t ingress_ifindex;
    uint32_t ifindex;
    uint32_t cb[5];
    uint64_t tstamp;
    uint32_t wire_len;
    uint32_t gso_segs;
    uint32_t gso_size;
    uint64_t hwtstamp;
    ...;
};

#define BPF_PROG_TYPE_SCHED_CLS ...
#define BPF_PROG_TYPE_XDP ...
#define BPF_PROG_TYPE_RAW_TRACEPOINT ...
#define BPF_PROG_TYPE_EXT ...
#define BPF_LINK_TYPE_TRACING ...
#define BPF_MAP_TYPE_ARRAY ...
#define BPF_MAP_TYPE_PERF_EVENT_ARRAY ...
#define BPF_MAP_TYPE_DEVMAP ...
#define BPF_MAP_TYPE_DEVMAP_HASH ...
#define BPF_MAP_TYPE_CPUMAP ...
#define BPF_MAP_TYPE_XSKMAP ...
#define BPF_F_MMAPABLE ...
#define BPF_F_XDP_HAS_FRAGS ...
#define BPF_F_TEST_RUN_ON_CPU ...
#define BPF_STATS_RUN_TIME ...
#define BPF_XDP ...
#define XDP_FLAGS_UPDATE_IF_NOEXIST ...
#define XDP_FLAGS_SKB_MODE ...
#define XDP_FLAGS_DRV_MODE ...
#define XDP_FLAGS_REPLACE ...
#define XDP_ATTACHED_DRV ...
#define XDP_ATTACHED_SKB ...
#define XDP_ATTACHED_HW ...
#define XDP_ATTACHED_MULTI ...
"""

_INCLUDES = """
#include <linux/bpf.h>
#include <linux/ethtool.h>
#include <linux/if.h>
#include <linux/if_link.h>
#include <linux/net_tstamp.h>
#include <linux/ptp_clock.h>
#include <linux/sockios.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/timex.h>
#include <unistd.h>
#include <linux/mempolicy.h>
#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <bpf/libbpf.h>
#include "records.h"
#include "native.h"
#include "clockbank.h"
#include "clockcore.h"
#include "clocktrack.h"
#include "clockmono.h"
#include "clockanchor.h"
#include "clockwindows.h"
#include "clockenvelope.h"
#include "batchreplay.h"
#include "loadwatch.h"

/* sched_setattr(2): linux/sched/types.h and glibc's sched.h define sched_param both. */
struct agent_sched_attr {
    __u32 size, sched_policy;
    __u64 sched_flags;
    __s32 sched_nice;
    __u32 sched_priority;
    __u64 sched_runtime, sched_deadline, sched_period;
};

/* bpf_link_info's head and its tracing part: cffi can't name members of an anonymous union. */
struct agent_tracing_link {
    __u32 type, id, prog_id, pad, attach_type, target_obj_id, target_btf_id;
    __u8 rest[sizeof(struct bpf_link_info)];
};
_Static_assert(offsetof(struct agent_tracing_link, target_obj_id) ==
               offsetof(struct bpf_link_info, tracing.target_obj_id), "bpf_link_info");
"""


def _declarations(header: Path) -> str:
    """A header's text without what a declaration parser can't read: includes and guards."""
    text = header.read_text()
    return re.sub(r"^#(ifndef|endif|include|define\s+\w+\s*$).*$", "", text, flags=re.MULTILINE)


# Those that Python calls, in the order in which they build on each other.
_HEADERS = (
    "native.h",
    "clockbank.h",
    "clockcore.h",
    "clocktrack.h",
    "clockmono.h",
    "clockanchor.h",
    "clockwindows.h",
    "clockenvelope.h",
    "batchreplay.h",
    "loadwatch.h",
)
_SOURCES = tuple(name.replace(".h", ".c") for name in _HEADERS)
_INLINE_HEADERS = ("clockwide.h", "clockwhole.h")

ffibuilder = FFI()
ffibuilder.cdef(
    _KERNEL_TYPES
    + _declarations(_ROOT / "bpf/records.h")
    + "".join(_declarations(_ROOT / "agent/ffi" / name) for name in _HEADERS)
    + _LIBC
    + _CLOCKS
    + _LIBBPF
)
ffibuilder.set_source(
    "agent.ffi._native",
    _INCLUDES,
    # Relative: setuptools wants the paths as setup.py sees them.
    sources=[f"agent/ffi/{name}" for name in _SOURCES],
    depends=[f"agent/ffi/{name}" for name in (*_HEADERS, *_INLINE_HEADERS, "build_native.py")]
    + ["bpf/records.h"],
    include_dirs=["agent/ffi", "bpf"],
    libraries=["bpf", "m"],
    # Loops that say so may add in any order and take several numbers at a time; nobody looks at errno or traps.
    extra_compile_args=["-O3", "-Wall", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math"],
)
