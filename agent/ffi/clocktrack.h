/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The clock's arithmetic, third part: one clock's offset and drift, exact to the nanosecond.
 *
 * Outside, offsets (local - hardware) are integers in ns; inside, the bank and the experts see doubles relative to
 * a base, with known steering taken out.
 */
#ifndef AGENT_CLOCKTRACK_H
#define AGENT_CLOCKTRACK_H

#include "clockcore.h"

/* --- known steering -------------------------------------------------------------------------------- */

/* Samples are looked at again while their verdict is open: the phase of so many changes ago is still exact. */
#define AGENT_STEERING_CHANGES 1024

/* From since_ns on at rate_ppb, from a phase of phase_ns and a rest below one nanosecond. */
struct agent_steering_piece {
	int64_t since_ns, phase_ns;
	double rest_ns, rate_ppb;
};

/* The sum of the known changes of one clock's drift, and what it has added to its offset since the first. All zero
 * is one that nobody steered. */
struct agent_steering {
	int32_t n, newest; /* n beyond the first piece, which is 0 for ever */
	struct agent_steering_piece piece[AGENT_STEERING_CHANGES];
};

/* What is dialled in now, beyond what was there before the first change. */
double agent_steering_rate(const struct agent_steering *steering);
/* Adds a change of drift from local_ns on, not before the last one. */
void agent_steering_dial(struct agent_steering *steering, int64_t local_ns, double change_ppb);
/* Adds a change that was made at some time between the two; returns the variance (ns^2) of its phase. The middle is
 * the best guess, and the time is uniform around it. */
double agent_steering_dial_between(struct agent_steering *steering, int64_t start_ns, int64_t end_ns,
				   double change_ppb);
/* What it had added to the offset by local_ns; after now, if nothing is changed any more. */
int64_t agent_steering_phase(const struct agent_steering *steering, int64_t local_ns);

/* --- the samples' noise ------------------------------------------------------------------------------ */

struct agent_noise_point {
	double time_s, offset, nominal_var, extra_var;
};

/* How much noisier the samples are than they were said to be, from three in a row: the middle one against the line
 * through its neighbours. Offset and drift cancel, so this needs no filter and is not fooled by one that lags. What the
 * oscillator itself wanders from one sample to the next is in the figure too: white_share (s) and walk_share (s^3) say
 * how much. */
struct agent_noise {
	double scale, white_share, walk_share;
	double triples; /* of how many samples the figure is, up to its memory */
	int32_t n;	/* points known, of two */
	struct agent_noise_point first, second;
};

void agent_noise_start(struct agent_noise *noise);
/* Takes one accepted sample of variance nominal_var * scale + extra_var. Where extra_var prevails, three samples tell
 * how right that is, not how large the rest: they count little. */
void agent_noise_add(struct agent_noise *noise, double time_s, double offset, double nominal_var,
		     double extra_var);
/* Starts a new triple: the next sample does not continue the line of the last. */
void agent_noise_forget_neighbours(struct agent_noise *noise);
/* `var` enlarged so that a residual beyond its limit pulls no harder than one at the limit: Huber's rule, by the
 * innovation. spread_var is S, `above` and `below` the limits in sqrt(S) for positive and negative residuals. */
double agent_robust_variance(double residual, double spread_var, double var, double above, double below);

/* --- the track --------------------------------------------------------------------------------------- */

/* What the recurrent expert is shown of a sample. */
struct agent_shown {
	double innovation, sigma, weight;
	int32_t jumped;
};

/* The bank's offset now and S of a sample of such noise: residual and correction ask for the same. */
struct agent_innovation {
	int32_t known;
	double nominal_var, extra_var;
	struct agent_moments now;
};

struct agent_track {
	struct agent_bank *bank;
	struct agent_tracks *experts;
	struct agent_mixture *mixture;
	struct agent_readout *readout; /* or NULL */
	struct agent_steering steering;
	struct agent_noise noise;
	int64_t base_ns, time0_ns, local_ns;
	int32_t jumped; /* no sample since the last jump */
	struct agent_innovation innovation;
	struct agent_shown shown;	    /* of the last corrected sample */
	struct agent_noise_point corrected; /* which one that was */
};

struct agent_sample {
	int64_t offset_ns;
	/* nominal_var is scaled by the noise seen, extra_var is not. */
	double nominal_var, extra_var;
	/* Limits of agent_robust_variance. */
	double above, below;
};

struct agent_residual {
	int64_t residual_ns;
	double var;
};

struct agent_offset {
	int64_t offset_ns;
	double sigma_ns;
};

/* Begins anew with this sample. */
void agent_track_start(struct agent_track *track, int64_t local_ns, int64_t offset_ns, double var);
/* Local time as the bank's seconds. */
double agent_track_seconds(const struct agent_track *track, int64_t local_ns);
/* Predicts up to local_ns. */
void agent_track_advance(struct agent_track *track, int64_t local_ns);
/* Measured - predicted offset of a sample at the bank's time, and its variance S. */
struct agent_residual agent_track_residual(struct agent_track *track, int64_t offset_ns, double nominal_var,
					   double extra_var);
/* Scores what was predicted for a sample at the bank's time and corrects by it; returns its weight, 1 for one that
 * counts in full. */
double agent_track_correct(struct agent_track *track, const struct agent_sample *sample);
/* Learns from the sample that was corrected by: experts, what to score later, the noise. */
void agent_track_learn(struct agent_track *track);
/* Both: all there is to do where no recurrent expert wants to see the sample in between. */
double agent_track_accept(struct agent_track *track, const struct agent_sample *sample);
/* Moves the offset by a jump and forgets how well it was known; the drift stays. What was predicted, and what the
 * experts know, moves with it. */
void agent_track_step(struct agent_track *track, int64_t by_ns);
/* Admits that the drift is off by about drift_ppb and the offset by size_ns, nobody knows why. */
void agent_track_admit(struct agent_track *track, double drift_ppb, double size_ns);
/* Admits a frequency step of about slope_ppb that already moved the offset by residual_ns. */
void agent_track_release_drift(struct agent_track *track, double slope_ppb, double residual_ns);
/* Adds a known change of drift, dialled in at some time between the two. */
void agent_track_steer(struct agent_track *track, double drift_ppb, int64_t start_ns, int64_t end_ns);
/* Drift in ppb at the bank's time, steering included. */
struct agent_moments agent_track_drift(const struct agent_track *track);
/* The bank's offset for local_ns, at or after its time. */
struct agent_offset agent_track_offset_at(const struct agent_track *track, int64_t local_ns);
/* What is expected after local_ns, at or after the bank's time: out[n_horizons], and as offsets in whole ns the
 * mixture's and each expert's, offset_ns[n_horizons][1 + AGENT_EXPERTS], 0 where an expert can't tell. */
void agent_track_forecast(const struct agent_track *track, int64_t local_ns, struct agent_forecast *out,
			  int64_t *offset_ns);

/* How another clock relates to the local one: it is ahead_ns ahead and gains slew_ppb, known to +- slew_sigma_ppb. */
struct agent_relation {
	int64_t ahead_ns;
	double slew_ppb, slew_sigma_ppb;
};

struct agent_prediction {
	double horizon_s;
	int64_t offset_ns;
	double sigma_ns, p99_ns;
};

/* What is expected after local_ns of another clock - hardware, given how it relates to the local one: a prediction for
 * each horizon. unknown_ns, which no averaging tells, is part of the bound; p99_sigmas is that of the relation. */
void agent_track_predict(const struct agent_track *track, int64_t local_ns,
			 const struct agent_relation *relation, double unknown_ns, double p99_sigmas,
			 struct agent_prediction *out);

struct agent_track_state;
/* A copy of what is known, but for the noise and for what waits to be scored; NULL if there is no memory left. */
struct agent_track_state *agent_track_save(const struct agent_track *track);
/* Returns to it; what was predicted since is dropped. */
void agent_track_restore(struct agent_track *track, const struct agent_track_state *state);
void agent_track_state_free(struct agent_track_state *state);

#endif
