"""The ways to train the LSTM that are compared; the first is how the agent's own is trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
WEIGHTS = _ROOT / "agent" / "clock" / "lstm.npz"
"""What the agent comes with."""


@dataclass(frozen=True, slots=True)
class Way:
    """Whether the network sees which samples jumped, and whether the loss makes little of them."""

    flagged: bool = True
    down_weighted: bool = True

    @property
    def name(self) -> str:
        """For a table."""
        flag = "the flag" if self.flagged else "no flag"
        return f"{flag}, {'down-weighting' if self.down_weighted else 'no down-weighting'}"


WAYS = (Way(), Way(flagged=False), Way(down_weighted=False), Way(flagged=False, down_weighted=False))


def file_of(number: int) -> Path:
    """Where the figures of WAYS[number] are: the first's are the agent's own, the others' belong to the build."""
    return WEIGHTS if number == 0 else _ROOT / "build" / f"lstm-way-{number}.npz"
