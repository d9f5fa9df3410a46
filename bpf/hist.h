/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The log-linear delay histogram: which bucket a delay belongs to.
 *
 *   d < 2^8                      bucket 0
 *   2^(8+o) <= d < 2^(9+o)       bucket 1 + 16 o + s,  s = (d >> (4 + o)) & 15,  o = 0 .. 21
 *   d >= 2^30                    bucket 353
 *
 * BPF can't count leading zeros. A tree of branches is mispredicted about twice a packet when delays spread over some
 * octaves. This has none: o is found by bytes, then by a nibble, whose logarithm is looked up in a constant.
 */
#ifndef AGENT_HIST_H
#define AGENT_HIST_H

#include "compat.h"
#include "records.h"

/* Two bits for each number 0 .. 15: its logarithm. */
#define LOG2_OF_NIBBLES 0xffffaa50U

/* 1 if a > b, without a branch, for 0 <= a, b < 2^63. */
static __always_inline __u64 above(__u64 a, __u64 b)
{
	__u64 difference = b - a;

	opaque(difference); /* else the compiler sees the comparison, and makes a branch of it */
	return difference >> 63;
}

static __always_inline __u32 hist_bucket(__u64 delay)
{
	__u64 bytes, rest, nibble, octave;

	if (unlikely(delay < 1U << HIST_MIN_SHIFT))
		return 0;
	if (unlikely(delay >= 1U << (HIST_MIN_SHIFT + HIST_OCTAVES)))
		return HIST_BUCKETS - 1;
	bytes = (above(delay, 0xffff) + above(delay, 0xffffff)) << 3;
	rest = (delay >> HIST_MIN_SHIFT) >> bytes;
	nibble = above(rest, 15) << 2;
	rest >>= nibble;
	octave = bytes + nibble + ((LOG2_OF_NIBBLES >> (rest << 1)) & 3);
	/* The mantissa's leading one makes a group of 16, hence less that group, and one for bucket 0. */
	return (octave << HIST_SUB_BITS) + (delay >> (HIST_MIN_SHIFT - HIST_SUB_BITS + octave)) -
	       (HIST_SUB - 1);
}

#endif
