/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What native.c gives to Python. build_native.py reads these declarations too, so
 * they keep to plain C: no attributes, no macros with arguments.
 *
 * Functions that can fail return a negative errno.
 */
#ifndef AGENT_NATIVE_H
#define AGENT_NATIVE_H

#include <stddef.h>
#include <stdint.h>

/* --- libbpf's messages ---------------------------------------------------------------------------
 * libbpf tells the causes of a failure only through its print callback. It is kept per thread: text
 * since the last agent_log_clear(), at most AGENT_LOG_MAX bytes, the newest kept. */
#define AGENT_LOG_MAX 16777216
void agent_log_install(void);
void agent_log_clear(void);
const char *agent_log_text(void);

/* --- programs ---------------------------------------------------------------------------------- */

/* Runs a raw tracepoint program once on each of the CPUs (an IPI each). Returns how many ran; a CPU that
 * is offline is skipped. Stops at the first other error. */
int agent_run_on_cpus(int prog_fd, const int *cpus, int n_cpus);

/* Layout of a struct in a BPF object's BTF: its size, or the byte offset of one member. -ENOENT if the
 * object doesn't know it. */
struct btf;
int agent_btf_struct_size(const struct btf *btf, const char *name);
int agent_btf_member_offset(const struct btf *btf, const char *name, const char *member);

/* --- file systems ------------------------------------------------------------------------------- */

/* statfs's f_type: which kind of file system a path is on. */
int64_t agent_filesystem_magic(const char *path);

/* --- rings -------------------------------------------------------------------------------------- */

struct agent_ring_counters {
	uint64_t drained;	/* records copied out */
	uint64_t lost_reported; /* as told by PERF_RECORD_LOST */
	uint64_t malformed;	/* samples of another size, records of another type */
};

struct agent_rings;

/* For records of record_size bytes; NULL if there is no memory. */
struct agent_rings *agent_rings_new(uint32_t record_size);
/* Opens a ring of `pages` (a power of two) data pages on a CPU. Returns the perf event's fd, which goes
 * into the perf event array; -ENODEV if the CPU is offline. */
int agent_rings_add(struct agent_rings *rings, int cpu, uint32_t pages);
/* Copies records into out until it is full or all rings are empty; what doesn't fit stays. Starts at the
 * ring after the one that filled the last call, so that none is starved. Returns the number of records. */
int64_t agent_rings_drain(struct agent_rings *rings, void *out, uint64_t capacity);
const struct agent_ring_counters *agent_rings_counters(const struct agent_rings *rings);
void agent_rings_free(struct agent_rings *rings);

/* --- clocks -------------------------------------------------------------------------------------- */

/* One instant read on four clocks. Everything is related to raw: the other clocks are each read between
 * two reads of raw, and shifted to raw_ns, the middle of mono's bracket. */
struct agent_clock_pair {
	int64_t raw_ns;
	int64_t mono_ns;
	int64_t realtime_ns;
	int64_t tai_ns;
	int64_t mono_width_ns; /* raw after - raw before */
	int64_t realtime_width_ns;
	int64_t tai_width_ns;
};
int agent_clock_pairs(struct agent_clock_pair *out, int n);

#endif
