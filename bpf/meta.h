/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the XDP program tells tc ingress about a packet, in the packet's metadata. Metadata on every packet stops GRO
 * (a TCP stream fell to less than half); on one in many it costs nothing, so config.meta_mask chooses.
 */
#ifndef AGENT_META_H
#define AGENT_META_H

#include "compat.h"
#include "maps.h"
#include "window.h"

#define META_MAGIC 0x61675431 /* other programs leave metadata too */
#define META_NEVER 0xffffffff

/* At most 32 bytes, a multiple of 4. */
struct capture_meta {
	__u32 magic;
	__u32 queue;
	__u64 mono_ns;
	__u64 hw_ns;	/* 0: no hardware stamp */
	__s64 delay_ns; /* at the XDP hook; DELAY_NONE: unknown */
};

static __always_inline void meta_write(struct xdp_md *ctx, struct cpu_state *cpu, __u32 queue, __u64 mono,
				       __u64 hw, __s64 delay)
{
	struct capture_meta *meta;

	if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(*meta))) {
		cpu->counters.meta_failed++;
		return;
	}
	meta = (void *)(long)ctx->data_meta;
	if ((void *)(meta + 1) > (void *)(long)ctx->data)
		return;
	meta->magic = META_MAGIC;
	meta->queue = queue;
	meta->mono_ns = mono;
	meta->hw_ns = hw;
	meta->delay_ns = delay;
}

static __always_inline const struct capture_meta *meta_read(struct __sk_buff *skb)
{
	const struct capture_meta *meta = (void *)(long)skb->data_meta;

	if (likely((void *)(meta + 1) > (void *)(long)skb->data) || meta->magic != META_MAGIC)
		return NULL;
	return meta;
}

static __always_inline void stack_sample(const struct agent_config *config, struct cpu_state *cpu,
					 __u32 cpu_id, const struct capture_meta *meta, __u64 mono)
{
	__u32 queue = meta->queue & (config->stack_queues - 1), bucket;
	struct stack_hist *hist = stack_hists_at(cpu_id * config->stack_queues + queue);
	__u64 since = mono - meta->mono_ns, delay;

	if (!hist)
		return;
	delay = since < DELAY_MAX ? since : DELAY_MAX;
	bucket = hist_bucket(delay);
	opaque(bucket);
	if (bucket < HIST_BUCKETS)
		hist->xdp_to_stack.bucket[bucket]++;
	cpu->counters.stack_samples++;
	if (meta->delay_ns < 0)
		return;
	delay = meta->delay_ns + since;
	bucket = hist_bucket(delay < DELAY_MAX ? delay : DELAY_MAX);
	opaque(bucket);
	if (bucket < HIST_BUCKETS)
		hist->hw_to_stack.bucket[bucket]++;
}

#endif
