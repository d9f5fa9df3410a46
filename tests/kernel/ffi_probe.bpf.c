// SPDX-License-Identifier: GPL-2.0
/* Small programs for the tests of agent.ffi: a record into a ring, a counter in a mapped array, a redirect. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct probe_record {
	__u64 seq;
	__u32 cpu;
	__u32 pad;
	__u64 body[8];
};

struct probe_value {
	__u32 head;
	__u64 count;
	__u8 tail[5]; /* an odd size: the array's stride is rounded up to 8 */
} __attribute__((packed));

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__type(key, __u32);
	__type(value, __u32);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, struct probe_value);
} values SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

/* By CPU: records offered, records refused by the ring. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, __u64[2]);
} produced SEC(".maps");

static __always_inline int emit(void *ctx, __u32 extra)
{
	__u32 cpu = bpf_get_smp_processor_id();
	__u64 *counts = bpf_map_lookup_elem(&produced, &cpu);
	struct probe_record record[2] = {};

	if (!counts)
		return 0;
	record[0].seq = counts[0];
	record[0].cpu = cpu;
	record[0].body[0] = counts[0] * 3;
	record[0].body[7] = ~counts[0];
	counts[0]++;
	if (bpf_perf_event_output(ctx, &events, BPF_F_CURRENT_CPU, record, sizeof(record[0]) + extra))
		counts[1]++;
	return 0;
}

SEC("xdp.frags")
int probe_xdp(struct xdp_md *ctx)
{
	emit(ctx, 0);
	return XDP_PASS;
}

SEC("xdp")
int probe_plain(struct xdp_md *ctx)
{
	return XDP_PASS;
}

SEC("xdp")
int probe_redirect(struct xdp_md *ctx)
{
	return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
}

SEC("tc")
int probe_tc(struct __sk_buff *skb)
{
	__u32 key = 0;
	struct probe_value *value = bpf_map_lookup_elem(&values, &key);

	if (value)
		value->count = skb->hwtstamp;
	skb->mark = skb->gso_segs;
	return -1; /* TCX_NEXT */
}

SEC("raw_tp")
int probe_emit(void *ctx)
{
	return emit(ctx, 0);
}

/* A sample of another size than the record's. */
SEC("raw_tp")
int probe_foreign(void *ctx)
{
	return emit(ctx, 16);
}

/* Out of bounds: the verifier must refuse it. */
SEC("?xdp")
int probe_refused(struct xdp_md *ctx)
{
	return *(__u8 *)(long)ctx->data;
}

char _license[] SEC("license") = "GPL";
