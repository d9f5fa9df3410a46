"""Interrupt coalescing as a lever: how long packets wait for their interrupt, after their stamp was taken.

Only with `--allow coalesce`: less waiting costs interrupts. Each step halves the wait, and is judged by delay like
every other change; the rate of interrupts tells whether a driver that accepted it did it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agent.control.actuators import Actuator, Target
from agent.control.delaymodel import DelayModel, Estimate
from agent.control.plan import MIN_GAIN, MIN_GAIN_NS, MIN_PACKETS, Change, Lane, Plan
from agent.control.quantiles import Figures
from agent.control.settings import Setting, register_kind
from agent.host.coalescing import Coalescing, read_coalescing, write_coalescing
from agent.host.model import Interface

# Where packets wait for an interrupt, and where more interrupts can be afforded.
_MEASURES = ("hw_to_stack", "hw_to_hook")
_SOFT_MAX = 0.5
# Below this the next step is no wait at all; and what an adaptive driver is held to at first.
_SHORT_USECS = 8


class CoalesceSetting:
    """The coalescing of an interface as a journaled setting: `rx-usecs 50 rx-frames 0 adaptive-rx off`."""

    def read(self, target: str) -> bytes:
        """What is set now. Raises `OSError`."""
        now = read_coalescing(target)
        if now is None:
            raise OSError(f"{target} has no coalescing")
        return f"{now}\n".encode()

    def write(self, target: str, value: bytes) -> None:
        """Set all of it. Drivers refuse a wait of ours while they choose it themselves, so that is switched last."""
        wanted = Coalescing.parse(value.decode())
        if wanted.adaptive_rx:
            write_coalescing(target, replace(wanted, adaptive_rx=False))
            wanted = Coalescing(None, None, True)
        write_coalescing(target, wanted)

    def same(self, a: bytes, b: bytes) -> bool:
        """Equal figures; while the driver chooses them, figures mean nothing."""
        if a.split() == b.split():
            return True
        return all(b"adaptive-rx on" in value for value in (a, b))

    def belongs(self, target: str, ifname: str, ifindex: int) -> bool:
        """Its own."""
        return target == ifname


register_kind("coalesce", CoalesceSetting())


class CoalesceActuator(Actuator):
    """The coalescing of an interface: one lever for all of its queues."""

    name = "coalesce"

    def target(self, interface: Interface, queue: int) -> Target | None:
        """The interface's; None where its driver has none for received packets."""
        target = Target(self.name, interface.name, 0, Setting("coalesce", interface.name, namespaced=True))
        try:
            now = Coalescing.parse(self.read(target).decode())
        except OSError:
            return None
        return None if now.rx_usecs is None else target


def plan_coalesce(
    ifname: str, lanes: Sequence[Lane], target: Target, value: bytes, model: DelayModel, now_ns: int
) -> Plan | None:
    """Half the wait, or a fixed short one where the driver chooses; None where that promises too little.

    Nothing is proposed where no delay is measured from the hardware stamp on, or where a CPU that serves the queues
    is half busy with softirqs already: more interrupts would cost more than they gain.
    """
    now = Coalescing.parse(value.decode())
    wanted = _next(now)
    figures = [(lane, lane.record.now(now_ns)) for lane in lanes if lane.measure in _MEASURES]
    ready = [(lane, figure) for lane, figure in figures if figure.n >= MIN_PACKETS]
    if wanted is None or not ready:
        return None
    cpus = {cpu for lane, _ in ready for cpu in lane.record.where(now_ns)}
    if any(model.soft(cpu) > _SOFT_MAX for cpu in cpus):
        return None
    _, worst = max(ready, key=lambda item: item[1].p99_ns)
    saved_ns = _saved_ns(now, wanted, worst, model.base_ns([lane.record for lane, _ in ready]))
    if saved_ns < max(MIN_GAIN_NS, MIN_GAIN * worst.p99_ns):
        return None
    expected = Estimate(worst.p50_ns - saved_ns / 2, worst.p99_ns - saved_ns, "predicted")
    change = Change(
        target=target,
        queues=tuple(sorted(queue for lane in lanes for queue in lane.queues)),
        before=value,
        after=f"{wanted}\n".encode(),
        cpu=-1,
        now=worst,
        expected=expected,
    )
    reason = (
        f"packets wait for their interrupt: {now}; with {wanted} p99 {expected.p99_ns / 1e3:.1f} us predicted"
    )
    return Plan(ifname, (change,), reason, "coalescing", worst.p99_ns, expected.p99_ns, source="coalesce")


def _next(now: Coalescing) -> Coalescing | None:
    """The next step; None where packets wait for nothing any more."""
    usecs = now.rx_usecs or 0
    if now.adaptive_rx:
        return replace(now, rx_usecs=min(usecs, _SHORT_USECS) or _SHORT_USECS, adaptive_rx=False)
    if not usecs:
        return None
    return replace(now, rx_usecs=usecs // 2 if usecs >= _SHORT_USECS else 0)


def _saved_ns(now: Coalescing, wanted: Coalescing, figure: Figures, base_ns: float) -> float:
    """How much less a packet waits at the most; what an adaptive driver adds is taken from what is measured."""
    if now.adaptive_rx:
        return max(0.0, figure.p50_ns - base_ns - 1e3 * (wanted.rx_usecs or 0))
    # A packet cannot have waited longer than it was seen to.
    return min(1e3 * ((now.rx_usecs or 0) - (wanted.rx_usecs or 0)), max(0.0, figure.p99_ns - base_ns))
