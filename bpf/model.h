/* SPDX-License-Identifier: GPL-2.0 */
/* The clock model that the agent pushes: PHC time as a function of CLOCK_MONOTONIC, between two pushes. */
#ifndef AGENT_MODEL_H
#define AGENT_MODEL_H

#include "compat.h"
#include "maps.h"

/* The index of a clock's model, MODELS_MAX if there is none. */
static __always_inline __u32 model_find(__u32 clock_key)
{
	struct clock_model *model;
	__u32 i;

	if (clock_key == CLOCK_KEY_NONE)
		return MODELS_MAX;
	for (i = 0; i < MODELS_MAX; i++) {
		model = models_at(i);
		if (model && model->key == clock_key)
			return i;
	}
	return MODELS_MAX;
}

/* PHC time at `mono`. 0: there is no such model, it has expired, or it was being replaced while we read it. */
static __always_inline int model_phc(__u32 index, __u32 clock_key, __u64 mono, __u64 *phc)
{
	struct clock_model *model = models_at(index);
	struct clock_model_copy *copy;
	__u32 seq;
	__s64 delta;

	if (unlikely(!model || model->key != clock_key))
		return 0;
	seq = LOAD_ONCE(model->seq);
	copy = &model->copy[seq & 1];
	delta = mono - LOAD_ONCE(copy->mono0_ns);
	*phc = LOAD_ONCE(copy->phc0_ns) + delta + ((delta * LOAD_ONCE(copy->adj)) >> (model->shift & 63));
	return likely(mono <= LOAD_ONCE(copy->valid_until_mono_ns) && LOAD_ONCE(model->seq) == seq);
}

#endif
