/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Windows: opened by a packet, closed by the first packet that comes after their span, or by the flush program.
 *
 * The flush may interrupt the packet path (it comes as an IPI) or be interrupted by it (when it runs on the agent's own
 * CPU). Who was there first is told by cpu_state: `busy` set: the flush leaves everything alone. `flushing` set: the
 * packet path counts into the slot's active window and closes nothing. The flush takes a window by making the other
 * one active, a single store; from then on nobody else touches the taken one. A window that is not active is never
 * open, so the packet path finds a fresh one.
 */
#ifndef AGENT_WINDOW_H
#define AGENT_WINDOW_H

#include "compat.h"
#include "hist.h"
#include "ladder.h"
#include "maps.h"
#include "model.h"
#include "stamp.h"

#define IDLE_NS	      10000000000ULL /* unused for this long: may be given to another owner */
#define NOT_FOUND     0xffffffff
#define DELAY_NONE    (-1LL)
#define DELAY_MAX     0xffffffffU
#define SQUARE_WEIGHT 2048 /* more segments times the largest square don't fit into 64 bits */

/* Takes over the configuration for this CPU's packet path. */
static __always_inline void config_take(const struct agent_config *config, struct cpu_state *cpu,
					__u32 cpu_id)
{
	cpu->stamp = config->stamp;
	cpu->slot_mask = config->slots_per_cpu - 1;
	cpu->slot_first = cpu_id * config->slots_per_cpu;
	cpu->meta_mask = config->meta_mask;
	cpu->plain = !(config->frozen | config->sample_mask);
}

/* A clock's entry on this CPU; NULL if it isn't known here. */
static __always_inline struct clock_state *clock_find(__u32 *found, __u32 cpu_id, __u32 key)
{
	struct clock_state *clock;
	__u32 i;

	STORE_ONCE(*found, NOT_FOUND);
	for (i = 0; i < CLOCKS_PER_CPU; i++) {
		clock = clocks_at(cpu_id * CLOCKS_PER_CPU + i);
		if (clock && clock->in_use && clock->key == key)
			STORE_ONCE(*found, cpu_id * CLOCKS_PER_CPU + i);
	}
	return clocks_at(LOAD_ONCE(*found));
}

/* As clock_find; a clock not known yet gets a free entry, or one that has been idle. NULL: all are in use. */
static __always_inline struct clock_state *clock_claim(__u32 *found, __u32 cpu_id, __u32 key, __u64 mono)
{
	struct clock_state *clock = clock_find(found, cpu_id, key);
	__u32 i;

	if (clock)
		return clock;
	for (i = 0; i < CLOCKS_PER_CPU; i++) {
		clock = clocks_at(cpu_id * CLOCKS_PER_CPU + i);
		if (clock && (!clock->in_use || mono - clock->last_mono_ns > IDLE_NS))
			STORE_ONCE(*found, cpu_id * CLOCKS_PER_CPU + i);
	}
	clock = clocks_at(LOAD_ONCE(*found));
	if (!clock)
		return NULL;
	ladder_empty(clock);
	clock->in_use = 1;
	clock->key = key;
	clock->last_mono_ns = mono;
	clock->has_epoch = 0;
	return clock;
}

static __always_inline void window_open(struct slot *slot, struct window *window,
					const struct agent_config *config, __u64 mono)
{
	struct window_record *record = &window->record;

	__builtin_memset(record, 0, sizeof(*record));
	record->ifindex = config->ifindex;
	record->clock_key = slot->clock_key;
	record->cpu = slot->cpu;
	record->queue = slot->queue;
	record->hook = config->hook;
	record->stamp = config->stamp;
	record->flags = config->sample_mask ? WINDOW_SAMPLED : 0;
	record->delay_min_ns = DELAY_MAX;
	window->envelope_ns = 0x7fffffffffffffffLL;
	record->open_mono_ns = mono;
}

/* Completes the record of a window that nobody else touches any more, and hands it out. */
SUBPROGRAM int window_close(void *ctx, struct slot *slot, struct window *window, struct cpu_state *cpu,
			    __u32 flags)
{
	struct window_record *record = &window->record;
	struct clock_state *clock;

	record->flags |= flags;
	/* Without a clock and not rejected: nothing was found, if anything was looked for. Spares counting each. */
	if (record->clock_key == CLOCK_KEY_NONE)
		record->n_missing = record->stamp == STAMP_NONE ? 0 : record->n - record->n_rejected;
	else
		record->n_stamped = record->n - record->n_missing - record->n_rejected;
	record->n_delay = record->n_stamped - record->n_no_model;
	if (!record->n_delay)
		record->delay_min_ns = 0;
	if (record->n_stamped) {
		clock = clock_claim(&window->found, record->cpu, record->clock_key, record->last_mono_ns);
		if (clock) {
			clock->last_mono_ns = record->last_mono_ns;
			ladder_add(clock, record, model_find(&window->found, record->clock_key));
		}
	}
	record->seq = cpu->counters.produced++;
	cpu->counters.stamped += record->n_stamped;
	if (events_output(ctx, record))
		cpu->counters.lost++;
	record->open_mono_ns = 0;
	return 0;
}

/* What the packet path does when slot.attend_ns has come: closes a window whose span is over, opens one where none is,
 * takes over the clock's model. */
SUBPROGRAM int window_attend(void *ctx, struct slot *slot, struct cpu_state *cpu, __u64 mono)
{
	struct window *window = &slot->window[slot->active & 1];
	const struct agent_config *config = config_at(0);
	struct slot_head *head = heads_at(slot->index);
	__u64 open = window->record.open_mono_ns, left;

	if (!config || !head)
		return 0;
	config_take(config, cpu, slot->cpu);
	/* A flush that we interrupted may be about to take this very window: count into it, and change nothing else. */
	if (open && LOAD_ONCE(cpu->flushing))
		return 0;
	if (open && mono - open >= config->window_ns) {
		window_close(ctx, slot, window, cpu, 0);
		open = 0;
	}
	if (!open) {
		window_open(slot, window, config, mono);
		head->open_mono_ns = open = mono;
	}
	model_take(&window->found, &slot->model, slot->clock_key);
	left = open + config->window_ns - mono;
	head->last_mono_ns = mono;
	slot->attend_ns = mono + (left < MODEL_REFRESH_NS ? left : MODEL_REFRESH_NS);
	return 0;
}

/* Counts a stamped packet of `weight` segments; returns its delay, DELAY_NONE if unknown. */
static __always_inline __s64 window_stamped(struct slot *slot, struct window *window, __u64 mono, __u64 hw,
					    __u32 weight)
{
	struct window_record *record = &window->record;
	__s64 offset = mono - hw, delay;
	__u64 square;
	__u32 bucket;

	if (unlikely(hw <= slot->last_hw_ns)) {
		if (hw == slot->last_hw_ns)
			record->n_duplicate++;
		else
			record->n_reordered++;
	}
	slot->last_hw_ns = hw;
	if (offset < window->envelope_ns) {
		if (unlikely(!record->first.mono_ns)) {
			record->first.mono_ns = mono;
			record->first.hw_ns = hw;
		}
		window->envelope_ns = offset;
		record->envelope.mono_ns = mono;
		record->envelope.hw_ns = hw;
	}
	record->last.mono_ns = mono;
	record->last.hw_ns = hw;

	if (unlikely(mono > slot->model.valid_until_ns)) {
		record->n_no_model += weight;
		return DELAY_NONE;
	}
	delay = model_phc(&slot->model, mono) - hw;
	if (unlikely((__u64)delay > DELAY_MAX)) {
		if (delay < 0)
			record->n_negative += weight;
		delay = delay < 0 ? 0 : DELAY_MAX;
	}
	if (delay < record->delay_min_ns)
		record->delay_min_ns = delay;
	if (delay > record->delay_max_ns)
		record->delay_max_ns = delay;
	record->delay_sum_ns += delay * weight;
	square = record->delay_sq_sum + (delay >> 6) * (delay >> 6) * weight;
	if (likely(square >= record->delay_sq_sum && weight <= SQUARE_WEIGHT))
		record->delay_sq_sum = square;
	else
		record->n_saturated++;
	bucket = hist_bucket(delay);
	opaque(bucket);
	if (likely(bucket < HIST_BUCKETS))
		slot->hist.bucket[bucket] += weight;
	return delay;
}

#endif
