"""`make train`: draw clocks, run them through the bank, train the LSTM on what the bank left, write its weights."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence

from agent.clock.forecast import HORIZONS_S
from agent.clock.lstm import Weights
from tools.training.lessons import Lesson, lesson
from tools.training.network import skill, train
from tools.training.traces import TRAINING_SEEDS, VALIDATION_SEEDS, trace
from tools.training.ways import WAYS, file_of

EPOCHS = 30
SEED = 20_261_203


def main() -> int:
    """Train the agent's LSTM, and with --all-ways those that it is compared with."""
    parser = argparse.ArgumentParser(prog="python -m tools.training", description=__doc__)
    parser.add_argument(
        "--all-ways", action="store_true", help="also without jump flag and down-weighting, for the ablation"
    )
    all_ways: bool = parser.parse_args().all_ways
    start = time.monotonic()

    def say(text: str) -> None:
        print(f"train: {time.monotonic() - start:4.0f} s: {text}", file=sys.stderr, flush=True)

    lessons = _lessons("training", TRAINING_SEEDS, say)
    validation = _lessons("validation", VALIDATION_SEEDS, say)
    for number, way in enumerate(WAYS if all_ways else WAYS[:1]):
        weights = train(lessons, validation, way, EPOCHS, SEED, say)
        say(f"{way.name}: foreseen of the bank's squared error: {_foreseen(weights, validation)}")
        file_of(number).write_bytes(weights.pack())
        say(f"written: {file_of(number)}, {file_of(number).stat().st_size} bytes")
    return 0


def _lessons(what: str, seeds: Sequence[int], say: Callable[[str], None]) -> list[Lesson]:
    out = []
    for done, seed in enumerate(seeds, 1):
        out.append(lesson(trace(seed)))
        if done % 8 == 0 or done == len(seeds):
            say(f"{what} traces: {done} of {len(seeds)}")
    return out


def _foreseen(weights: Weights, validation: Sequence[Lesson]) -> str:
    shares = skill(weights, validation)
    return ", ".join(f"{share:.1%} at {h:g} s" for h, share in zip(HORIZONS_S, shares, strict=True))


if __name__ == "__main__":
    sys.exit(main())
