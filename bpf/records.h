/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The one definition of everything that crosses between the kernel programs and
 * user space: the record a closed window becomes, and the map values that the
 * agent reads or writes through mmap.
 *
 * agent/ffi derives its numpy dtypes from this very file (through cffi), so it
 * keeps to what a plain C declaration parser can read: fixed-width fields,
 * explicit padding, integer #defines, include guards. No attributes, no enums,
 * no static assertions (those stand in bpf/checks.h).
 *
 * Unit conventions: *_ns nanoseconds, *_ppb parts per billion; mono is
 * CLOCK_MONOTONIC, hw is the stamping clock (PHC or switch) in its own scale.
 */
#ifndef AGENT_RECORDS_H
#define AGENT_RECORDS_H

#define AGENT_ABI 1 /* change with any layout change; config.abi is checked at load */

/* Where the hardware stamp of a packet comes from (config.stamp). */
#define STAMP_NONE    0
#define STAMP_TRAILER 1 /* Metamako / Arista 7130, 16 bytes behind the frame */
#define STAMP_SKB     2 /* __sk_buff->hwtstamp at tc ingress */
#define STAMP_XDP     3 /* kfunc bpf_xdp_metadata_rx_timestamp, device-bound */

/* Which hook owns the windows (config.hook, window_record.hook). */
#define HOOK_XDP 1
#define HOOK_TC	 2

/* Clock keys: a trailer clock is (device id << 8 | port id); these are above that range. */
#define CLOCK_KEY_NONE 0xFFFFFFFF /* no hardware stamp: software windows */
#define CLOCK_KEY_PHC  0x01000000 /* the interface's own PHC (xdp and skb stamps) */

/* The delay histogram: 16 sub-buckets per octave, 256 ns .. 1 s, log-linear as HdrHistogram.
 * Bucket 0 holds d < 256 ns (negative d too, also counted in n_negative); the last holds d >= 2^30 ns. */
#define HIST_MIN_SHIFT 8
#define HIST_OCTAVES   22
#define HIST_SUB_BITS  4
#define HIST_SUB       16
#define HIST_BUCKETS   354 /* 1 + 22 * 16 + 1 */

#define LADDER_RUNGS   4 /* envelope pairs about 8 ms, 64 ms, 512 ms, 4 s old */
#define CLOCKS_PER_CPU 8
#define MODELS_MAX     16
#define TX_QUEUES_MAX  64
#define PTP_ANNOUNCES  4 /* kept per CPU, a power of two */

#define SOFTIRQS       10 /* the kernel's vectors, in its order */
#define SOFTIRQ_NET_RX 3

/* window_record.flags */
#define WINDOW_IDLE_CLOSE   1 /* closed by the flush program, not by a packet */
#define WINDOW_SAMPLED	    2 /* 1/N sampling was on (degraded) */
#define WINDOW_LADDER_RESET 4 /* the ladder was emptied when this window closed */
#define WINDOW_DRIFT_VALID  8 /* drift_* fields hold a figure */

/* A moment seen by both clocks. */
struct clock_pair {
	__u64 mono_ns;
	__u64 hw_ns;
};

/* One closed window of one (cpu, queue, clock). The perf sample is exactly this struct. */
struct window_record {
	__u64 seq; /* per CPU, counts produced records from 0: a gap is a loss */
	__u32 ifindex;
	__u32 clock_key;
	__u16 cpu;
	__u16 queue;
	__u8 hook;
	__u8 stamp;
	__u16 flags;
	__u64 open_mono_ns;	    /* first packet of the window, any kind */
	__u64 last_mono_ns;	    /* last packet of the window, any kind */
	struct clock_pair first;    /* first stamped packet; 0,0 if none */
	struct clock_pair last;	    /* last stamped packet */
	struct clock_pair envelope; /* the pair with the smallest mono - hw */
	__u32 n;		    /* packets seen (gso_segs counted) */
	__u32 n_stamped;	    /* with an accepted hardware stamp */
	__u32 n_missing;	    /* no stamp: 0, -ENODATA, -EOPNOTSUPP, no trailer behind the frame */
	__u32 n_rejected;	    /* something stamp-like that failed validation, or no slot free */
	__u32 n_duplicate;	    /* same stamp as the packet before */
	__u32 n_reordered;	    /* stamp earlier than the packet before, same queue and clock */
	__u32 n_delay;		    /* packets in delay_*: stamped and under a valid model */
	__u32 n_no_model;	    /* stamped, but no valid clock model (none, torn, expired) */
	__u32 n_negative;	    /* delays below 0 under the model (counted as 0 in the sums) */
	__u32 n_saturated;	    /* additions to delay_sq_sum that would have overflowed */
	__u64 delay_sum_ns;
	__u64 delay_sq_sum; /* sum of (d >> 6)^2 */
	__u32 delay_min_ns;
	__u32 delay_max_ns;   /* both clamped to u32 */
	__s32 drift_mono_ppb; /* d(mono - hw)/dt from the ladder */
	__u32 drift_bound_ppb;
	__u64 drift_baseline_ns;
};

/* Map "config", array of one, written by the agent before attach and by the degrade ladder. */
struct agent_config {
	__u32 abi;
	__u32 ifindex;
	__u32 stamp;	     /* STAMP_* */
	__u32 slots_per_cpu; /* power of two; slot index = cpu * slots_per_cpu + hash */
	__u64 window_ns;
	__u32 sample_mask;  /* count a packet when (per-CPU packet number & mask) == 0; 0 = every packet */
	__u32 meta_mask;    /* carry XDP->stack metadata on packets where (number & mask) == 0; ~0 = never */
	__u32 rewrite;	    /* not 0: tc ingress writes skb->tstamp, where it owns the windows */
	__u32 n_cpus;	    /* highest possible CPU id + 1 */
	__u32 stack_queues; /* power of two, <= 64; see stack_hists */
	__u32 frozen;	    /* not 0: the degrade ladder stopped everything but the counters */
	__s64 rewrite_base_ns; /* what to add to PHC time to get the named scale */
	__u32 rewrite_key; /* the clock that is handed on; its model dates packets without a stamp of it */
	__u32 hook;	   /* HOOK_*: which program owns the windows */
};

/* The leading fields of a value of map "slots", array indexed cpu * slots_per_cpu + hash, read through mmap:
 * which (queue, clock) the slot and its histogram belong to, and since when its window is open. */
struct slot_head {
	__u32 in_use;
	__u32 clock_key;
	__u16 queue;
	__u16 cpu;
	__u32
	    generation; /* incremented when the slot changes owner: its histogram then belongs to another pair */
	__u64 open_mono_ns; /* 0: no window open */
	__u64 last_mono_ns;
};

/* Map "models", array of MODELS_MAX, written by the agent through mmap. A reader takes copy[seq & 1],
 * then checks that seq is unchanged; the writer fills copy[(seq + 1) & 1], then increments seq.
 * phc = phc0 + D + ((D * adj) >> shift), D = mono - mono0, signed. */
struct clock_model_copy {
	__u64 mono0_ns;
	__u64 phc0_ns;
	__s64 adj;
	__u64 valid_until_mono_ns;
};
struct clock_model {
	__u32 key; /* CLOCK_KEY_* or trailer key; CLOCK_KEY_NONE = entry unused */
	__u32 seq;
	__u32 shift;
	__u32 epoch; /* incremented by the agent at each tagged jump: ladders of an older epoch are emptied */
	struct clock_model_copy copy[2];
};

/* Map "counters", array indexed by CPU, read through mmap; every field only grows.
 * What each packet counts in stands in the first cache line. */
struct cpu_counters {
	__u64 produced; /* windows closed = records offered to the ring */
	__u64 lost;	/* of these, refused by the ring */
	__u64 packets;	/* seen by the stamping hook (gso_segs counted), before sampling */
	__u64 bytes;
	__u64 tc_packets; /* tc ingress, all packets (also where XDP owns the windows) */
	__u64 stamped;
	__u64 slot_full;     /* packets that found no slot for their (queue, clock) */
	__u64 flushed;	     /* windows closed by the flush program */
	__u64 flush_busy;    /* flushes that left a window to the packet path */
	__u64 meta_failed;   /* bpf_xdp_adjust_meta refused */
	__u64 stack_samples; /* samples in the stack histogram */
	__u64 rewritten;     /* skb->tstamp written */
	__u64 rewrite_no_model;
	__u64 tx_packets;
	__u64 tx_bytes;
	__u64 probation; /* packets whose trailer names a clock that has not yet proved to be one */
};

/* Map "hists": array, one per slot, same index as the slot, read through mmap; counters only grow (u32, wrap). */
struct delay_hist {
	__u32 bucket[HIST_BUCKETS];
};
/* Map "stack_hists": array indexed by cpu * config.stack_queues + (rx queue & (stack_queues - 1)), the CPU
 * being the one that runs tc ingress (so behind RPS): delay of sampled packets up to the stack's entry.
 * hw_to_stack needs a hardware stamp and a valid model; xdp_to_stack needs neither. */
struct stack_hist {
	struct delay_hist hw_to_stack;
	struct delay_hist xdp_to_stack;
};

/* Map "tx_queues": array indexed by CPU: packets sent per TX queue by that CPU (queue mod TX_QUEUES_MAX). */
struct tx_usage {
	__u64 packets[TX_QUEUES_MAX];
};

/* A PTP Announce message (IEEE 1588-2019, 13.5) as it passed. */
struct ptp_announce {
	__u64 mono_ns;
	__u8 message[64]; /* from the PTP header on, big endian */
};

/* Map "ptp": array indexed by CPU, read through mmap: PTP messages that this CPU saw. The newest Announce is
 * announce[(n_announce - 1) & (PTP_ANNOUNCES - 1)], written before the count. */
struct ptp_seen {
	__u32 n_announce;
	__u32 n_sync;
	__u64 sync_mono_ns; /* of the last one */
	struct ptp_announce announce[PTP_ANNOUNCES];
};

/* Map "irq_cpus": array indexed by CPU, read through mmap; every field only grows (buckets are u32, and wrap). */
struct irq_cpu {
	__u64 irq_ns; /* in handlers of interrupts */
	__u64 irqs;   /* handlers called: several for an interrupt that devices share */
	__u64
	    softirq_ns[SOFTIRQS]; /* by vector, less the interrupts that came in between; from those timed */
	__u64 softirqs[SOFTIRQS];
	__u64 polls;		   /* of NAPIs, also those of threads and of busy-polling sockets */
	__u64 polled;		   /* packets that these took */
	__u64 exhausted;	   /* polls that used their whole budget: more was waiting */
	struct delay_hist rx_wait; /* from when NET_RX was raised to when it began */
};

/* Map "irq_lines": array indexed by interrupt number, read through mmap. */
struct irq_line {
	__u64 count;
	__u64 ns;
};

#define CONSUMERS_MAX 16

/* Map "consumer_waits": array of CONSUMERS_MAX, read and written through mmap: what each consumer's packets wait for
 * between the stack's entry and its reading them. The agent writes `pid`; the first 0 ends the list. */
struct consumer_wait {
	__u32 pid;
	__u32 pad;
	__u64 undated; /* read, and not known when they entered the stack */
	struct delay_hist wait;
};

/* Map "consumer_hosts": array of one, read and written through mmap. */
struct consumer_host {
	__s64 realtime_minus_mono_ns; /* written by the agent */
	__u64 queues_full; /* packets dropped since a socket's receive queue was full, of any process */
};

#endif
