/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The clock's arithmetic, fifth part: closed windows of one clock, and the least queued pairs among them.
 */
#ifndef AGENT_CLOCKWINDOWS_H
#define AGENT_CLOCKWINDOWS_H

#include <linux/types.h>
#include <stdint.h>

#include "records.h"

#define AGENT_SUB_INTERVAL_NS 20000000

/* What the envelope needs of a window that has a stamp. */
struct agent_window_pair {
	int64_t mono_ns;
	int64_t offset_ns; /* mono - hw */
	uint32_t path;	   /* cpu << 16 | queue */
	int32_t frozen;	   /* it saw one stamp only, again and again */
};

/* The least queued pair of one path in one sub-interval, and what stood around it. scatter_ns is the mean spacing of
 * the lowest window minima, -1 with a single window; spread_ns the height of the median window above the lowest. */
struct agent_minimum {
	int64_t start_mono_ns;
	int64_t mono_ns, offset_ns;
	uint32_t path;
	int32_t frozen;
	int64_t windows;
	double scatter_ns, spread_ns;
};

struct agent_window_sort;

struct agent_windows {
	int64_t n_seen;	       /* windows so far */
	int64_t first_open_ns; /* the earliest of the first that came */
	/* The last packet of the last that came with a stamp among them, and of the last that came without in whole
	 * windows; 0 if none did. */
	int64_t stamped_ns, unstamped_ns;
	uint64_t missing; /* packets without a stamp, where whole windows came without */
	int64_t n_pending, pending_room;
	struct agent_window_pair *pending;
	int64_t n_minima, minima_room;
	struct agent_minimum *minima; /* of the last agent_windows_collapse, by sub-interval and path */
	int64_t n_ladder, ladder_room;
	struct agent_ladder *ladder;
	int64_t sort_room;
	struct agent_window_sort *sort;
};

/* What the kernel's ladder said in one window. */
struct agent_ladder {
	uint64_t baseline_ns;
	int32_t drift_ppb;
};

/* The ladder's figures with the longest baselines: their median. baseline_ns is 0 if there were none. */
struct agent_ladder_drift {
	double drift_ppb;
	uint64_t baseline_ns;
};

/* All zero is one that has seen nothing. The functions that keep things return -ENOMEM if there is no memory left. */
void agent_windows_free(struct agent_windows *w);
/* Takes closed windows. */
int agent_windows_add(struct agent_windows *w, const struct window_record *windows, int64_t n);
/* When the earliest pending pair was seen. */
int64_t agent_windows_earliest(const struct agent_windows *w);
/* Finds the minima of pending pairs from since_ns until before until_ns: per path and sub-interval, the one
 * with the least mono - hw once drift_ppb, d(mono - hw)/dmono, is taken out. Integers stay exact; doubles are
 * differences from the first pair. Returns how many there are. */
int64_t agent_windows_collapse(struct agent_windows *w, int64_t since_ns, int64_t until_ns, double drift_ppb);
/* Forgets pending pairs from before until_ns; returns how many of them were from before since_ns. */
int64_t agent_windows_forget(struct agent_windows *w, int64_t since_ns, int64_t until_ns);
/* The ladder's drift by the windows since the last call. */
struct agent_ladder_drift agent_windows_ladder_drift(struct agent_windows *w);

#endif
