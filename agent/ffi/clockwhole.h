/* SPDX-License-Identifier: GPL-2.0 */
/* Whole nanoseconds: what doesn't fit stays at the limit, since stamps come from anybody. */
#ifndef AGENT_CLOCKWHOLE_H
#define AGENT_CLOCKWHOLE_H

#include <math.h>
#include <stdint.h>

/* Clocks that count ns from 1970 are no further apart until 2116; sums of two such offsets fit an int64. */
#define OFFSET_LIMIT_NS ((INT64_C(1) << 62) - 1)

static inline int64_t sum_of(int64_t a, int64_t b)
{
	int64_t sum;

	return __builtin_add_overflow(a, b, &sum) ? (a < 0 ? INT64_MIN : INT64_MAX) : sum;
}

static inline int64_t difference(int64_t a, int64_t b)
{
	int64_t apart;

	return __builtin_sub_overflow(a, b, &apart) ? (a < 0 ? INT64_MIN : INT64_MAX) : apart;
}

/* An offset, no further than two clocks can be apart: a rate that no clock has leads there within seconds. */
static inline int64_t possible(int64_t offset_ns)
{
	return offset_ns > OFFSET_LIMIT_NS    ? OFFSET_LIMIT_NS
	       : offset_ns < -OFFSET_LIMIT_NS ? -OFFSET_LIMIT_NS
					      : offset_ns;
}

/* To the nearest, halves to the even one, within the same limits. */
static inline int64_t whole(double ns)
{
	return llrint(fmin(fmax(ns, -(double)OFFSET_LIMIT_NS), (double)OFFSET_LIMIT_NS));
}

#endif
