"""One run of the benchmark: how much of it, on how many processes, and what several figures share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from agent.errors import UnsupportedError
from tools.bench.clock import catalog, recordings
from tools.bench.clock.evaluation import Result, evaluate, evaluate_recording
from tools.bench.figure import Effort

_Item = TypeVar("_Item")
_Out = TypeVar("_Out")


@dataclass(frozen=True)
class Session:
    """Effort and number of processes; the evaluated traces, each evaluated once, when first asked for."""

    effort: Effort
    processes: int = 2

    def map(self, what: str, function: Callable[[_Item], _Out], items: Sequence[_Item]) -> list[_Out]:
        """`function` of each item, in their order, over the processes; progress is told."""
        out: list[_Out] = []
        with ProcessPoolExecutor(self.processes) as pool:
            for done, result in enumerate(pool.map(function, items), 1):
                out.append(result)
                if done == len(items) or done % max(1, len(items) // 8) == 0:
                    self.effort.say(f"{what}: {done} of {len(items)}")
        return out

    @cached_property
    def synthetic(self) -> list[Result]:
        """All synthetic traces, or the slice of --quick."""
        names = list(catalog.QUICK) if self.effort.quick else list(catalog.RECIPES)
        return self.map("synthetic traces", evaluate, names)

    @cached_property
    def recorded(self) -> list[Result]:
        """All recordings. Raises UnsupportedError if they aren't there."""
        if not recordings.DATA.exists():
            raise UnsupportedError(
                "the recordings are not beside this checkout", f"put them into {recordings.DATA}"
            )
        return self.map("recordings", evaluate_recording, list(recordings.FILES))
