/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Notices within some hundredths of a second that a load came to a CPU that serves a queue.
 *
 * While the controller sleeps until its next tick, each CPU's time in softirqs and interrupts is glanced at, which the
 * tracepoints keep in memory that is mapped here: no packet is looked at, and the interpreter doesn't wake up. A share
 * over one glance is noise (a dozen bursts of packets make it up), so a first rise is only suspected: the delays from
 * there on are kept apart, and the next glance decides.
 */
#ifndef AGENT_LOADWATCH_H
#define AGENT_LOADWATCH_H

#include <stdint.h>

/* Two glances confirm a rise within 100 ms. */
#define AGENT_GLANCE_NS 25000000

/* What a wait ended by; a signal's number is above 0. */
#define AGENT_LOAD_DUE	     0
#define AGENT_LOAD_SUSPECTED -1
#define AGENT_LOAD_MOVED     -2

struct agent_load_cpu {
	int64_t before_ns; /* its time in softirqs and interrupts at the glance before */
	double usual;	   /* share that it is used to */
	double latest;	   /* of the latest glance */
	double share;	   /* of the latest two */
	int32_t serving;   /* packets of a queue are processed there */
	int32_t pad;
};

struct agent_load_watch {
	int32_t n_cpus;
	int32_t glances; /* 0, 1, or 2 for more: what can be compared yet */
	int32_t suspected;
	int32_t pad;
	int64_t mono_ns; /* of the latest glance */
	int64_t quiet_until_ns;
	struct agent_load_cpu *cpus;
};

/* A glance. counters: one struct irq_cpu every stride bytes. Returns AGENT_LOAD_MOVED once for each move. */
int agent_load_look(struct agent_load_watch *watch, const void *counters, int64_t stride, int64_t mono_ns);

/*
 * Sleep until due_ns of CLOCK_MONOTONIC, or one of the signals, which are blocked, or until a glance shows something.
 * counters may be NULL: no glances.
 */
int agent_load_wait(struct agent_load_watch *watch, const void *counters, int64_t stride, const int *signals,
		    int n_signals, int64_t due_ns);

/* What comes now is usual from now on: a load moved, or the agent moved work itself. */
void agent_load_settle(struct agent_load_watch *watch, int64_t mono_ns);

#endif
