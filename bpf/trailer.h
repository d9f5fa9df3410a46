/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The Metamako / Arista 7130 trailer: 16 bytes that a capture switch puts behind each frame, all big endian.
 *
 *   0  u32 original FCS of the frame (or, with flag 0x02, the last extension: sub-nanoseconds)
 *   4  u32 seconds, 8 u32 nanoseconds, in the switch's time scale
 *  12  u8  flags: 0x01 the original FCS is valid, 0x02 extensions (TLVs of 4 bytes each) stand before the trailer,
 *          others reserved; none of them changes where the time stands
 *  13  u16 device id, 15 u8 port id
 *
 * The new FCS that follows on the wire is removed by the NIC (with `rx-fcs on` it isn't: trailers are then not found).
 *
 * A frame has no mark that says whether there is a trailer. What tells: at least 16 bytes stand behind the end that
 * the network layer's own length gives. A short frame's padding comes before the trailer, so the trailer is always
 * the last 16 bytes; padding alone, which Ethernet wants to be zeros, reads as time 0 and is *missing*.
 */
#ifndef AGENT_TRAILER_H
#define AGENT_TRAILER_H

#include "compat.h"
#include "stamp.h"

#define TRAILER_BYTES 16
/* Shortest frame with a trailer: 60 bytes (64 less the FCS), of which the NIC may have stripped two VLAN tags. */
#define TRAILER_FRAME_MIN (60 - 2 * 4 + TRAILER_BYTES)
/* As much as is read of a frame's head: Ethernet, two VLAN tags, the network layer's length. */
#define FRAME_HEAD_BYTES 34
/* Direct access needs an offset that the verifier sees to be small; more than that is in fragments anyway. */
#define LINEAR_MAX 0x7fff

#define ETHER_HEAD_BYTES 14
#define VLAN_TAG_BYTES	 4
#define ETHER_TYPE_IPV4	 0x0800
#define ETHER_TYPE_ARP	 0x0806
#define ETHER_TYPE_VLAN	 0x8100
#define ETHER_TYPE_QINQ	 0x88a8
#define ETHER_TYPE_IPV6	 0x86dd
#define ETHER_TYPE_MIN	 0x0600 /* below: IEEE 802.3, the field is a length */
#define IPV6_HEAD_BYTES	 40
#define ARP_BYTES	 28
#define NS_PER_S	 1000000000ULL

static __always_inline __u32 load_be16(const void *at)
{
	return from_be16(*(const __u16 *)at);
}

static __always_inline int is_vlan(__u32 type)
{
	return type == ETHER_TYPE_VLAN || type == ETHER_TYPE_QINQ;
}

/* The rarer cases of network_end. */
static __always_inline __u32 network_end_other(const void *head, __u32 type)
{
	__u32 start = ETHER_HEAD_BYTES;

	if (is_vlan(type)) {
		type = load_be16(head + 16);
		start += VLAN_TAG_BYTES;
		if (is_vlan(type)) {
			type = load_be16(head + 20);
			start += VLAN_TAG_BYTES;
		}
	}
	if (type == ETHER_TYPE_IPV4)
		return start + load_be16(head + start + 2);
	if (type == ETHER_TYPE_IPV6)
		return start + IPV6_HEAD_BYTES + load_be16(head + start + 4);
	if (type == ETHER_TYPE_ARP)
		return start + ARP_BYTES;
	if (type < ETHER_TYPE_MIN)
		return start + type;
	return start;
}

/* Where the network layer says that the frame ends. `head` has FRAME_HEAD_BYTES. For a protocol that we don't know it
 * is the end of the Ethernet header: its last 16 bytes then have to pass as a trailer by their content. */
static __always_inline __u32 network_end(const void *head)
{
	__u32 type = load_be16(head + 12);

	if (likely(type == ETHER_TYPE_IPV4))
		return ETHER_HEAD_BYTES + load_be16(head + ETHER_HEAD_BYTES + 2);
	return network_end_other(head, type);
}

/* Whether a frame of `length` bytes has room for a trailer. Above 64 KiB the network layer's length is 0 (BIG TCP): such
 * a packet was merged by the kernel, and no trailer survives that. */
static __always_inline int trailer_has_room(const void *head, __u32 length)
{
	return length >= TRAILER_FRAME_MIN && length <= 0xffff && length >= network_end(head) + TRAILER_BYTES;
}

/* Whether a frame's end lies where trailer_direct can't read it. */
static __always_inline int trailer_out_of_reach(__u64 linear, __u64 length)
{
	return length > linear || linear > LINEAR_MAX;
}

static __always_inline void trailer_decode(const void *trailer, struct stamp *stamp)
{
	__u32 seconds = from_be32(*(const __u32 *)(trailer + 4));
	__u32 nanoseconds = from_be32(*(const __u32 *)(trailer + 8));
	__u32 source = from_be32(*(const __u32 *)(trailer + 12));

	if (unlikely(!seconds || nanoseconds >= NS_PER_S)) {
		stamp->verdict = seconds | nanoseconds ? VERDICT_REJECTED : VERDICT_NONE;
		return;
	}
	stamp->verdict = VERDICT_STAMPED;
	stamp->hw_ns = seconds * NS_PER_S + nanoseconds;
	stamp->clock_key = source & 0xffffff;
}

/* Reads the trailer of a frame that lies whole in [data, data_end), and returns the frame's length. 0: there is no
 * trailer to be seen, but there may be fragments; look the slow way. */
static __always_inline __u64 trailer_direct(const void *data, const void *data_end, struct stamp *stamp)
{
	__u64 length = data_end - data, offset = length - TRAILER_BYTES;

	if (unlikely(data + TRAILER_FRAME_MIN > data_end || network_end(data) > offset))
		return 0;
	opaque(offset);
	if (unlikely(offset > LINEAR_MAX || data + offset + TRAILER_BYTES > data_end))
		return 0;
	trailer_decode(data + offset, stamp);
	return length;
}

#endif
