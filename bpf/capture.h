/* SPDX-License-Identifier: GPL-2.0 */
/* The packet path: from a packet and its stamp to a count in a window. The same at both hooks. */
#ifndef AGENT_CAPTURE_H
#define AGENT_CAPTURE_H

#include "compat.h"
#include "slot.h"
#include "stamp.h"
#include "window.h"

/* What left_out does unless every packet is counted, as is usual. */
SUBPROGRAM int left_out_by_config(struct cpu_state *cpu, __u32 cpu_id)
{
	const struct agent_config *config = config_at(0);

	if (!config)
		return 1;
	config_take(config, cpu, cpu_id);
	return config->frozen || (cpu->number++ & config->sample_mask);
}

/* Whether this packet isn't to be counted: by 1/N sampling, or because the degrade ladder froze everything. */
static __always_inline int left_out(struct cpu_state *cpu, __u32 cpu_id)
{
	return unlikely(!cpu->plain) && left_out_by_config(cpu, cpu_id);
}

/* When a packet was counted, and what is known of its way so far. */
struct arrival {
	__u64 mono_ns;
	__u64 hw_ns;	/* 0: no hardware stamp, or none to be believed */
	__s64 delay_ns; /* below 0: unknown */
};

/*
 * Counts a packet. A stamp whose clock gets no slot becomes rejected.
 *
 * The clock is read when all that doesn't need the time is done: reading it waits for everything before it, and the
 * stamp and the slot of this packet are looked up while the packet before is still being counted. (Measured: 2 to 3 of
 * 20 ns; it makes each delay some 5 ns longer.)
 */
static __always_inline struct arrival capture_packet(void *ctx, struct cpu_state *cpu, __u32 queue,
						     struct stamp *stamp, __u32 weight)
{
	__u32 index = cpu->slot_first + (slot_hash(queue, stamp->clock_key) & cpu->slot_mask);
	struct arrival arrival = {.delay_ns = DELAY_NONE};
	struct slot *slot = slots_at(index);
	struct window_record *record;
	struct window *window;
	__u64 mono;

	/* Before anything is relied on: from here on a flush leaves this CPU alone. */
	STORE_ONCE(cpu->busy, 1);
	compiler_barrier();
	if (slot && !slot_is(slot, queue, stamp->clock_key))
		slot = NULL;
	arrival.mono_ns = mono = bpf_ktime_get_ns();
	if (unlikely(!slot)) {
		struct slot_request want = {
		    .mono_ns = mono,
		    .hw_ns = stamp->hw_ns,
		    .queue = queue,
		    .key = stamp->clock_key,
		};

		index = slot_seek(&want, cpu);
		/* The first of the two tells the compiler that it can't happen to software windows. */
		if (stamp->verdict == VERDICT_STAMPED && want.rejected)
			stamp->verdict = VERDICT_REJECTED;
		slot = slots_at(index);
		if (!slot)
			goto out;
	}
	if (unlikely(mono >= slot->attend_ns))
		window_attend(ctx, slot, cpu, mono);
	window = &slot->window[slot->active & 1];
	/* Else the compiler computes its address anew for each group of fields. */
	opaque(window);
	record = &window->record;
	record->n += weight;
	record->last_mono_ns = mono;
	if (stamp->verdict == VERDICT_STAMPED) {
		arrival.hw_ns = stamp->hw_ns;
		arrival.delay_ns = window_stamped(slot, window, mono, stamp->hw_ns, weight);
	} else if (stamp->verdict == VERDICT_MISSING) {
		record->n_missing += weight;
	} else if (stamp->verdict == VERDICT_REJECTED) {
		record->n_rejected += weight;
	}
out:
	compiler_barrier();
	STORE_ONCE(cpu->busy, 0);
	return arrival;
}

#endif
