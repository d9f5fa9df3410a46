/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What a test packet carries, shared by the generator, the consumer and the stamping program.
 * Host byte order: both ends are on one machine.
 */
#ifndef TESTBED_PAYLOAD_H
#define TESTBED_PAYLOAD_H

#define PAYLOAD_MAGIC 0x41475431 /* "AGT1" */

struct payload {
	__u32 magic;
	__u32 flow;
	__u64 seq; /* per flow, from 0 */
	__u64
	    tx_mono_ns; /* overwritten by stamp_egress with the moment that the trailer states in PHC time */
};

#endif
