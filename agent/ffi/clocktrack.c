// SPDX-License-Identifier: GPL-2.0
/* One clock's offset and drift, exact to the nanosecond; tests/unit/track_reference.py is the same in plain Python. */
#include "clocktrack.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "clockwhole.h"

/* --- known steering -------------------------------------------------------------------------------- */

static const struct agent_steering_piece *piece(const struct agent_steering *s, int age)
{
	return &s->piece[(s->newest - age) & (AGENT_STEERING_CHANGES - 1)];
}

double agent_steering_rate(const struct agent_steering *s)
{
	return piece(s, 0)->rate_ppb;
}

static double gained_by(const struct agent_steering_piece *p, int64_t local_ns)
{
	return p->rest_ns + (double)(local_ns - p->since_ns) * p->rate_ppb * 1e-9;
}

void agent_steering_dial(struct agent_steering *s, int64_t local_ns, double change_ppb)
{
	const struct agent_steering_piece *last = piece(s, 0);
	int64_t since_ns = local_ns > last->since_ns ? local_ns : last->since_ns;
	double gained = gained_by(last, since_ns);
	int64_t whole_ns = whole(gained);
	struct agent_steering_piece next = {
	    .since_ns = since_ns,
	    .phase_ns = last->phase_ns + whole_ns,
	    .rest_ns = gained - (double)whole_ns,
	    .rate_ppb = last->rate_ppb + change_ppb,
	};

	s->newest = (s->newest + 1) & (AGENT_STEERING_CHANGES - 1);
	s->piece[s->newest] = next;
	if (s->n < AGENT_STEERING_CHANGES - 1)
		s->n++;
}

double agent_steering_dial_between(struct agent_steering *s, int64_t start_ns, int64_t end_ns,
				   double change_ppb)
{
	double moved = change_ppb * (double)(end_ns - start_ns) * 1e-9;

	agent_steering_dial(s, start_ns + ((end_ns - start_ns) >> 1), change_ppb);
	return moved * moved / 12.0;
}

int64_t agent_steering_phase(const struct agent_steering *s, int64_t local_ns)
{
	const struct agent_steering_piece *p = piece(s, 0);
	int age;

	for (age = 1; age <= s->n && local_ns < p->since_ns; age++)
		p = piece(s, age);
	return p->phase_ns + whole(gained_by(p, local_ns));
}

/* --- the samples' noise ------------------------------------------------------------------------------ */

#define NOISE_MEMORY 200.0
/* The first figure counts as so many triples. */
#define NOISE_PRIOR 3.0
#define LEAST_SCALE 1e-3
#define MOST_SCALE  1e6
/* In sigmas, squared: so bursts don't count as noise. */
#define NOISE_CLIP 9.0

void agent_noise_start(struct agent_noise *noise)
{
	*noise = (struct agent_noise){.scale = 1.0};
}

void agent_noise_forget_neighbours(struct agent_noise *noise)
{
	noise->n = 0;
}

static void take_triple(struct agent_noise *noise, const struct agent_noise_point *a,
			const struct agent_noise_point *b, const struct agent_noise_point *c)
{
	double span = c->time_s - a->time_s, part = (b->time_s - a->time_s) / span;
	double error = b->offset - (1.0 - part) * a->offset - part * c->offset;
	double before = (1.0 - part) * (1.0 - part), after = part * part;
	double nominal = before * a->nominal_var + b->nominal_var + after * c->nominal_var;
	double extra = before * a->extra_var + b->extra_var + after * c->extra_var;
	double expected = nominal + extra / noise->scale;
	double weight = nominal / expected * (nominal / expected);
	double ratio = fmin(error * error / expected, NOISE_CLIP * noise->scale);
	/* The bridge between the neighbours has variance white * p(1-p) T, and walk * (p(1-p))^2 T^3 / 3. */
	double bridge = part * (1.0 - part), gain = before + 1.0 + after, step;

	noise->triples = fmin(noise->triples + weight, NOISE_MEMORY - NOISE_PRIOR);
	step = weight / (noise->triples + NOISE_PRIOR);
	noise->scale += (ratio - noise->scale) * step;
	noise->scale = fmin(fmax(noise->scale, LEAST_SCALE), MOST_SCALE);
	noise->white_share += (bridge * span / gain - noise->white_share) * step;
	noise->walk_share += (bridge * bridge * span * span * span / (3.0 * gain) - noise->walk_share) * step;
}

void agent_noise_add(struct agent_noise *noise, double time_s, double offset, double nominal_var,
		     double extra_var)
{
	struct agent_noise_point newest = {time_s, offset, nominal_var, extra_var};

	if (noise->n == 2 && time_s > noise->first.time_s)
		take_triple(noise, &noise->first, &noise->second, &newest);
	noise->first = noise->second;
	noise->second = newest;
	if (noise->n < 2)
		noise->n++;
}

double agent_robust_variance(double residual, double spread_var, double var, double above, double below)
{
	double limit = (residual > 0.0 ? above : below) * sqrt(spread_var), size = fabs(residual);

	/* The pull is P r / (P + R'): equal to that of the limit when P + R' = S r / limit. */
	return size <= limit ? var : var + spread_var * (size / limit - 1.0);
}

/* --- the track --------------------------------------------------------------------------------------- */

/* The float part is folded into the base when it grows beyond this, so that it never loses a nanosecond. */
#define FOLD_NS 1e7

struct agent_track_state {
	int64_t base_ns, local_ns;
	struct agent_tracks experts;
	struct agent_bank_state *bank;
};

double agent_track_seconds(const struct agent_track *t, int64_t local_ns)
{
	return (double)(local_ns - t->time0_ns) * 1e-9;
}

/* An offset at the bank's time as the filters see it: without steering, from the base. */
static int64_t relative_ns(const struct agent_track *t, int64_t offset_ns)
{
	int64_t base_ns = sum_of(agent_steering_phase(&t->steering, t->local_ns), t->base_ns);

	return difference(offset_ns, base_ns);
}

/* The bank's offset now, and S. */
static struct agent_moments innovation(struct agent_track *t, double nominal_var, double extra_var)
{
	struct agent_innovation *i = &t->innovation;

	if (i->known && i->nominal_var == nominal_var && i->extra_var == extra_var)
		return i->now;
	i->now = agent_bank_innovation(t->bank, nominal_var * t->noise.scale, extra_var, t->noise.white_share,
				       t->noise.walk_share);
	i->nominal_var = nominal_var;
	i->extra_var = extra_var;
	i->known = 1;
	return i->now;
}

void agent_track_start(struct agent_track *t, int64_t local_ns, int64_t offset_ns, double var)
{
	t->innovation.known = 0;
	t->time0_ns = t->local_ns = local_ns;
	t->base_ns = difference(offset_ns, agent_steering_phase(&t->steering, local_ns));
	agent_noise_start(&t->noise);
	agent_noise_add(&t->noise, 0.0, 0.0, var, 0.0);
	agent_bank_start(t->bank, 0.0, 0.0, var);
	agent_tracks_start(t->experts);
	agent_mixture_start(t->mixture);
	if (t->readout)
		agent_readout_start(t->readout);
	agent_tracks_add(t->experts, 0.0, 0.0);
	agent_mixture_keep(t->mixture, t->bank, t->experts, t->readout);
	t->jumped = 1;
}

static void fold(struct agent_track *t, double theta)
{
	int64_t whole_ns = whole(theta);

	t->innovation.known = 0;
	agent_bank_shift(t->bank, -(double)whole_ns);
	agent_tracks_shift(t->experts, -(double)whole_ns);
	agent_mixture_shift(t->mixture, -(double)whole_ns);
	t->base_ns = possible(sum_of(t->base_ns, whole_ns));
	agent_noise_forget_neighbours(&t->noise);
}

void agent_track_advance(struct agent_track *t, int64_t local_ns)
{
	double theta;

	if (local_ns > t->local_ns)
		t->local_ns = local_ns;
	t->innovation.known = 0;
	agent_bank_advance(t->bank, agent_track_seconds(t, local_ns));
	theta = innovation(t, 0.0, 0.0).mean;
	if (fabs(theta) > FOLD_NS)
		fold(t, theta);
}

struct agent_residual agent_track_residual(struct agent_track *t, int64_t offset_ns, double nominal_var,
					   double extra_var)
{
	struct agent_moments now = innovation(t, nominal_var, extra_var);

	return (struct agent_residual){difference(relative_ns(t, offset_ns), whole(now.mean)), now.var};
}

double agent_track_correct(struct agent_track *t, const struct agent_sample *sample)
{
	double measured = (double)relative_ns(t, sample->offset_ns), time_s = agent_bank_time(t->bank);
	double seen_var = sample->nominal_var * t->noise.scale, noise_var = seen_var + sample->extra_var;
	struct agent_moments now = innovation(t, sample->nominal_var, sample->extra_var);
	double residual = measured - now.mean;
	double used = agent_robust_variance(residual, now.var, noise_var, sample->above, sample->below);
	double limit = residual > 0.0 ? sample->above : sample->below;

	limit *= limit * now.var;
	agent_mixture_score(t->mixture, time_s, measured, used, t->experts->interval_s, t->readout);
	agent_bank_update(t->bank, measured, seen_var, sample->extra_var + used - noise_var,
			  t->noise.white_share, t->noise.walk_share,
			  fmin(1.0, limit / fmax(residual * residual, limit)));
	t->innovation.known = 0;
	t->shown.innovation = t->jumped ? 0.0 : residual;
	t->shown.sigma = sqrt(now.var);
	t->shown.weight = noise_var / used;
	t->shown.jumped = t->jumped;
	t->jumped = 0;
	t->corrected = (struct agent_noise_point){time_s, measured, sample->nominal_var, sample->extra_var};
	return t->shown.weight;
}

void agent_track_learn(struct agent_track *t)
{
	const struct agent_noise_point *sample = &t->corrected;

	t->innovation.known = 0;
	agent_tracks_add(t->experts, sample->time_s, sample->offset);
	agent_mixture_keep(t->mixture, t->bank, t->experts, t->readout);
	agent_noise_add(&t->noise, sample->time_s, sample->offset, sample->nominal_var, sample->extra_var);
}

double agent_track_accept(struct agent_track *t, const struct agent_sample *sample)
{
	double weight = agent_track_correct(t, sample);

	agent_track_learn(t);
	return weight;
}

void agent_track_step(struct agent_track *t, int64_t by_ns)
{
	t->innovation.known = 0;
	t->base_ns = sum_of(t->base_ns, by_ns);
	t->jumped = 1;
	agent_bank_forget_offset(t->bank);
	agent_tracks_step(t->experts, (double)by_ns);
	agent_mixture_step(t->mixture, (double)by_ns);
	agent_noise_forget_neighbours(&t->noise);
}

void agent_track_admit(struct agent_track *t, double drift_ppb, double size_ns)
{
	t->innovation.known = 0;
	agent_bank_admit(t->bank, size_ns * size_ns, drift_ppb * drift_ppb);
}

void agent_track_release_drift(struct agent_track *t, double slope_ppb, double residual_ns)
{
	agent_track_admit(t, slope_ppb, residual_ns);
	agent_tracks_forget(t->experts, 1);
	agent_mixture_drop(t->mixture, -INFINITY);
	t->jumped = 1;
	agent_noise_forget_neighbours(&t->noise);
}

void agent_track_steer(struct agent_track *t, double drift_ppb, int64_t start_ns, int64_t end_ns)
{
	t->innovation.known = 0;
	agent_bank_admit(t->bank, agent_steering_dial_between(&t->steering, start_ns, end_ns, drift_ppb),
			 0.0);
}

struct agent_moments agent_track_drift(const struct agent_track *t)
{
	struct agent_moments drift[AGENT_BANK_GROUPS];

	agent_bank_drift(t->bank, drift);
	drift[AGENT_BANK_ALL].mean += agent_steering_rate(&t->steering);
	return drift[AGENT_BANK_ALL];
}

struct agent_offset agent_track_offset_at(const struct agent_track *t, int64_t local_ns)
{
	double horizon_s = agent_track_seconds(t, local_ns) - agent_bank_time(t->bank);
	int64_t base_ns = sum_of(t->base_ns, agent_steering_phase(&t->steering, local_ns));
	struct agent_moments at[AGENT_BANK_GROUPS], *all = &at[AGENT_BANK_ALL];

	agent_bank_forecast(t->bank, fmax(horizon_s, 0.0), at);
	return (struct agent_offset){possible(sum_of(base_ns, whole(all->mean))), sqrt(all->var)};
}

/* The offset that steering alone leads to at a horizon, to which forecasts are relative. */
static int64_t base_at(const struct agent_track *t, int64_t local_ns, double span_s)
{
	int64_t now_ns = sum_of(t->base_ns, agent_steering_phase(&t->steering, local_ns));

	return sum_of(now_ns, whole(span_s * agent_steering_rate(&t->steering)));
}

static void forecast(const struct agent_track *t, int64_t local_ns, struct agent_forecast *out)
{
	agent_mixture_forecast(t->mixture, t->bank, t->experts, agent_track_seconds(t, local_ns), t->readout,
			       out);
}

void agent_track_forecast(const struct agent_track *t, int64_t local_ns, struct agent_forecast *out,
			  int64_t *offset_ns)
{
	int i, e;

	forecast(t, local_ns, out);
	for (i = 0; i < t->mixture->n_horizons; i++) {
		int64_t base_ns = base_at(t, local_ns, t->mixture->horizons[i].span_s);

		*offset_ns++ = possible(sum_of(base_ns, whole(out[i].offset)));
		for (e = 0; e < AGENT_EXPERTS; e++)
			*offset_ns++ =
			    out[i].weight[e] > 0.0 ? possible(sum_of(base_ns, whole(out[i].expert[e]))) : 0;
	}
}

void agent_track_predict(const struct agent_track *t, int64_t local_ns, const struct agent_relation *relation,
			 double unknown_ns, double p99_sigmas, struct agent_prediction *out)
{
	struct agent_forecast told[AGENT_HORIZONS];
	int i;

	forecast(t, local_ns, told);
	for (i = 0; i < t->mixture->n_horizons; i++) {
		double span_s = t->mixture->horizons[i].span_s;
		double hidden_ns = relation->slew_sigma_ppb * span_s;
		int64_t offset_ns = sum_of(base_at(t, local_ns, span_s), whole(told[i].offset));
		int64_t ahead_ns = sum_of(relation->ahead_ns, whole(relation->slew_ppb * span_s));

		out[i] = (struct agent_prediction){
		    .horizon_s = span_s,
		    .offset_ns = sum_of(possible(offset_ns), ahead_ns),
		    .sigma_ns = hypot(told[i].sigma, hidden_ns),
		    .p99_ns = hypot(told[i].p99, p99_sigmas * hidden_ns) + unknown_ns,
		};
	}
}

struct agent_track_state *agent_track_save(const struct agent_track *t)
{
	struct agent_track_state *state = malloc(sizeof(*state));

	if (!state)
		return NULL;
	state->base_ns = t->base_ns;
	state->local_ns = t->local_ns;
	state->experts = *t->experts;
	state->bank = agent_bank_save(t->bank);
	if (!state->bank) {
		free(state);
		return NULL;
	}
	return state;
}

void agent_track_restore(struct agent_track *t, const struct agent_track_state *state)
{
	t->innovation.known = 0;
	agent_bank_restore(t->bank, state->bank);
	*t->experts = state->experts;
	agent_mixture_drop(t->mixture, agent_bank_time(t->bank));
	agent_mixture_shift(t->mixture, (double)difference(t->base_ns, state->base_ns));
	t->base_ns = state->base_ns;
	t->local_ns = state->local_ns;
	agent_noise_forget_neighbours(&t->noise);
}

void agent_track_state_free(struct agent_track_state *state)
{
	agent_bank_state_free(state->bank);
	free(state);
}
