// SPDX-License-Identifier: GPL-2.0
/* The clock's other experts and their mixture; tests/unit/clock_reference.py is the same in plain NumPy. */
#include "clockcore.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- the other experts ---------------------------------------------------------------------------- */

/* The adaptive line is linuxptp's linreg servo: 4 to 64 points, the largest size whose smoothed one-step error is
 * within 5 % of the best; 10 plain averages, then a smoothing of 0.02. */
#define LINE_LEAST_LOG2	  2
#define LINE_SMOOTHING	  0.02
#define LINE_FIRST_ERRORS 10
#define LINE_EQUAL	  1.05
/* The held frequency is the mean rate over this long at the most. */
#define HELD_SPAN_S	4096.0
#define AR_KEEP		0.999
#define AR_FIRST_SPREAD 10.0
/* Height is measured above a mean over this many samples. */
#define AR_HEIGHT_SAMPLES 512.0
#define AR_LEAST_UPDATES  64
/* Steps that an autoregression is run for; what is left goes at the held rate. */
#define AR_STEPS       1024
#define AR_CLIP_SIGMAS 4.0
/* An interval that differs from the usual by this part breaks the chain of increments. */
#define AR_INTERVAL_SLACK  0.25
#define INTERVAL_SMOOTHING 0.05
/* The means of which a disciplined clock may be above or below. */
static const double mean_span_s[AGENT_MEANS] = {16.0, 256.0, 4096.0};

void agent_tracks_start(struct agent_tracks *t)
{
	int i;

	memset(t, 0, sizeof(*t));
	t->newest = AGENT_POINTS - 1;
	for (i = 0; i < AGENT_AR_COEFFICIENTS; i++)
		t->spread[i * AGENT_AR_COEFFICIENTS + i] = AR_FIRST_SPREAD;
}

static int point(const struct agent_tracks *t, int age)
{
	return (t->newest - age) & (AGENT_POINTS - 1);
}

static void fit_lines(struct agent_tracks *t)
{
	double x_sum = 0.0, y_sum = 0.0, xx = 0.0, xy = 0.0;
	double x0 = t->time_s[t->newest], y0 = t->offset[t->newest], before = 0.0;
	int size, age = 0;

	if (t->n > 1)
		before = x0 - t->time_s[point(t, 1)];
	for (size = 0; size < AGENT_LINE_SIZES; size++) {
		struct agent_line *line = &t->lines[size];
		int n = 1 << (size + LINE_LEAST_LOG2);
		double spread;

		if (n > t->n)
			break;
		if (line->fitted) {
			double error = fabs(line->intercept + line->slope * before - y0);

			if (line->errors < LINE_FIRST_ERRORS)
				line->error += (error - line->error) / ++line->errors;
			else
				line->error += LINE_SMOOTHING * (error - line->error);
		}
		for (; age < n; age++) {
			double x = t->time_s[point(t, age)] - x0, y = t->offset[point(t, age)] - y0;

			x_sum += x;
			y_sum += y;
			xx += x * x;
			xy += x * y;
		}
		spread = xx - x_sum * x_sum / n;
		line->slope = spread > 0.0 ? (xy - x_sum * y_sum / n) / spread : 0.0;
		line->intercept = y0 + (y_sum - line->slope * x_sum) / n;
		line->fitted = 1;
	}
}

static const struct agent_line *best_line(const struct agent_tracks *t)
{
	const struct agent_line *best = NULL;
	int size;

	for (size = 0; size < AGENT_LINE_SIZES; size++) {
		const struct agent_line *line = &t->lines[size];

		if (!line->fitted)
			break;
		if (!best || (line->errors >= LINE_FIRST_ERRORS && line->error < LINE_EQUAL * best->error))
			best = line;
	}
	return best;
}

/* The regressors of the next increment, and its value by the coefficients. */
static double regress(const struct agent_tracks *t, double *x)
{
	double sum = 0.0;
	int i;

	for (i = 0; i < AGENT_AR_LAGS; i++)
		x[i] = t->lag[i];
	x[AGENT_AR_LAGS] = t->height;
	/* The constant is in the unit of the increments, so that the coefficients are all near one. */
	x[AGENT_AR_LAGS + 1] = sqrt(t->ar_error_var);
	for (i = 0; i < AGENT_AR_COEFFICIENTS; i++)
		sum += t->coefficient[i] * x[i];
	return sum;
}

/* Recursive least squares with forgetting; the regressors are scaled by the usual error. */
static void learn(struct agent_tracks *t, double increment)
{
	double x[AGENT_AR_COEFFICIENTS], px[AGENT_AR_COEFFICIENTS];
	double error = increment - regress(t, x);
	double sigma, denominator = AR_KEEP;
	int i, j, n = AGENT_AR_COEFFICIENTS;

	t->ar_updates++;
	if (t->ar_error_var <= 0.0) {
		t->ar_error_var = error * error;
		return;
	}
	sigma = sqrt(t->ar_error_var);
	if (fabs(error) > AR_CLIP_SIGMAS * sigma)
		error = copysign(AR_CLIP_SIGMAS * sigma, error);
	t->ar_error_var +=
	    (error * error - t->ar_error_var) / (t->ar_updates < 100 ? t->ar_updates + 1 : 100);
	for (i = 0; i < n; i++) {
		px[i] = 0.0;
		for (j = 0; j < n; j++)
			px[i] += t->spread[i * n + j] * x[j] / sigma;
	}
	for (i = 0; i < n; i++)
		denominator += px[i] * x[i] / sigma;
	for (i = 0; i < n; i++)
		t->coefficient[i] += px[i] / denominator * error / sigma;
	for (i = 0; i < n; i++)
		for (j = 0; j < n; j++)
			t->spread[i * n + j] = (t->spread[i * n + j] - px[i] * px[j] / denominator) / AR_KEEP;
	/* Directions that nothing excites would grow for ever. */
	for (i = 0; i < n; i++)
		if (t->spread[i * n + i] > AR_FIRST_SPREAD)
			for (j = 0; j < n; j++) {
				double shrink = sqrt(AR_FIRST_SPREAD / t->spread[i * n + i]);

				if (j == i)
					continue;
				t->spread[i * n + j] *= shrink;
				t->spread[j * n + i] *= shrink;
			}
	for (i = 0; i < n; i++)
		if (t->spread[i * n + i] > AR_FIRST_SPREAD)
			t->spread[i * n + i] = AR_FIRST_SPREAD;
}

static void push_lag(double *lag, double increment)
{
	memmove(lag + 1, lag, (AGENT_AR_LAGS - 1) * sizeof(*lag));
	lag[0] = increment;
}

static void add_increment(struct agent_tracks *t, double dt, double change)
{
	double increment;

	if (t->interval_s <= 0.0)
		t->interval_s = dt;
	if (fabs(dt - t->interval_s) > AR_INTERVAL_SLACK * t->interval_s) {
		t->interval_s += INTERVAL_SMOOTHING * (dt - t->interval_s);
		t->lags = 0;
		return;
	}
	t->interval_s += INTERVAL_SMOOTHING * (dt - t->interval_s);
	increment = (change - t->held_rate * dt) * t->interval_s / dt;
	if (t->lags == AGENT_AR_LAGS)
		learn(t, increment);
	else
		t->lags++;
	push_lag(t->lag, increment);
	t->height += increment - t->height / AR_HEIGHT_SAMPLES;
}

static void add_to_means(struct agent_tracks *t, double dt, double offset)
{
	int k;

	for (k = 0; k < AGENT_MEANS; k++)
		t->mean[k] += (offset - t->mean[k]) * dt / (fmin(t->seen_s, mean_span_s[k]) + dt);
	t->seen_s += dt;
}

void agent_tracks_add(struct agent_tracks *t, double time_s, double offset)
{
	double dt = 0.0, change = 0.0;
	int k;

	if (t->n) {
		dt = time_s - t->time_s[t->newest];
		change = offset - t->offset[t->newest];
		if (!(dt > 0.0))
			return;
	}
	t->newest = (t->newest + 1) & (AGENT_POINTS - 1);
	t->time_s[t->newest] = time_s;
	t->offset[t->newest] = offset;
	for (k = 0; k < AGENT_MEANS && !t->n; k++)
		t->mean[k] = offset;
	if (t->n < AGENT_POINTS)
		t->n++;
	if (dt > 0.0) {
		double span = t->held_span_s + dt;

		add_to_means(t, dt, offset);
		/* The first few rates are noise, and would look like increments. */
		if (t->held_span_s > 0.0)
			add_increment(t, dt, change);
		t->held_span_s = span < HELD_SPAN_S ? span : HELD_SPAN_S;
		t->held_rate += (change / dt - t->held_rate) * dt / t->held_span_s;
	}
	fit_lines(t);
}

void agent_tracks_shift(struct agent_tracks *t, double offset)
{
	int i;

	for (i = 0; i < AGENT_POINTS; i++)
		t->offset[i] += offset;
	for (i = 0; i < AGENT_LINE_SIZES; i++)
		t->lines[i].intercept += offset;
	for (i = 0; i < AGENT_MEANS; i++)
		t->mean[i] += offset;
}

void agent_tracks_step(struct agent_tracks *t, double by)
{
	int k;

	for (k = 0; k < AGENT_MEANS; k++)
		t->mean[k] -= by;
}

void agent_tracks_forget(struct agent_tracks *t, int keep)
{
	int i;

	if (t->n > keep)
		t->n = keep;
	for (i = 0; i < AGENT_LINE_SIZES; i++)
		t->lines[i].fitted = 0;
	t->held_rate = t->held_span_s = 0.0;
	t->lags = 0;
	t->height = 0.0;
}

/* No rate is held for longer than it has been seen. */
static int knows_rate(const struct agent_tracks *t, double time_s)
{
	return t->held_span_s > 0.0 && t->held_span_s >= time_s - t->time_s[t->newest];
}

/* What each expert expects at a time; NaN while it can't tell. */
static double hold_at(const struct agent_tracks *t, double time_s)
{
	if (!knows_rate(t, time_s))
		return NAN;
	return t->offset[t->newest] + t->held_rate * (time_s - t->time_s[t->newest]);
}

static double line_at(const struct agent_tracks *t, double time_s)
{
	const struct agent_line *line = best_line(t);

	return line ? line->intercept + line->slope * (time_s - t->time_s[t->newest]) : NAN;
}

/* An autoregression run on: the increments before and after now, the newest last. */
struct run_on {
	double increment[AGENT_AR_LAGS + AR_STEPS];
	double height, gone;
	int step;
};

static double next_increment(const struct agent_tracks *t, const struct run_on *r, double constant)
{
	const double *newest = &r->increment[AGENT_AR_LAGS + r->step - 1];
	double sum = constant;
	int i;

	/* The newest last: nothing else waits for it. */
	for (i = AGENT_AR_LAGS - 1; i > 0; i--)
		sum += t->coefficient[i] * newest[-i];
	return sum + t->coefficient[AGENT_AR_LAGS] * r->height + t->coefficient[0] * newest[0];
}

/* Runs until no whole step is left of span_s. No forecast of an increment may leave what increments have been: an
 * unstable fit must not explode. */
static void run_until(const struct agent_tracks *t, struct run_on *r, double span_s, double constant)
{
	double limit = AR_CLIP_SIGMAS * sqrt(t->ar_error_var);

	while (r->step < AR_STEPS && (r->step + 1) * t->interval_s <= span_s) {
		double u = next_increment(t, r, constant);

		u = u > limit ? limit : u < -limit ? -limit : u;
		r->increment[AGENT_AR_LAGS + r->step++] = u;
		r->height += u - r->height / AR_HEIGHT_SAMPLES;
		r->gone += u;
	}
}

/* Likewise, at each of n ascending times. */
static void autoregression_at(const struct agent_tracks *t, const double *time_s, int n, double *out)
{
	double constant = t->coefficient[AGENT_AR_LAGS + 1] * sqrt(t->ar_error_var);
	struct run_on r;
	int i;

	if (t->lags < AGENT_AR_LAGS || t->ar_updates < AR_LEAST_UPDATES) {
		for (i = 0; i < n; i++)
			out[i] = NAN;
		return;
	}
	for (i = 0; i < AGENT_AR_LAGS; i++)
		r.increment[i] = t->lag[AGENT_AR_LAGS - 1 - i];
	r.height = t->height;
	r.gone = 0.0;
	r.step = 0;
	for (i = 0; i < n; i++) {
		double span_s = time_s[i] - t->time_s[t->newest], part, rest;

		run_until(t, &r, span_s, constant);
		part = span_s / t->interval_s - r.step;
		rest = part < 1.0 ? part * next_increment(t, &r, constant) : 0.0;
		out[i] = NAN;
		if (knows_rate(t, time_s[i]))
			out[i] = t->offset[t->newest] + r.gone + rest + t->held_rate * span_s;
	}
}

/* --- the mixture ---------------------------------------------------------------------------------- */

/* Herbster & Warmuth's fixed share (1998) over losses clipped at LOSS_CAP: weights w ~ exp(-loss), and at each score
 * SHARE of the weight goes back to the prior. Its loss exceeds that of the best expert by no more than
 * ln(1/prior) + T ln(1/(1 - SHARE)), and of the best of k successive ones by k ln(1/(SHARE prior)) more. */
#define LOSS_CAP      8.0
#define SHARE	      1e-4
#define WEIGHT_MEMORY 2000.0
/* Losses are in units of the best voice's own error over so many spans, not of what the bank says of itself: where that
 * is far too unsure, nobody would ever lose. */
#define SPANS_MEMORY  20.0
#define SPANS_PRIOR   0.3
#define SHORTER_SPANS 6.0
#define RATIO_MEMORY  1000.0
#define RATIO_PRIOR   30.0
#define RATIO_CAP     16.0
/* However little the bank thinks of two or three states: its models are not the clock. */
#define LEAST_PART  0.02
#define LEAST_SHARE 1e-9
#define NORMAL_P99  2.5758293035489004
/* Noise and walk are estimates themselves, and a score against a noisy sample hardly shows it. */
#define MARGIN	      1.12
#define QUANTILE_STEP 0.05
/* A prediction is scored this part of its span and this many intervals after it was due, not later. */
#define LATE_PART	0.25
#define LATE_INTERVALS	2.0
#define LEAST_SPACING_S 0.03
/* The recurrent expert's readout: what its weights may deviate by, for how many scores that is remembered, and how many
 * sigmas an error counts, or a correction may be. */
#define READOUT_PRIOR_VAR 2.5e-3
#define READOUT_MEMORY	  2000.0
#define READOUT_CLIP	  3.0
/* The regression on the means: likewise; its usual error is over so many spans at the most, and an error no more than
 * so many of it. */
#define GAIN_PRIOR_VAR	 0.1
#define GAIN_MEMORY	 1000.0
#define GAIN_ERROR_SPANS 100.0
#define GAIN_CLIP	 3.0

/* The voices: the experts, kalman2 and kalman3 by families. */
enum {
	HOLD,
	LINE,
	FREE,
	LOCKED,
	AGING,
	RETURNING,
	AUTOREGRESSION,
	REVERSION,
	RECURRENT,
};

/* With 4 % the recurrent voice cost up to 2 % where it earned nothing, with 1 % no more than 0.6 %. */
static const double prior[AGENT_VOICES] = {0.04, 0.04, 0.21, 0.21, 0.21, 0.21, 0.04, 0.03, 0.01};
static const int expert_of[AGENT_VOICES] = {
    AGENT_EXPERT_HOLD,	  AGENT_EXPERT_ALR, AGENT_EXPERT_KALMAN2, AGENT_EXPERT_KALMAN2, AGENT_EXPERT_KALMAN3,
    AGENT_EXPERT_KALMAN3, AGENT_EXPERT_RLS, AGENT_EXPERT_RLS,	  AGENT_EXPERT_LSTM,
};

static int is_bank(int voice)
{
	return voice >= FREE && voice <= RETURNING;
}

/* What the voices expect at one time. The bank's tell a variance too, and how likely their family is by all samples. */
struct choir {
	double offset[AGENT_VOICES];
	double var[AGENT_VOICES];
	struct agent_moments all;
};

/* What comes of them at one horizon. */
struct mixed {
	double weight[AGENT_VOICES];
	double offset, var;
};

/* What the bank makes of its families by all samples, alike at all horizons. */
struct opinion {
	double share[AGENT_FAMILIES], log_share[AGENT_FAMILIES];
};

static struct opinion opinion_of(const struct agent_bank *bank)
{
	const double *weight = agent_bank_family_weights(bank);
	struct opinion o;
	int g;

	for (g = 0; g < AGENT_FAMILIES; g++) {
		o.share[g] = fmax(weight[g], LEAST_SHARE);
		o.log_share[g] = log(LEAST_PART + (1.0 - LEAST_PART) * weight[g]);
	}
	return o;
}

void agent_mixture_start(struct agent_mixture *m)
{
	int i, e;

	m->stepped = 0.0;
	for (i = 0; i < m->n_horizons; i++) {
		struct agent_horizon *h = &m->horizons[i];
		double span = h->span_s;

		memset(h, 0, sizeof(*h));
		h->span_s = span;
		h->last_made_s = -INFINITY;
		for (e = 0; e < AGENT_VOICES; e++) {
			h->log_weight[e] = log(prior[e]);
			h->voice_ratio[e] = 1.0;
		}
		for (e = 0; e < AGENT_MEANS; e++)
			h->gain_spread[e * (AGENT_MEANS + 1)] = GAIN_PRIOR_VAR;
		h->spans = SPANS_PRIOR;
		h->ratio_var = 1.0;
		h->ratio_count = RATIO_PRIOR;
		h->quantile = NORMAL_P99;
	}
}

/* How much the bank's opinion counts at a horizon: next to nothing where its squared errors are twice the best voice's. */
static double credit_of_bank(const struct agent_mixture *m, const struct opinion *o,
			     const struct agent_horizon *h, const struct choir *c)
{
	double least = INFINITY, own = 0.0, of_bank = 0.0, share, part;
	int v;

	for (v = 0; v < AGENT_VOICES; v++) {
		if (!m->enabled[expert_of[v]] || !isfinite(c->offset[v]))
			continue;
		least = fmin(least, h->voice_ratio[v]);
		if (is_bank(v)) {
			share = o->share[v - FREE];
			of_bank += share;
			own += share * h->voice_ratio[v];
		}
	}
	if (!(own > 0.0))
		return 1.0;
	part = fmin(1.0, least * of_bank / own);
	return part * part * part * part;
}

/* What each voice has earned by its errors, at each horizon: those of shorter horizons count too, the less the more
 * there are of its own. Who is far off at 10 s is so at 60 s, where minutes go by until it shows. */
static void sum_up(const struct agent_mixture *m, double earned[][AGENT_VOICES])
{
	double start[AGENT_VOICES];
	int i, v;

	for (v = 0; v < AGENT_VOICES; v++)
		start[v] = log(prior[v]);
	for (i = 0; i < m->n_horizons; i++) {
		const struct agent_horizon *h = &m->horizons[i];
		double part = SHORTER_SPANS / (SHORTER_SPANS + h->spans);

		for (v = 0; v < AGENT_VOICES; v++) {
			earned[i][v] = h->log_weight[v];
			if (i)
				earned[i][v] += part * (earned[i - 1][v] - start[v]);
		}
	}
}

static struct mixed mix(const struct agent_mixture *m, const struct opinion *o, const struct agent_horizon *h,
			const double *earned, const struct choir *c)
{
	struct mixed out = {0};
	double log_weight[AGENT_VOICES];
	double best = -INFINITY, sum = 0.0, mean = 0.0, of_bank = 0.0, var = 0.0, apart;
	double credit = credit_of_bank(m, o, h, c), evidence;
	int v;

	for (v = 0; v < AGENT_VOICES; v++) {
		log_weight[v] = -INFINITY;
		if (!m->enabled[expert_of[v]] || !isfinite(c->offset[v]))
			continue;
		apart = c->offset[v] - c->all.mean;
		/* Who is far from the bank's figure has to have won before it is believed: Student's t, 3 degrees... */
		evidence = -2.0 * log1p(apart * apart / (3.0 * h->ratio_var * c->all.var));
		/* ... and the bank's own evidence comes with every sample, long before scores at a long horizon do. */
		if (is_bank(v))
			evidence += o->log_share[v - FREE];
		log_weight[v] = earned[v] + credit * evidence;
		best = fmax(best, log_weight[v]);
	}
	for (v = 0; v < AGENT_VOICES; v++) {
		out.weight[v] = exp(log_weight[v] - best);
		if (out.weight[v] <= 0.0)
			continue;
		sum += out.weight[v];
		mean += out.weight[v] * (c->offset[v] - c->all.mean);
		/* Not by the weight, which keeps a share for families that all samples speak against: their variances may
		 * dwarf all others. */
		if (is_bank(v)) {
			double share = o->share[v - FREE] * exp(earned[v] - earned[FREE]);

			of_bank += share;
			var += share * c->var[v];
		}
	}
	mean /= sum;
	out.offset = c->all.mean + mean;
	/* Who tells no variance is taken to know as much as the bank. */
	out.var = of_bank > 0.0 ? var / of_bank : c->all.var;
	for (v = 0; v < AGENT_VOICES; v++) {
		out.weight[v] /= sum;
		if (out.weight[v] > 0.0) {
			apart = c->offset[v] - out.offset;
			out.var += out.weight[v] * apart * apart;
		}
	}
	return out;
}

/* What each voice expects at `at_s`; *ar is the autoregression's, NULL to ask it here. */
static void consult(struct agent_bank *bank, const struct agent_tracks *tracks, double at_s, const double *ar,
		    struct choir *c)
{
	struct agent_moments bank_at[AGENT_BANK_GROUPS];
	int v;

	agent_bank_forecast(bank, at_s - agent_bank_time(bank), bank_at);
	c->all = bank_at[AGENT_BANK_ALL];
	for (v = FREE; v <= RETURNING; v++) {
		c->offset[v] = bank_at[v - FREE].mean;
		c->var[v] = bank_at[v - FREE].var;
	}
	c->offset[HOLD] = hold_at(tracks, at_s);
	c->offset[LINE] = line_at(tracks, at_s);
	if (ar)
		c->offset[AUTOREGRESSION] = *ar;
	else
		autoregression_at(tracks, &at_s, 1, &c->offset[AUTOREGRESSION]);
	c->offset[REVERSION] = c->offset[RECURRENT] = NAN;
}

/* Add the voice that knows the means, at one horizon; tells how far above each of them the newest sample is. */
static void revert(const struct agent_horizon *h, const struct agent_tracks *tracks, struct choir *c,
		   double *apart)
{
	double at = tracks->offset[tracks->newest];
	int k;

	c->offset[REVERSION] = at;
	for (k = 0; k < AGENT_MEANS; k++) {
		apart[k] = at - tracks->mean[k];
		c->offset[REVERSION] += h->gain[k] * apart[k];
	}
}

/* Recursive least squares about 0, where a clock stays that nobody brings back, in units of the usual error. */
static void learn_gain(struct agent_horizon *h, const struct agent_pending *p, double gained,
		       double in_flight)
{
	double stay = exp(-1.0 / (GAIN_MEMORY * in_flight)), fade = stay * stay;
	double x[AGENT_MEANS], px[AGENT_MEANS] = {0.0}, error = gained, total = in_flight, limit, sigma;
	int j, k;

	for (k = 0; k < AGENT_MEANS; k++)
		error -= h->gain[k] * p->apart[k];
	if (h->gain_error_var <= 0.0)
		h->gain_error_var = fmax(error * error, 1.0);
	h->gain_error_var += (fmin(error * error, RATIO_CAP * h->gain_error_var) - h->gain_error_var) /
			     (fmin(1.0 + (double)h->scored / in_flight, GAIN_ERROR_SPANS) * in_flight);
	sigma = sqrt(h->gain_error_var);
	for (k = 0; k < AGENT_MEANS; k++) {
		x[k] = p->apart[k] / sigma;
		h->gain[k] *= stay;
		for (j = 0; j < AGENT_MEANS; j++)
			h->gain_spread[k * AGENT_MEANS + j] *= fade;
		h->gain_spread[k * (AGENT_MEANS + 1)] += (1.0 - fade) * GAIN_PRIOR_VAR;
	}
	for (k = 0; k < AGENT_MEANS; k++) {
		for (j = 0; j < AGENT_MEANS; j++)
			px[k] += h->gain_spread[k * AGENT_MEANS + j] * x[j];
		total += px[k] * x[k];
	}
	/* Of what is exact, roundings may leave less than nothing. */
	if (!(total >= in_flight))
		return;
	error /= sigma;
	limit = GAIN_CLIP * sqrt(total);
	error = error > limit ? limit : error < -limit ? -limit : error;
	for (k = 0; k < AGENT_MEANS; k++) {
		h->gain[k] += px[k] * error / total;
		for (j = 0; j < AGENT_MEANS; j++)
			h->gain_spread[k * AGENT_MEANS + j] -= px[k] * px[j] / total;
	}
}

void agent_readout_start(struct agent_readout *r)
{
	int i, k;

	memset(r, 0, sizeof(*r));
	for (i = 0; i < AGENT_HORIZONS; i++)
		for (k = 0; k < AGENT_FEATURES; k++)
			r->horizons[i].spread[k * (AGENT_FEATURES + 1)] = READOUT_PRIOR_VAR;
}

static double dot(const double *a, const double *b)
{
	double sum = 0.0;
	int k;

	for (k = 0; k < AGENT_FEATURES; k++)
		sum += a[k] * b[k];
	return sum;
}

/* Add the recurrent voice at horizon i; returns its correction in sigmas of the bank. */
static double read_out(const struct agent_readout *r, int i, struct choir *c)
{
	double said = r->expected[i] + dot(r->horizons[i].deviation, r->feature);

	said = said > READOUT_CLIP ? READOUT_CLIP : said < -READOUT_CLIP ? -READOUT_CLIP : said;
	c->offset[RECURRENT] = c->all.mean + said * sqrt(c->all.var);
	return said;
}

/* Recursive least squares as a Kalman filter whose state, the deviation from the trained readout, is an
 * Ornstein-Uhlenbeck process: it forgets with READOUT_MEMORY, toward 0, and its spread toward READOUT_PRIOR_VAR.
 * `miss` is how far off the forecast was, in sigmas; `noise_var` its variance apart from the readout's. */
static void learn_readout(struct agent_readout_at *r, const struct agent_kept_features *kept, double miss,
			  double noise_var, double samples)
{
	double stay = exp(-1.0 / (READOUT_MEMORY * samples)), fade = stay * stay;
	double px[AGENT_FEATURES], error, total, limit;
	int j, k;

	for (k = 0; k < AGENT_FEATURES; k++)
		r->deviation[k] *= stay;
	for (k = 0; k < AGENT_FEATURES * AGENT_FEATURES; k++)
		r->spread[k] *= fade;
	for (k = 0; k < AGENT_FEATURES; k++)
		r->spread[k * (AGENT_FEATURES + 1)] += (1.0 - fade) * READOUT_PRIOR_VAR;
	for (k = 0; k < AGENT_FEATURES; k++)
		px[k] = dot(&r->spread[k * AGENT_FEATURES], kept->feature);
	total = noise_var + dot(px, kept->feature);
	error = kept->said + miss - kept->expected - dot(r->deviation, kept->feature);
	limit = READOUT_CLIP * sqrt(total);
	error = error > limit ? limit : error < -limit ? -limit : error;
	for (k = 0; k < AGENT_FEATURES; k++) {
		r->deviation[k] += px[k] * error / total;
		for (j = 0; j < AGENT_FEATURES; j++)
			r->spread[k * AGENT_FEATURES + j] -= px[k] * px[j] / total;
	}
}

/* The voices' figures as the experts' whose they are. */
static void tell(const struct choir *c, const struct mixed *mixed, struct agent_forecast *out)
{
	int v, e;

	for (e = 0; e < AGENT_EXPERTS; e++)
		out->expert[e] = out->weight[e] = 0.0;
	for (v = 0; v < AGENT_VOICES; v++)
		if (mixed->weight[v] > 0.0) {
			out->weight[expert_of[v]] += mixed->weight[v];
			out->expert[expert_of[v]] += mixed->weight[v] * (c->offset[v] - c->all.mean);
		}
	for (e = 0; e < AGENT_EXPERTS; e++)
		out->expert[e] = out->weight[e] > 0.0 ? c->all.mean + out->expert[e] / out->weight[e] : NAN;
}

void agent_mixture_forecast(const struct agent_mixture *m, struct agent_bank *bank,
			    const struct agent_tracks *tracks, double time_s,
			    const struct agent_readout *readout, struct agent_forecast *out)
{
	double at[AGENT_HORIZONS] = {0}, ar[AGENT_HORIZONS], apart[AGENT_MEANS];
	struct opinion opinion = opinion_of(bank);
	double earned[AGENT_HORIZONS][AGENT_VOICES];
	int i;

	sum_up(m, earned);

	for (i = 0; i < m->n_horizons; i++)
		at[i] = time_s + m->horizons[i].span_s;
	autoregression_at(tracks, at, m->n_horizons, ar);
	for (i = 0; i < m->n_horizons; i++) {
		const struct agent_horizon *h = &m->horizons[i];
		struct mixed mixed;
		struct choir c;

		consult(bank, tracks, at[i], &ar[i], &c);
		revert(h, tracks, &c, apart);
		if (readout)
			read_out(readout, i, &c);
		mixed = mix(m, &opinion, h, earned[i], &c);
		tell(&c, &mixed, &out[i]);
		out[i].offset = mixed.offset;
		out[i].sigma = sqrt(mixed.var * h->ratio_var);
		out[i].p99 = MARGIN * h->quantile * out[i].sigma;
	}
}

/* Whether it is time for the next prediction to score: spread over the span, so that the ring never runs over. */
static int wants(const struct agent_horizon *h, double time_s)
{
	double spacing = h->span_s / (AGENT_PENDING - 4);

	return h->n < AGENT_PENDING &&
	       time_s - h->last_made_s >= (spacing > LEAST_SPACING_S ? spacing : LEAST_SPACING_S);
}

void agent_mixture_keep(struct agent_mixture *m, struct agent_bank *bank, const struct agent_tracks *tracks,
			struct agent_readout *readout)
{
	double time_s = agent_bank_time(bank), soonest = time_s + tracks->interval_s, asked_s = -INFINITY;
	struct agent_moments drift[AGENT_BANK_GROUPS];
	struct opinion opinion;
	double earned[AGENT_HORIZONS][AGENT_VOICES];
	struct choir c;
	int i, slot;

	for (i = 0; i < m->n_horizons; i++) {
		struct agent_horizon *h = &m->horizons[i];
		struct agent_pending *p;
		struct mixed mixed;
		/* No sample comes sooner than the next one: what is expected of that is scored instead. */
		double due_s = fmax(time_s + h->span_s, soonest);

		if (!wants(h, time_s))
			continue;
		if (asked_s == -INFINITY) {
			agent_bank_drift(bank, drift);
			opinion = opinion_of(bank);
			sum_up(m, earned);
		}
		if (due_s != asked_s)
			consult(bank, tracks, due_s, NULL, &c);
		asked_s = due_s;
		slot = (h->first + h->n++) % AGENT_PENDING;
		p = &h->pending[slot];
		revert(h, tracks, &c, p->apart);
		p->from = tracks->offset[tracks->newest];
		p->stepped = m->stepped;
		if (readout) {
			struct agent_kept_features *kept = &readout->horizons[i].kept[slot];

			memcpy(kept->feature, readout->feature, sizeof(kept->feature));
			kept->expected = readout->expected[i];
			kept->said = read_out(readout, i, &c);
			kept->sigma = sqrt(c.all.var);
		}
		mixed = mix(m, &opinion, h, earned[i], &c);
		p->made_s = h->last_made_s = time_s;
		p->due_s = due_s;
		memcpy(p->offset, c.offset, sizeof(p->offset));
		p->drift = drift[AGENT_BANK_ALL].mean;
		p->mixed = mixed.offset;
		p->var = mixed.var;
	}
}

/* Updates how far off each voice is, in units of what was said; returns that of the best one. */
static double least_ratio(const struct agent_mixture *m, struct agent_horizon *h,
			  const struct agent_pending *p, double target, double said, double in_flight)
{
	double least = INFINITY;
	int v;

	if (h->spans < SPANS_MEMORY)
		h->spans += 1.0 / in_flight;
	for (v = 0; v < AGENT_VOICES; v++) {
		double miss = target - p->offset[v], ratio = miss * miss / said;

		if (!m->enabled[expert_of[v]] || !isfinite(p->offset[v]))
			continue;
		ratio = fmin(ratio, RATIO_CAP * h->voice_ratio[v]);
		h->voice_ratio[v] += (ratio - h->voice_ratio[v]) / (h->spans * in_flight);
		least = fmin(least, h->voice_ratio[v]);
	}
	return least;
}

static void score(const struct agent_mixture *m, struct agent_horizon *h, const struct agent_pending *p,
		  double time_s, double offset, double var, struct agent_readout_at *readout)
{
	double late = p->drift * (time_s - p->due_s);
	double error = offset - p->mixed - late;
	double said = p->var + var, ratio = error * error / said;
	double in_flight = h->n > 1 ? h->n : 1.0;
	double best = -INFINITY, sum = 0.0, told;
	double log_weight[AGENT_VOICES];
	double stepped = m->stepped - p->stepped;
	double scale = said * least_ratio(m, h, p, offset - late + stepped, said, in_flight);
	int e;

	h->scored++;
	if (readout && isfinite(p->offset[RECURRENT])) {
		const struct agent_kept_features *kept = &readout->kept[p - h->pending];
		double sigma = kept->sigma;

		learn_readout(readout, kept, (offset - p->offset[RECURRENT] - late) / sigma,
			      in_flight * (h->ratio_var + var / (sigma * sigma)), in_flight);
	}
	learn_gain(h, p, offset - p->from + stepped, in_flight);
	for (e = 0; e < AGENT_VOICES; e++) {
		double miss = offset - p->offset[e] - late + stepped, loss;

		if (!m->enabled[expert_of[e]] || !isfinite(p->offset[e]))
			continue;
		loss = 0.5 * miss * miss / scale;
		loss = loss < LOSS_CAP ? loss : LOSS_CAP;
		/* Predictions in flight together err together: they count as one. */
		h->log_weight[e] +=
		    -loss / in_flight - (h->log_weight[e] - log(prior[e])) / (WEIGHT_MEMORY * in_flight);
	}
	for (e = 0; e < AGENT_VOICES; e++)
		if (m->enabled[expert_of[e]] && isfinite(p->offset[e]) && h->log_weight[e] > best)
			best = h->log_weight[e];
	for (e = 0; e < AGENT_VOICES; e++) {
		log_weight[e] = exp(h->log_weight[e] - best);
		if (m->enabled[expert_of[e]] && isfinite(p->offset[e]))
			sum += log_weight[e];
	}
	for (e = 0; e < AGENT_VOICES; e++)
		if (m->enabled[expert_of[e]] && isfinite(p->offset[e]))
			h->log_weight[e] = log((1.0 - SHARE) * log_weight[e] / sum + SHARE * prior[e]);
	/* A sample whose own noise prevails tells about that noise. */
	told = p->var / said;
	told *= told / in_flight;
	if (ratio > RATIO_CAP * h->ratio_var)
		ratio = RATIO_CAP * h->ratio_var;
	if (h->ratio_count < RATIO_MEMORY)
		h->ratio_count += told;
	h->ratio_var += (ratio - h->ratio_var) * told / h->ratio_count;
	/* The quantile by stochastic gradient: up by 99 for each miss, down by one for each hit. */
	h->quantile +=
	    QUANTILE_STEP * told * (fabs(error) > h->quantile * sqrt(said * h->ratio_var) ? 0.99 : -0.01);
	if (h->quantile < 0.8 * NORMAL_P99)
		h->quantile = 0.8 * NORMAL_P99;
}

void agent_mixture_score(struct agent_mixture *m, double time_s, double offset, double var, double interval_s,
			 struct agent_readout *readout)
{
	int i;

	for (i = 0; i < m->n_horizons; i++) {
		struct agent_horizon *h = &m->horizons[i];

		/* Half an interval early is the sample that was meant: intervals jitter. */
		while (h->n && h->pending[h->first].due_s <= time_s + 0.5 * interval_s) {
			const struct agent_pending *p = &h->pending[h->first];

			if (time_s - p->due_s <= LATE_PART * h->span_s + LATE_INTERVALS * interval_s)
				score(m, h, p, time_s, offset, var, readout ? &readout->horizons[i] : NULL);
			h->first = (h->first + 1) % AGENT_PENDING;
			h->n--;
		}
	}
}

void agent_mixture_shift(struct agent_mixture *m, double offset)
{
	int i, k, e;

	for (i = 0; i < m->n_horizons; i++)
		for (k = 0; k < m->horizons[i].n; k++) {
			struct agent_pending *p =
			    &m->horizons[i].pending[(m->horizons[i].first + k) % AGENT_PENDING];

			p->mixed += offset;
			p->from += offset;
			for (e = 0; e < AGENT_VOICES; e++)
				p->offset[e] += offset;
		}
}

void agent_mixture_step(struct agent_mixture *m, double by)
{
	m->stepped += by;
}

void agent_mixture_drop(struct agent_mixture *m, double since_s)
{
	int i;

	for (i = 0; i < m->n_horizons; i++) {
		struct agent_horizon *h = &m->horizons[i];

		while (h->n && h->pending[(h->first + h->n - 1) % AGENT_PENDING].made_s >= since_s)
			h->n--;
	}
}
