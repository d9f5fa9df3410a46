"""The learned expert: a small LSTM over what the bank made of each sample; it corrects the bank's forecast.

It is trained offline (`tools/training`), here is its inference. All that it sees and says is free of scale: innovations
in sigmas of the bank, sigma and interval over their own recent means, corrections in sigmas of the bank's forecast,
horizons in numbers of samples. So it is the same for any oscillator at any rate.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import log
from typing import Any

import numpy as np
import numpy.typing as npt

from agent.errors import UnsupportedError
from agent.ffi import _native

Floats = npt.NDArray[np.float64]

VERSION = 1
FEATURES: int = _native.lib.AGENT_FEATURES
HIDDEN = FEATURES - 1
INPUTS = ("innovation", "log_sigma", "log_interval", "weight", "jump")
KNOT_STEPS = (1.0, 10.0, 100.0, 1000.0)
"""The trained readout is for these numbers of samples ahead, decades, and linear in the logarithm between them."""
_INNOVATION_SIGMAS = 6.0
_LOG_LIMIT = 3.0
_SMOOTHING_SAMPLES = 100.0
_REMEDY = "install the agent again, or train it anew by `make train`"
# What NumPy and zipfile raise for bytes that aren't, or aren't quite, what they wrote.
_UNREADABLE = (ValueError, OSError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error)
_SHAPES = {
    "cell": (4 * HIDDEN, len(INPUTS) + HIDDEN),
    "bias": (4 * HIDDEN,),
    "readout": (len(KNOT_STEPS), FEATURES),
}


@dataclass(frozen=True, slots=True)
class Weights:
    """The trained figures, all float64.

    `cell` is [4 x HIDDEN, inputs + HIDDEN], its rows the gates in PyTorch's order: input, forget, cell, output;
    `bias` is [4 x HIDDEN]; `readout` is [knots, FEATURES], of the hidden state and a constant 1.
    """

    cell: Floats
    bias: Floats
    readout: Floats

    def digest(self) -> str:
        """Return the SHA-256 of the figures."""
        content = b"".join(np.ascontiguousarray(getattr(self, name), "<f8").tobytes() for name in _SHAPES)
        return hashlib.sha256(content).hexdigest()

    def pack(self) -> bytes:
        """Return the content of the file that `unpack` takes: single precision, with version and digest."""
        single = {name: getattr(self, name).astype(np.float32) for name in _SHAPES}
        kept = Weights(**{name: array.astype(np.float64) for name, array in single.items()})
        out = io.BytesIO()
        np.savez_compressed(out, version=np.array(VERSION), digest=np.array(kept.digest()), **dict(single))
        return out.getvalue()


def unpack(content: bytes, name: str) -> Weights:
    """Return the weights in a file's `content`. Raises UnsupportedError if it is damaged or of another version."""
    try:
        # The checksums first: NumPy's parser of headers was not made for damaged ones.
        with zipfile.ZipFile(io.BytesIO(content)) as archive_file:
            broken = archive_file.testzip()
        if broken is not None:
            raise zipfile.BadZipFile(f"{broken} has another checksum than it tells")
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    except _UNREADABLE as error:
        raise _damaged(name, f"is no archive of weights ({error})") from error
    if str(arrays.get("version")) != str(VERSION):
        raise _damaged(name, f"is of version {arrays.get('version')}, not {VERSION}")
    for key, shape in _SHAPES.items():
        array = arrays.get(key)
        if array is None or array.dtype != np.float32 or array.shape != shape:
            raise _damaged(name, f"has no float32 table {key!r} of shape {shape}")
    weights = Weights(**{key: arrays[key].astype(np.float64) for key in _SHAPES})
    if str(arrays.get("digest")) != weights.digest():
        raise _damaged(name, "doesn't have the digest that it tells")
    return weights


def _damaged(name: str, what: str) -> UnsupportedError:
    return UnsupportedError(f"the LSTM's weights: {name} {what}", _REMEDY)


@cache
def trained_weights() -> Weights:
    """Return the weights that the agent comes with, read once. Raises UnsupportedError if they are damaged."""
    file = files("agent.clock").joinpath("lstm.npz")
    try:
        content = file.read_bytes()
    except OSError as error:
        raise _damaged(file.name, f"can't be read ({error.strerror})") from error
    return unpack(content, file.name)


def knot_parts(steps: Floats) -> Floats:
    """Return how much each of KNOT_STEPS counts for horizons of so many samples, float64[..., knots], sums 1."""
    decades = np.log10(np.clip(steps, KNOT_STEPS[0], KNOT_STEPS[-1]))
    parts: Floats = np.maximum(1.0 - np.abs(decades[..., None] - np.log10(KNOT_STEPS)), 0.0)
    return parts


def _clip(value: float, limit: float) -> float:
    return max(-limit, min(limit, value))


class Inputs:
    """What the network sees of a sample: float64[INPUTS], free of scale."""

    def __init__(self) -> None:
        self._time_s: float | None = None
        self._log_sigma: float | None = None
        self.interval_s = 0.0
        """The mean interval of late; 0 before the second sample."""

    def take(
        self, time_s: float, innovation_ns: float, sigma_ns: float, weight: float, jump: bool
    ) -> tuple[float, float, float, float, float]:
        """Return them in the order of INPUTS."""
        log_interval = 0.0
        if self._time_s is not None and time_s > self._time_s:
            interval = time_s - self._time_s
            if not self.interval_s:
                self.interval_s = interval
            log_interval = _clip(log(interval / self.interval_s), _LOG_LIMIT)
            self.interval_s *= 1.0 + log_interval / _SMOOTHING_SAMPLES
        self._time_s = time_s
        if jump:
            # The bank has just forgotten the offset: sigma says nothing of the samples.
            return 0.0, 0.0, log_interval, weight, 1.0
        log_sigma = log(sigma_ns)
        if self._log_sigma is None:
            self._log_sigma = log_sigma
        above = _clip(log_sigma - self._log_sigma, _LOG_LIMIT)
        self._log_sigma += above / _SMOOTHING_SAMPLES
        return _clip(innovation_ns / sigma_ns, _INNOVATION_SIGMAS), above, log_interval, weight, 0.0

    def save(self) -> tuple[float | None, float | None, float]:
        """Return what `restore` needs."""
        return self._time_s, self._log_sigma, self.interval_s

    def restore(self, state: tuple[float | None, float | None, float]) -> None:
        """Return to a saved state."""
        self._time_s, self._log_sigma, self.interval_s = state


class Lstm:
    """The network in NumPy, one sample at a time; a `Recurrent` of the mixture.

    The cell is Hochreiter and Schmidhuber's (1997) with forget gates (Gers et al. 2000), as in torch.nn.LSTM.
    """

    def __init__(self, weights: Weights | None = None) -> None:
        """`weights` are those that the agent comes with if None. Raises UnsupportedError if these are damaged."""
        weights = trained_weights() if weights is None else weights
        # sigmoid(x) = (1 + tanh(x / 2)) / 2: with the gates' rows halved one tanh serves all four.
        halves = np.full((4 * HIDDEN, 1), 0.5)
        halves[2 * HIDDEN : 3 * HIDDEN] = 1.0
        self._cell = np.ascontiguousarray(np.column_stack((weights.cell, weights.bias)) * halves)
        self._readout = weights.readout
        self._gates = np.empty(4 * HIDDEN)
        # What the cell sees: the inputs, the hidden state, a constant 1; the latter two are the features.
        self._seen = np.empty(len(INPUTS) + FEATURES)
        self._features = self._seen[len(INPUTS) :]
        self._hidden = self._features[:HIDDEN]
        self._memory = np.empty(HIDDEN)
        self.start()

    def start(self) -> None:
        """Begin anew."""
        self._inputs = Inputs()
        self._seen[:] = 0.0
        self._seen[-1] = 1.0
        self._memory[:] = 0.0
        self._trained = np.zeros((0, FEATURES))
        self._trained_for: tuple[tuple[float, ...], float] = ((), 0.0)

    def observe(
        self, time_s: float, innovation_ns: float, sigma_ns: float, weight: float, jump: bool
    ) -> None:
        """Take one sample (see `Recurrent`)."""
        self._seen[: len(INPUTS)] = self._inputs.take(time_s, innovation_ns, sigma_ns, weight, jump)
        self.step()

    def step(self) -> None:
        """Take the step that the inputs say."""
        gates = self._gates
        np.dot(self._cell, self._seen, out=gates)
        np.tanh(gates, out=gates)
        new = gates[2 * HIDDEN : 3 * HIDDEN]
        let_in, keep, show = gates[:HIDDEN], gates[HIDDEN : 2 * HIDDEN], gates[3 * HIDDEN :]
        memory = self._memory
        memory *= 1.0 + keep
        memory += (1.0 + let_in) * new
        memory *= 0.5
        np.multiply(np.tanh(memory), show + 1.0, out=self._hidden)
        self._hidden *= 0.5

    def features(self) -> Floats:
        """Return the hidden state and a 1, float64[FEATURES]; a view of what the next sample changes."""
        return self._features

    def predict(self, horizons_s: tuple[float, ...]) -> Floats:
        """Return the trained readout's corrections, in sigmas of the bank's forecast, float64[H]."""
        interval = self._inputs.interval_s
        if not interval:
            return np.zeros(len(horizons_s))
        known, known_interval = self._trained_for
        # A tenth of an interval is a twentieth of a knot.
        if known != horizons_s or abs(interval - known_interval) > 0.1 * known_interval:
            self._trained = knot_parts(np.array(horizons_s) / interval) @ self._readout
            self._trained_for = horizons_s, interval
        corrections: Floats = self._trained @ self._features
        return corrections

    def save(self) -> Any:
        """Return a copy of what it knows."""
        return self._inputs.save(), self._hidden.copy(), self._memory.copy()

    def restore(self, state: Any) -> None:
        """Return to a saved state."""
        inputs, self._hidden[:], self._memory[:] = state
        self._inputs.restore(inputs)
