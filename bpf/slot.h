/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Slots: which window a packet counts in. A CPU's slots are a small hash table by (queue, clock), probed four times.
 *
 * A trailer is told by its content only, and anybody may send one: a clock that isn't known yet on this CPU has to be
 * seen 8 times in a row with a steady offset before it gets a slot. Until then its packets count as rejected. Random
 * noise never gets there, and what it takes meanwhile (a slot on probation) is free for the next.
 */
#ifndef AGENT_SLOT_H
#define AGENT_SLOT_H

#include "compat.h"
#include "maps.h"
#include "window.h"

#define SLOT_PROBES	   4
#define SLOT_NONE	   0xffffffff
#define PROBATION_SIGHTS   8
#define PROBATION_DRIFT_NS (1ULL << 30) /* between two sightings */

/* Neighbouring queues of one clock fall into neighbouring slots. */
static __always_inline __u32 slot_hash(__u32 queue, __u32 key)
{
	return queue + ((key * 0x9e3779b1U) >> 16);
}

/* What the slow way of finding a slot needs to know. */
struct slot_request {
	__u64 mono_ns;
	__u64 hw_ns;
	__u32 queue;
	__u32 key;
	__u32 rejected; /* out: it had to be counted without its clock */
	__u32 pad;
};

static __always_inline int slot_is(const struct slot *slot, __u32 queue, __u32 key)
{
	return slot->in_use && slot->clock_key == key && slot->queue == queue;
}

/* One more sighting of a candidate clock; whether it has proved itself. */
static __always_inline int slot_sighted(struct slot *slot, const struct slot_request *want)
{
	__s64 offset = want->mono_ns - want->hw_ns;

	if (slot->candidate_key != want->key || slot->candidate_queue != want->queue ||
	    magnitude(offset - slot->candidate_ns) >= PROBATION_DRIFT_NS)
		slot->sightings = 0;
	slot->candidate_key = want->key;
	slot->candidate_queue = want->queue;
	slot->candidate_ns = offset;
	slot->candidate_mono_ns = want->mono_ns;
	slot->sightings++;
	return slot->sightings >= PROBATION_SIGHTS;
}

static __always_inline void slot_own(struct slot *slot, struct slot_head *head, __u32 index,
				     const struct slot_request *want, __u32 cpu_id)
{
	STORE_ONCE(head->in_use, 0);
	compiler_barrier();
	head->clock_key = slot->clock_key = want->key;
	head->queue = slot->queue = want->queue;
	head->cpu = slot->cpu = cpu_id;
	head->generation++;
	head->open_mono_ns = 0;
	head->last_mono_ns = want->mono_ns;
	slot->index = index;
	slot->attend_ns = 0;
	slot->last_hw_ns = 0;
	slot->sightings = 0;
	slot->in_use = 1;
	compiler_barrier();
	STORE_ONCE(head->in_use, 1);
}

/*
 * The slot of (queue, clock), claiming one if there is none: a free one, else the one on probation that was seen
 * longest ago, else one in use that has been idle. Returns its index, or SLOT_NONE if no slot is to be had or the
 * clock is on probation.
 */
SUBPROGRAM int slot_find(const struct slot_request *want, struct cpu_state *cpu)
{
	__u32 hash = slot_hash(want->queue, want->key), best = SLOT_NONE, index, i;
	__u32 cpu_id = bpf_get_smp_processor_id();
	__u64 rank, best_rank = ~0ULL;
	struct slot_head *head;
	struct slot *slot;
	int same;

	for (i = 0; i < SLOT_PROBES; i++) {
		index = cpu->slot_first + ((hash + i) & cpu->slot_mask);
		slot = slots_at(index);
		head = heads_at(index);
		if (!slot || !head)
			return SLOT_NONE;
		if (slot_is(slot, want->queue, want->key))
			return index;
		same = slot->sightings && slot->candidate_key == want->key &&
		       slot->candidate_queue == want->queue;
		if (slot->in_use) {
			/* Closing its window is the flush's work, overdue as it is. */
			if (head->open_mono_ns || want->mono_ns - head->last_mono_ns <= IDLE_NS)
				continue;
			rank = (1ULL << 63) | head->last_mono_ns;
		} else {
			rank = same ? 0 : slot->sightings ? slot->candidate_mono_ns : 1;
		}
		if (rank < best_rank) {
			best_rank = rank;
			best = index;
		}
	}
	slot = slots_at(best);
	head = heads_at(best);
	/* A flush that we interrupted may be at work on a slot in use. */
	if (!slot || !head || (slot->in_use && LOAD_ONCE(cpu->flushing)))
		goto full;
	slot->in_use = head->in_use = 0;
	if (want->key != CLOCK_KEY_NONE && want->key != CLOCK_KEY_PHC &&
	    !clock_find(&cpu->found, cpu_id, want->key)) {
		/* A flush that we interrupted may be giving away the same entry. */
		if (!slot_sighted(slot, want) || LOAD_ONCE(cpu->flushing)) {
			cpu->counters.probation++;
			return SLOT_NONE;
		}
		if (!clock_claim(&cpu->found, cpu_id, want->key, want->mono_ns))
			goto full;
	}
	slot_own(slot, head, best, want, cpu_id);
	return best;
full:
	cpu->counters.slot_full++;
	return SLOT_NONE;
}

/* As slot_find; a trailer's packet whose clock gets no slot counts as rejected among those without a clock. */
SUBPROGRAM int slot_seek(struct slot_request *want, struct cpu_state *cpu)
{
	__u64 counted = cpu->counters.slot_full;
	__u32 index = slot_find(want, cpu);

	if (index != SLOT_NONE || want->key == CLOCK_KEY_NONE || want->key == CLOCK_KEY_PHC)
		return index;
	want->key = CLOCK_KEY_NONE;
	want->rejected = 1;
	index = slot_find(want, cpu);
	if (index == SLOT_NONE)
		cpu->counters.slot_full = counted + 1;
	return index;
}

#endif
