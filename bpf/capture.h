/* SPDX-License-Identifier: GPL-2.0 */
/* The packet path: from a packet and its stamp to a count in a window. The same at both hooks. */
#ifndef AGENT_CAPTURE_H
#define AGENT_CAPTURE_H

#include "compat.h"
#include "slot.h"
#include "stamp.h"
#include "trailer.h"
#include "window.h"

/* Whether 1/N sampling leaves this packet out. */
static __always_inline int sampled_out(const struct agent_config *config, struct cpu_state *cpu)
{
	return unlikely(config->sample_mask) && (cpu->number++ & config->sample_mask);
}

/* The fast way to a slot: the first probe, compared inline. */
static __always_inline __u32 slot_index(void *ctx, const struct agent_config *config, struct cpu_state *cpu, __u32 cpu_id,
					__u32 queue, __u64 mono, const struct stamp *stamp)
{
	__u32 mask = config->slots_per_cpu - 1, first = cpu_id * config->slots_per_cpu;
	__u32 index = first + (slot_hash(queue, stamp->clock_key) & mask);
	struct slot *slot = slots_at(index);

	if (likely(slot && slot_is(slot, queue, stamp->clock_key)))
		return index;
	{
		struct slot_request want = {
		    .mono_ns = mono,
		    .hw_ns = stamp->hw_ns,
		    .first = first,
		    .mask = mask,
		    .cpu = cpu_id,
		    .queue = queue,
		    .key = stamp->clock_key,
		};

		return slot_find(ctx, &want, cpu);
	}
}

/* Counts a packet; returns its delay, DELAY_NONE if unknown. A stamp whose clock gets no slot becomes rejected. */
static __always_inline __s64 capture_packet(void *ctx, const struct agent_config *config, struct cpu_state *cpu,
					    __u32 cpu_id, __u32 queue, __u64 mono, struct stamp *stamp, __u32 weight)
{
	struct window_record *record;
	struct window *window;
	__s64 delay = DELAY_NONE;
	struct slot *slot;
	__u32 index;

	/* Before anything is looked at: from here on a flush leaves this CPU alone. */
	STORE_ONCE(cpu->busy, 1);
	compiler_barrier();
	index = slot_index(ctx, config, cpu, cpu_id, queue, mono, stamp);
	if (unlikely(index == SLOT_NONE) && stamp->verdict == VERDICT_STAMPED && stamp->clock_key != CLOCK_KEY_PHC) {
		stamp->verdict = VERDICT_REJECTED;
		stamp->clock_key = CLOCK_KEY_NONE;
		index = slot_index(ctx, config, cpu, cpu_id, queue, mono, stamp);
	}
	slot = slots_at(index);
	if (unlikely(!slot))
		goto out;
	window = &slot->window[slot->active & 1];
	record = &window->record;
	if (unlikely(!record->open_mono_ns || mono - record->open_mono_ns >= config->window_ns))
		window_turn(ctx, slot, cpu, config, mono);
	record->n += weight;
	record->last_mono_ns = mono;
	slot->head.last_mono_ns = mono;
	if (stamp->verdict == VERDICT_STAMPED)
		delay = window_stamped(slot, window, index, mono, stamp->hw_ns, weight);
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
