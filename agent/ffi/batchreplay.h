/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What a batch window would have come to: recorded arrivals, served in batches by one consumer.
 *
 * build_native.py reads these declarations too, so they keep to plain C.
 */
#ifndef AGENT_BATCHREPLAY_H
#define AGENT_BATCHREPLAY_H

#include <stddef.h>
#include <stdint.h>

/* A batch of b items takes base_ns + item_ns * b + residual_ns[k], the residuals (at least one) in turn. */
struct agent_batch_service {
	double base_ns;
	double item_ns;
	const double *residual_ns;
	size_t residuals;
};

/* Serves n items, arrivals in ascending order, by the window (max_wait_ns, max_items >= 1): latency_ns[n] is from each
 * item's arrival until its batch was done. Returns how long the consumer was busy, ns. */
double agent_batch_replay(const int64_t *arrival_ns, size_t n, const struct agent_batch_service *service,
			  int64_t max_wait_ns, size_t max_items, double *latency_ns);

#endif
