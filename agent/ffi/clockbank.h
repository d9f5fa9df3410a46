/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The clock's arithmetic, first part: a bank of Kalman filters.
 *
 * Offsets are ns since a base that the caller keeps as an integer, times are seconds since a start: doubles
 * close to zero. build_native.py reads these declarations too, so they keep to plain C.
 */
#ifndef AGENT_CLOCKBANK_H
#define AGENT_CLOCKBANK_H

#include <stdint.h>

/* Every member is a Kalman filter of one model of the clock, state (offset theta, drift f, third z):
 *   free	dtheta = f + white noise, df = white noise
 *   locked	the same, but f was zero to begin with: somebody disciplines the clock
 *   aging	as free, and df = z, dz = white noise
 *   returning	as free or locked, and theta contains a wander z that returns to zero with tau
 * They are weighted by how well each predicted the samples so far (multiple-model adaptive estimation, Magill
 * 1965), so that nobody has to tell the oscillator's noise. Spectral densities: white_var in ns^2/s, walk_var in
 * ppb^2/s, third_var in (ppb/s)^2/s for aging and in ns^2/s for returning members. */
struct agent_member {
	int32_t family;
	double white_var;
	double walk_var;
	double third_var;
	double tau_s;
	double drift_var; /* of the drift before the first sample */
	double log_prior;
};

struct agent_moments {
	double mean;
	double var;
};

/* Families of members: free or locked clocks with two states, aging or returning ones with three. What the bank knows
 * is told of each, and of all. */
#define AGENT_FAMILY_FREE      0
#define AGENT_FAMILY_LOCKED    1
#define AGENT_FAMILY_AGING     2
#define AGENT_FAMILY_RETURNING 3
#define AGENT_FAMILIES	       4
#define AGENT_BANK_ALL	       4
#define AGENT_BANK_GROUPS      5

struct agent_bank;
struct agent_bank_state;

/* Members come in the order of their families, none of which is empty but the last ones. `memory` is how many samples
 * the weights remember. NULL if there is no memory left or the order is wrong. */
struct agent_bank *agent_bank_new(const struct agent_member *members, int n, double memory);
void agent_bank_free(struct agent_bank *bank);
/* The first offset, known to +- sqrt(var). */
void agent_bank_start(struct agent_bank *bank, double time_s, double theta, double var);
/* Propagates to time_s; a time in the past changes nothing. */
void agent_bank_advance(struct agent_bank *bank, double time_s);
double agent_bank_time(const struct agent_bank *bank);
/* The offset horizon_s after the bank's time, the noise of the way included: out[AGENT_BANK_GROUPS]. */
void agent_bank_forecast(struct agent_bank *bank, double horizon_s, struct agent_moments *out);
/* The drift: out[AGENT_BANK_GROUPS]. */
void agent_bank_drift(struct agent_bank *bank, struct agent_moments *out);
/* The weight of each family, AGENT_FAMILIES of them. */
const double *agent_bank_family_weights(const struct agent_bank *bank);
/* The offset now, and the variance S of the innovation that a sample of it may show: arguments as
 * agent_bank_update takes them. */
struct agent_moments agent_bank_innovation(const struct agent_bank *bank, double noise_var, double extra_var,
					   double white_share, double walk_share);
/* Corrects by a measured offset and weights the members anew. The sample's variance is, for each member,
 * extra_var + noise_var less what the member's own noise contributed to noise_var when that was measured:
 * white_share s of its white noise and walk_share s^3 of its walk. `evidence`, 0 to 1, is how much the sample says
 * about the members: what fits none of them says nothing. */
void agent_bank_update(struct agent_bank *bank, double offset, double noise_var, double extra_var,
		       double white_share, double walk_share, double evidence);
/* Forgets the offset, keeps the drift. */
void agent_bank_forget_offset(struct agent_bank *bank);
/* Adds to the variances of offset and drift. */
void agent_bank_admit(struct agent_bank *bank, double offset_var, double drift_var);
void agent_bank_limit_drift(struct agent_bank *bank, double var);
/* Moves all offsets: a change of the base. */
void agent_bank_shift(struct agent_bank *bank, double offset);
/* The weights, n of them, in the members' order. */
void agent_bank_weights(const struct agent_bank *bank, double *out);
/* A copy of the state, weights included. */
struct agent_bank_state *agent_bank_save(const struct agent_bank *bank);
void agent_bank_restore(struct agent_bank *bank, const struct agent_bank_state *state);
void agent_bank_state_free(struct agent_bank_state *state);

#endif
