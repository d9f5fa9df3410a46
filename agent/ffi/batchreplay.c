// SPDX-License-Identifier: GPL-2.0
#include "batchreplay.h"

/* When the batch that begins with item `first` is closed: it is full, or its oldest item has waited, and not before the
 * consumer is free. Times are relative to the first arrival, so that doubles hold them exactly. */
static double closing(const int64_t *arrival_ns, size_t n, size_t first, int64_t max_wait_ns,
		      size_t max_items, double free_ns)
{
	double closed = (double)(arrival_ns[first] - arrival_ns[0] + max_wait_ns);
	double full;

	if (max_items <= n - first) {
		full = (double)(arrival_ns[first + max_items - 1] - arrival_ns[0]);
		if (full < closed)
			closed = full;
	}
	return closed < free_ns ? free_ns : closed;
}

double agent_batch_replay(const int64_t *arrival_ns, size_t n, const struct agent_batch_service *service,
			  int64_t max_wait_ns, size_t max_items, double *latency_ns)
{
	double free_ns = 0, busy_ns = 0;
	size_t first = 0, batches = 0;

	while (first < n) {
		double start = closing(arrival_ns, n, first, max_wait_ns, max_items, free_ns);
		size_t end = first + 1, i;
		double took;

		while (end < n && end - first < max_items &&
		       (double)(arrival_ns[end] - arrival_ns[0]) <= start)
			end++;
		took = service->base_ns + service->item_ns * (double)(end - first) +
		       service->residual_ns[batches++ % service->residuals];
		if (took < 0)
			took = 0;
		free_ns = start + took;
		busy_ns += took;
		for (i = first; i < end; i++)
			latency_ns[i] = free_ns - (double)(arrival_ns[i] - arrival_ns[0]);
		first = end;
	}
	return busy_ns;
}
