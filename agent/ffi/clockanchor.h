/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A burst of reads of a hardware clock, each between two of the local clock, to one anchor.
 */
#ifndef AGENT_CLOCKANCHOR_H
#define AGENT_CLOCKANCHOR_H

#include <stdint.h>

/* offset = local - hardware at local_ns; the true one is within [low_ns, high_ns] for certain. Not consistent: no
 * offset satisfies all reads, offset_ns is that of the fastest read only. */
struct agent_anchor {
	int64_t local_ns, offset_ns;
	double var;
	int64_t low_ns, high_ns, read_delay_ns;
	int32_t consistent;
};

/* Read i took place between before_ns[i] and after_ns[i] and gave hw_ns[i]. drift_ppb, d(local - hardware)/dt, is taken
 * out within the burst. Returns how many reads were usable; without any, `out` is left alone. */
int agent_anchor_of(const int64_t *before_ns, const int64_t *after_ns, const int64_t *hw_ns, int n,
		    double drift_ppb, struct agent_anchor *out);

#endif
