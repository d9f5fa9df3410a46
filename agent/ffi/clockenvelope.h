/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The clock's arithmetic, last part: the lower envelope of mono - hw, followed by a track of raw - hw.
 *
 * Here is what is done with a sub-interval that fits. What those mean that do not is for agent/clock/envelope.py.
 */
#ifndef AGENT_CLOCKENVELOPE_H
#define AGENT_CLOCKENVELOPE_H

#include "clockmono.h"
#include "clockwindows.h"

/* What an applied change may do to the envelope. */
#define AGENT_CHANGE_MAX_NS 100000

/* What is known of one (CPU, queue): its base above the lowest path, its scatter, when it was seen. */
struct agent_path {
	uint32_t key;
	int32_t known; /* whether its base is */
	int64_t base_ns;
	int64_t last_mono_ns, last_hw_ns;
	double scatter_ns, noise_ns;
	int64_t seen, block_start_ns;
	int64_t block_min_ns, previous_min_ns; /* INT64_MAX: none yet */
};

/* What one path showed in one sub-interval, and how far that is from what was expected of it. */
struct agent_height {
	uint32_t path;
	int32_t known;
	int64_t level_ns, residual_ns;
};

/* A sub-interval as a sample of the clock. var is scaled by the noise seen, extra_var is not; spread_ns is -1 where no
 * path told one. */
struct agent_sub_interval {
	int64_t mono_ns, local_ns, offset_ns, residual_ns;
	double var, extra_var, spread_ns, gate_ns;
};

struct agent_envelope {
	struct agent_track *track;
	const struct agent_monoraw *monoraw;
	struct agent_windows *windows;
	double gate_sigmas;
	int64_t max_holdover_ns;
	int32_t accepted; /* whether any sub-interval is in the estimate; the next two are of those */
	int32_t stale;	  /* hardware stamps repeat */
	int64_t accepted_mono_ns, started_mono_ns;
	double interval_ns;
	double spread_ref_ns, typical_var;
	int64_t steps, used, stale_count;
	int64_t next; /* of the windows' minima */
	struct agent_sub_interval now;
	int32_t n_heights, heights_room;
	struct agent_height *heights; /* of the same */
	double *spreads;	      /* likewise, of paths that told one */
	int32_t n_paths, paths_room;
	struct agent_path *paths;
};

/* What agent_envelope_next stopped at: nothing is left; the first sub-interval of all, or after a long silence; one in
 * which all stamps repeat, for the first time; one that does not fit; one that fits while others are held that did not:
 * agent_envelope_settle takes it. */
#define AGENT_ENVELOPE_DONE	0
#define AGENT_ENVELOPE_STARTED	1
#define AGENT_ENVELOPE_STALE	2
#define AGENT_ENVELOPE_SUSPECT	3
#define AGENT_ENVELOPE_RETURNED 4

/* `windows` give the minima. NULL if there is no memory left. */
struct agent_envelope *agent_envelope_new(struct agent_track *track, const struct agent_monoraw *monoraw,
					  struct agent_windows *windows, double gate_sigmas,
					  int64_t max_holdover_ns);
void agent_envelope_free(struct agent_envelope *e);
/* Works through the minima until something is to be decided; `holding` says whether sub-intervals are held. drift_ppb
 * is d(mono - hw)/dmono. -ENOMEM if there is no memory left. */
int agent_envelope_next(struct agent_envelope *e, double drift_ppb, int holding);
/* Takes the sub-interval that it stopped at into the estimate, and what its paths showed. */
void agent_envelope_settle(struct agent_envelope *e);
/* Takes a sub-interval into the estimate, at the track's time, with n heights of known paths. */
void agent_envelope_accept(struct agent_envelope *e, const struct agent_sub_interval *s,
			   const struct agent_height *heights, int32_t n);
/* Variance of a typical sub-interval's minimum, ns^2. */
double agent_envelope_noise_var(const struct agent_envelope *e);
/* The path of that key; NULL if it is not known. */
struct agent_path *agent_envelope_path(const struct agent_envelope *e, uint32_t key);
/* The lowest path moved: everything above it is now higher by by_ns. */
void agent_path_shift_base(struct agent_path *path, int64_t by_ns);
/* What its residuals differ from the lowest path's without meaning anything. */
double agent_path_tolerance(const struct agent_path *path);

#endif
