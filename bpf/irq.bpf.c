// SPDX-License-Identifier: GPL-2.0
/*
 * Why a queue is slow: each CPU's time in interrupts and softirqs, how long raised NET_RX work waits until it begins,
 * what NAPI polls get, and how often each interrupt fires. For both loaders.
 *
 * Each program stands at the tracepoint of its name. A CPU's entry is written by that CPU alone: interrupts may come
 * in between of softirqs, but only add to fields of their own.
 *
 * Softirqs are all counted, but each vector is timed some 2,000 times a second at most: a busy link raises NET_RX for
 * nearly every packet, and reading the clock three times for each would cost the path that is to be measured. One in
 * 2^shift is timed, by chance, and stands for the others. Rare softirqs, and all of a CPU that is kept busy by few
 * long ones, are timed one by one.
 */
#include "compat.h"
#include "records.h"
#include "hist.h"

#ifndef IRQ_CPUS_ENTRIES
#define IRQ_CPUS_ENTRIES 1
#endif
#ifndef IRQ_LINES_ENTRIES
#define IRQ_LINES_ENTRIES 1
#endif

/* A softirq timed sooner than this after the previous one of its vector halves how many are; one later than four
 * times this doubles it. */
#define TIMED_GAP_NS	500000ULL
#define TIMED_SHIFT_MAX 6

/* Which softirqs of one vector are timed. */
struct timed {
	__u32 skip;  /* so many go by before the next that is */
	__u32 shift; /* one in 2^shift is */
	__u64 last_ns;
};

/* Value of map "irq_cpus": behind what the agent reads, when what is going on now began. */
struct irq_state {
	struct irq_cpu told;
	__u64 irq_began_ns;
	__u64 softirq_began_ns; /* 0: none is going on that is timed */
	__u64 irq_before_ns;	/* told.irq_ns when the softirq began */
	__u64 weight_shift;	/* of the softirq that is timed: it stands for 2^this */
	__u64 stands_from_ns;	/* those since then, when the one before it was timed */
	__u64 raised_ns; /* NET_RX, by the first that raised it; 0: it isn't pending, or won't be timed */
	struct timed timed[SOFTIRQS];
	__u64 pad[4]; /* no two CPUs share a cache line */
};

/* Value of map "irq_lines". */
struct irq_line_state {
	struct irq_line told;
	__u64 pad[6];
};

_Static_assert(sizeof(struct irq_state) % 64 == 0 && sizeof(struct irq_line_state) == 64,
	       "written by different CPUs");

#ifdef AGENT_BCC

BPF_F_TABLE("array", u32, struct irq_state, irq_cpus, IRQ_CPUS_ENTRIES, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct irq_line_state, irq_lines, IRQ_LINES_ENTRIES, BPF_F_MMAPABLE);

static __always_inline struct irq_state *irq_cpu_at(u32 i)
{
	return irq_cpus.lookup(&i);
}

static __always_inline struct irq_line_state *irq_line_at(u32 i)
{
	return irq_lines.lookup(&i);
}

#else

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, IRQ_CPUS_ENTRIES);
	__type(key, __u32);
	__type(value, struct irq_state);
} irq_cpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, IRQ_LINES_ENTRIES);
	__type(key, __u32);
	__type(value, struct irq_line_state);
} irq_lines SEC(".maps");

static __always_inline struct irq_state *irq_cpu_at(__u32 i)
{
	return bpf_map_lookup_elem(&irq_cpus, &i);
}

static __always_inline struct irq_line_state *irq_line_at(__u32 i)
{
	return bpf_map_lookup_elem(&irq_lines, &i);
}

#endif

/* (int irq, struct irqaction *action) */
SEC("raw_tp")
int irq_handler_entry(struct bpf_raw_tracepoint_args *ctx)
{
	struct irq_state *cpu = irq_cpu_at(bpf_get_smp_processor_id());

	if (cpu)
		cpu->irq_began_ns = bpf_ktime_get_ns();
	return 0;
}

/* (int irq, struct irqaction *action, int ret) */
SEC("raw_tp")
int irq_handler_exit(struct bpf_raw_tracepoint_args *ctx)
{
	struct irq_state *cpu = irq_cpu_at(bpf_get_smp_processor_id());
	struct irq_line_state *line = irq_line_at(ctx->args[0]);
	__u64 took_ns;

	if (!cpu || !cpu->irq_began_ns)
		return 0;
	took_ns = bpf_ktime_get_ns() - cpu->irq_began_ns;
	cpu->irq_began_ns = 0;
	cpu->told.irq_ns += took_ns;
	cpu->told.irqs++;
	/* Per-CPU interrupts (arm64's timers) fire on several CPUs at once. */
	if (line) {
		__sync_fetch_and_add(&line->told.count, 1);
		__sync_fetch_and_add(&line->told.ns, took_ns);
	}
	return 0;
}

/* (unsigned int vector) */
SEC("raw_tp")
int softirq_raise(struct bpf_raw_tracepoint_args *ctx)
{
	struct irq_state *cpu;

	if (ctx->args[0] != SOFTIRQ_NET_RX)
		return 0;
	cpu = irq_cpu_at(bpf_get_smp_processor_id());
	if (cpu && !cpu->timed[SOFTIRQ_NET_RX].skip && !cpu->raised_ns)
		cpu->raised_ns = bpf_ktime_get_ns();
	return 0;
}

/* Chooses the next one to be timed. Any number up to twice the mean is skipped as likely as another, so that no rhythm
 * of the load is hit, or missed, every time. */
static __always_inline void next_timed(struct timed *timed, __u64 now_ns)
{
	__u64 gap_ns = now_ns - timed->last_ns;

	if (gap_ns < TIMED_GAP_NS && timed->shift < TIMED_SHIFT_MAX)
		timed->shift++;
	else if (gap_ns > 4 * TIMED_GAP_NS && timed->shift)
		timed->shift--;
	timed->skip = timed->shift ? bpf_get_prandom_u32() % ((2 << timed->shift) - 1) : 0;
	timed->last_ns = now_ns;
}

/* (unsigned int vector) */
SEC("raw_tp")
int softirq_entry(struct bpf_raw_tracepoint_args *ctx)
{
	struct irq_state *cpu = irq_cpu_at(bpf_get_smp_processor_id());
	__u64 vector = ctx->args[0], now_ns, raised_ns;
	struct timed *timed;
	__u32 bucket, weight;

	if (!cpu || vector >= SOFTIRQS)
		return 0;
	timed = &cpu->timed[vector];
	if (timed->skip) {
		timed->skip--;
		return 0;
	}
	/* Before the clock is read: an interrupt may raise it anew in between. */
	raised_ns = LOAD_ONCE(cpu->raised_ns);
	compiler_barrier();
	now_ns = bpf_ktime_get_ns();
	cpu->softirq_began_ns = now_ns;
	cpu->weight_shift = timed->shift;
	cpu->stands_from_ns = timed->last_ns;
	weight = 1U << (timed->shift & 31);
	compiler_barrier();
	cpu->irq_before_ns = LOAD_ONCE(cpu->told.irq_ns);
	if (vector == SOFTIRQ_NET_RX && raised_ns) {
		bucket = hist_bucket(now_ns - raised_ns);
		opaque(bucket);
		if (bucket < HIST_BUCKETS)
			cpu->told.rx_wait.bucket[bucket] += weight;
		cpu->raised_ns = 0;
	}
	next_timed(timed, now_ns);
	return 0;
}

/* (unsigned int vector) */
SEC("raw_tp")
int softirq_exit(struct bpf_raw_tracepoint_args *ctx)
{
	struct irq_state *cpu = irq_cpu_at(bpf_get_smp_processor_id());
	__u64 vector = ctx->args[0], in_irqs_ns, now_ns, took_ns;

	if (!cpu || vector >= SOFTIRQS)
		return 0;
	cpu->told.softirqs[vector]++;
	if (!cpu->softirq_began_ns)
		return 0;
	/* Before the clock is read: an interrupt in between may count as the softirq's time, but none is taken off that
	 * isn't in it, which could make the sum fall. */
	in_irqs_ns = LOAD_ONCE(cpu->told.irq_ns) - cpu->irq_before_ns;
	compiler_barrier();
	now_ns = bpf_ktime_get_ns();
	took_ns = (now_ns - cpu->softirq_began_ns - in_irqs_ns) << (cpu->weight_shift & 31);
	/* A long one stands for no more time than there was. */
	cpu->told.softirq_ns[vector] +=
	    took_ns < now_ns - cpu->stands_from_ns ? took_ns : now_ns - cpu->stands_from_ns;
	cpu->softirq_began_ns = 0;
	return 0;
}

/* (struct napi_struct *napi, int work, int budget) */
SEC("raw_tp")
int napi_poll(struct bpf_raw_tracepoint_args *ctx)
{
	struct irq_state *cpu = irq_cpu_at(bpf_get_smp_processor_id());
	__u32 work = ctx->args[1], budget = ctx->args[2];

	if (!cpu)
		return 0;
	cpu->told.polls++;
	cpu->told.polled += work;
	if (budget && work >= budget)
		cpu->told.exhausted++;
	return 0;
}

#ifndef AGENT_BCC
char LICENSE[] SEC("license") = "GPL";
#endif
