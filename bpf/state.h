/* SPDX-License-Identifier: GPL-2.0 */
/* What the programs keep between packets, none of it known to user space but for the leading fields. */
#ifndef AGENT_STATE_H
#define AGENT_STATE_H

#include "compat.h"
#include "records.h"

/* Value of map "counters". The packet path of a CPU is exclusive (softirqs are off) but a flush may interrupt it, or be
 * interrupted by it; the two words say who was there first. */
struct cpu_state {
	struct cpu_counters counters;
	__u32 busy;	/* the packet path is at work in this CPU's windows */
	__u32 flushing; /* the flush program is */
	/* What the packet path needs of the configuration, taken over by config_take: one map lookup less. */
	__u32 plain; /* it was taken over, and every packet is to be counted */
	__u32 stamp;
	__u32 slot_mask;
	__u32 slot_first; /* this CPU's first slot */
	__u32 meta_mask;
	__u32 number;  /* of the packet, for 1/N sampling */
	__u32 found;   /* see struct window */
	__u32 overdue; /* the same for the flush */
	/* To a power of two, and so that no two CPUs' values share a cache line, nor a pair of lines that is fetched
	 * together: each packet writes here. */
	__u64 pad[11];
};

/* A window being filled: its record, counted in place, so that closing it copies nothing. */
struct window {
	struct window_record record; /* open_mono_ns 0: not open */
	__s64 envelope_ns;	     /* mono - hw of record.envelope, so far the smallest */
	/* The result of a search goes through memory, where the verifier forgets which of the entries it was: it then
	 * checks what follows once instead of once for each. Whose memory decides who may search at the same time. */
	__u32 found;
	__u32 pad0;
	__u64 pad[9]; /* to 256 bytes: indexed by a shift, starts on a cache line */
};

/* The clock model as taken over from map "models"; valid_until_ns 0: there is none. */
struct slot_model {
	__u64 mono0_ns;
	__u64 phc0_ns;
	__s64 adj;
	__u64 valid_until_ns;
	__u32 shift;
	__u32 pad;
};

/* Value of map "hists": one (queue, clock) on one CPU. Its histogram, and behind it all else that counting a packet
 * touches, so that one lookup finds it. What the agent has to know of the slot stands in map "slots". */
struct slot {
	struct delay_hist hist;
	__u32 in_use;
	__u32 clock_key;
	__u16 queue;
	__u16 pad0;
	__u32 active; /* which of the two windows the packet path fills; changed by the flush only */
	__u32 index;  /* of this slot in its maps */
	__u32 cpu;
	__u64 attend_ns; /* from then on the packet path has to look after the window and the model */
	__u64 last_hw_ns;
	struct slot_model model;
	/* A slot on probation isn't in use yet: the clock it would be for, and how often it was seen in a row. */
	__u32 candidate_key;
	__u16 candidate_queue;
	__u16 sightings;
	__s64 candidate_ns; /* mono - hw at the last sighting */
	__u64 candidate_mono_ns;
	__u64 pad1
	    [2]; /* the windows start on a cache line, and the whole is a power of two: indexed by a shift */
	struct window window[2];
};

/* A rung of the drift ladder, see ladder.h. */
struct rung {
	struct clock_pair older;
	struct clock_pair newer;
	struct clock_pair recent; /* best of the last complete block */
	struct clock_pair block;  /* best of the running block */
	__u64 block_start_ns;
	__u64 spread_ns;       /* how far blocks' best pairs lie from a straight line, of late */
	__u64 newer_spread_ns; /* the same when that pair was taken */
	__u64 older_spread_ns;
	__u32 blocks; /* completed since the ladder was emptied */
	__u32 pad;
};

/* Value of map "clocks": one clock as one CPU sees it, over all its queues. */
struct clock_state {
	__u32 in_use;
	__u32 key;
	__u64 last_mono_ns;
	__u32 epoch; /* of the model when the ladder was begun */
	__u32 has_epoch;
	struct clock_pair
	    suspect;	     /* a pair off the line, put aside until the next one confirms or refutes it */
	__s64 rate_q32;	     /* last figure, d(mono - hw)/dmono in units of 2^-32; 0 while too uncertain */
	__u64 tolerance_q32; /* how far rate_q32 may be off */
	__u64 rate_baseline_ns;
	struct rung rungs[LADDER_RUNGS];
};

#endif
