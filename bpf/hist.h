/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The log-linear delay histogram: which bucket a delay belongs to.
 *
 *   d < 2^8                      bucket 0
 *   2^(8+o) <= d < 2^(9+o)       bucket 1 + 16 o + s,  s = (d >> (4 + o)) & 15,  o = 0 .. 21
 *   d >= 2^30                    bucket 353
 */
#ifndef AGENT_HIST_H
#define AGENT_HIST_H

#include "compat.h"
#include "records.h"

/* 1 if a > b, without a branch, for 0 <= a, b < 2^63. */
static __always_inline __u64 above(__u64 a, __u64 b)
{
	return (b - a) >> 63;
}

/*
 * BPF has no count of leading zeros. Delays of a busy queue spread over many octaves, so a tree of branches is
 * mispredicted about twice a packet (10 ns and more); this has none, and no table that would have to be cached.
 * Halving is done once by bytes and once by nibbles; four bits are then looked up in a constant.
 */
static __always_inline __u32 hist_bucket(__u32 delay)
{
	__u64 value = delay, bytes, rest, nibble, octave;

	if (unlikely(value < 1U << HIST_MIN_SHIFT))
		return 0;
	if (unlikely(value >= 1U << (HIST_MIN_SHIFT + HIST_OCTAVES)))
		return HIST_BUCKETS - 1;
	bytes = (above(value, 0xffff) + above(value, 0xffffff)) << 3;
	rest = (value >> HIST_MIN_SHIFT) >> bytes; /* 1 .. 255 */
	nibble = above(rest, 15) << 2;
	rest >>= nibble;
	/* Two bits for each of 1 .. 15: its logarithm. */
	octave = bytes + nibble + ((0xffffaa50U >> (rest << 1)) & 3);
	/* The leading one of the mantissa is one more group of 16, hence one group less per octave. */
	return (octave << HIST_SUB_BITS) + (value >> (HIST_MIN_SHIFT - HIST_SUB_BITS + octave)) - (HIST_SUB - 1);
}

#endif
