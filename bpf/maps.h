/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The maps, the same by name and layout with both loaders. Arrays that user space reads through mmap; per-CPU data is
 * indexed cpu * n + i, so that one CPU's entries are touched by that CPU only. Sizes: the loader sets max_entries
 * before the load (libbpf), or defines <MAP>_ENTRIES (BCC); the numbers here are for a machine of one CPU.
 *
 * Why accessors are written out twice: BCC rewrites `map.lookup()` in the source text, and not inside macros.
 */
#ifndef AGENT_MAPS_H
#define AGENT_MAPS_H

#include "compat.h"
#include "records.h"
#include "state.h"

#ifndef SLOTS_ENTRIES
#define SLOTS_ENTRIES 64
#endif
#ifndef HISTS_ENTRIES
#define HISTS_ENTRIES SLOTS_ENTRIES
#endif
#ifndef CLOCKS_ENTRIES
#define CLOCKS_ENTRIES CLOCKS_PER_CPU
#endif
#ifndef STACK_HISTS_ENTRIES
#define STACK_HISTS_ENTRIES 64
#endif
#ifndef COUNTERS_ENTRIES
#define COUNTERS_ENTRIES 1
#endif
#ifndef TX_QUEUES_ENTRIES
#define TX_QUEUES_ENTRIES COUNTERS_ENTRIES
#endif

#ifndef PTP_ENTRIES
#define PTP_ENTRIES COUNTERS_ENTRIES
#endif

#ifdef AGENT_BCC

BPF_F_TABLE("array", u32, struct agent_config, config, 1, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct cpu_state, counters, COUNTERS_ENTRIES, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct slot_head, slots, SLOTS_ENTRIES, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct slot, hists, HISTS_ENTRIES, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct clock_state, clocks, CLOCKS_ENTRIES, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct clock_model, models, MODELS_MAX, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct stack_hist, stack_hists, STACK_HISTS_ENTRIES, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct tx_usage, tx_queues, TX_QUEUES_ENTRIES, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct ptp_seen, ptp, PTP_ENTRIES, BPF_F_MMAPABLE);
BPF_PERF_OUTPUT(events);

static __always_inline struct agent_config *config_at(u32 i)
{
	return config.lookup(&i);
}

static __always_inline struct cpu_state *cpu_state_at(u32 i)
{
	return counters.lookup(&i);
}

static __always_inline struct slot_head *heads_at(u32 i)
{
	return slots.lookup(&i);
}

static __always_inline struct slot *slots_at(u32 i)
{
	return hists.lookup(&i);
}

static __always_inline struct clock_state *clocks_at(u32 i)
{
	return clocks.lookup(&i);
}

static __always_inline struct clock_model *models_at(u32 i)
{
	return models.lookup(&i);
}

static __always_inline struct stack_hist *stack_hists_at(u32 i)
{
	return stack_hists.lookup(&i);
}

static __always_inline struct tx_usage *tx_queues_at(u32 i)
{
	return tx_queues.lookup(&i);
}

static __always_inline struct ptp_seen *ptp_at(u32 i)
{
	return ptp.lookup(&i);
}

static __always_inline int events_output(void *ctx, struct window_record *record)
{
	return events.perf_submit(ctx, record, sizeof(*record));
}

#else

#define MMAPPED_ARRAY(name, value_type, entries)   \
	struct {                                   \
		__uint(type, BPF_MAP_TYPE_ARRAY);  \
		__uint(map_flags, BPF_F_MMAPABLE); \
		__uint(max_entries, entries);      \
		__type(key, __u32);                \
		__type(value, value_type);         \
	} name SEC(".maps")

MMAPPED_ARRAY(config, struct agent_config, 1);
MMAPPED_ARRAY(counters, struct cpu_state, COUNTERS_ENTRIES);
MMAPPED_ARRAY(slots, struct slot_head, SLOTS_ENTRIES);
MMAPPED_ARRAY(hists, struct slot, HISTS_ENTRIES);
MMAPPED_ARRAY(clocks, struct clock_state, CLOCKS_ENTRIES);
MMAPPED_ARRAY(models, struct clock_model, MODELS_MAX);
MMAPPED_ARRAY(stack_hists, struct stack_hist, STACK_HISTS_ENTRIES);
MMAPPED_ARRAY(tx_queues, struct tx_usage, TX_QUEUES_ENTRIES);
MMAPPED_ARRAY(ptp, struct ptp_seen, PTP_ENTRIES);

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} events SEC(".maps");

static __always_inline struct agent_config *config_at(__u32 i)
{
	return bpf_map_lookup_elem(&config, &i);
}

static __always_inline struct cpu_state *cpu_state_at(__u32 i)
{
	return bpf_map_lookup_elem(&counters, &i);
}

static __always_inline struct slot_head *heads_at(__u32 i)
{
	return bpf_map_lookup_elem(&slots, &i);
}

static __always_inline struct slot *slots_at(__u32 i)
{
	return bpf_map_lookup_elem(&hists, &i);
}

static __always_inline struct clock_state *clocks_at(__u32 i)
{
	return bpf_map_lookup_elem(&clocks, &i);
}

static __always_inline struct clock_model *models_at(__u32 i)
{
	return bpf_map_lookup_elem(&models, &i);
}

static __always_inline struct stack_hist *stack_hists_at(__u32 i)
{
	return bpf_map_lookup_elem(&stack_hists, &i);
}

static __always_inline struct tx_usage *tx_queues_at(__u32 i)
{
	return bpf_map_lookup_elem(&tx_queues, &i);
}

static __always_inline struct ptp_seen *ptp_at(__u32 i)
{
	return bpf_map_lookup_elem(&ptp, &i);
}

static __always_inline int events_output(void *ctx, struct window_record *record)
{
	return bpf_perf_event_output(ctx, &events, BPF_F_CURRENT_CPU, record, sizeof(*record));
}

#endif
#endif
