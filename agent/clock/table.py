"""The clocks that an interface's packets show, no more of them than the kernel has room for models."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from agent.clock.clock import Clock
from agent.ffi.records import CLOCK_KEY_PHC, MODELS_MAX

# As long as the kernel keeps the slot of a clock that is not seen any more (IDLE_NS in bpf/window.h).
_IDLE_NS = 10_000_000_000


class ClockTable:
    """Clocks by their key, each made when its first packet comes.

    Anybody may send trailers of ever new clocks. Where there is no room, a clock that was not seen for 10 s gives way
    to a new one, the one unseen longest first; the interface's own PHC never does.
    """

    def __init__(self, base_delay_ns: int | None, forget: Callable[[int], None]) -> None:
        """`base_delay_ns` is given to each new clock; `forget` is called with the key of one that gives way."""
        self._forget = forget
        self.base_delay_ns = base_delay_ns
        # In the order in which they were seen last.
        self._clocks: dict[int, Clock] = {}
        self._seen_mono_ns: dict[int, int] = {}

    def seen(self, key: int, mono_ns: int) -> Clock | None:
        """The clock of a key that was seen now; None where there is no room for it."""
        clock = self._clocks.pop(key, None)
        if clock is None:
            if not self._has_room(mono_ns):
                return None
            clock = Clock(key, "phc" if key == CLOCK_KEY_PHC else "trailer", self.base_delay_ns)
        self._clocks[key] = clock
        self._seen_mono_ns[key] = mono_ns
        return clock

    def __iter__(self) -> Iterator[Clock]:
        """All of them."""
        return iter(self._clocks.values())

    def _has_room(self, mono_ns: int) -> bool:
        if len(self._clocks) < MODELS_MAX:
            return True
        oldest = next(key for key in self._clocks if key != CLOCK_KEY_PHC)
        if mono_ns - self._seen_mono_ns[oldest] < _IDLE_NS:
            return False
        del self._clocks[oldest], self._seen_mono_ns[oldest]
        self._forget(oldest)
        return True
