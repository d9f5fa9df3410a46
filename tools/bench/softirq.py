"""Time spent in the network's receive softirq, measured at its entry and exit.

/proc/stat can't tell: without CONFIG_IRQ_TIME_ACCOUNTING it counts in ticks of 4 to 10 ms.
"""

from __future__ import annotations

from tools.bench.bccmodule import compile_module

_SOURCE = """
#include <uapi/linux/bpf.h>

#define NET_RX 3

BPF_PERCPU_ARRAY(entered, u64, 1);
BPF_PERCPU_ARRAY(spent, u64, 1);

RAW_TRACEPOINT_PROBE(softirq_entry)
{
	u32 zero = 0;
	u64 *at = entered.lookup(&zero);

	if (at && ctx->args[0] == NET_RX)
		*at = bpf_ktime_get_ns();
	return 0;
}

RAW_TRACEPOINT_PROBE(softirq_exit)
{
	u32 zero = 0;
	u64 *at = entered.lookup(&zero), *total = spent.lookup(&zero);

	if (at && total && ctx->args[0] == NET_RX && *at) {
		*total += bpf_ktime_get_ns() - *at;
		*at = 0;
	}
	return 0;
}
"""


class ReceiveSoftirq:
    """Counts from its making on, over all CPUs."""

    def __init__(self) -> None:
        self._module = compile_module(_SOURCE)

    def ns(self) -> int:
        """Time spent so far, ns."""
        table = self._module[b"spent"]
        return sum(int(value) for value in table[table.Key(0)])

    def close(self) -> None:
        """Detach and unload."""
        self._module.cleanup()
