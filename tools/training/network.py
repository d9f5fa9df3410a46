"""The network in PyTorch, and how it is trained. Deterministic: one thread, seeds given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from agent.clock.lstm import HIDDEN, INPUTS, KNOT_STEPS, Weights
from tools.bench.clock.oscillator import Floats
from tools.training.lessons import Lesson
from tools.training.ways import Way

_WINDOW = 400
_BURN_IN = 40
"""Samples at a window's begin that aren't in the loss: there the network knows nothing of the clock yet."""
_BATCH = 64
_RATE = 4e-3
_DECAY = 1e-4
_HUBER = 1.5
_CLIP_NORM = 1.0
_DISTURBED_WEIGHT = 0.05
_JUMP = INPUTS.index("jump")


class Network(nn.Module):  # type: ignore[misc]
    """torch.nn.LSTM and a linear readout of each knot."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(len(INPUTS), HIDDEN, batch_first=True)
        self.readout = nn.Linear(HIDDEN, len(KNOT_STEPS))
        # It begins as the bank: no correction. And it begins by remembering (Jozefowicz et al. 2015).
        nn.init.zeros_(self.readout.weight)
        nn.init.zeros_(self.readout.bias)
        with torch.no_grad():
            self.lstm.bias_ih_l0[HIDDEN : 2 * HIDDEN] += 1.0

    def forward(self, inputs: Tensor, parts: Tensor) -> Tensor:
        """Corrections [batch, T, H] of inputs [batch, T, INPUTS] at horizons of parts [batch, T, H, knots]."""
        hidden, _ = self.lstm(inputs)
        return torch.einsum("bthk,btk->bth", parts, self.readout(hidden))

    def weights(self) -> Weights:
        """The figures as the agent's inference takes them."""
        lstm = self.lstm
        figures = {
            "cell": torch.cat((lstm.weight_ih_l0, lstm.weight_hh_l0), dim=1),
            "bias": lstm.bias_ih_l0 + lstm.bias_hh_l0,
            "readout": torch.cat((self.readout.weight, self.readout.bias[:, None]), dim=1),
        }
        return Weights(**{name: figure.detach().double().numpy() for name, figure in figures.items()})


@dataclass(frozen=True, slots=True)
class _Windows:
    inputs: Tensor
    targets: Tensor
    parts: Tensor
    importance: Tensor


def train(
    lessons: Sequence[Lesson],
    validation: Sequence[Lesson],
    way: Way,
    epochs: int,
    seed: int,
    say: Callable[[str], None],
) -> Weights:
    """Train one network; return the figures of the epoch that was best on the validation traces."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    random = np.random.default_rng(seed)
    network = Network()
    optimiser = torch.optim.AdamW(network.parameters(), lr=_RATE, weight_decay=_DECAY)
    windows, held_out = _windows(lessons, way), _windows(validation, way)
    steps = epochs * -(-len(windows.inputs) // _BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, _RATE, total_steps=steps)
    best, kept = float("inf"), network.weights()
    for epoch in range(1, epochs + 1):
        order = random.permutation(len(windows.inputs))
        for first in range(0, len(order), _BATCH):
            _step(network, optimiser, windows, order[first : first + _BATCH], random)
            schedule.step()
        with torch.no_grad():
            loss = float(_loss(network, held_out, slice(None), None))
        if loss < best:
            best, kept = loss, network.weights()
        if epoch % 5 == 0 or epoch == epochs:
            say(f"{way.name}: epoch {epoch} of {epochs}, validation loss {loss:.4f}, best {best:.4f}")
    if not way.flagged:
        kept.cell[:, _JUMP] = 0.0
    return kept


def network_of(weights: Weights) -> Network:
    """Return the network of some figures, in double precision."""
    network: Network = Network().double()
    inputs = len(INPUTS)
    with torch.no_grad():
        network.lstm.weight_ih_l0.copy_(torch.from_numpy(weights.cell[:, :inputs]))
        network.lstm.weight_hh_l0.copy_(torch.from_numpy(weights.cell[:, inputs:]))
        network.lstm.bias_ih_l0.copy_(torch.from_numpy(weights.bias))
        network.lstm.bias_hh_l0.zero_()
        network.readout.weight.copy_(torch.from_numpy(weights.readout[:, :-1]))
        network.readout.bias.copy_(torch.from_numpy(weights.readout[:, -1]))
    return network


def skill(weights: Weights, lessons: Sequence[Lesson]) -> Floats:
    """1 - (mean square with correction) / (without) at each horizon, over what no jump disturbs; float64[H]."""
    network = network_of(weights)
    with_it, without = np.zeros((2, lessons[0].targets.shape[1]))
    for lesson in lessons:
        with torch.no_grad():
            said = network(torch.from_numpy(lesson.inputs)[None], torch.from_numpy(lesson.parts)[None])[
                0
            ].numpy()
        target = np.where(lesson.disturbed, np.nan, lesson.targets)
        with_it += np.nansum((target - said) ** 2, axis=0)
        without += np.nansum(target**2, axis=0)
    return 1.0 - with_it / without


def _windows(lessons: Sequence[Lesson], way: Way) -> _Windows:
    parts: dict[str, list[Floats]] = {"inputs": [], "targets": [], "parts": [], "importance": []}
    for lesson in lessons:
        inputs = lesson.inputs.copy()
        if not way.flagged:
            inputs[:, _JUMP] = 0.0
        importance = np.where(np.isfinite(lesson.targets), 1.0, 0.0)
        if way.down_weighted:
            importance[lesson.disturbed] *= _DISTURBED_WEIGHT
        for first in range(0, len(inputs) - _WINDOW + 1, _WINDOW - _BURN_IN):
            span = slice(first, first + _WINDOW)
            parts["inputs"].append(inputs[span])
            parts["targets"].append(np.nan_to_num(lesson.targets[span]))
            parts["parts"].append(lesson.parts[span])
            parts["importance"].append(importance[span])
    return _Windows(
        **{name: torch.from_numpy(np.array(list_, dtype=np.float32)) for name, list_ in parts.items()}
    )


def _step(
    network: Network,
    optimiser: torch.optim.Optimizer,
    windows: _Windows,
    chosen: npt.NDArray[np.int64],
    random: np.random.Generator,
) -> None:
    # Nothing tells local from hardware clock: of each window the mirror image is as likely.
    signs = torch.from_numpy(random.choice([-1.0, 1.0], len(chosen)).astype(np.float32))
    optimiser.zero_grad()
    loss = _loss(network, windows, torch.from_numpy(chosen), signs)
    loss.backward()
    nn.utils.clip_grad_norm_(network.parameters(), _CLIP_NORM)
    optimiser.step()


def _loss(network: Network, windows: _Windows, chosen: Tensor | slice, signs: Tensor | None) -> Tensor:
    inputs, targets = windows.inputs[chosen], windows.targets[chosen]
    if signs is not None:
        inputs = torch.cat((inputs[..., :1] * signs[:, None, None], inputs[..., 1:]), dim=2)
        targets = targets * signs[:, None, None]
    said = network(inputs, windows.parts[chosen])
    losses = nn.functional.huber_loss(said, targets, reduction="none", delta=_HUBER)
    importance = windows.importance[chosen][:, _BURN_IN:]
    return (losses[:, _BURN_IN:] * importance).sum() / importance.sum()
