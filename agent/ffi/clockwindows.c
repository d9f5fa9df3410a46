// SPDX-License-Identifier: GPL-2.0
/* Closed windows of one clock, and the least queued pairs among them; tests/unit/track_reference.py is the same. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "clockwindows.h"

#include "clockwhole.h"

/* Packets of a frozen stamp span more than this of local time. */
#define STALE_SPAN_NS 100000
/* The scatter of the lowest windows is measured up to this rank. */
#define SCATTER_RANK 4
/* Records of nearly the longest baseline give the ladder's drift. */
#define BASELINE_SHARE 0.9
#define LEAST_ROOM     64
#define FEW_ROWS       16

/* A pending pair on its way to its group: by sub-interval and path, then by height. */
struct agent_window_sort {
	uint64_t group;
	double level;
	int64_t row;
};

void agent_windows_free(struct agent_windows *w)
{
	free(w->pending);
	free(w->minima);
	free(w->ladder);
	free(w->sort);
}

/* Makes room for n rows of `size` bytes. */
static int make_room(void **rows, int64_t *room, int64_t n, size_t size)
{
	int64_t larger = *room ? *room : LEAST_ROOM;
	void *grown;

	if (n <= *room)
		return 0;
	while (larger < n)
		larger *= 2;
	grown = realloc(*rows, (size_t)larger * size);
	if (!grown)
		return -ENOMEM;
	*rows = grown;
	*room = larger;
	return 0;
}

static int is_frozen(const struct window_record *r)
{
	return r->first.hw_ns == r->last.hw_ns && r->n_stamped > 1 &&
	       (int64_t)(r->last.mono_ns - r->first.mono_ns) > STALE_SPAN_NS;
}

static void keep_pair(struct agent_windows *w, const struct window_record *r)
{
	int64_t mono_ns = (int64_t)r->envelope.mono_ns, hw_ns = (int64_t)r->envelope.hw_ns;

	if (!r->n_stamped || hw_ns <= 0)
		return;
	w->pending[w->n_pending++] = (struct agent_window_pair){
	    .mono_ns = mono_ns,
	    .offset_ns = possible(difference(mono_ns, hw_ns)),
	    .path = (uint32_t)r->cpu << 16 | r->queue,
	    .frozen = is_frozen(r),
	};
}

int agent_windows_add(struct agent_windows *w, const struct window_record *windows, int64_t n)
{
	int64_t first_ns = INT64_MAX, last_ns = 0, stamped = 0, i;
	uint64_t missing = 0;

	if (make_room((void **)&w->pending, &w->pending_room, w->n_pending + n, sizeof(*w->pending)) ||
	    make_room((void **)&w->ladder, &w->ladder_room, w->n_ladder + n, sizeof(*w->ladder)))
		return -ENOMEM;
	for (i = 0; i < n; i++) {
		const struct window_record *r = &windows[i];

		if ((int64_t)r->open_mono_ns < first_ns)
			first_ns = (int64_t)r->open_mono_ns;
		if ((int64_t)r->last_mono_ns > last_ns)
			last_ns = (int64_t)r->last_mono_ns;
		stamped += r->n_stamped > 0;
		missing += r->n_missing;
		keep_pair(w, r);
		if (r->flags & WINDOW_DRIFT_VALID)
			w->ladder[w->n_ladder++] =
			    (struct agent_ladder){r->drift_baseline_ns, r->drift_mono_ppb};
	}
	if (!w->n_seen)
		w->first_open_ns = first_ns;
	if (stamped)
		w->stamped_ns = last_ns;
	if (stamped < n && missing) {
		w->missing += missing;
		w->unstamped_ns = last_ns;
	}
	w->n_seen += n;
	return 0;
}

int64_t agent_windows_earliest(const struct agent_windows *w)
{
	int64_t earliest_ns = INT64_MAX, i;

	for (i = 0; i < w->n_pending; i++)
		if (w->pending[i].mono_ns < earliest_ns)
			earliest_ns = w->pending[i].mono_ns;
	return earliest_ns;
}

/* --- collapsing ----------------------------------------------------------------------------------- */

static int comes_after(const struct agent_window_sort *a, const struct agent_window_sort *b)
{
	return a->group != b->group ? a->group > b->group : a->level > b->level;
}

/* Sorts n rows by moving each down to its place: the quickest way for a few. */
static void insert_each(struct agent_window_sort *rows, int64_t n)
{
	int64_t i, at;

	for (i = 1; i < n; i++) {
		struct agent_window_sort row = rows[i];

		for (at = i; at && comes_after(&rows[at - 1], &row); at--)
			rows[at] = rows[at - 1];
		rows[at] = row;
	}
}

/* Merges sorted runs of `run` rows, two by two, from one buffer into the other. */
static void merge(const struct agent_window_sort *from, struct agent_window_sort *to, int64_t n, int64_t run)
{
	int64_t start;

	for (start = 0; start < n; start += 2 * run) {
		int64_t middle = start + run < n ? start + run : n, end = middle + run < n ? middle + run : n;
		int64_t a = start, b = middle, out;

		for (out = start; out < end; out++)
			to[out] = b == end || (a < middle && !comes_after(&from[a], &from[b])) ? from[a++]
											       : from[b++];
	}
}

/* Sorts the first n of 2n rows, those that compare equal in the order in which they came; returns where they are. */
static const struct agent_window_sort *sorted(struct agent_window_sort *rows, int64_t n)
{
	struct agent_window_sort *from = rows, *to = rows + n, *last;
	int64_t run, start;

	for (start = 0; start < n; start += FEW_ROWS)
		insert_each(from + start, n - start < FEW_ROWS ? n - start : FEW_ROWS);
	for (run = FEW_ROWS; run < n; run *= 2) {
		merge(from, to, n, run);
		last = from, from = to, to = last;
	}
	return from;
}

static int64_t chosen_rows(const struct agent_windows *w, int64_t since_ns, int64_t until_ns)
{
	int64_t n = 0, i;

	for (i = 0; i < w->n_pending; i++)
		if (w->pending[i].mono_ns >= since_ns && w->pending[i].mono_ns < until_ns)
			w->sort[n++].row = i;
	return n;
}

/* Fills in where the chosen rows belong and how high they are; returns the first sub-interval. */
static int64_t place(const struct agent_windows *w, int64_t n, double drift_ppb)
{
	const struct agent_window_pair *first = &w->pending[w->sort[0].row];
	int64_t first_sub = INT64_MAX, i;

	for (i = 0; i < n; i++) {
		int64_t sub = w->pending[w->sort[i].row].mono_ns / AGENT_SUB_INTERVAL_NS;

		first_sub = sub < first_sub ? sub : first_sub;
	}
	for (i = 0; i < n; i++) {
		const struct agent_window_pair *p = &w->pending[w->sort[i].row];

		w->sort[i].group = (uint64_t)(p->mono_ns / AGENT_SUB_INTERVAL_NS - first_sub) << 32 | p->path;
		w->sort[i].level = (double)difference(p->offset_ns, first->offset_ns) -
				   (double)(p->mono_ns - first->mono_ns) * (drift_ppb * 1e-9);
	}
	return first_sub;
}

/* The minimum of one group, sorted by height. */
static struct agent_minimum minimum_of(const struct agent_windows *w, const struct agent_window_sort *group,
				       int64_t n, int64_t start_mono_ns)
{
	const struct agent_window_pair *lowest = &w->pending[group->row];
	int64_t rank = n - 1 < SCATTER_RANK ? n - 1 : SCATTER_RANK, i;
	struct agent_minimum m = {
	    .start_mono_ns = start_mono_ns,
	    .mono_ns = lowest->mono_ns,
	    .offset_ns = lowest->offset_ns,
	    .path = lowest->path,
	    .windows = n,
	    .scatter_ns = rank ? (group[rank].level - group->level) / (double)rank : -1.0,
	    .spread_ns = group[n / 2].level - group->level,
	};

	for (i = 0; i < n; i++)
		m.frozen |= w->pending[group[i].row].frozen;
	return m;
}

int64_t agent_windows_collapse(struct agent_windows *w, int64_t since_ns, int64_t until_ns, double drift_ppb)
{
	const struct agent_window_sort *rows;
	int64_t n, first_sub, start, end;

	w->n_minima = 0;
	if (make_room((void **)&w->sort, &w->sort_room, 2 * w->n_pending, sizeof(*w->sort)) ||
	    make_room((void **)&w->minima, &w->minima_room, w->n_pending, sizeof(*w->minima)))
		return -ENOMEM;
	n = chosen_rows(w, since_ns, until_ns);
	if (!n)
		return 0;
	first_sub = place(w, n, drift_ppb);
	rows = sorted(w->sort, n);
	for (start = 0; start < n; start = end) {
		int64_t sub = first_sub + (int64_t)(rows[start].group >> 32);

		for (end = start + 1; end < n && rows[end].group == rows[start].group; end++)
			;
		w->minima[w->n_minima++] =
		    minimum_of(w, &rows[start], end - start, sub * AGENT_SUB_INTERVAL_NS);
	}
	return w->n_minima;
}

int64_t agent_windows_forget(struct agent_windows *w, int64_t since_ns, int64_t until_ns)
{
	int64_t kept = 0, late = 0, i;

	for (i = 0; i < w->n_pending; i++) {
		late += w->pending[i].mono_ns < since_ns;
		if (w->pending[i].mono_ns >= until_ns)
			w->pending[kept++] = w->pending[i];
	}
	w->n_pending = kept;
	return late;
}

/* --- the ladder's drift ------------------------------------------------------------------------------ */

static int by_drift(const void *a, const void *b)
{
	int32_t first = ((const struct agent_ladder *)a)->drift_ppb;
	int32_t second = ((const struct agent_ladder *)b)->drift_ppb;

	return (first > second) - (first < second);
}

struct agent_ladder_drift agent_windows_ladder_drift(struct agent_windows *w)
{
	struct agent_ladder_drift out = {0};
	int64_t n = 0, i;

	for (i = 0; i < w->n_ladder; i++)
		if (w->ladder[i].baseline_ns > out.baseline_ns)
			out.baseline_ns = w->ladder[i].baseline_ns;
	for (i = 0; i < w->n_ladder; i++)
		if ((double)w->ladder[i].baseline_ns >= BASELINE_SHARE * (double)out.baseline_ns)
			w->ladder[n++] = w->ladder[i];
	w->n_ladder = 0;
	if (!n)
		return out;
	qsort(w->ladder, (size_t)n, sizeof(*w->ladder), by_drift);
	out.drift_ppb = (w->ladder[n / 2].drift_ppb + (double)w->ladder[n - 1 - n / 2].drift_ppb) / 2.0;
	return out;
}
