// SPDX-License-Identifier: GPL-2.0
/* CLOCK_MONOTONIC against CLOCK_MONOTONIC_RAW. */
#include "clockmono.h"

#include <math.h>

#include "clockwhole.h"

/* At first, what is not dialled in is taken to be within 1 ppm. */
#define INITIAL_SLEW_VAR (1000.0 * 1000.0)
/* Two clock reads back to back: what the vDSO leaves of noise. */
#define READ_NOISE_NS 10.0
#define GATE_SIGMAS   6.0

static const struct agent_mono_moment *moment(const struct agent_monoraw *m, int age)
{
	return &m->history[(m->newest - age) & (AGENT_MONO_HISTORY - 1)];
}

static struct agent_moments drift(const struct agent_monoraw *m)
{
	struct agent_moments out[AGENT_BANK_GROUPS];

	agent_bank_drift(m->bank, out);
	return out[AGENT_BANK_ALL];
}

static struct agent_moments hidden_now(const struct agent_monoraw *m)
{
	struct agent_moments out[AGENT_BANK_GROUPS];

	agent_bank_forecast(m->bank, 0.0, out);
	return out[AGENT_BANK_ALL];
}

static void begin(struct agent_monoraw *m, int64_t mono_ns, int64_t raw_ns, double var, double change_ppb)
{
	m->raw0_ns = raw_ns;
	m->base_ns = mono_ns - raw_ns;
	agent_bank_start(m->bank, 0.0, 0.0, var);
	agent_steering_dial(&m->steering, raw_ns, change_ppb);
	agent_bank_limit_drift(m->bank, INITIAL_SLEW_VAR);
}

static void follow(struct agent_monoraw *m, int64_t raw_ns, int64_t ahead_ns, double var, double change_ppb)
{
	double now_s = (double)(raw_ns - m->raw0_ns) * 1e-9, span_s = now_s - agent_bank_time(m->bank);
	struct agent_moments now;
	double rate, hidden, residual;

	agent_bank_advance(m->bank, now_s);
	rate = drift(m).mean + agent_steering_rate(&m->steering);
	if (change_ppb != 0.0)
		agent_bank_admit(
		    m->bank, agent_steering_dial_between(&m->steering, m->raw_ns, raw_ns, change_ppb), 0.0);
	now = hidden_now(m);
	/* A residual far out is a slew that adjtimex does not show (mono never steps): admit it at once. */
	hidden = (double)(ahead_ns - m->base_ns - agent_steering_phase(&m->steering, raw_ns));
	residual = hidden - now.mean;
	if (residual * residual > GATE_SIGMAS * GATE_SIGMAS * (now.var + var))
		agent_bank_admit(m->bank, residual * residual, residual / span_s * (residual / span_s));
	agent_bank_update(m->bank, hidden, 0.0, var, 0.0, 0.0, 1.0);
	/* A kink in the middle of the span is a quarter of change x span from the chord; half of that is sigma. */
	m->kink_ns = fabs(drift(m).mean + agent_steering_rate(&m->steering) - rate) * span_s / 8.0;
}

static void remember(struct agent_monoraw *m, int64_t mono_ns, int64_t raw_ns)
{
	m->mono_ns = mono_ns;
	m->raw_ns = raw_ns;
	m->newest = (m->newest + 1) & (AGENT_MONO_HISTORY - 1);
	m->history[m->newest] = (struct agent_mono_moment){
	    .mono_ns = mono_ns,
	    .ahead_ns = m->base_ns + agent_steering_phase(&m->steering, raw_ns) + whole(hidden_now(m).mean),
	    .kink_ns = m->kink_ns,
	};
	if (m->n < AGENT_MONO_HISTORY)
		m->n++;
}

void agent_monoraw_observe(struct agent_monoraw *m, int64_t mono_ns, int64_t raw_ns, double width_ns,
			   double freq_ppb)
{
	double change_ppb = isnan(freq_ppb) ? 0.0 : freq_ppb - agent_steering_rate(&m->steering);
	double var = READ_NOISE_NS * READ_NOISE_NS + width_ns * width_ns / 12.0;

	if (!m->n)
		begin(m, mono_ns, raw_ns, var, change_ppb);
	else if (raw_ns > m->raw_ns)
		follow(m, raw_ns, mono_ns - raw_ns, var, change_ppb);
	else if (change_ppb != 0.0)
		/* This moment was seen before, without its steering. */
		agent_steering_dial(&m->steering, m->raw_ns, change_ppb);
	m->rate_ppb = drift(m).mean + agent_steering_rate(&m->steering);
	if (raw_ns >= m->raw_ns)
		remember(m, mono_ns, raw_ns);
}

int64_t agent_monoraw_ahead(const struct agent_monoraw *m, int64_t mono_ns)
{
	const struct agent_mono_moment *later = moment(m, 0), *earlier;
	int age;

	if (mono_ns >= later->mono_ns)
		return later->ahead_ns + whole((double)(mono_ns - later->mono_ns) * m->rate_ppb * 1e-9);
	for (age = 1; age < m->n; age++, later = earlier) {
		double part;

		earlier = moment(m, age);
		if (mono_ns < earlier->mono_ns)
			continue;
		part = (double)(mono_ns - earlier->mono_ns) / (double)(later->mono_ns - earlier->mono_ns);
		return earlier->ahead_ns + whole(part * (double)(later->ahead_ns - earlier->ahead_ns));
	}
	return later->ahead_ns + whole((double)(mono_ns - later->mono_ns) * m->rate_ppb * 1e-9);
}

double agent_monoraw_uncertainty(const struct agent_monoraw *m, int64_t mono_ns)
{
	double worst = 0.0;
	int age;

	for (age = 0; age < m->n && moment(m, age)->mono_ns >= mono_ns; age++)
		worst = moment(m, age)->kink_ns;
	return worst;
}

double agent_monoraw_rate_sigma(const struct agent_monoraw *m)
{
	return sqrt(drift(m).var);
}
