// SPDX-License-Identifier: GPL-2.0
/* The part of agent.ffi that has to be C: callbacks with va_list, ring memory, tight brackets of clock reads. */
#define _GNU_SOURCE
#include "native.h"

#include <errno.h>
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <bpf/libbpf.h>

#include "records.h"

/* --- libbpf's messages ------------------------------------------------------------------------- */

static __thread char *log_text;
static __thread size_t log_len, log_size;

static int log_print(enum libbpf_print_level level, const char *format, va_list args)
{
	va_list again;
	int len;

	if (level == LIBBPF_DEBUG)
		return 0;
	va_copy(again, args);
	len = vsnprintf(NULL, 0, format, again);
	va_end(again);
	if (len < 0 || len >= AGENT_LOG_MAX / 2)
		return len;
	if (log_len + len >= log_size && log_size < AGENT_LOG_MAX) {
		size_t size = log_size ? log_size : 4096;
		char *grown;

		while (size < AGENT_LOG_MAX && log_len + len >= size)
			size *= 2;
		grown = realloc(log_text, size);
		if (!grown)
			return -ENOMEM;
		log_text = grown;
		log_size = size;
	}
	if (log_len + len >= log_size) {
		/* Full: the newest lines name the cause, the older half goes. */
		memmove(log_text, log_text + AGENT_LOG_MAX / 2, log_len - AGENT_LOG_MAX / 2);
		log_len -= AGENT_LOG_MAX / 2;
	}
	vsnprintf(log_text + log_len, log_size - log_len, format, args);
	log_len += len;
	return len;
}

void agent_log_install(void)
{
	libbpf_set_print(log_print);
}

void agent_log_clear(void)
{
	free(log_text);
	log_text = NULL;
	log_len = log_size = 0;
}

const char *agent_log_text(void)
{
	return log_text ? log_text : "";
}

/* --- programs ----------------------------------------------------------------------------------- */

int agent_run_on_cpus(int prog_fd, const int *cpus, int n_cpus)
{
	int ran = 0;

	for (int i = 0; i < n_cpus; i++) {
		LIBBPF_OPTS(bpf_test_run_opts, opts, .flags = BPF_F_TEST_RUN_ON_CPU, .cpu = cpus[i]);
		int err = bpf_prog_test_run_opts(prog_fd, &opts);

		if (!err)
			ran++;
		else if (err != -ENXIO)
			return err;
	}
	return ran;
}

static const struct btf_type *find_struct(const struct btf *btf, const char *name)
{
	int id = btf__find_by_name_kind(btf, name, BTF_KIND_STRUCT);

	return id < 0 ? NULL : btf__type_by_id(btf, id);
}

int agent_btf_struct_size(const struct btf *btf, const char *name)
{
	const struct btf_type *type = find_struct(btf, name);

	return type ? (int)type->size : -ENOENT;
}

int agent_btf_member_offset(const struct btf *btf, const char *name, const char *member)
{
	const struct btf_type *type = find_struct(btf, name);

	if (!type)
		return -ENOENT;
	for (int i = 0; i < btf_vlen(type); i++) {
		const struct btf_member *m = btf_members(type) + i;

		if (!strcmp(btf__name_by_offset(btf, m->name_off), member))
			return btf_member_bit_offset(type, i) / 8;
	}
	return -ENOENT;
}

/* --- file systems ------------------------------------------------------------------------------- */

int64_t agent_filesystem_magic(const char *path)
{
	struct statfs fs;

	return statfs(path, &fs) ? -errno : (int64_t)fs.f_type;
}

/* --- rings -------------------------------------------------------------------------------------- */

struct ring {
	int fd;
	struct perf_event_mmap_page *control;
	const uint8_t *data;
	uint64_t data_size; /* a power of two */
};

struct agent_rings {
	struct agent_ring_counters counters;
	uint32_t record_size;
	uint32_t raw_size; /* of a sample that holds a record: perf pads it to end on 8 bytes */
	uint32_t next;
	uint32_t n;
	struct ring *rings;
};

#define LINE_BYTES     64
#define PREFETCH_BYTES 1024

/* A PERF_RECORD_SAMPLE with sample_type PERF_SAMPLE_RAW. */
struct sample_head {
	struct perf_event_header header;
	uint32_t raw_size;
} __attribute__((packed));

struct agent_rings *agent_rings_new(uint32_t record_size)
{
	struct agent_rings *rings = calloc(1, sizeof(*rings));

	if (!rings)
		return NULL;
	rings->record_size = record_size;
	rings->raw_size = ((sizeof(uint32_t) + record_size + 7) & ~7U) - sizeof(uint32_t);
	return rings;
}

int agent_rings_add(struct agent_rings *rings, int cpu, uint32_t pages)
{
	size_t page = sysconf(_SC_PAGESIZE), size = (size_t)pages * page;
	struct perf_event_attr attr = {
	    .type = PERF_TYPE_SOFTWARE,
	    .config = PERF_COUNT_SW_BPF_OUTPUT,
	    .size = sizeof(attr),
	    .sample_type = PERF_SAMPLE_RAW,
	    .sample_period = 1,
	    /* The agent polls on its tick: a wake-up per record would cost more than the record. */
	    .watermark = 1,
	    .wakeup_watermark = size / 2,
	};
	struct ring *grown;
	void *base;
	int fd;

	grown = realloc(rings->rings, (rings->n + 1) * sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	rings->rings = grown;
	fd = syscall(SYS_perf_event_open, &attr, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC);
	if (fd < 0)
		return -errno;
	base = mmap(NULL, page + size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED) {
		int err = -errno;

		close(fd);
		return err;
	}
	rings->rings[rings->n++] = (struct ring){
	    .fd = fd,
	    .control = base,
	    .data = (const uint8_t *)base + page,
	    .data_size = size,
	};
	return fd;
}

static void copy_out(const struct ring *ring, void *to, uint64_t at, size_t len)
{
	uint64_t start = at & (ring->data_size - 1);
	uint64_t until_end = ring->data_size - start;

	if (len <= until_end) {
		memcpy(to, ring->data + start, len);
		return;
	}
	memcpy(to, ring->data + start, until_end);
	memcpy((uint8_t *)to + until_end, ring->data, len - until_end);
}

/* The record of a sample that lies in the ring in one piece and is of the size that is meant, the usual case; else
 * NULL. */
static inline const uint8_t *plain_record(const struct agent_rings *rings, const struct ring *ring,
					  uint64_t tail, uint64_t head)
{
	uint64_t start = tail & (ring->data_size - 1), size = sizeof(struct sample_head) + rings->raw_size;
	struct sample_head sample;

	if (start + size > ring->data_size || size > head - tail)
		return NULL;
	memcpy(&sample, ring->data + start, sizeof(sample));
	if (sample.header.type != PERF_RECORD_SAMPLE || sample.header.size != size ||
	    sample.raw_size != rings->raw_size)
		return NULL;
	return ring->data + start + sizeof(sample);
}

/* Takes records from one ring; returns how many, at most capacity. */
static uint64_t drain_ring(struct agent_rings *rings, struct ring *ring, uint8_t *out, uint64_t capacity)
{
	uint64_t head = __atomic_load_n(&ring->control->data_head, __ATOMIC_ACQUIRE);
	uint64_t tail = ring->control->data_tail;
	uint64_t n = 0, sample_size = sizeof(struct sample_head) + rings->raw_size;

	while (tail < head) {
		const uint8_t *record = plain_record(rings, ring, tail, head);
		struct sample_head sample;

		/* Another CPU wrote these lines: they are far away when the loop comes to them. */
		for (uint64_t ahead = 0; ahead < sample_size; ahead += LINE_BYTES)
			__builtin_prefetch(ring->data +
					   ((tail + PREFETCH_BYTES + ahead) & (ring->data_size - 1)));
		if (record) {
			if (n == capacity)
				break;
			/* A size known to the compiler is copied without a call. */
			if (rings->record_size == sizeof(struct window_record))
				memcpy(out + n * sizeof(struct window_record), record,
				       sizeof(struct window_record));
			else
				memcpy(out + n * rings->record_size, record, rings->record_size);
			n++;
			/* Not by what the sample says: the next one's address needn't wait for this one's memory. */
			tail += sample_size;
			continue;
		}
		/* Everything in a ring is a multiple of 8 bytes: the header never wraps, raw_size may. */
		copy_out(ring, &sample.header, tail, sizeof(sample.header));
		if (sample.header.size < sizeof(sample.header) || sample.header.size > head - tail) {
			/* Not a record at all: nothing behind it can be found. */
			rings->counters.malformed++;
			tail = head;
			break;
		}
		if (sample.header.type == PERF_RECORD_SAMPLE) {
			copy_out(ring, &sample.raw_size, tail + sizeof(sample.header),
				 sizeof(sample.raw_size));
			if (sample.raw_size != rings->raw_size ||
			    sample.header.size != sizeof(sample) + rings->raw_size) {
				rings->counters.malformed++;
			} else {
				if (n == capacity)
					break;
				copy_out(ring, out + n * rings->record_size, tail + sizeof(sample),
					 rings->record_size);
				n++;
			}
		} else if (sample.header.type == PERF_RECORD_LOST) {
			uint64_t id_and_lost[2];

			copy_out(ring, id_and_lost, tail + sizeof(sample.header), sizeof(id_and_lost));
			rings->counters.lost_reported += id_and_lost[1];
		} else {
			rings->counters.malformed++;
		}
		tail += sample.header.size;
	}
	__atomic_store_n(&ring->control->data_tail, tail, __ATOMIC_RELEASE);
	return n;
}

int64_t agent_rings_drain(struct agent_rings *rings, void *out, uint64_t capacity)
{
	uint64_t n = 0;
	uint32_t i;

	for (i = 0; i < rings->n; i++) {
		struct ring *ring = &rings->rings[(rings->next + i) % rings->n];

		n += drain_ring(rings, ring, (uint8_t *)out + n * rings->record_size, capacity - n);
		if (n == capacity)
			break;
	}
	if (i < rings->n)
		rings->next = (rings->next + i + 1) % rings->n;
	rings->counters.drained += n;
	return n;
}

const struct agent_ring_counters *agent_rings_counters(const struct agent_rings *rings)
{
	return &rings->counters;
}

void agent_rings_free(struct agent_rings *rings)
{
	for (uint32_t i = 0; i < rings->n; i++) {
		munmap(rings->rings[i].control, sysconf(_SC_PAGESIZE) + rings->rings[i].data_size);
		close(rings->rings[i].fd);
	}
	free(rings->rings);
	free(rings);
}

/* --- clocks ------------------------------------------------------------------------------------- */

static int64_t read_clock(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

int agent_clock_pairs(struct agent_clock_pair *out, int n)
{
	struct timespec ts;

	/* The only way clock_gettime can fail here is a kernel without the clock. */
	if (clock_gettime(CLOCK_TAI, &ts) || clock_gettime(CLOCK_MONOTONIC_RAW, &ts))
		return -errno;
	for (int i = 0; i < n; i++) {
		int64_t raw0 = read_clock(CLOCK_MONOTONIC_RAW);
		int64_t mono = read_clock(CLOCK_MONOTONIC);
		int64_t raw1 = read_clock(CLOCK_MONOTONIC_RAW);
		int64_t realtime = read_clock(CLOCK_REALTIME);
		int64_t raw2 = read_clock(CLOCK_MONOTONIC_RAW);
		int64_t tai = read_clock(CLOCK_TAI);
		int64_t raw3 = read_clock(CLOCK_MONOTONIC_RAW);
		int64_t raw = raw0 + (raw1 - raw0) / 2;

		/* The brackets are microseconds apart at most: the clocks' rates don't matter over that. */
		out[i] = (struct agent_clock_pair){
		    .raw_ns = raw,
		    .mono_ns = mono,
		    .realtime_ns = realtime - (raw1 + (raw2 - raw1) / 2 - raw),
		    .tai_ns = tai - (raw2 + (raw3 - raw2) / 2 - raw),
		    .mono_width_ns = raw1 - raw0,
		    .realtime_width_ns = raw2 - raw1,
		    .tai_width_ns = raw3 - raw2,
		};
	}
	return 0;
}
