// SPDX-License-Identifier: GPL-2.0
/*
 * Up to the consumer: how long packets wait between the stack's entry and the program that reads them, and receive
 * queues that were full. Loaded only for `--consumer`; by libbpf alone, since a kernel's struct sk_buff is found by its
 * type information.
 *
 * The kernel dates each packet as it enters the stack (skb->tstamp, realtime) while any socket on the host asks for
 * receive timestamps: the agent keeps one open that does.
 */
#include "compat.h"
#include "records.h"
#include "hist.h"

/* What waited longer was dated by another clock: realtime was set. */
#define CONSUMER_WAIT_MAX_NS 10000000000

struct sk_buff {
	__s64 tstamp;
} __attribute__((preserve_access_index));

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, CONSUMERS_MAX);
	__type(key, __u32);
	__type(value, struct consumer_wait);
} consumer_waits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct consumer_host);
} consumer_hosts SEC(".maps");

static __always_inline struct consumer_host *host_at(__u32 i)
{
	return bpf_map_lookup_elem(&consumer_hosts, &i);
}

/* The entry of the process that runs; NULL: it is none of the consumers. */
static __always_inline struct consumer_wait *wait_of(__u32 pid)
{
	struct consumer_wait *wait;

	for (__u32 i = 0; i < CONSUMERS_MAX; i++) {
		__u32 key = i;

		wait = bpf_map_lookup_elem(&consumer_waits, &key);
		if (!wait || !LOAD_ONCE(wait->pid))
			return NULL;
		if (wait->pid == pid)
			return wait;
	}
	return NULL;
}

/* (const struct sk_buff *skb, int len): in the process that reads a packet from its socket. UDP copies packets that are
 * in one piece without passing here. */
SEC("raw_tp")
int skb_copy_datagram_iovec(struct bpf_raw_tracepoint_args *ctx)
{
	const struct sk_buff *skb = (const void *)ctx->args[0];
	struct consumer_wait *wait = wait_of(bpf_get_current_pid_tgid() >> 32);
	struct consumer_host *host = host_at(0);
	__s64 entered_ns = 0, waited_ns;
	__u32 bucket;

	if (!wait || !host)
		return 0;
	bpf_probe_read_kernel(&entered_ns, sizeof(entered_ns), &skb->tstamp);
	waited_ns = bpf_ktime_get_ns() + LOAD_ONCE(host->realtime_minus_mono_ns) - entered_ns;
	/* What never came in by a device has no date; realtime may have been stepped meanwhile. */
	if (!entered_ns || waited_ns < 0 || waited_ns >= CONSUMER_WAIT_MAX_NS) {
		__sync_fetch_and_add(&wait->undated, 1);
		return 0;
	}
	bucket = hist_bucket(waited_ns);
	opaque(bucket);
	/* Its threads may read on several CPUs at once. */
	if (bucket < HIST_BUCKETS)
		__sync_fetch_and_add(&wait->wait.bucket[bucket], 1);
	return 0;
}

/* (struct sock *sk, struct sk_buff *skb): a packet is dropped, whosever socket it is */
SEC("raw_tp")
int sock_rcvqueue_full(struct bpf_raw_tracepoint_args *ctx)
{
	struct consumer_host *host = host_at(0);

	(void)ctx;
	if (host)
		__sync_fetch_and_add(&host->queues_full, 1);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
