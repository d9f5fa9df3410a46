// SPDX-License-Identifier: GPL-2.0
#define _GNU_SOURCE
#include "loadwatch.h"

#include <errno.h>
#include <linux/types.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "records.h"

#define NS_PER_S      1000000000LL
#define SHARE_TAU_NS  1e9
#define DELAY_TAU_NS  2e9
#define SPREAD_TAU_NS 10e9
/* Which slots are in use is looked up again this often. */
#define SLOTS_NS 1000000000LL
/* Of some fifty softirqs in a glance a share strays by 0.05; a load in bursts strays by more, and has not moved. */
#define SHARE_STEP	0.2
#define SPREADS		4.0
#define SLOW_SHARE	0.1
#define SLOW_PACKETS	20
#define REFERENCE_COUNT 500
/* A load that moved is not told again for so long; for twice as long each time that it had not stayed for as long again. */
#define HOLD_MIN_NS 200000000LL
#define HOLD_MAX_NS 1600000000LL

struct interface_hists {
	const uint8_t *slots, *hists;
	uint32_t slot_stride, hist_stride, n;
	uint32_t *in_use;
	uint32_t n_in_use;
	uint64_t told; /* sum of their generations: a slot that changed owner goes on in the same buckets */
};

struct watched_cpu {
	uint64_t busy_ns;
	double share, spread;
};

struct agent_load_watch {
	struct interface_hists *interfaces;
	uint32_t n_interfaces;
	const uint8_t *cpus;
	uint32_t cpu_stride, n_cpus;
	struct watched_cpu *seen;
	uint32_t counts[HIST_BUCKETS];
	double usual[HIST_BUCKETS]; /* delays lately, fading */
	int64_t mono_ns, slots_ns;
	int64_t moved_ns, hold_ns; /* when it last moved, and how long it is not said again */
	int shares_known;
	int suspected;
};

struct agent_load_watch *agent_load_watch_new(void)
{
	return calloc(1, sizeof(struct agent_load_watch));
}

void agent_load_watch_free(struct agent_load_watch *watch)
{
	if (!watch)
		return;
	for (uint32_t i = 0; i < watch->n_interfaces; i++)
		free(watch->interfaces[i].in_use);
	free(watch->interfaces);
	free(watch->seen);
	free(watch);
}

int agent_load_watch_delays(struct agent_load_watch *watch, const void *slots, uint32_t slot_stride,
			    const void *hists, uint32_t hist_stride, uint32_t n)
{
	struct interface_hists *grown =
	    realloc(watch->interfaces, (watch->n_interfaces + 1) * sizeof(*grown));
	uint32_t *in_use;

	if (!grown)
		return -ENOMEM;
	watch->interfaces = grown;
	in_use = calloc(n ? n : 1, sizeof(*in_use));
	if (!in_use)
		return -ENOMEM;
	grown[watch->n_interfaces++] = (struct interface_hists){
	    .slots = slots,
	    .hists = hists,
	    .slot_stride = slot_stride,
	    .hist_stride = hist_stride,
	    .n = n,
	    .in_use = in_use,
	};
	agent_load_watch_rebase(watch);
	return 0;
}

int agent_load_watch_cpus(struct agent_load_watch *watch, const void *cpus, uint32_t stride, uint32_t n)
{
	struct watched_cpu *seen = calloc(n ? n : 1, sizeof(*seen));

	if (!seen)
		return -ENOMEM;
	free(watch->seen);
	watch->seen = seen;
	watch->cpus = cpus;
	watch->cpu_stride = stride;
	watch->n_cpus = n;
	agent_load_watch_rebase(watch);
	return 0;
}

void agent_load_watch_rebase(struct agent_load_watch *watch)
{
	watch->mono_ns = watch->slots_ns = 0;
	watch->shares_known = watch->suspected = 0;
	memset(watch->usual, 0, sizeof(watch->usual));
}

/* --- counters ------------------------------------------------------------------------------------ */

static const struct slot_head *slot_at(const struct interface_hists *interface, uint32_t i)
{
	return (const struct slot_head *)(interface->slots + (size_t)i * interface->slot_stride);
}

/* Whether the slots in use are others than before: their sums then compare with nothing. */
static int find_slots(struct agent_load_watch *watch)
{
	int changed = 0;

	for (uint32_t i = 0; i < watch->n_interfaces; i++) {
		struct interface_hists *interface = &watch->interfaces[i];
		uint64_t told = 0;
		uint32_t n = 0;

		for (uint32_t k = 0; k < interface->n; k++) {
			if (!slot_at(interface, k)->in_use)
				continue;
			told += 1 + slot_at(interface, k)->generation;
			interface->in_use[n++] = k;
		}
		changed |= n != interface->n_in_use || told != interface->told;
		interface->n_in_use = n;
		interface->told = told;
	}
	return changed;
}

static void sum_hists(const struct agent_load_watch *watch, uint32_t *counts)
{
	memset(counts, 0, HIST_BUCKETS * sizeof(*counts));
	for (uint32_t i = 0; i < watch->n_interfaces; i++) {
		const struct interface_hists *interface = &watch->interfaces[i];

		for (uint32_t k = 0; k < interface->n_in_use; k++) {
			const struct delay_hist *hist =
			    (const void *)(interface->hists +
					   (size_t)interface->in_use[k] * interface->hist_stride);

			for (int b = 0; b < HIST_BUCKETS; b++)
				counts[b] += hist->bucket[b];
		}
	}
}

static uint64_t busy_ns(const struct agent_load_watch *watch, uint32_t cpu)
{
	const struct irq_cpu *told = (const void *)(watch->cpus + (size_t)cpu * watch->cpu_stride);
	uint64_t sum = told->irq_ns;

	for (int vector = 0; vector < SOFTIRQS; vector++)
		sum += told->softirq_ns[vector];
	return sum;
}

/* --- what a glance says -------------------------------------------------------------------------- */

/* Whether a CPU's share is off by more than it usually is; how much that is, is learnt from all glances. */
static int shares_stray(struct agent_load_watch *watch, const double *shares, double span_ns)
{
	double keep = exp(-span_ns / SPREAD_TAU_NS);
	int stray = 0;

	if (!watch->shares_known)
		return 0;
	for (uint32_t cpu = 0; cpu < watch->n_cpus; cpu++) {
		struct watched_cpu *seen = &watch->seen[cpu];
		double off = fabs(shares[cpu] - seen->share);

		stray |= off > fmax(SHARE_STEP, SPREADS * seen->spread);
		seen->spread = keep * seen->spread + (1 - keep) * off;
	}
	return stray;
}

/* Whether far more packets than one in a hundred waited longer than p99 was. */
static int packets_slow(const struct agent_load_watch *watch, const uint32_t *grown)
{
	double total = 0, below = 0, n = 0, slow = 0;

	for (int b = 0; b < HIST_BUCKETS; b++)
		total += watch->usual[b];
	if (total < REFERENCE_COUNT)
		return 0;
	for (int b = 0; b < HIST_BUCKETS; b++) {
		n += grown[b];
		if (below >= 0.99 * total)
			slow += grown[b];
		below += watch->usual[b];
	}
	return slow >= SLOW_PACKETS && slow >= SLOW_SHARE * n;
}

/* Whether a load that moved now is told. One that won't stay put is left to the plans that are made anyway. */
static int is_told(struct agent_load_watch *watch, int64_t mono_ns)
{
	int64_t since_ns = mono_ns - watch->moved_ns;

	if (since_ns < watch->hold_ns)
		return 0;
	if (watch->moved_ns && since_ns < 2 * watch->hold_ns)
		watch->hold_ns = watch->hold_ns * 2 > HOLD_MAX_NS ? HOLD_MAX_NS : watch->hold_ns * 2;
	else
		watch->hold_ns = HOLD_MIN_NS;
	watch->moved_ns = mono_ns;
	return 1;
}

static void take_shares(struct agent_load_watch *watch, const double *shares, double keep)
{
	for (uint32_t cpu = 0; cpu < watch->n_cpus; cpu++)
		watch->seen[cpu].share = keep * watch->seen[cpu].share + (1 - keep) * shares[cpu];
	watch->shares_known = 1;
}

static void take_delays(struct agent_load_watch *watch, const uint32_t *grown, double keep)
{
	for (int b = 0; b < HIST_BUCKETS; b++)
		watch->usual[b] = keep * watch->usual[b] + grown[b];
}

int agent_load_watch_look(struct agent_load_watch *watch, int64_t mono_ns)
{
	double shares[watch->n_cpus ? watch->n_cpus : 1];
	uint32_t counts[HIST_BUCKETS], grown[HIST_BUCKETS];
	int64_t span_ns = mono_ns - watch->mono_ns;
	int first = !watch->mono_ns, odd;

	if (mono_ns - watch->slots_ns >= SLOTS_NS || first) {
		watch->slots_ns = mono_ns;
		first |= find_slots(watch);
	}
	if (!first && span_ns <= 0)
		return AGENT_LOAD_STEADY;
	sum_hists(watch, counts);
	for (int b = 0; b < HIST_BUCKETS; b++) {
		grown[b] = counts[b] - watch->counts[b];
		watch->counts[b] = counts[b];
	}
	for (uint32_t cpu = 0; cpu < watch->n_cpus; cpu++) {
		uint64_t busy = busy_ns(watch, cpu);

		shares[cpu] = first ? 0 : (double)(busy - watch->seen[cpu].busy_ns) / span_ns;
		watch->seen[cpu].busy_ns = busy;
	}
	watch->mono_ns = mono_ns;
	if (first)
		return AGENT_LOAD_STEADY;
	odd = shares_stray(watch, shares, span_ns) | packets_slow(watch, grown);
	if (odd && !watch->suspected) {
		watch->suspected = 1;
		return AGENT_LOAD_SUSPECTED;
	}
	watch->suspected = 0;
	take_shares(watch, shares, odd || !watch->shares_known ? 0 : exp(-span_ns / SHARE_TAU_NS));
	take_delays(watch, grown, odd ? 0 : exp(-span_ns / DELAY_TAU_NS));
	return odd && is_told(watch, mono_ns) ? AGENT_LOAD_MOVED : AGENT_LOAD_STEADY;
}

static int64_t mono_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * NS_PER_S + ts.tv_nsec;
}

int agent_load_watch_wait(struct agent_load_watch *watch, int64_t until_mono_ns, int64_t glance_ns,
			  const int *signals, int n_signals)
{
	int64_t now_ns = mono_now_ns(), left_ns;
	sigset_t set;
	int caught;

	sigemptyset(&set);
	for (int i = 0; i < n_signals; i++)
		sigaddset(&set, signals[i]);
	do {
		left_ns = until_mono_ns - now_ns;
		left_ns = left_ns < 0 ? 0 : left_ns > glance_ns ? glance_ns : left_ns;
		caught = sigtimedwait(&set, NULL, &(struct timespec){left_ns / NS_PER_S, left_ns % NS_PER_S});
		if (caught > 0)
			return caught;
		now_ns = mono_now_ns();
		if (now_ns - watch->mono_ns >= glance_ns / 2 &&
		    agent_load_watch_look(watch, now_ns) == AGENT_LOAD_MOVED)
			return -AGENT_LOAD_MOVED;
	} while (now_ns < until_mono_ns);
	return 0;
}
