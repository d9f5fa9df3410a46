/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Drift by a ladder of older envelope pairs.
 *
 * Two halves of a window can't give the drift: their envelopes differ by some microseconds of queueing, over a fraction
 * of a millisecond. The ladder lengthens the baseline: rung r has a span of 2^(23 + 3 r) ns (8 ms, 67 ms, 0.5 s, 4.3 s).
 * Time is cut into blocks of an eighth of the span; of each block the pair with the least delay is kept, since a single
 * window holds few packets. Two pairs are kept per rung, taken a span apart, so that the older one is between one and
 * two spans old. The figure is the slope from the oldest pair of the longest filled rung to the best pair of the last
 * one or two blocks of that same rung: both ends are minima over spans of equal length.
 *
 * Which of two pairs has less delay depends on the drift between them: compared are the distances from a line of the
 * drift last found, if that came from this rung or a longer one, or is good enough. Any other is wrong by a shorter
 * rung's noise over the length of this one's block, and would choose by its own error; a flat line is better then.
 *
 * A jump empties the ladder. How it is told from queueing:
 * - the agent tagged one (the model's epoch changed): certain.
 * - downwards, by more than noise and drift explain: delay can't become negative, so either the clock stepped or every
 *   pair that we hold was delayed by that much. Both make the old pairs worthless for drift: no need to know which.
 * - upwards by more than 2^24 ns (17 ms) beyond 500 ppm: more than a queue holds. Smaller steps up look like queueing
 *   here; the agent, who sees more, tags them.
 * One pair alone may be a bad stamp (a wrapped counter) and is put aside; the second that agrees with it decides.
 */
#ifndef AGENT_LADDER_H
#define AGENT_LADDER_H

#include "compat.h"
#include "maps.h"

#define LADDER_SPAN0_SHIFT 23
#define LADDER_SPAN_SHIFT  3		/* a span is 8 of the one below ... */
#define LADDER_BLOCK_SHIFT 3		/* ... and has 8 blocks */
#define LADDER_BLOCKS_MIN  3		/* fewer don't tell their spread */
#define LADDER_AGE_MAX_NS  (1ULL << 42) /* keeps the arithmetic in 64 bits */
#define JUMP_UP_NS	   (1LL << 24)
#define JUMP_DOWN_NS	   (1LL << 14)
#define RATE_ANY_Q32	   2147484	/* 500 ppm: more than any oscillator plus its steering */
#define RATE_FLAT_Q32	   64425	/* 15 ppm: what clocks usually part by */
#define RATE_GOOD_Q32	   42950	/* 10 ppm */
#define PPB_Q32		   4295		/* 1000 ppb */
#define RATE_KNOWN_PPB	   250000	/* a figure less certain than this isn't extrapolated */
#define QUANTUM_NS	   16		/* resolution of the stamps */
#define SPREAD_MAX	   (1ULL << 32) /* two of them times 10^9 fit into 64 bits */
#define RAMP_SHIFT	   2 /* of the ramp over a block, what it makes the choice worse by (simulated) */
#define MAGNITUDE_MAX	   (1ULL << 33)

static __always_inline __s64 pair_offset(const struct clock_pair *pair)
{
	return pair->mono_ns - pair->hw_ns;
}

static __always_inline __u64 magnitude(__s64 value)
{
	return value < 0 ? -(__u64)value : value;
}

static __always_inline __s64 rate_times(__s64 rate_q32, __s64 span_ns)
{
	return (span_ns * rate_q32) >> 32;
}

/* How far `pair` lies above the line through `base`: its delay less that of `base`. */
static __always_inline __s64 pair_above(const struct clock_pair *pair, const struct clock_pair *base,
					__s64 rate_q32)
{
	return pair_offset(pair) - pair_offset(base) - rate_times(rate_q32, pair->mono_ns - base->mono_ns);
}

/* The drift to choose pairs by within a block of a rung with this span. */
static __always_inline __s64 ladder_rate(const struct clock_state *clock, __u64 span_ns)
{
	if (clock->rate_baseline_ns >= span_ns >> 1)
		return clock->rate_q32;
	if (clock->rate_baseline_ns >= span_ns >> (LADDER_BLOCK_SHIFT + 1) &&
	    (clock->tolerance_q32 <= RATE_GOOD_Q32 || clock->tolerance_q32 < magnitude(clock->rate_q32) >> 1))
		return clock->rate_q32;
	return 0;
}

static __always_inline void ladder_empty(struct clock_state *clock)
{
	__builtin_memset(clock->rungs, 0, sizeof(clock->rungs));
	__builtin_memset(&clock->suspect, 0, sizeof(clock->suspect));
	/* The oscillators didn't change, but a first figure needs no prejudice. */
	clock->rate_q32 = 0;
	clock->tolerance_q32 = RATE_ANY_Q32;
	clock->rate_baseline_ns = 0;
}

static __always_inline void rung_add(struct rung *rung, const struct clock_pair *pair, __u64 span_ns,
				     __s64 rate_q32, __u64 tolerance_q32)
{
	__u64 residual, ramp;

	if (rung->block.mono_ns &&
	    (__s64)(pair->mono_ns - rung->block_start_ns) < (__s64)(span_ns >> LADDER_BLOCK_SHIFT)) {
		if (pair_above(pair, &rung->block, rate_q32) < 0)
			rung->block = *pair;
		return;
	}
	if (rung->block.mono_ns) {
		if (rung->recent.mono_ns) {
			residual = magnitude(pair_above(&rung->block, &rung->recent, rate_q32));
			if (residual > SPREAD_MAX)
				residual = SPREAD_MAX;
			/* The largest of late, forgotten by an eighth per block. */
			rung->spread_ns -= rung->spread_ns >> 3;
			if (residual > rung->spread_ns)
				rung->spread_ns = residual;
			/* How good a pair was shows by the one after it, too; which takes its place if it is better. */
			if (rung->recent.mono_ns == rung->newer.mono_ns) {
				if (residual > rung->newer_spread_ns)
					rung->newer_spread_ns = residual;
				if (rate_q32 && pair_above(&rung->block, &rung->newer, rate_q32) < 0)
					rung->newer = rung->block;
			}
		}
		rung->recent = rung->block;
		rung->blocks++;
		if (!rung->newer.mono_ns || rung->block.mono_ns - rung->newer.mono_ns >= span_ns) {
			rung->older = rung->newer;
			rung->older_spread_ns = rung->newer_spread_ns;
			rung->newer = rung->block;
			/* It was chosen along a line that may have been askew. */
			ramp = rate_times(tolerance_q32, span_ns >> LADDER_BLOCK_SHIFT) >> RAMP_SHIFT;
			rung->newer_spread_ns = rung->spread_ns > ramp ? rung->spread_ns : ramp;
		}
	}
	rung->block = *pair;
	rung->block_start_ns = pair->mono_ns;
}

/* The lowest that a delay-free pair at this moment could lie, as the distance of `pair` above it. */
static __always_inline void line_distance(const struct clock_state *clock, const struct clock_pair *pair,
					  const struct clock_pair *base, __s64 *above_lowest,
					  __s64 *above_highest)
{
	__s64 distance, slack;

	if (!base->mono_ns)
		return;
	distance = pair_above(pair, base, clock->rate_q32);
	slack = rate_times(clock->tolerance_q32, magnitude(pair->mono_ns - base->mono_ns));
	/* Below a line that may itself be too high by its uncertainty; above one that may be too low. */
	if (distance + slack > *above_lowest)
		*above_lowest = distance + slack;
	if (distance - slack < *above_highest)
		*above_highest = distance - slack;
}

/* Whether `pair` can't be explained by drift and queueing. */
static __always_inline int ladder_jumped(const struct clock_state *clock, const struct clock_pair *pair)
{
	const struct rung *rung = &clock->rungs[LADDER_RUNGS - 1];
	__s64 above_lowest = -(1LL << 62), above_highest = 1LL << 62, noise = rung->spread_ns << 2;

	if (!rung->block.mono_ns)
		return 0;
	line_distance(clock, pair, &rung->older, &above_lowest, &above_highest);
	line_distance(clock, pair, &rung->newer, &above_lowest, &above_highest);
	line_distance(clock, pair, &rung->recent, &above_lowest, &above_highest);
	line_distance(clock, pair, &rung->block, &above_lowest, &above_highest);
	if (noise < JUMP_DOWN_NS)
		noise = JUMP_DOWN_NS;
	return above_lowest < -noise || above_highest > JUMP_UP_NS;
}

/* The drift over the longest baseline there is, into the record. */
static __always_inline void ladder_figure(struct clock_state *clock, struct window_record *record)
{
	const struct clock_pair *base, *now;
	__u64 baseline, above, spread, ppb, bound;
	__s64 change;
	__u32 r, i;

	for (i = 0; i < LADDER_RUNGS; i++) {
		const struct rung *rung;
		__u64 span;
		__s64 rate;

		r = LADDER_RUNGS - 1 - i;
		rung = &clock->rungs[r];
		span = 1ULL << (LADDER_SPAN0_SHIFT + LADDER_SPAN_SHIFT * r);
		if (rung->blocks < LADDER_BLOCKS_MIN)
			continue;
		rate = ladder_rate(clock, span);
		base = rung->older.mono_ns ? &rung->older : &rung->newer;
		spread =
		    rung->spread_ns + (rung->older.mono_ns ? rung->older_spread_ns : rung->newer_spread_ns);
		now = pair_above(&rung->block, &rung->recent, rate) < 0 ? &rung->block : &rung->recent;
		baseline = now->mono_ns - base->mono_ns;
		if (baseline < span >> 1 || baseline > LADDER_AGE_MAX_NS)
			continue;
		change = pair_offset(now) - pair_offset(base);
		above = magnitude(change);
		if (above >= MAGNITUDE_MAX)
			continue;
		ppb = above * 1000000000ULL / baseline;
		/* Both ends may be off by as much as pairs have been seen to be. */
		bound = (spread + QUANTUM_NS) * 1000000000ULL / baseline + 1;
		if (ppb > 0x7fffffff)
			ppb = 0x7fffffff;
		if (bound > 0xffffffff)
			bound = 0xffffffff;
		record->drift_mono_ppb = change < 0 ? -(__s32)ppb : (__s32)ppb;
		record->drift_bound_ppb = bound;
		record->drift_baseline_ns = baseline;
		record->flags |= WINDOW_DRIFT_VALID;
		if (bound > RATE_KNOWN_PPB) {
			clock->rate_q32 = 0;
			clock->tolerance_q32 = RATE_ANY_Q32;
			clock->rate_baseline_ns = 0;
			return;
		}
		/* BPF has no signed division. */
		ppb = (above << 30) / (baseline >> 2);
		clock->rate_q32 = change < 0 ? -(__s64)ppb : (__s64)ppb;
		clock->tolerance_q32 = ((2 * bound + 1000) * PPB_Q32) / 1000;
		clock->rate_baseline_ns = baseline;
		return;
	}
}

/* Takes in a closed window with stamps, and gives its record the drift as known now. `epoch` is that of the clock's
 * model, if it has one. */
SUBPROGRAM void ladder_add(struct clock_state *clock, struct window_record *record,
			   const struct clock_model *model)
{
	struct clock_pair pair = record->envelope;
	__s64 rate, step;
	__u64 span;
	__u32 r;

	if (model) {
		if (clock->has_epoch && clock->epoch != model->epoch) {
			ladder_empty(clock);
			record->flags |= WINDOW_LADDER_RESET;
		}
		clock->epoch = model->epoch;
		clock->has_epoch = 1;
	}
	if (ladder_jumped(clock, &pair)) {
		step = pair_offset(&pair) - pair_offset(&clock->suspect);
		if (!clock->suspect.mono_ns || magnitude(step) > JUMP_UP_NS) {
			clock->suspect = pair;
			ladder_figure(clock, record);
			return;
		}
		ladder_empty(clock);
		record->flags |= WINDOW_LADDER_RESET;
	} else {
		clock->suspect.mono_ns = 0;
	}
	for (r = 0; r < LADDER_RUNGS; r++) {
		span = 1ULL << (LADDER_SPAN0_SHIFT + LADDER_SPAN_SHIFT * r);
		rate = ladder_rate(clock, span);
		rung_add(&clock->rungs[r], &pair, span, rate, rate ? clock->tolerance_q32 : RATE_FLAT_Q32);
	}
	ladder_figure(clock, record);
}

#endif
