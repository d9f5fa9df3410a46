// SPDX-License-Identifier: GPL-2.0
#include "loadwatch.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <time.h>

#include <linux/types.h>

#include "records.h"

#define USUAL_TAU_NS 1e9
/* A load came if a CPU's share rises by RISE, and more than doubles: the bursts that make up a share s of a glance
 * scatter it by about 0.4 s. */
#define RISE	      0.15
#define RISE_OF_USUAL 1.2
/* Nothing is new for so long after a move: what came with it settles. */
#define QUIET_NS 300000000

#define NS_PER_S 1000000000LL

static int64_t mono_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * NS_PER_S + ts.tv_nsec;
}

static int64_t busy_ns(const void *counters, int64_t stride, int cpu)
{
	const struct irq_cpu *told = (const void *)((const char *)counters + cpu * stride);
	__u64 sum = told->irq_ns;

	for (int i = 0; i < SOFTIRQS; i++)
		sum += told->softirq_ns[i];
	return (int64_t)sum;
}

static int rose(double share, double usual)
{
	return share - usual > fmax(RISE, RISE_OF_USUAL * usual);
}

int agent_load_look(struct agent_load_watch *watch, const void *counters, int64_t stride, int64_t mono_ns)
{
	int64_t span_ns = mono_ns - watch->mono_ns;
	int quiet = mono_ns < watch->quiet_until_ns, rose_now = 0, rose_twice = 0;
	/* What is usual follows one glance behind: a rise isn't taken for usual while it is looked at. */
	double keep = exp(-(double)span_ns / USUAL_TAU_NS);

	if (watch->glances && span_ns <= 0)
		return AGENT_LOAD_DUE;
	for (int i = 0; i < watch->n_cpus; i++) {
		struct agent_load_cpu *cpu = &watch->cpus[i];
		int64_t now_ns = busy_ns(counters, stride, i);
		double now = fmin(fmax((double)(now_ns - cpu->before_ns) / span_ns, 0.0), 1.0);

		cpu->before_ns = now_ns;
		if (!watch->glances)
			continue;
		if (watch->glances == 1)
			cpu->usual = cpu->latest = now;
		cpu->share = (now + cpu->latest) / 2;
		cpu->usual = quiet ? cpu->share : keep * cpu->usual + (1 - keep) * cpu->latest;
		cpu->latest = now;
		if (cpu->serving) {
			rose_now |= rose(now, cpu->usual);
			rose_twice |= rose(cpu->share, cpu->usual);
		}
	}
	watch->mono_ns = mono_ns;
	if (watch->glances < 2) {
		watch->glances++;
		return AGENT_LOAD_DUE;
	}
	if (quiet)
		return AGENT_LOAD_DUE;
	if (watch->suspected && rose_twice) {
		agent_load_settle(watch, mono_ns);
		return AGENT_LOAD_MOVED;
	}
	watch->suspected = rose_now;
	return rose_now ? AGENT_LOAD_SUSPECTED : AGENT_LOAD_DUE;
}

int agent_load_wait(struct agent_load_watch *watch, const void *counters, int64_t stride, const int *signals,
		    int n_signals, int64_t due_ns)
{
	sigset_t set;

	sigemptyset(&set);
	for (int i = 0; i < n_signals; i++)
		sigaddset(&set, signals[i]);
	for (;;) {
		int64_t left_ns = due_ns - mono_now_ns();
		int64_t nap_ns = left_ns < 0 ? 0 : left_ns;
		struct timespec nap;
		int caught, seen;

		if (counters && nap_ns > AGENT_GLANCE_NS)
			nap_ns = AGENT_GLANCE_NS;
		nap.tv_sec = nap_ns / NS_PER_S;
		nap.tv_nsec = nap_ns % NS_PER_S;
		caught = sigtimedwait(&set, NULL, &nap);
		if (caught > 0)
			return caught;
		if (counters && errno != EINTR) {
			seen = agent_load_look(watch, counters, stride, mono_now_ns());
			if (seen != AGENT_LOAD_DUE)
				return seen;
		}
		if (mono_now_ns() >= due_ns)
			return AGENT_LOAD_DUE;
	}
}

void agent_load_settle(struct agent_load_watch *watch, int64_t mono_ns)
{
	watch->suspected = 0;
	watch->quiet_until_ns = mono_ns + QUIET_NS;
}
