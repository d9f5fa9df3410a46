/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The clock model that the agent pushes: PHC time as a function of CLOCK_MONOTONIC, between two pushes.
 *
 * The packet path works with a copy in its slot, taken over once per MODEL_REFRESH_NS or window, whichever is shorter:
 * successive models meet where the newer begins and part by 100 ppm at most, so a copy that old is off by less than
 * 110 ns, and by nothing unless the agent is just correcting. Expiry is checked for each packet.
 */
#ifndef AGENT_MODEL_H
#define AGENT_MODEL_H

#include "compat.h"
#include "maps.h"

#define MODEL_REFRESH_NS (1 << 20)

/* The clock's entry in the map, NULL if it has none. */
static __always_inline struct clock_model *model_find(__u32 *found, __u32 clock_key)
{
	struct clock_model *model;
	__u32 i;

	STORE_ONCE(*found, MODELS_MAX);
	for (i = 0; i < MODELS_MAX && clock_key != CLOCK_KEY_NONE; i++) {
		model = models_at(i);
		if (model && model->key == clock_key)
			STORE_ONCE(*found, i);
	}
	return models_at(LOAD_ONCE(*found));
}

/* Takes over a clock's model. None is taken if it was replaced while we read it: the next attempt is near. */
static __always_inline void model_take(__u32 *found, struct slot_model *taken, __u32 clock_key)
{
	struct clock_model *model = model_find(found, clock_key);
	const struct clock_model_copy *copy;
	__u32 seq;

	taken->valid_until_ns = 0;
	if (!model)
		return;
	seq = LOAD_ONCE(model->seq);
	copy = &model->copy[seq & 1];
	taken->mono0_ns = LOAD_ONCE(copy->mono0_ns);
	taken->phc0_ns = LOAD_ONCE(copy->phc0_ns);
	taken->adj = LOAD_ONCE(copy->adj);
	taken->shift = LOAD_ONCE(model->shift) & 63;
	if (LOAD_ONCE(model->key) == clock_key && LOAD_ONCE(model->seq) == seq)
		taken->valid_until_ns = LOAD_ONCE(copy->valid_until_mono_ns);
}

static __always_inline __u64 model_phc(const struct slot_model *model, __u64 mono)
{
	__s64 delta = mono - model->mono0_ns;

	return model->phc0_ns + delta + ((delta * model->adj) >> model->shift);
}

#endif
