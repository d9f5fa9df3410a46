/* SPDX-License-Identifier: GPL-2.0 */
/* A packet's hardware stamp, wherever it came from, and what was found out about it. */
#ifndef AGENT_STAMP_H
#define AGENT_STAMP_H

#include "compat.h"
#include "records.h"

#define VERDICT_NONE	 0 /* no stamp, and no clock that one could be of: window_close counts these */
#define VERDICT_STAMPED	 1
#define VERDICT_MISSING	 2 /* a known clock gave none */
#define VERDICT_REJECTED 3 /* there, but not to be believed */

struct stamp {
	__u64 hw_ns;
	__u32 clock_key;
	__u32 verdict;
};

/* A stamp of the interface's own PHC; drivers say *missing* by 0. */
static __always_inline struct stamp phc_stamp(__u64 hw_ns)
{
	struct stamp stamp = {
	    .hw_ns = hw_ns,
	    .clock_key = CLOCK_KEY_PHC,
	    .verdict = hw_ns ? VERDICT_STAMPED : VERDICT_MISSING,
	};

	return stamp;
}

#endif
