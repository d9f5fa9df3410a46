// SPDX-License-Identifier: GPL-2.0
/* A burst of reads of a hardware clock to one anchor. */
#include "clockanchor.h"

#include <math.h>

#include "clockwhole.h"

/* Noise of a read that took no longer than the fastest: some percent of its delay, never below 10 ns. */
#define NOISE_FLOOR_NS	10.0
#define NOISE_PER_DELAY 0.02
/* Asymmetry is common to all reads of a burst: averaging does not reduce it below this part of the delay. */
#define ASYMMETRY_PER_DELAY 0.02
/* Stamps are integers, and a read may round both ways. */
#define INTERVAL_SLACK_NS 2.0
/* How far off the drift may be that is taken out: all of it at first, and a step of the frequency later. Over a burst
 * that is more than cross-timestamps leave open, whose delay is 0. */
#define DRIFT_SLACK_PPB 500000.0

struct burst {
	const int64_t *before_ns, *after_ns, *hw_ns;
	int n;
	double drift_ppb;
	/* Of the fastest read, from whose middle all is measured. */
	int64_t delay_ns, local_ns, base_ns;
};

static int is_usable(const struct burst *b, int i)
{
	return b->after_ns[i] >= b->before_ns[i] && b->hw_ns[i] > 0;
}

static int64_t delay_of(const struct burst *b, int i)
{
	return b->after_ns[i] - b->before_ns[i];
}

static int64_t middle_of(const struct burst *b, int i)
{
	return b->before_ns[i] + (delay_of(b, i) >> 1);
}

/* Finds the fastest read; returns how many are usable. */
static int find_fastest(struct burst *b)
{
	int usable = 0, i;

	for (i = 0; i < b->n; i++) {
		if (!is_usable(b, i) || (usable++ && delay_of(b, i) >= b->delay_ns))
			continue;
		b->delay_ns = delay_of(b, i);
		b->local_ns = middle_of(b, i);
		b->base_ns = difference(b->local_ns, b->hw_ns[i]);
	}
	return usable;
}

/* A read's offset from that of the fastest, drift taken out, and half its delay. */
struct read {
	double relative, half;
};

static struct read read_of(const struct burst *b, int i)
{
	int64_t delay_ns = delay_of(b, i), middle_ns = middle_of(b, i);
	double since_ns = (double)(middle_ns - b->local_ns);
	double apart = (double)difference(difference(middle_ns, b->hw_ns[i]), b->base_ns);

	/* Twice the half-nanosecond that the shift drops is the delay's parity. */
	return (struct read){
	    .relative = apart + (double)(delay_ns & 1) * 0.5 - since_ns * (b->drift_ppb * 1e-9),
	    .half = (double)delay_ns * 0.5 + fabs(since_ns) * (DRIFT_SLACK_PPB * 1e-9),
	};
}

/* Read i gives o_i = (before + after)/2 - hw and delay_i; weights are 1/(s0^2 + ((delay_i - least)/2)^2) (excess delay
 * may all be on one side), the variance is 1/sum(w) and a floor for asymmetry. */
int agent_anchor_of(const int64_t *before_ns, const int64_t *after_ns, const int64_t *hw_ns, int n,
		    double drift_ppb, struct agent_anchor *out)
{
	struct burst b = {before_ns, after_ns, hw_ns, n, drift_ppb, 0, 0, 0};
	int usable = find_fastest(&b), i;
	double noise = fmax(NOISE_FLOOR_NS, NOISE_PER_DELAY * (double)b.delay_ns);
	double floor = ASYMMETRY_PER_DELAY * (double)b.delay_ns;
	double low = -INFINITY, high = INFINITY, total = 0.0, weighted = 0.0;
	double offset = 0.0, var = noise * noise;

	if (!usable)
		return 0;
	for (i = 0; i < n; i++) {
		double excess, weight;
		struct read r;

		if (!is_usable(&b, i))
			continue;
		r = read_of(&b, i);
		low = fmax(low, r.relative - r.half);
		high = fmin(high, r.relative + r.half);
		excess = (double)(delay_of(&b, i) - b.delay_ns) * 0.5;
		weight = 1.0 / (noise * noise + excess * excess);
		total += weight;
		weighted += weight * r.relative;
	}
	low -= INTERVAL_SLACK_NS;
	high += INTERVAL_SLACK_NS;
	out->consistent = low <= high;
	if (out->consistent) {
		offset = fmin(fmax(weighted / total, low), high);
		var = 1.0 / total;
	} else {
		low = -(double)b.delay_ns * 0.5;
		high = (double)b.delay_ns * 0.5;
	}
	out->local_ns = b.local_ns;
	out->offset_ns = sum_of(b.base_ns, whole(offset));
	out->var = var + floor * floor;
	out->low_ns = sum_of(b.base_ns, whole(low));
	out->high_ns = sum_of(b.base_ns, whole(high));
	out->read_delay_ns = b.delay_ns;
	return usable;
}
