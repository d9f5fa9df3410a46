/* SPDX-License-Identifier: GPL-2.0 */
/*
 * PTP messages on their way through (IEEE 1588, version 2): the latest Announces, and when a Sync was last seen. Whoever
 * else is meant by them gets them as ever.
 *
 * They come as EtherType 0x88F7, or to UDP ports 319 (event) and 320 (general). What each packet pays is one look at
 * where IPv4's destination port usually stands; what passes is looked at properly, in a function of its own.
 */
#ifndef AGENT_PTP_H
#define AGENT_PTP_H

#include "compat.h"
#include "maps.h"
#include "trailer.h"

#define ETHER_TYPE_PTP	0x88f7
#define PTP_EVENT_PORT	319
#define PTP_HEAD_BYTES	34
#define PTP_VERSION	2
#define PTP_SYNC	0x0
#define PTP_ANNOUNCE	0xb
#define IPV4_HEAD_BYTES 20
#define UDP_HEAD_BYTES	8
#define PROTOCOL_UDP	17

static __always_inline int is_ptp_port(__u32 port)
{
	return port - PTP_EVENT_PORT <= 1;
}

/* The rarer cases of ptp_candidate: VLAN tags, IPv6, PTP itself. */
static __always_inline int ptp_candidate_other(const void *data, const void *data_end, __u32 type)
{
	if (is_vlan(type)) {
		type = load_be16(data + 16);
		data += VLAN_TAG_BYTES;
		if (is_vlan(type)) {
			type = load_be16(data + 16);
			data += VLAN_TAG_BYTES;
		}
	}
	if (type == ETHER_TYPE_PTP)
		return 1;
	if (type == ETHER_TYPE_IPV4)
		return data + 38 <= data_end && is_ptp_port(load_be16(data + 36));
	if (type == ETHER_TYPE_IPV6)
		return data + 58 <= data_end && is_ptp_port(load_be16(data + 56));
	return 0;
}

/* Whether a packet may be a PTP message; few others pass. */
static __always_inline int ptp_candidate(const void *data, const void *data_end)
{
	__u32 type;

	if (unlikely(data + 38 > data_end))
		return 0;
	type = load_be16(data + 12);
	if (likely(type == ETHER_TYPE_IPV4))
		return is_ptp_port(load_be16(data + 36));
	return ptp_candidate_other(data, data_end, type);
}

#define PTP_NOT_FOUND 0xffffffff

/* Where the message of a UDP datagram over IPv4 (without options, unfragmented) or IPv6 (without extension headers)
 * begins, if the ports are PTP's. `ip` has the network layer's header and the ports behind it. */
static __always_inline __u32 ptp_in_udp(const __u8 *ip, __u32 start, __u32 type)
{
	if (type == ETHER_TYPE_IPV4 && ip[0] == 0x45 && ip[9] == PROTOCOL_UDP &&
	    !(load_be16(ip + 6) & 0x1fff) && is_ptp_port(load_be16(ip + IPV4_HEAD_BYTES + 2)))
		return start + IPV4_HEAD_BYTES + UDP_HEAD_BYTES;
	if (type == ETHER_TYPE_IPV6 && ip[6] == PROTOCOL_UDP &&
	    is_ptp_port(load_be16(ip + IPV6_HEAD_BYTES + 2)))
		return start + IPV6_HEAD_BYTES + UDP_HEAD_BYTES;
	return PTP_NOT_FOUND;
}

/* What follows needs the packet's bytes, which XDP and tc give by different helpers: written once for both. */
#define PTP_TAKE(name, context, load_bytes)                                                          \
	SUBPROGRAM int name(context *ctx, __u32 cpu_id)                                              \
	{                                                                                            \
		struct ptp_seen *seen = ptp_at(cpu_id);                                              \
		__u8 head[24] = {}, ip[IPV6_HEAD_BYTES + 4] = {}, message[PTP_HEAD_BYTES] = {};      \
		__u32 start = ETHER_HEAD_BYTES, type, at;                                            \
		struct ptp_announce *announce;                                                       \
                                                                                                     \
		if (!seen || load_bytes(ctx, 0, head, 22))                                           \
			return 0;                                                                    \
		type = load_be16(head + 12);                                                         \
		if (is_vlan(type)) {                                                                 \
			type = load_be16(head + 16);                                                 \
			start += VLAN_TAG_BYTES;                                                     \
			if (is_vlan(type)) {                                                         \
				type = load_be16(head + 20);                                         \
				start += VLAN_TAG_BYTES;                                             \
			}                                                                            \
		}                                                                                    \
		at = start;                                                                          \
		if (type != ETHER_TYPE_PTP) {                                                        \
			if (load_bytes(ctx, start, ip, sizeof(ip)))                                  \
				return 0;                                                            \
			at = ptp_in_udp(ip, start, type);                                            \
		}                                                                                    \
		if (at == PTP_NOT_FOUND || load_bytes(ctx, at, message, sizeof(message)) ||          \
		    (message[1] & 0xf) != PTP_VERSION)                                               \
			return 0;                                                                    \
		if ((message[0] & 0xf) == PTP_SYNC) {                                                \
			seen->sync_mono_ns = bpf_ktime_get_ns();                                     \
			seen->n_sync++;                                                              \
		} else if ((message[0] & 0xf) == PTP_ANNOUNCE) {                                     \
			announce = &seen->announce[seen->n_announce & (PTP_ANNOUNCES - 1)];          \
			if (load_bytes(ctx, at, announce->message, sizeof(announce->message)))       \
				return 0;                                                            \
			announce->mono_ns = bpf_ktime_get_ns();                                      \
			/* Last: a reader that finds the count finds the whole message behind it. */ \
			compiler_barrier();                                                          \
			STORE_ONCE(seen->n_announce, seen->n_announce + 1);                          \
		}                                                                                    \
		return 0;                                                                            \
	}

PTP_TAKE(ptp_take_xdp, struct xdp_md, bpf_xdp_load_bytes)
PTP_TAKE(ptp_take_skb, struct __sk_buff, bpf_skb_load_bytes)

#endif
