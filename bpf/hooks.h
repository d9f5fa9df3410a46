/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The programs of a capture, but for the XDP one's SEC(): that differs in where the stamp comes from.
 *
 * Both loaders find programs by their SEC() and name.
 */
#ifndef AGENT_HOOKS_H
#define AGENT_HOOKS_H

#include "capture.h"
#include "compat.h"
#include "maps.h"
#include "meta.h"
#include "ptp.h"
#include "trailer.h"

/* A trailer that can't be read directly, because the frame's head or end lies in a fragment. */
SUBPROGRAM int xdp_trailer_slow(struct xdp_md *ctx, struct stamp *stamp)
{
	__u8 head[FRAME_HEAD_BYTES + 2], trailer[TRAILER_BYTES];
	__u32 length = bpf_xdp_get_buff_len(ctx);

	if (length < TRAILER_FRAME_MIN || bpf_xdp_load_bytes(ctx, 0, head, FRAME_HEAD_BYTES) ||
	    !trailer_has_room(head, length) ||
	    bpf_xdp_load_bytes(ctx, length - TRAILER_BYTES, trailer, TRAILER_BYTES))
		return 0;
	trailer_decode(trailer, stamp);
	return 0;
}

SUBPROGRAM int skb_trailer_slow(struct __sk_buff *skb, __u32 length, struct stamp *stamp)
{
	__u8 head[FRAME_HEAD_BYTES + 2], trailer[TRAILER_BYTES];

	if (length < TRAILER_FRAME_MIN || bpf_skb_load_bytes(skb, 0, head, FRAME_HEAD_BYTES) ||
	    !trailer_has_room(head, length) ||
	    bpf_skb_load_bytes(skb, length - TRAILER_BYTES, trailer, TRAILER_BYTES))
		return 0;
	trailer_decode(trailer, stamp);
	return 0;
}

/* A frame's length. One whose network layer ends in the linear part has nothing else, or at most a trailer or padding
 * (not counted then): that spares the helper, whose call costs as much as a quarter of reading the clock. */
static __always_inline __u64 xdp_length(struct xdp_md *ctx)
{
	const void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	__u64 length = data_end - data, end;

	if (likely(data + FRAME_HEAD_BYTES <= data_end)) {
		end = network_end(data);
		/* Less: a protocol that we don't know. */
		if (likely(end >= FRAME_HEAD_BYTES && end <= length))
			return length;
	}
	return bpf_xdp_get_buff_len(ctx);
}

static __always_inline void xdp_meta(struct xdp_md *ctx, struct cpu_state *cpu, __u32 queue,
				     const struct arrival *arrival)
{
	if (unlikely(cpu->meta_mask != META_NEVER) && !(cpu->counters.packets & cpu->meta_mask))
		meta_write(ctx, cpu, queue, arrival->mono_ns, arrival->hw_ns, arrival->delay_ns);
}

/* A packet whose trailer can't be read directly, or isn't to be believed. */
SUBPROGRAM int xdp_odd(struct xdp_md *ctx, struct cpu_state *cpu, __u32 queue)
{
	const void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	struct stamp stamp = {.clock_key = CLOCK_KEY_NONE};
	struct arrival arrival;

	if (trailer_out_of_reach(data_end - data, bpf_xdp_get_buff_len(ctx)))
		xdp_trailer_slow(ctx, &stamp);
	else
		trailer_direct(data, data_end, &stamp);
	arrival = capture_packet(ctx, cpu, queue, &stamp, 1);
	xdp_meta(ctx, cpu, queue, &arrival);
	return 0;
}

/* The whole of an XDP program. `phc` is given by those that have a PHC stamp, else NULL. */
static __always_inline int xdp_packet(struct xdp_md *ctx, const struct stamp *phc)
{
	const void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	__u32 cpu_id = bpf_get_smp_processor_id(), queue = ctx->rx_queue_index;
	struct cpu_state *cpu = cpu_state_at(cpu_id);
	struct stamp stamp = {.clock_key = CLOCK_KEY_NONE};
	struct arrival arrival;
	__u64 length;

	if (!cpu)
		return XDP_PASS;
	cpu->counters.packets++;
	if (unlikely(ptp_candidate(data, data_end)))
		ptp_take_xdp(ctx, cpu_id);
	if (left_out(cpu, cpu_id)) {
		cpu->counters.bytes += bpf_xdp_get_buff_len(ctx);
		return XDP_PASS;
	}
	if (!phc && cpu->stamp == STAMP_TRAILER) {
		/* A frame whose trailer lies in the linear part has no other: spares the helper call. */
		length = trailer_direct(data, data_end, &stamp);
		if (likely(length && stamp.verdict == VERDICT_STAMPED)) {
			cpu->counters.bytes += length;
			/* Written out for this case, so that the compiler knows the verdict. */
			arrival = capture_packet(ctx, cpu, queue, &stamp, 1);
			xdp_meta(ctx, cpu, queue, &arrival);
			return XDP_PASS;
		}
		length = bpf_xdp_get_buff_len(ctx);
		cpu->counters.bytes += length;
		if (unlikely(stamp.verdict == VERDICT_REJECTED ||
			     trailer_out_of_reach(data_end - data, length))) {
			xdp_odd(ctx, cpu, queue);
			return XDP_PASS;
		}
	} else {
		cpu->counters.bytes += xdp_length(ctx);
	}
	/* What a trailer's search left is nothing; said here, so that the compiler knows the verdict. */
	stamp = phc ? *phc : (struct stamp){.clock_key = CLOCK_KEY_NONE};
	arrival = capture_packet(ctx, cpu, queue, &stamp, 1);
	xdp_meta(ctx, cpu, queue, &arrival);
	return XDP_PASS;
}

/* A stamp further than this from the model is a glitch, or was given before a jump. */
#define REWRITE_TRUST_NS 1000000000ULL

/*
 * Receive time for unmodified applications: the packet's own stamp if the clock that is handed on made it, else
 * model(mono). Without a valid model nothing is written: nobody knows then what the clock is worth.
 */
static __always_inline void skb_rewrite(struct __sk_buff *skb, const struct agent_config *config,
					struct cpu_state *cpu, const struct stamp *stamp, __u64 mono)
{
	struct slot_model model = {};
	__u64 hw;

	model_take(&cpu->found, &model, config->rewrite_key);
	if (mono > model.valid_until_ns) {
		cpu->counters.rewrite_no_model++;
		return;
	}
	hw = model_phc(&model, mono);
	if (stamp && stamp->verdict == VERDICT_STAMPED && stamp->clock_key == config->rewrite_key &&
	    hw - stamp->hw_ns + REWRITE_TRUST_NS <= 2 * REWRITE_TRUST_NS)
		hw = stamp->hw_ns;
	skb->tstamp = hw + config->rewrite_base_ns;
	cpu->counters.rewritten++;
}

static __always_inline __u32 skb_weight(const struct __sk_buff *skb)
{
	return likely(skb->gso_segs <= 1) ? 1 : skb->gso_segs;
}

SEC("tc")
int tc_ingress(struct __sk_buff *skb)
{
	__u32 cpu_id = bpf_get_smp_processor_id(), weight, queue;
	struct agent_config *config = config_at(0);
	struct cpu_state *cpu = cpu_state_at(cpu_id);
	struct stamp stamp = {.clock_key = CLOCK_KEY_NONE};
	const struct capture_meta *meta;
	struct arrival arrival;

	if (!config || !cpu)
		return TC_NEXT;
	weight = skb_weight(skb);
	cpu->counters.tc_packets += weight;
	if (config->hook == HOOK_TC) {
		cpu->counters.packets += weight;
		cpu->counters.bytes += skb->len;
		if (unlikely(ptp_candidate((void *)(long)skb->data, (void *)(long)skb->data_end)))
			ptp_take_skb(skb, cpu_id);
		if (left_out(cpu, cpu_id)) {
			if (unlikely(config->rewrite) && !config->frozen)
				skb_rewrite(skb, config, cpu, NULL, bpf_ktime_get_ns());
			return TC_NEXT;
		}
		if (config->stamp == STAMP_TRAILER) {
			/* Of merged packets only the first could have kept one, and with one none is merged. */
			if (!trailer_direct((void *)(long)skb->data, (void *)(long)skb->data_end, &stamp) &&
			    weight == 1 && trailer_out_of_reach(skb->data_end - skb->data, skb->len)) {
				struct stamp slow = {.clock_key = CLOCK_KEY_NONE};

				skb_trailer_slow(skb, skb->len, &slow);
				stamp = slow;
			}
		} else if (config->stamp == STAMP_SKB) {
			stamp = phc_stamp(skb->hwtstamp);
		}
		/* The kernel keeps the receive queue plus one; 0: not recorded. */
		queue = skb->queue_mapping ? skb->queue_mapping - 1 : 0;
		arrival = capture_packet(skb, cpu, queue, &stamp, weight);
		if (unlikely(config->rewrite))
			skb_rewrite(skb, config, cpu, &stamp, arrival.mono_ns);
	} else {
		if (unlikely(config->frozen))
			return TC_NEXT;
		meta = meta_read(skb);
		if (unlikely(meta))
			stack_sample(config, cpu, cpu_id, meta, bpf_ktime_get_ns());
	}
	return TC_NEXT;
}

/* Sent packets by CPU and queue. The queue is the one known here: where the kernel chooses it later (it does unless the
 * socket or a qdisc chose) only the CPU says something, which is what XPS goes by. */
SEC("tc")
int tc_egress(struct __sk_buff *skb)
{
	__u32 cpu_id = bpf_get_smp_processor_id(), weight = skb_weight(skb);
	struct cpu_state *cpu = cpu_state_at(cpu_id);
	struct tx_usage *usage = tx_queues_at(cpu_id);

	if (cpu) {
		cpu->counters.tx_packets += weight;
		cpu->counters.tx_bytes += skb->len;
	}
	if (usage)
		usage->packets[skb->queue_mapping & (TX_QUEUES_MAX - 1)] += weight;
	return TC_NEXT;
}

struct flush {
	void *ctx;
	__u64 now_ns;
	__u64 window_ns;
	__u32 first; /* this CPU's first slot */
	__u32 cpu;
};

static __always_inline int is_overdue(const struct slot *slot, const struct flush *flush)
{
	__u64 open = LOAD_ONCE(slot->window[slot->active & 1].record.open_mono_ns);

	return open && open <= flush->now_ns && flush->now_ns - open >= flush->window_ns;
}

/* Closes the window of one slot if its span is over. */
static long flush_slot(__u32 i, struct flush *flush)
{
	struct slot *slot = slots_at(flush->first + i);
	struct cpu_state *cpu = cpu_state_at(flush->cpu);
	struct slot_head *head = heads_at(flush->first + i);
	struct window *window;

	if (!slot || !head || !cpu)
		return 1;
	if (!is_overdue(slot, flush))
		return 0;
	window = &slot->window[slot->active & 1];
	/* In this order: a packet that comes in after the exchange opens the other window, and its times stand. */
	STORE_ONCE(head->open_mono_ns, 0);
	STORE_ONCE(slot->attend_ns, 0);
	compiler_barrier();
	STORE_ONCE(slot->active, (slot->active & 1) ^ 1);
	compiler_barrier();
	window_close(flush->ctx, slot, window, cpu, WINDOW_IDLE_CLOSE);
	cpu->counters.flushed++;
	return 0;
}

#ifdef AGENT_BCC

/* No bpf_loop without BPF-to-BPF calls, and each turn of a plain loop is verified anew: searching is cheap that way,
 * closing isn't. What is left is closed by the next run. */
static __always_inline void flush_slots(const struct agent_config *config, struct cpu_state *cpu,
					struct flush *flush)
{
	struct slot *slot;
	__u32 round, i;

	for (round = 0; round < BCC_FLUSH_MAX; round++) {
		STORE_ONCE(cpu->overdue, NOT_FOUND);
		/* Backwards, so that the first is found last. */
		for (i = BCC_SLOTS_MAX; i-- > 0;) {
			slot = slots_at(flush->first + i);
			if (i < config->slots_per_cpu && slot && is_overdue(slot, flush))
				STORE_ONCE(cpu->overdue, i);
		}
		i = LOAD_ONCE(cpu->overdue);
		if (i == NOT_FOUND)
			return;
		flush_slot(i, flush);
	}
}

#else

static __always_inline void flush_slots(const struct agent_config *config, struct cpu_state *cpu,
					struct flush *flush)
{
	bpf_loop(config->slots_per_cpu, flush_slot, flush, 0);
}

#endif

/*
 * Run on one CPU by BPF_PROG_RUN: closes its overdue windows. Returns 1 if a packet was being counted, and nothing was
 * done.
 */
SEC("raw_tp")
int flush(void *ctx)
{
	__u32 cpu_id = bpf_get_smp_processor_id();
	struct agent_config *config = config_at(0);
	struct cpu_state *cpu = cpu_state_at(cpu_id);
	struct flush flush = {.ctx = ctx, .cpu = cpu_id};

	if (!config || !cpu)
		return 0;
	if (LOAD_ONCE(cpu->busy) || LOAD_ONCE(cpu->flushing)) {
		cpu->counters.flush_busy++;
		return 1;
	}
	STORE_ONCE(cpu->flushing, 1);
	compiler_barrier();
	flush.now_ns = bpf_ktime_get_ns();
	flush.window_ns = config->window_ns;
	flush.first = cpu_id * config->slots_per_cpu;
	flush_slots(config, cpu, &flush);
	compiler_barrier();
	STORE_ONCE(cpu->flushing, 0);
	return 0;
}

#endif
