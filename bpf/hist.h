/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The log-linear delay histogram: which bucket a delay belongs to.
 *
 *   d < 2^8                      bucket 0
 *   2^(8+o) <= d < 2^(9+o)       bucket 1 + 16 o + s,  s = (d >> (4 + o)) & 15,  o = 0 .. 21
 *   d >= 2^30                    bucket 353
 *
 * BPF can't count leading zeros. A tree of branches is mispredicted about twice a packet when delays spread over
 * some octaves; arithmetic without branches takes 25 instructions. A table of logarithms of a byte takes a branch that
 * hardly ever changes its mind (at 65 us).
 */
#ifndef AGENT_HIST_H
#define AGENT_HIST_H

#include "compat.h"
#include "state.h"

static __always_inline void hist_prepare(struct cpu_state *cpu)
{
	/* Not a loop: the verifier would walk through each turn of it, from each place that this is called at. */
	__builtin_memset(cpu->log2 + 2, 1, 2);
	__builtin_memset(cpu->log2 + 4, 2, 4);
	__builtin_memset(cpu->log2 + 8, 3, 8);
	__builtin_memset(cpu->log2 + 16, 4, 16);
	__builtin_memset(cpu->log2 + 32, 5, 32);
	__builtin_memset(cpu->log2 + 64, 6, 64);
	__builtin_memset(cpu->log2 + 128, 7, 128);
	cpu->has_log2 = 1;
}

static __always_inline __u32 hist_bucket(const struct cpu_state *cpu, __u32 delay)
{
	__u32 top = delay >> HIST_MIN_SHIFT, octave = 0;

	if (unlikely(!top))
		return 0;
	if (unlikely(top >= 1 << 8)) {
		if (top >= 1 << HIST_OCTAVES)
			return HIST_BUCKETS - 1;
		octave = top >= 1 << 16 ? 16 : 8;
		top >>= octave;
	}
	octave += cpu->log2[top & 0xff];
	/* The mantissa's leading one makes a group of 16, hence less that group, and one for bucket 0. */
	return (octave << HIST_SUB_BITS) + (delay >> (HIST_MIN_SHIFT - HIST_SUB_BITS + octave)) - (HIST_SUB - 1);
}

#endif
