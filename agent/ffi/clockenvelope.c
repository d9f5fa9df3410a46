// SPDX-License-Identifier: GPL-2.0
/* The lower envelope of mono - hw: sub-intervals that fit; tests/unit/track_reference.py is the same. */
#include "clockenvelope.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "clockwhole.h"

#define FLOOR_NS 20.0
/* Caches, frequency scaling and the read of mono against raw move an envelope by this, however still it lies. */
#define UNSEEN_NS 15.0
/* Scatter per window before any was measured. */
#define INITIAL_SCATTER_NS 2000.0
/* Robust limits in sqrt(S): positive residuals may be queueing, negative ones hardly. */
#define ABOVE	       1.5
#define BELOW	       4.0
#define TIGHT_SLACK_NS 100.0
/* A path's base is the smallest it showed over one to two of these; it counts after so many sub-intervals. */
#define BASE_BLOCK_NS	  1000000000
#define PATH_KNOWN_AFTER  25
#define PATH_FORGET_NS	  60000000000
#define TOLERANCE_SIGMAS  4.0
#define PATH_NOISE_NS	  1000.0
#define INTERVALS_MEMORY  16.0
#define SCATTER_SMOOTHING 0.1
#define NOISE_SMOOTHING	  0.1
#define SMOOTHING	  0.05
/* No single figure moves a smoothed one by more than if it were so many times as large. */
#define CLIP	 3.0
#define CLIP_VAR 9.0

struct agent_envelope *agent_envelope_new(struct agent_track *track, const struct agent_monoraw *monoraw,
					  struct agent_windows *windows, double gate_sigmas,
					  int64_t max_holdover_ns)
{
	struct agent_envelope *e = calloc(1, sizeof(*e));

	if (!e)
		return NULL;
	e->track = track;
	e->monoraw = monoraw;
	e->windows = windows;
	e->gate_sigmas = gate_sigmas;
	e->max_holdover_ns = max_holdover_ns;
	e->typical_var = FLOOR_NS * FLOOR_NS;
	return e;
}

void agent_envelope_free(struct agent_envelope *e)
{
	free(e->heights);
	free(e->spreads);
	free(e->paths);
	free(e);
}

double agent_envelope_noise_var(const struct agent_envelope *e)
{
	return e->typical_var * e->track->noise.scale + UNSEEN_NS * UNSEEN_NS;
}

/* --- paths --------------------------------------------------------------------------------------- */

struct agent_path *agent_envelope_path(const struct agent_envelope *e, uint32_t key)
{
	int32_t i;

	for (i = 0; i < e->n_paths; i++)
		if (e->paths[i].key == key)
			return &e->paths[i];
	return NULL;
}

double agent_path_tolerance(const struct agent_path *path)
{
	return TOLERANCE_SIGMAS * path->noise_ns;
}

static int64_t shifted(int64_t height_ns, int64_t by_ns)
{
	return height_ns == INT64_MAX ? height_ns : sum_of(height_ns, by_ns);
}

void agent_path_shift_base(struct agent_path *path, int64_t by_ns)
{
	path->base_ns = sum_of(path->base_ns, by_ns);
	path->base_ns = path->base_ns > 0 ? path->base_ns : 0;
	path->block_min_ns = shifted(path->block_min_ns, by_ns);
	path->previous_min_ns = shifted(path->previous_min_ns, by_ns);
}

/* Takes one sub-interval's height above the lowest path; the base is the least of one to two blocks. */
static void learn_base(struct agent_path *path, int64_t mono_ns, int64_t above_ns)
{
	int64_t low_ns;

	path->seen++;
	if (mono_ns - path->block_start_ns > BASE_BLOCK_NS) {
		path->previous_min_ns = path->block_min_ns;
		path->block_min_ns = INT64_MAX;
		path->block_start_ns = mono_ns;
	}
	if (above_ns < path->block_min_ns)
		path->block_min_ns = above_ns;
	if (path->seen < PATH_KNOWN_AFTER)
		return;
	low_ns = path->previous_min_ns < path->block_min_ns ? path->previous_min_ns : path->block_min_ns;
	path->base_ns = low_ns > 0 ? low_ns : 0;
	path->known = 1;
}

/* The path of that key, a new one if need be; NULL if there is no memory left. */
static struct agent_path *path_of(struct agent_envelope *e, const struct agent_minimum *m, int64_t mono_ns)
{
	struct agent_path *path = agent_envelope_path(e, m->path);

	if (path)
		return path;
	if (e->n_paths == e->paths_room) {
		int32_t room = e->paths_room ? 2 * e->paths_room : 16;
		struct agent_path *grown = realloc(e->paths, (size_t)room * sizeof(*grown));

		if (!grown)
			return NULL;
		e->paths = grown;
		e->paths_room = room;
	}
	path = &e->paths[e->n_paths++];
	*path = (struct agent_path){
	    .key = m->path,
	    .last_mono_ns = m->mono_ns,
	    .scatter_ns = INITIAL_SCATTER_NS,
	    .block_start_ns = mono_ns,
	    .block_min_ns = INT64_MAX,
	    .previous_min_ns = INT64_MAX,
	};
	return path;
}

static void forget_paths(struct agent_envelope *e, int64_t mono_ns)
{
	int32_t kept = 0, i;

	for (i = 0; i < e->n_paths; i++)
		if (mono_ns - e->paths[i].last_mono_ns <= PATH_FORGET_NS)
			e->paths[kept++] = e->paths[i];
	e->n_paths = kept;
}

/* --- one sub-interval ------------------------------------------------------------------------------ */

static int by_value(const void *a, const void *b)
{
	double first = *(const double *)a, second = *(const double *)b;

	return (first > second) - (first < second);
}

/* The median of n values, which it sorts. */
static double median(double *values, int32_t n)
{
	qsort(values, (size_t)n, sizeof(*values), by_value);
	return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2.0;
}

static int room_for_heights(struct agent_envelope *e, int64_t n)
{
	struct agent_height *heights;
	double *spreads;

	if (n <= e->heights_room)
		return 0;
	heights = realloc(e->heights, (size_t)n * sizeof(*heights));
	if (!heights)
		return -ENOMEM;
	e->heights = heights;
	spreads = realloc(e->spreads, (size_t)n * sizeof(*spreads));
	if (!spreads)
		return -ENOMEM;
	e->spreads = spreads;
	e->heights_room = (int32_t)n;
	return 0;
}

/* How many minima from `next` on are of its sub-interval. */
static int64_t minima_of_next(const struct agent_envelope *e)
{
	const struct agent_windows *w = e->windows;
	int64_t n = 1;

	while (e->next + n < w->n_minima &&
	       w->minima[e->next + n].start_mono_ns == w->minima[e->next].start_mono_ns)
		n++;
	return n;
}

/* What one path says: its level in the middle of the sub-interval, and into *rate how much it tells. */
static void hear(struct agent_envelope *e, struct agent_path *path, const struct agent_minimum *m,
		 int64_t ahead_ns, double drift_ppb, double *rate)
{
	int64_t mono_ns = e->now.mono_ns;
	double measured = 0.0;

	path->last_mono_ns = m->mono_ns;
	if (m->scatter_ns >= 0.0) {
		measured = m->scatter_ns * (double)m->windows;
		path->scatter_ns +=
		    (fmin(measured, CLIP * path->scatter_ns) - path->scatter_ns) * SCATTER_SMOOTHING;
	}
	e->heights[e->n_heights++] = (struct agent_height){
	    .path = path->key,
	    .level_ns = difference(
		sum_of(m->offset_ns, whole((double)(mono_ns - m->mono_ns) * drift_ppb * 1e-9)), ahead_ns),
	};
	*rate += (double)m->windows / fmax(fmax(measured, path->scatter_ns), 1.0);
}

/* Gathers what the paths say in the next sub-interval, and makes a sample of it; how many stamps were repeated, or
 * -ENOMEM. */
static int64_t gather(struct agent_envelope *e, double drift_ppb)
{
	const struct agent_minimum *m = &e->windows->minima[e->next];
	int64_t n = minima_of_next(e), ahead_ns, stale = 0, i;
	double rate = 0.0;
	int32_t n_spread = 0;

	if (room_for_heights(e, n))
		return -ENOMEM;
	e->next += n;
	e->n_heights = 0;
	e->now.mono_ns = m->start_mono_ns + AGENT_SUB_INTERVAL_NS / 2;
	ahead_ns = agent_monoraw_ahead(e->monoraw, e->now.mono_ns);
	e->now.local_ns = e->now.mono_ns - ahead_ns;
	for (i = 0; i < n; i++, m++) {
		struct agent_path *path = path_of(e, m, e->now.mono_ns);
		int64_t hw_ns = difference(m->mono_ns, m->offset_ns);

		if (!path)
			return -ENOMEM;
		if (m->frozen || hw_ns == path->last_hw_ns) {
			stale++;
			continue;
		}
		path->last_hw_ns = hw_ns;
		hear(e, path, m, ahead_ns, drift_ppb, &rate);
		if (m->scatter_ns >= 0.0)
			e->spreads[n_spread++] = m->spread_ns;
	}
	e->now.var = FLOOR_NS * FLOOR_NS + 1.0 / (rate * rate);
	e->now.spread_ns = n_spread ? median(e->spreads, n_spread) : -1.0;
	return stale;
}

static int64_t lowest_level(const struct agent_envelope *e)
{
	int64_t lowest_ns = e->heights[0].level_ns;
	int32_t i;

	for (i = 1; i < e->n_heights; i++)
		if (e->heights[i].level_ns < lowest_ns)
			lowest_ns = e->heights[i].level_ns;
	return lowest_ns;
}

static void start(struct agent_envelope *e)
{
	int32_t i;

	agent_track_start(e->track, e->now.local_ns, lowest_level(e), e->now.var);
	e->accepted = 1;
	e->accepted_mono_ns = e->started_mono_ns = e->now.mono_ns;
	e->spread_ref_ns = fmax(e->now.spread_ns, 0.0);
	e->steps++;
	/* Until their bases are learnt, the lowest path speaks for all. */
	for (i = 0; i < e->n_paths; i++)
		e->paths[i].known = 1;
}

/* A path that got faster, but not faster than physics allows, says nothing about the clock, unless all did. */
static void excuse_faster_paths(struct agent_envelope *e, double gate_ns)
{
	int32_t i, down = 0, known = 0;

	for (i = 0; i < e->n_heights; i++) {
		known += e->heights[i].known;
		down += e->heights[i].known && (double)e->heights[i].residual_ns < -gate_ns;
	}
	if (down == known)
		return;
	for (i = 0; i < e->n_heights; i++) {
		struct agent_height *h = &e->heights[i];
		struct agent_path *path = agent_envelope_path(e, h->path);
		int64_t base_ns = path->base_ns;

		if (!h->known || h->residual_ns >= 0 || base_ns <= 0 ||
		    -(double)h->residual_ns <= agent_path_tolerance(path) + gate_ns / 2.0)
			continue;
		agent_path_shift_base(path, h->residual_ns > -base_ns ? h->residual_ns : -base_ns);
		h->residual_ns = sum_of(h->residual_ns, base_ns - path->base_ns);
	}
}

/* Fills in each path's residual against its base; whether any base is known. */
static int find_residuals(struct agent_envelope *e, int64_t lowest_ns, int64_t low_residual_ns,
			  double gate_ns)
{
	int32_t known = 0, i;

	for (i = 0; i < e->n_heights; i++) {
		struct agent_height *h = &e->heights[i];
		const struct agent_path *path = agent_envelope_path(e, h->path);

		h->known = path->known;
		h->residual_ns =
		    difference(sum_of(difference(h->level_ns, lowest_ns), low_residual_ns), path->base_ns);
		known += path->known;
	}
	if (known)
		excuse_faster_paths(e, gate_ns);
	return known > 0;
}

static int64_t least_known_residual(const struct agent_envelope *e)
{
	int64_t least_ns = INT64_MAX;
	int32_t i;

	for (i = 0; i < e->n_heights; i++)
		if (e->heights[i].known && e->heights[i].residual_ns < least_ns)
			least_ns = e->heights[i].residual_ns;
	return least_ns;
}

/* The two lowest levels of paths that are the lowest as far as is known, INT64_MAX where there are no two, and whose the
 * lowest is. */
struct lowest {
	int64_t level_ns, next_ns;
	int32_t at;
};

static struct lowest lowest_paths(const struct agent_envelope *e)
{
	struct lowest found = {INT64_MAX, INT64_MAX, -1};
	int32_t i;

	for (i = 0; i < e->n_heights; i++) {
		const struct agent_path *path = agent_envelope_path(e, e->heights[i].path);
		int64_t level_ns = e->heights[i].level_ns;

		if (!path->known || path->base_ns)
			continue;
		if (found.at < 0 || level_ns < found.level_ns) {
			found.next_ns = found.level_ns;
			found.level_ns = level_ns;
			found.at = i;
		} else if (level_ns < found.next_ns) {
			found.next_ns = level_ns;
		}
	}
	return found;
}

/* Learns each path's base against the lowest paths, those without one; in their absence bases stay, and those that are
 * not known yet are learnt against the clock. */
static void learn_paths(struct agent_envelope *e, int64_t offset_ns)
{
	struct lowest lowest = lowest_paths(e);
	int32_t i;

	for (i = 0; i < e->n_heights; i++) {
		struct agent_path *path = agent_envelope_path(e, e->heights[i].path);
		int64_t level_ns = e->heights[i].level_ns;
		int64_t other_ns = i == lowest.at ? lowest.next_ns : lowest.level_ns;

		if (other_ns != INT64_MAX)
			learn_base(path, e->now.mono_ns, difference(level_ns, other_ns));
		else if (!path->known)
			learn_base(path, e->now.mono_ns, difference(level_ns, offset_ns));
	}
	if (e->n_paths > e->n_heights)
		forget_paths(e, e->now.mono_ns);
}

void agent_envelope_accept(struct agent_envelope *e, const struct agent_sub_interval *s,
			   const struct agent_height *heights, int32_t n)
{
	struct agent_sample sample = {s->offset_ns, s->var, s->extra_var, ABOVE, BELOW};
	int32_t i;

	agent_track_accept(e->track, &sample);
	e->interval_ns += ((double)(s->mono_ns - e->accepted_mono_ns) - e->interval_ns) / INTERVALS_MEMORY;
	e->accepted_mono_ns = s->mono_ns;
	e->used++;
	e->typical_var += (fmin(s->var, CLIP_VAR * e->typical_var) - e->typical_var) * SMOOTHING;
	if (s->spread_ns >= 0.0) {
		double limit = CLIP * e->spread_ref_ns + TIGHT_SLACK_NS;

		e->spread_ref_ns += (fmin(s->spread_ns, limit) - e->spread_ref_ns) * SMOOTHING;
	}
	for (i = 0; i < n; i++) {
		struct agent_path *path = agent_envelope_path(e, heights[i].path);
		double apart;

		if (!path || !heights[i].known)
			continue;
		apart = fabs((double)difference(heights[i].residual_ns, s->residual_ns));
		apart = fmin(apart, CLIP * path->noise_ns + PATH_NOISE_NS);
		path->noise_ns += (apart - path->noise_ns) * NOISE_SMOOTHING;
	}
}

void agent_envelope_settle(struct agent_envelope *e)
{
	agent_envelope_accept(e, &e->now, e->heights, e->n_heights);
	learn_paths(e, e->now.offset_ns);
}

/* Compares the gathered sub-interval with the track. */
static int compare(struct agent_envelope *e, int holding)
{
	double kink_ns = agent_monoraw_uncertainty(e->monoraw, e->now.mono_ns);
	struct agent_residual low;
	int64_t lowest_ns;
	int known;

	if (!e->accepted || e->now.mono_ns - e->accepted_mono_ns > e->max_holdover_ns) {
		start(e);
		return AGENT_ENVELOPE_STARTED;
	}
	agent_track_advance(e->track, e->now.local_ns);
	lowest_ns = lowest_level(e);
	e->now.extra_var = kink_ns * kink_ns + UNSEEN_NS * UNSEEN_NS;
	low = agent_track_residual(e->track, lowest_ns, e->now.var, e->now.extra_var);
	e->now.gate_ns = e->gate_sigmas * sqrt(low.var);
	known = find_residuals(e, lowest_ns, low.residual_ns, e->now.gate_ns);
	e->now.residual_ns = known ? least_known_residual(e) : low.residual_ns;
	e->now.offset_ns = sum_of(difference(lowest_ns, low.residual_ns), e->now.residual_ns);
	if (!known && (double)e->now.residual_ns >= -e->now.gate_ns &&
	    e->now.residual_ns <= AGENT_CHANGE_MAX_NS) {
		/* Only paths that are new: how high they lie is not known yet, where the clock is can wait. */
		learn_paths(e, difference(e->now.offset_ns, e->now.residual_ns));
		return AGENT_ENVELOPE_DONE;
	}
	if (fabs((double)e->now.residual_ns) > e->now.gate_ns)
		return AGENT_ENVELOPE_SUSPECT;
	if (holding)
		return AGENT_ENVELOPE_RETURNED;
	agent_envelope_settle(e);
	return AGENT_ENVELOPE_DONE;
}

int agent_envelope_next(struct agent_envelope *e, double drift_ppb, int holding)
{
	while (e->next < e->windows->n_minima) {
		int64_t stale = gather(e, drift_ppb);
		int was_stale = e->stale, found;

		if (stale < 0)
			return -ENOMEM;
		e->stale_count += stale;
		e->stale = !e->n_heights;
		if (e->stale && !was_stale)
			return AGENT_ENVELOPE_STALE;
		if (e->stale)
			continue;
		found = compare(e, holding);
		if (found != AGENT_ENVELOPE_DONE)
			return found;
	}
	return AGENT_ENVELOPE_DONE;
}
