/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The clock's arithmetic, fourth part: CLOCK_MONOTONIC against CLOCK_MONOTONIC_RAW, what the kernel stamps with
 * against what is steady.
 *
 * mono is raw, steered: by the frequency that adjtimex shows, and by slews that it does not show. The dialled
 * frequency is known and taken out; pairs of reads tell the rest.
 */
#ifndef AGENT_CLOCKMONO_H
#define AGENT_CLOCKMONO_H

#include "clocktrack.h"

#define AGENT_MONO_HISTORY 64

/* A moment at which both were read: mono - raw, and how far off a line to the moment before may be, since the rate
 * changed somewhere between. */
struct agent_mono_moment {
	int64_t mono_ns, ahead_ns;
	double kink_ns;
};

struct agent_monoraw {
	struct agent_bank *bank; /* of what adjtimex does not show */
	struct agent_steering steering;
	int64_t raw0_ns, base_ns;
	int64_t mono_ns, raw_ns; /* of the last moment */
	double rate_ppb; /* d(mono - raw)/draw now: the dialled frequency and what is slewed besides */
	double kink_ns;
	int32_t n, newest;
	struct agent_mono_moment history[AGENT_MONO_HISTORY];
};

/* Takes one pair of reads, raw's bracket around mono width_ns wide. freq_ppb is mono's dialled frequency; NaN if it was
 * not read. All zero but for the bank is one that has seen nothing. */
void agent_monoraw_observe(struct agent_monoraw *m, int64_t mono_ns, int64_t raw_ns, double width_ns,
			   double freq_ppb);
/* mono - raw at mono_ns: interpolated between the known moments, beyond them by the rate. */
int64_t agent_monoraw_ahead(const struct agent_monoraw *m, int64_t mono_ns);
/* How far off that may be because the rate changed between two known moments. */
double agent_monoraw_uncertainty(const struct agent_monoraw *m, int64_t mono_ns);
/* Standard deviation of rate_ppb. */
double agent_monoraw_rate_sigma(const struct agent_monoraw *m);

#endif
