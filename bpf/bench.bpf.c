// SPDX-License-Identifier: GPL-2.0
/* What the capture programs' cost is measured against, never loaded by `agent run`. */
#include "compat.h"

SEC("xdp.frags")
int xdp_empty(struct xdp_md *ctx)
{
	return XDP_PASS;
}

SEC("xdp.frags")
int xdp_ktime(struct xdp_md *ctx)
{
	__u64 mono = bpf_ktime_get_ns();

	opaque(mono);
	return XDP_PASS;
}

SEC("tc")
int tc_empty(struct __sk_buff *skb)
{
	return TC_NEXT;
}

char LICENSE[] SEC("license") = "GPL";
