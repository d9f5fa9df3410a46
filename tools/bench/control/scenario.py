"""The loads and where they are when: fixed, so that no figure can choose its scenario.

CPUs are named by their part: `0` is the one that the sender and the consumer are pinned to, `1` is the other. The
capture interface polls in kernel threads, a thread a queue, which may run on either: where they run is the setting.

- The *kernel load* is a second flow whose ingress program takes 40 % of its CPU in NET_RX, in bursts of up to 16
  packets: what that CPU polls waits for up to some milliseconds, as behind a storage or tunnel flow that fills its
  budget. (Sent packet by packet it delays by less than the noise of a machine with two CPUs: then no setting, chosen by
  whomever, shows beyond that.) It is sent with real-time priority, so that the user load does not slow it down.
- The *user load* is a thread that never sleeps: a polling thread on its CPU waits until the scheduler lets it in.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

QUEUES = 2
RATE_PPS = 10_000.0
FLOWS = 16
BURN_US = 150
NOISE_PPS = 2_500.0
NOISE_FIFO = 5
NOISE_BURST = 16
SLICE_MS = 20
SLICES_PER_P99 = 5
"""p99 is of spans of 100 ms: some thousand packets."""

PHASE_S = 5.0
STATIONARY_S = 90.0
SWEEP_S = 4.0
SETTLE_S = 1.0


@dataclass(frozen=True, slots=True)
class Phase:
    """Where the loads are."""

    kernel: int
    user: int

    def __str__(self) -> str:
        return f"kernel load on {self.kernel}, user load on {self.user}"


MOVING = (Phase(1, 1), Phase(0, 0), Phase(1, 0), Phase(0, 1), Phase(1, 1), Phase(0, 0))
"""In this order; each lasts `PHASE_S`."""
STATIONARY = Phase(1, 1)

Setting = tuple[frozenset[int], ...]
"""The CPUs that each queue's thread may run on."""

DEFAULTS: Setting = (frozenset({0, 1}),) * QUEUES
"""As the kernel leaves them: the scheduler chooses."""
STATICS: tuple[Setting, ...] = (
    DEFAULTS,
    *(tuple(frozenset({cpu}) for cpu in cpus) for cpus in product((0, 1), repeat=QUEUES)),
)
"""Every setting that there is: the kernel's, and each queue pinned to each CPU."""


def setting_text(setting: Setting) -> str:
    """A setting for people: the CPUs of the queues in turn."""
    return " | ".join(",".join(str(cpu) for cpu in sorted(cpus)) for cpus in setting)
