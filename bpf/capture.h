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

/* Counts a packet; returns its delay, DELAY_NONE if unknown. A stamp whose clock gets no slot becomes rejected. */
static __always_inline __s64 capture_packet(void *ctx, struct cpu_state *cpu, __u32 queue, __u64 mono,
					    struct stamp *stamp, __u32 weight)
{
	__u32 index = cpu->slot_first + (slot_hash(queue, stamp->clock_key) & cpu->slot_mask);
	struct slot *slot = slots_at(index);
	struct window_record *record;
	struct window *window;
	__s64 delay = DELAY_NONE;

	/* Before anything is relied on: from here on a flush leaves this CPU alone. */
	STORE_ONCE(cpu->busy, 1);
	compiler_barrier();
	if (unlikely(!slot || !slot_is(slot, queue, stamp->clock_key))) {
		struct slot_request want = {
		    .mono_ns = mono,
		    .hw_ns = stamp->hw_ns,
		    .queue = queue,
		    .key = stamp->clock_key,
		};

		index = slot_seek(&want, cpu);
		if (want.rejected)
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
	if (stamp->verdict == VERDICT_STAMPED)
		delay = window_stamped(slot, window, mono, stamp->hw_ns, weight);
	else if (stamp->verdict == VERDICT_MISSING)
		record->n_missing += weight;
	else if (stamp->verdict == VERDICT_REJECTED)
		record->n_rejected += weight;
out:
	compiler_barrier();
	STORE_ONCE(cpu->busy, 0);
	return delay;
}

#endif
