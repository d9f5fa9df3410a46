// SPDX-License-Identifier: GPL-2.0
/* The bank of Kalman filters; tests/unit/clock_reference.py is the same in plain NumPy.
 *
 * Members lie side by side, a column per quantity, so that several go through one instruction. */
#include "clockbank.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "clockwide.h"

/* Larger than any offset that an int64 can hold, small enough to square no further. */
#define FORGOTTEN_VAR 1e30
/* A squared normalised residual counts no more than this against a member: one outlier says nothing about Q. */
#define SURPRISE_CAP 25.0
/* A member may fall behind the best by this many nats: the way back is short when the clock changes. */
#define LOG_RANGE 22.0
/* A member's noise is never less than this part of the noise seen. */
#define LEAST_NOISE 0.02
/* What a subtraction of two doubles leaves is known to some 1e-16 of them: of a variance no less than this stays. */
#define LEAST_KEPT 1e-15

enum {
	THETA,
	DRIFT,
	THIRD,
	P00,
	P01,
	P02,
	P11,
	P12,
	P22,
	SCORE,
	N_STATE, /* what a snapshot keeps */
	WEIGHT = N_STATE,
	WHITE,
	WALK,
	THIRD_VAR,
	SEEN_WHITE, /* the white noise that a sample sees: the wander's too */
	LOG_PRIOR,
	N_COLUMNS,
};

/* Members whose third state moves alike: all of one family and tau. */
struct run {
	int from, to;
	int32_t family;
	double tau_s;
};

/* What the figures of a run are made of at any horizon h: weighted sums over its members of offset x and drift g above
 * those of its first member, of the third state z, and of their variances. With what the third state adds to the offset
 * by then, a z, a member's figure is x + h g + a z; its variance is
 * P00 + 2 h P01 + h^2 P11 + a (2 (P02 + h P12) + a P22) + h white + h^3 walk / 3 + q00 third_var. */
struct summary {
	double weight;
	double x, g, xx, xg, gg, p00, p01, p11, white, walk;
	double z, xz, gz, zz, p02, p12, p22, third_var;
};

struct agent_bank {
	int n, n_two, n_runs;
	int first[AGENT_FAMILIES + 1]; /* where a family begins; the last: where all end */
	double time_s, memory;
	double family_weight[AGENT_FAMILIES];
	int summed_up; /* whether the summaries are of the present state */
	struct agent_member *members;
	struct run *runs;
	struct summary *summaries; /* one for each run */
	double *column[N_COLUMNS];
	double cells[];
};

struct agent_bank_state {
	double time_s;
	double cells[];
};

static void find_runs(struct agent_bank *bank)
{
	struct run *run = NULL;
	int i;

	for (i = 0; i < bank->n; i++) {
		const struct agent_member *m = &bank->members[i];

		if (!run || m->family != run->family || m->tau_s != run->tau_s) {
			run = &bank->runs[bank->n_runs++];
			*run = (struct run){.from = i, .family = m->family, .tau_s = m->tau_s};
		}
		run->to = i + 1;
	}
}

struct agent_bank *agent_bank_new(const struct agent_member *members, int n, double memory)
{
	struct agent_bank *bank;
	int i, c;

	bank = calloc(1, sizeof(*bank) + (size_t)n * (N_COLUMNS * sizeof(double) + sizeof(*members) +
						      sizeof(struct run) + sizeof(struct summary)));
	if (!bank)
		return NULL;
	bank->n = n;
	bank->memory = memory;
	for (c = 0; c < N_COLUMNS; c++)
		bank->column[c] = bank->cells + (size_t)c * n;
	bank->members = (struct agent_member *)(bank->cells + (size_t)N_COLUMNS * n);
	bank->summaries = (struct summary *)(bank->members + n);
	bank->runs = (struct run *)(bank->summaries + n);
	memcpy(bank->members, members, n * sizeof(*members));
	for (i = 0; i < n; i++) {
		const struct agent_member *m = &members[i];

		if (i && m->family < m[-1].family) {
			free(bank);
			return NULL;
		}
		for (c = m->family + 1; c <= AGENT_FAMILIES; c++)
			bank->first[c] = i + 1;
		bank->column[WHITE][i] = m->white_var;
		bank->column[WALK][i] = m->walk_var;
		bank->column[THIRD_VAR][i] = m->third_var;
		bank->column[SEEN_WHITE][i] =
		    m->white_var + (m->family == AGENT_FAMILY_RETURNING ? m->third_var : 0.0);
		bank->column[LOG_PRIOR][i] = m->log_prior;
	}
	bank->n_two = bank->first[AGENT_FAMILY_AGING];
	find_runs(bank);
	return bank;
}

void agent_bank_free(struct agent_bank *bank)
{
	free(bank);
}

double agent_bank_time(const struct agent_bank *bank)
{
	return bank->time_s;
}

const double *agent_bank_family_weights(const struct agent_bank *bank)
{
	return bank->family_weight;
}

AGENT_WIDE
static double best_of(const double *score, int from, int to)
{
	double best = -INFINITY;
	int i;

#pragma omp simd reduction(max : best)
	for (i = from; i < to; i++)
		best = score[i] > best ? score[i] : best;
	return best;
}

/* Keeps the members within LOG_RANGE of their family's best, and that one of the best of all. */
AGENT_WIDE
static void limit_range(double *score, int from, int to, double own, double best)
{
	double lift = own < best - LOG_RANGE ? best - LOG_RANGE - own : 0.0;
	double least = own - LOG_RANGE;
	int i;

#pragma omp simd
	for (i = from; i < to; i++)
		score[i] = (score[i] < least ? least : score[i]) + lift - best;
}

AGENT_WIDE
static double exponentials(const double *restrict score, double *restrict weight, int n)
{
	double sum = 0.0;
	int i;

#pragma omp simd reduction(+ : sum)
	for (i = 0; i < n; i++) {
		weight[i] = exp(score[i]);
		sum += weight[i];
	}
	return sum;
}

AGENT_WIDE
static double scale(double *weight, int from, int to, double factor)
{
	double sum = 0.0;
	int i;

#pragma omp simd reduction(+ : sum)
	for (i = from; i < to; i++) {
		weight[i] *= factor;
		sum += weight[i];
	}
	return sum;
}

static void weigh(struct agent_bank *bank)
{
	double *score = bank->column[SCORE], *weight = bank->column[WEIGHT];
	double own[AGENT_FAMILIES], best = -INFINITY, sum;
	const int *first = bank->first;
	int g;

	for (g = 0; g < AGENT_FAMILIES; g++) {
		own[g] = best_of(score, first[g], first[g + 1]);
		best = own[g] > best ? own[g] : best;
	}
	for (g = 0; g < AGENT_FAMILIES; g++)
		limit_range(score, first[g], first[g + 1], own[g], best);
	bank->summed_up = 0;
	sum = exponentials(score, weight, bank->n);
	for (g = 0; g < AGENT_FAMILIES; g++)
		bank->family_weight[g] = scale(weight, first[g], first[g + 1], 1.0 / sum);
}

void agent_bank_start(struct agent_bank *bank, double time_s, double theta, double var)
{
	int i;

	memset(bank->cells, 0, (size_t)N_STATE * bank->n * sizeof(double));
	bank->time_s = time_s;
	for (i = 0; i < bank->n; i++) {
		const struct agent_member *m = &bank->members[i];

		bank->column[THETA][i] = theta;
		bank->column[P00][i] = var;
		bank->column[P11][i] = m->drift_var;
		bank->column[SCORE][i] = m->log_prior;
		/* The wander starts anywhere in its range; aging is unknown within 1 ppb/s. */
		if (m->family == AGENT_FAMILY_RETURNING)
			bank->column[P22][i] = m->third_var * m->tau_s * 0.5;
		else if (m->family == AGENT_FAMILY_AGING)
			bank->column[P22][i] = 1.0;
	}
	weigh(bank);
}

/* How theta and f take the third state up over dt, what is left of it, and the noise that it brings if its spectral
 * density is one. */
struct third {
	double to_theta, to_drift, kept;
	double q00, q01, q02, q11, q12, q22;
};

static struct third third_over(const struct run *run, double dt)
{
	struct third t = {0};

	if (run->family == AGENT_FAMILY_AGING) {
		t.to_theta = 0.5 * dt * dt;
		t.to_drift = dt;
		t.kept = 1.0;
		t.q22 = dt;
		t.q12 = dt * dt / 2.0;
		t.q11 = dt * dt * dt / 3.0;
		t.q02 = dt * dt * dt / 6.0;
		t.q01 = dt * dt * dt * dt / 8.0;
		t.q00 = dt * dt * dt * dt * dt / 20.0;
	} else if (run->family == AGENT_FAMILY_RETURNING) {
		t.kept = exp(-dt / run->tau_s);
		t.to_theta = t.kept - 1.0;
		t.q00 = t.q02 = t.q22 = run->tau_s * 0.5 * (1.0 - t.kept * t.kept);
	}
	return t;
}

AGENT_WIDE
static void advance_two(const struct agent_bank *bank, double dt)
{
	double *restrict theta = bank->column[THETA], *restrict f = bank->column[DRIFT];
	double *restrict p00 = bank->column[P00], *restrict p01 = bank->column[P01];
	double *restrict p11 = bank->column[P11];
	const double *restrict white = bank->column[WHITE], *restrict walk = bank->column[WALK];
	int i;

#pragma omp simd
	for (i = 0; i < bank->n_two; i++) {
		double q = walk[i] * dt;

		theta[i] += f[i] * dt;
		p00[i] += dt * (2.0 * p01[i] + dt * (p11[i] + q / 3.0) + white[i]);
		p01[i] += dt * (p11[i] + 0.5 * q);
		p11[i] += q;
	}
}

AGENT_WIDE
static void advance_three(const struct agent_bank *bank, const struct run *run, double dt)
{
	double *restrict theta = bank->column[THETA], *restrict f = bank->column[DRIFT];
	double *restrict z = bank->column[THIRD];
	double *restrict p00 = bank->column[P00], *restrict p01 = bank->column[P01];
	double *restrict p02 = bank->column[P02], *restrict p11 = bank->column[P11];
	double *restrict p12 = bank->column[P12], *restrict p22 = bank->column[P22];
	const double *restrict white = bank->column[WHITE], *restrict walk = bank->column[WALK];
	const double *restrict third_var = bank->column[THIRD_VAR];
	struct third t = third_over(run, dt);
	double a = t.to_theta, b = t.to_drift, c = t.kept;
	int i;

#pragma omp simd
	for (i = run->from; i < run->to; i++) {
		double q = walk[i] * dt, v = third_var[i];
		double r0, r1, r2, s1, s2, to00, to01, to02;

		theta[i] += f[i] * dt + a * z[i];
		f[i] += b * z[i];
		z[i] *= c;
		/* F P F', F = [1 dt a; 0 1 b; 0 0 c]: rows of F P first. */
		r0 = p00[i] + dt * p01[i] + a * p02[i];
		r1 = p01[i] + dt * p11[i] + a * p12[i];
		r2 = p02[i] + dt * p12[i] + a * p22[i];
		s1 = p11[i] + b * p12[i];
		s2 = p12[i] + b * p22[i];
		to00 = r0 + dt * r1 + a * r2 + dt * (white[i] + dt * q / 3.0) + v * t.q00;
		to01 = r1 + b * r2 + 0.5 * dt * q + v * t.q01;
		to02 = c * r2 + v * t.q02;
		p11[i] = s1 + b * s2 + q + v * t.q11;
		p12[i] = c * s2 + v * t.q12;
		p22[i] = c * c * p22[i] + v * t.q22;
		/* What varies less than not at all: three correlations that doubles no longer keep in step. */
		p00[i] = to00 < 0.0 ? 0.0 : to00;
		p01[i] = to00 < 0.0 ? 0.0 : to01;
		p02[i] = to00 < 0.0 ? 0.0 : to02;
	}
}

void agent_bank_advance(struct agent_bank *bank, double time_s)
{
	double dt = time_s - bank->time_s;
	int k;

	if (!(dt > 0.0))
		return;
	bank->time_s = time_s;
	bank->summed_up = 0;
	advance_two(bank, dt);
	for (k = 0; k < bank->n_runs; k++)
		if (bank->runs[k].from >= bank->n_two)
			advance_three(bank, &bank->runs[k], dt);
}

AGENT_WIDE
static void sum_up_two(const struct agent_bank *bank, const struct run *run, struct summary *out)
{
	const double *restrict theta = bank->column[THETA], *restrict f = bank->column[DRIFT];
	const double *restrict p00 = bank->column[P00], *restrict p01 = bank->column[P01];
	const double *restrict p11 = bank->column[P11], *restrict white = bank->column[WHITE];
	const double *restrict walk = bank->column[WALK], *restrict weight = bank->column[WEIGHT];
	double first = theta[run->from], rate = f[run->from];
	double sum = 0.0, sx = 0.0, sg = 0.0, sxx = 0.0, sxg = 0.0, sgg = 0.0;
	double s00 = 0.0, s01 = 0.0, s11 = 0.0, s_white = 0.0, s_walk = 0.0;
	int i;

#pragma omp simd reduction(+ : sum, sx, sg, sxx, sxg, sgg, s00, s01, s11, s_white, s_walk)
	for (i = run->from; i < run->to; i++) {
		double w = weight[i], x = theta[i] - first, g = f[i] - rate, wx = w * x, wg = w * g;

		sum += w;
		sx += wx;
		sg += wg;
		sxx += wx * x;
		sxg += wx * g;
		sgg += wg * g;
		s00 += w * p00[i];
		s01 += w * p01[i];
		s11 += w * p11[i];
		s_white += w * white[i];
		s_walk += w * walk[i];
	}
	*out = (struct summary){.weight = sum,
				.x = sx,
				.g = sg,
				.xx = sxx,
				.xg = sxg,
				.gg = sgg,
				.p00 = s00,
				.p01 = s01,
				.p11 = s11,
				.white = s_white,
				.walk = s_walk};
}

/* Adds what three states have more. */
AGENT_WIDE
static void sum_up_third(const struct agent_bank *bank, const struct run *run, struct summary *out)
{
	const double *restrict theta = bank->column[THETA], *restrict f = bank->column[DRIFT];
	const double *restrict third = bank->column[THIRD], *restrict p02 = bank->column[P02];
	const double *restrict p12 = bank->column[P12], *restrict p22 = bank->column[P22];
	const double *restrict third_var = bank->column[THIRD_VAR], *restrict weight = bank->column[WEIGHT];
	double first = theta[run->from], rate = f[run->from];
	double sz = 0.0, sxz = 0.0, sgz = 0.0, szz = 0.0, s02 = 0.0, s12 = 0.0, s22 = 0.0, s_third = 0.0;
	int i;

#pragma omp simd reduction(+ : sz, sxz, sgz, szz, s02, s12, s22, s_third)
	for (i = run->from; i < run->to; i++) {
		double w = weight[i], wz = w * third[i];

		sz += wz;
		sxz += wz * (theta[i] - first);
		sgz += wz * (f[i] - rate);
		szz += wz * third[i];
		s02 += w * p02[i];
		s12 += w * p12[i];
		s22 += w * p22[i];
		s_third += w * third_var[i];
	}
	out->z = sz, out->xz = sxz, out->gz = sgz, out->zz = szz;
	out->p02 = s02, out->p12 = s12, out->p22 = s22, out->third_var = s_third;
}

static void sum_up(struct agent_bank *bank)
{
	int k;

	if (bank->summed_up)
		return;
	for (k = 0; k < bank->n_runs; k++) {
		sum_up_two(bank, &bank->runs[k], &bank->summaries[k]);
		if (bank->runs[k].from >= bank->n_two)
			sum_up_third(bank, &bank->runs[k], &bank->summaries[k]);
	}
	bank->summed_up = 1;
}

/* Figures of a group: sums of weights, of the members' variances, and of squares about the mean. */
struct group {
	double weight, mean, within, square;
};

/* Chan, Golub and LeVeque 1979: nothing cancels. */
static void join(struct group *to, const struct group *more)
{
	double apart = more->mean - to->mean, weight = to->weight + more->weight;

	if (!(more->weight > 0.0))
		return;
	to->mean += apart * more->weight / weight;
	to->square += more->square + apart * apart * to->weight * more->weight / weight;
	to->within += more->within;
	to->weight = weight;
}

/* Of each family that has members, and of all. */
static void tell_groups(const struct group *family, struct agent_moments *out)
{
	struct group group[AGENT_BANK_GROUPS] = {0};
	int g;

	for (g = 0; g < AGENT_FAMILIES; g++) {
		group[g] = family[g];
		join(&group[AGENT_BANK_ALL], &family[g]);
	}
	for (g = 0; g < AGENT_BANK_GROUPS; g++) {
		out[g].mean = group[g].weight > 0.0 ? group[g].mean : NAN;
		out[g].var = (group[g].within + group[g].square) / group[g].weight;
	}
}

/* A group of figures `first` above which their sum is `sum`, and that of their squares `square`. */
static struct group group_of(double first, double weight, double sum, double within, double square)
{
	double about_mean = square - sum * sum / weight;

	return (struct group){weight, first + sum / weight, within > 0.0 ? within : 0.0,
			      about_mean > 0.0 ? about_mean : 0.0};
}

static struct group forecast_run(const struct agent_bank *bank, int k, double h)
{
	const struct run *run = &bank->runs[k];
	const struct summary *s = &bank->summaries[k];
	double first = bank->column[THETA][run->from] + h * bank->column[DRIFT][run->from];
	double sum = s->x + h * s->g, square = s->xx + h * (2.0 * s->xg + h * s->gg);
	double within = s->p00 + h * (2.0 * s->p01 + h * (s->p11 + s->walk * h / 3.0) + s->white);

	if (run->from >= bank->n_two) {
		struct third t = third_over(run, h);
		double a = t.to_theta;

		sum += a * s->z;
		square += a * (2.0 * (s->xz + h * s->gz) + a * s->zz);
		within += a * (2.0 * (s->p02 + h * s->p12) + a * s->p22) + s->third_var * t.q00;
	}
	return group_of(first, s->weight, sum, within, square);
}

void agent_bank_forecast(struct agent_bank *bank, double horizon_s, struct agent_moments *out)
{
	struct group family[AGENT_FAMILIES] = {0};
	int k;

	sum_up(bank);
	for (k = 0; k < bank->n_runs; k++) {
		struct group run = forecast_run(bank, k, horizon_s);

		join(&family[bank->runs[k].family], &run);
	}
	tell_groups(family, out);
}

void agent_bank_drift(struct agent_bank *bank, struct agent_moments *out)
{
	struct group family[AGENT_FAMILIES] = {0};
	int k;

	sum_up(bank);
	for (k = 0; k < bank->n_runs; k++) {
		const struct summary *s = &bank->summaries[k];
		struct group run =
		    group_of(bank->column[DRIFT][bank->runs[k].from], s->weight, s->g, s->p11, s->gg);

		join(&family[bank->runs[k].family], &run);
	}
	tell_groups(family, out);
}

/* What a member takes a sample's noise for, extra_var aside: what its own noise put into the figure goes out. */
static inline double own_noise(double seen_white, double walk, double noise_var, double white_share,
			       double walk_share)
{
	double r = noise_var - seen_white * white_share - walk * walk_share;

	return r > LEAST_NOISE * noise_var ? r : LEAST_NOISE * noise_var;
}

AGENT_WIDE
struct agent_moments agent_bank_innovation(const struct agent_bank *bank, double noise_var, double extra_var,
					   double white_share, double walk_share)
{
	const double *restrict theta = bank->column[THETA], *restrict p00 = bank->column[P00];
	const double *restrict seen_white = bank->column[SEEN_WHITE], *restrict walk = bank->column[WALK];
	const double *restrict weight = bank->column[WEIGHT];
	double first = theta[0], sum = 0.0, mean = 0.0, within = 0.0, square = 0.0;
	struct group all;
	int i;

#pragma omp simd reduction(+ : sum, mean, within, square)
	for (i = 0; i < bank->n; i++) {
		double at = theta[i] - first, w = weight[i];
		double own = own_noise(seen_white[i], walk[i], noise_var, white_share, walk_share);

		sum += w;
		mean += w * at;
		within += w * (p00[i] + own);
		square += w * at * at;
	}
	all = group_of(first, sum, mean, within, square);
	return (struct agent_moments){all.mean, (all.within + all.square) / sum + extra_var};
}

/* A sample as the members see it. */
struct measured {
	double offset, noise_var, extra_var, white_share, walk_share, evidence, fade;
};

/* Corrects the first two states and the score. The third, whose gain is of the P02 before, is up to correct_third. */
AGENT_WIDE
static void correct(const struct agent_bank *bank, const struct measured *m, int from, int to)
{
	double *restrict theta = bank->column[THETA], *restrict f = bank->column[DRIFT];
	double *restrict score = bank->column[SCORE];
	double *restrict p00 = bank->column[P00], *restrict p01 = bank->column[P01];
	double *restrict p11 = bank->column[P11];
	const double *restrict seen_white = bank->column[SEEN_WHITE], *restrict walk = bank->column[WALK];
	const double *restrict log_prior = bank->column[LOG_PRIOR];
	const struct measured sample = *m;
	int i;

#pragma omp simd
	for (i = from; i < to; i++) {
		double var = sample.extra_var + own_noise(seen_white[i], walk[i], sample.noise_var,
							  sample.white_share, sample.walk_share);
		double s = p00[i] + var, r = sample.offset - theta[i];
		double k1 = p01[i] / s, surprise = r * r / s;
		double left = var / s, kept = left > LEAST_KEPT ? left : LEAST_KEPT;
		double least = p11[i] * kept, next = p11[i] - k1 * p01[i];

		surprise = surprise < SURPRISE_CAP ? surprise : SURPRISE_CAP;
		score[i] -=
		    sample.fade * (score[i] - log_prior[i]) + 0.5 * sample.evidence * (log(s) + surprise);
		theta[i] += p00[i] / s * r;
		f[i] += k1 * r;
		/* A sample can't tell more of the drift than of the offset; what cancels can, and leaves less than 0. */
		p11[i] = least > next ? least : next;
		/* var / s is 1 - P00 / s without the cancellation when the offset was forgotten. */
		p01[i] *= left;
		p00[i] *= left;
	}
}

/* What correct() leaves of members with three states; before it, since it goes by the same P and theta. */
AGENT_WIDE
static void correct_third(const struct agent_bank *bank, const struct measured *m, int from, int to)
{
	double *restrict z = bank->column[THIRD], *restrict p02 = bank->column[P02];
	double *restrict p12 = bank->column[P12], *restrict p22 = bank->column[P22];
	const double *restrict theta = bank->column[THETA], *restrict p00 = bank->column[P00];
	const double *restrict p01 = bank->column[P01];
	const double *restrict seen_white = bank->column[SEEN_WHITE], *restrict walk = bank->column[WALK];
	const struct measured sample = *m;
	int i;

#pragma omp simd
	for (i = from; i < to; i++) {
		double var = sample.extra_var + own_noise(seen_white[i], walk[i], sample.noise_var,
							  sample.white_share, sample.walk_share);
		double s = p00[i] + var, k2 = p02[i] / s;
		double left = var / s, kept = left > LEAST_KEPT ? left : LEAST_KEPT;
		double least = p22[i] * kept, next = p22[i] - k2 * p02[i];

		z[i] += k2 * (sample.offset - theta[i]);
		p12[i] -= k2 * p01[i];
		p22[i] = least > next ? least : next;
		p02[i] *= left;
	}
}

/* Nor may drift and third vary together by more than each does. */
AGENT_WIDE
static void limit_drift_by_third(const struct agent_bank *bank, int from, int to)
{
	double *restrict p11 = bank->column[P11];
	const double *restrict p12 = bank->column[P12], *restrict p22 = bank->column[P22];
	int i;

#pragma omp simd
	for (i = from; i < to; i++) {
		double least = p12[i] * p12[i] / p22[i];

		p11[i] = least > p11[i] ? least : p11[i];
	}
}

void agent_bank_update(struct agent_bank *bank, double offset, double noise_var, double extra_var,
		       double white_share, double walk_share, double evidence)
{
	struct measured sample = {offset,     noise_var, extra_var,	    white_share,
				  walk_share, evidence,	 1.0 / bank->memory};

	correct_third(bank, &sample, bank->n_two, bank->n);
	correct(bank, &sample, 0, bank->n);
	limit_drift_by_third(bank, bank->n_two, bank->n);
	weigh(bank);
}
void agent_bank_forget_offset(struct agent_bank *bank)
{
	int i;

	bank->summed_up = 0;
	for (i = 0; i < bank->n; i++) {
		bank->column[P00][i] = FORGOTTEN_VAR;
		bank->column[P01][i] = bank->column[P02][i] = 0.0;
	}
}

void agent_bank_admit(struct agent_bank *bank, double offset_var, double drift_var)
{
	int i;

	bank->summed_up = 0;
	for (i = 0; i < bank->n; i++) {
		bank->column[P00][i] += offset_var;
		/* A locked clock's drift stays known: whether it is locked is for the weights to say. */
		if (bank->members[i].drift_var > 0.0)
			bank->column[P11][i] += drift_var;
	}
}

void agent_bank_limit_drift(struct agent_bank *bank, double var)
{
	int i;

	bank->summed_up = 0;
	for (i = 0; i < bank->n; i++)
		if (bank->column[P11][i] > var)
			bank->column[P11][i] = var;
}

void agent_bank_shift(struct agent_bank *bank, double offset)
{
	int i;

	bank->summed_up = 0;
	for (i = 0; i < bank->n; i++)
		bank->column[THETA][i] += offset;
}

void agent_bank_weights(const struct agent_bank *bank, double *out)
{
	memcpy(out, bank->column[WEIGHT], bank->n * sizeof(double));
}

struct agent_bank_state *agent_bank_save(const struct agent_bank *bank)
{
	size_t size = (size_t)N_STATE * bank->n * sizeof(double);
	struct agent_bank_state *state = malloc(sizeof(*state) + size);

	if (!state)
		return NULL;
	state->time_s = bank->time_s;
	memcpy(state->cells, bank->cells, size);
	return state;
}

void agent_bank_restore(struct agent_bank *bank, const struct agent_bank_state *state)
{
	bank->time_s = state->time_s;
	memcpy(bank->cells, state->cells, (size_t)N_STATE * bank->n * sizeof(double));
	weigh(bank);
}

void agent_bank_state_free(struct agent_bank_state *state)
{
	free(state);
}
