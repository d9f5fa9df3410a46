/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Glances at a load between two ticks, while waiting for the next: two kinds of counters that only grow, each CPU's
 * time in softirqs and interrupts and the delays' histograms. A glance takes some microseconds and no Python.
 *
 * The load is *suspected* to have moved when a CPU's share strays from what it was lately by more than it usually
 * does, or when far more packets than one in a hundred are above what p99 was; when the next glance says so too, it
 * *moved*, and what the glance saw is what is usual from then on. A load that won't stay put is told ever less often.
 *
 * build_native.py reads these declarations too, so they keep to plain C.
 */
#ifndef AGENT_LOADWATCH_H
#define AGENT_LOADWATCH_H

#include <stdint.h>

#define AGENT_LOAD_STEADY    0
#define AGENT_LOAD_SUSPECTED 1
#define AGENT_LOAD_MOVED     2

struct agent_load_watch;

/* NULL if there is no memory. */
struct agent_load_watch *agent_load_watch_new(void);
void agent_load_watch_free(struct agent_load_watch *watch);

/* Looks at the histograms of an interface as well: values of the maps "slots" (slot_stride bytes apart) and "hists".
 * -ENOMEM. */
int agent_load_watch_delays(struct agent_load_watch *watch, const void *slots, uint32_t slot_stride,
			    const void *hists, uint32_t hist_stride, uint32_t n);
/* Looks at n CPUs' times, values of the map "irq_cpus", from now on instead of those before; n = 0: at none. -ENOMEM. */
int agent_load_watch_cpus(struct agent_load_watch *watch, const void *cpus, uint32_t stride, uint32_t n);
/* Settings were changed: where packets are processed now shows in the shares, and is no load that moved. */
void agent_load_watch_rebase(struct agent_load_watch *watch);

/* One glance: AGENT_LOAD_*. */
int agent_load_watch_look(struct agent_load_watch *watch, int64_t mono_ns);
/* Waits until then, with a glance every glance_ns; 0 when it is over, the number of the signal (of those given, which
 * have to be blocked) that came, or -AGENT_LOAD_MOVED. */
int agent_load_watch_wait(struct agent_load_watch *watch, int64_t until_mono_ns, int64_t glance_ns,
			  const int *signals, int n_signals);

#endif
