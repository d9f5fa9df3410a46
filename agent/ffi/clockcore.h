/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The clock's arithmetic, second part: the other experts, and the mixture of all per horizon. Units as in clockbank.h.
 */
#ifndef AGENT_CLOCKCORE_H
#define AGENT_CLOCKCORE_H

#include "clockbank.h"

/* --- the other experts ---------------------------------------------------------------------------- */

#define AGENT_POINTS	      64
#define AGENT_LINE_SIZES      5 /* 4, 8, 16, 32, 64 points */
#define AGENT_MEANS	      3 /* over 16, 256, 4096 s */
#define AGENT_AR_LAGS	      6
#define AGENT_AR_COEFFICIENTS 8 /* the lags, the height above the slow mean, a constant */

struct agent_line {
	double slope, intercept; /* at the newest point */
	double error;		 /* smoothed |one-step error| */
	int32_t errors;
	int32_t fitted;
};

/* Accepted samples, and what is learnt from them: a held frequency, a line over an adaptive number of points, an
 * autoregression of the increments. Plain data: a copy is a snapshot. */
struct agent_tracks {
	double time_s[AGENT_POINTS], offset[AGENT_POINTS];
	int32_t n, newest;
	struct agent_line lines[AGENT_LINE_SIZES];
	double held_rate, held_span_s;
	double mean[AGENT_MEANS], seen_s;
	double interval_s;
	double lag[AGENT_AR_LAGS];
	int32_t lags;
	double height;
	double coefficient[AGENT_AR_COEFFICIENTS];
	double spread[AGENT_AR_COEFFICIENTS * AGENT_AR_COEFFICIENTS];
	double ar_error_var;
	int64_t ar_updates;
};

void agent_tracks_start(struct agent_tracks *tracks);
void agent_tracks_add(struct agent_tracks *tracks, double time_s, double offset);
/* Moves the known points: a step of the offset, a change of the base. */
void agent_tracks_shift(struct agent_tracks *tracks, double offset);
/* Leaves the means where they were while all else moves: a disciplined clock that stepped returns to its own. */
void agent_tracks_step(struct agent_tracks *tracks, double by);
/* Forgets all points but the newest `keep`, and the rates: the frequency is another. */
void agent_tracks_forget(struct agent_tracks *tracks, int keep);

/* --- the mixture ---------------------------------------------------------------------------------- */

#define AGENT_EXPERTS	     6
#define AGENT_EXPERT_HOLD    0
#define AGENT_EXPERT_ALR     1
#define AGENT_EXPERT_KALMAN2 2
#define AGENT_EXPERT_KALMAN3 3
#define AGENT_EXPERT_RLS     4
#define AGENT_EXPERT_LSTM    5
/* What the experts are mixed of: kalman2 and kalman3 are two families each, rls is two regressions. */
#define AGENT_VOICES   9
#define AGENT_HORIZONS 16
#define AGENT_PENDING  64

struct agent_pending {
	double made_s, due_s;
	double offset[AGENT_VOICES];
	double drift; /* to carry them to the sample that scores them */
	double from, apart[AGENT_MEANS],
	    stepped; /* the newest sample then, above its means; all steps until then */
	double mixed, var;
};

struct agent_horizon {
	double span_s;
	struct agent_pending pending[AGENT_PENDING];
	int32_t first, n;
	double last_made_s;
	double log_weight[AGENT_VOICES];
	double voice_ratio[AGENT_VOICES]; /* as ratio_var, of each voice alone, over fewer spans */
	double spans;			  /* that those are of */
	double ratio_var;		  /* squared error over what was said, smoothed */
	double ratio_count;
	/* How much of what a sample is above its means it gains by the horizon, by recursive least squares. */
	double gain[AGENT_MEANS], gain_spread[AGENT_MEANS * AGENT_MEANS], gain_error_var;
	double quantile; /* p99 of |error| over its calibrated sigma */
	int64_t scored;
};

struct agent_mixture {
	int32_t n_horizons;
	int32_t enabled[AGENT_EXPERTS];
	double stepped; /* sum of all steps */
	struct agent_horizon horizons[AGENT_HORIZONS];
};

/* The recurrent expert's readout: it corrects the bank's figure by (expected + deviation . feature) of its sigmas.
 * `expected` is what the trained readout gives; the deviation from it is learnt by what comes of the forecasts. */
#define AGENT_FEATURES 17

struct agent_kept_features {
	double feature[AGENT_FEATURES];
	double expected, said, sigma;
};

struct agent_readout_at {
	double deviation[AGENT_FEATURES];
	double spread[AGENT_FEATURES * AGENT_FEATURES];
	struct agent_kept_features kept[AGENT_PENDING]; /* beside the horizon's pending */
};

struct agent_readout {
	double feature[AGENT_FEATURES];	 /* of now: the caller's */
	double expected[AGENT_HORIZONS]; /* likewise, NaN while it can't tell */
	struct agent_readout_at horizons[AGENT_HORIZONS];
};

void agent_readout_start(struct agent_readout *readout);

/* What is expected at one horizon. Experts that can't tell, or take no part, are NaN with weight 0. */
struct agent_forecast {
	double offset, sigma, p99;
	double expert[AGENT_EXPERTS];
	double weight[AGENT_EXPERTS];
};

void agent_mixture_start(struct agent_mixture *mixture);
/* A forecast per horizon from time_s, at or after the bank's: out[n_horizons]. `readout` is the sixth
 * expert's, or NULL. */
void agent_mixture_forecast(const struct agent_mixture *mixture, struct agent_bank *bank,
			    const struct agent_tracks *tracks, double time_s,
			    const struct agent_readout *readout, struct agent_forecast *out);
/* Keeps the forecast from the bank's time to score it later, at those horizons where it is time for one. */
void agent_mixture_keep(struct agent_mixture *mixture, struct agent_bank *bank,
			const struct agent_tracks *tracks, struct agent_readout *readout);
/* Scores what is due by an accepted sample of that variance; samples usually come interval_s apart. The readout, if
 * there is one, learns from it. */
void agent_mixture_score(struct agent_mixture *mixture, double time_s, double offset, double var,
			 double interval_s, struct agent_readout *readout);
/* Moves what is pending: a step, a change of the base. */
void agent_mixture_shift(struct agent_mixture *mixture, double offset);
/* Takes a step of the offset: what is pending moves with it. */
void agent_mixture_step(struct agent_mixture *mixture, double by);
/* Drops what was predicted at since_s or later. */
void agent_mixture_drop(struct agent_mixture *mixture, double since_s);

#endif
