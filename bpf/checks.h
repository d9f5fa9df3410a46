/* SPDX-License-Identifier: GPL-2.0 */
/* What records.h may not say itself, since a plain C declaration parser reads it. */
#ifndef AGENT_CHECKS_H
#define AGENT_CHECKS_H

#include "maps.h"
#include "meta.h"

_Static_assert(sizeof(struct window_record) <= 192, "ring records stay small");
_Static_assert(sizeof(struct window_record) % 8 == 0, "no hidden padding at the end");
_Static_assert(HIST_BUCKETS == 1 + HIST_OCTAVES * HIST_SUB + 1, "one below, one above the octaves");
_Static_assert(HIST_SUB == 1 << HIST_SUB_BITS, "sub-buckets are bits of the mantissa");
_Static_assert(__builtin_offsetof(struct slot, hist) == 0, "the agent reads the leading fields");
_Static_assert(sizeof(struct slot) == 2048 && sizeof(struct window) == 256, "indexed by a shift");
_Static_assert(__builtin_offsetof(struct slot, window) % 64 == 0, "windows start on a cache line");
_Static_assert(__builtin_offsetof(struct cpu_state, counters) == 0, "the agent reads the leading fields");
_Static_assert(sizeof(struct cpu_state) == 256, "CPUs share no cache line, indexed by a shift");
_Static_assert(sizeof(struct capture_meta) <= 32 && sizeof(struct capture_meta) % 4 == 0,
	       "what XDP metadata may be");
_Static_assert((TX_QUEUES_MAX & (TX_QUEUES_MAX - 1)) == 0, "taken modulo by a mask");
_Static_assert((PTP_ANNOUNCES & (PTP_ANNOUNCES - 1)) == 0, "taken modulo by a mask");

#endif
