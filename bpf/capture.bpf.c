// SPDX-License-Identifier: GPL-2.0
/* The capture programs for both loaders: stamps none, trailer, skb. */
#include "hooks.h"
#include "checks.h"

SEC("xdp.frags")
int xdp_capture(struct xdp_md *ctx)
{
	return xdp_packet(ctx, NULL);
}

#ifndef AGENT_BCC
char LICENSE[] SEC("license") = "GPL";
#endif
