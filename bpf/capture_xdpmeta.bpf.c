// SPDX-License-Identifier: GPL-2.0
/*
 * A whole capture for NICs whose driver gives hardware stamps to XDP programs. Only for libbpf (kfuncs), and
 * xdp_capture_meta only for the device that it is loaded for.
 */
#include "hooks.h"
#include "checks.h"

extern int bpf_xdp_metadata_rx_timestamp(const struct xdp_md *ctx, __u64 *timestamp) __ksym __weak;

SEC("xdp.frags")
int xdp_capture_meta(struct xdp_md *ctx)
{
	__u64 hw = 0;
	struct stamp stamp;

	/* -EOPNOTSUPP (no such driver), -ENODATA (not this packet) and a stamp of 0 all mean that there is none. */
	if (!bpf_xdp_metadata_rx_timestamp || bpf_xdp_metadata_rx_timestamp(ctx, &hw))
		hw = 0;
	stamp = phc_stamp(hw);
	return xdp_packet(ctx, &stamp);
}

char LICENSE[] SEC("license") = "GPL";
