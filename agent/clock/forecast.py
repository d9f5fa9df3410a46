"""Predictions per horizon: experts, mixed by their own out-of-sample error, with calibrated bounds.

The arithmetic is `agent/ffi/clockcore.c`; here are its names and its shapes. Offsets are floats in ns since the base
that `Track` keeps, times seconds since its start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from agent.clock.kalman import DriftBank
from agent.clock.lstm import Lstm
from agent.ffi import _native

_ffi, _lib = _native.ffi, _native.lib

IntArray = npt.NDArray[np.int64]

HORIZONS_S = (0.001, 0.01, 0.1, 1.0, 10.0, 60.0)
EXPERTS = ("hold", "alr", "kalman2", "kalman3", "rls", "lstm")
"""hold: the last offset, moved on at the mean rate of up to 4096 s. alr: a line over 4 to 64 points, as many as predict
best (linuxptp's linreg servo). kalman2, kalman3: the bank's members with two and three states. rls: an
autoregression of the increments. lstm: a recurrent correction of the bank's forecast."""
STANDARD_EXPERTS = tuple(e for e in EXPERTS if e != "lstm")
"""Those that take part unless others are named: docs/lstm.md tells why lstm doesn't."""

MAX_OFFSET_NS = (1 << 62) - 1
"""Clocks that count ns from 1970 are no further apart until 2116; differences of such offsets fit int64."""


class Recurrent(Protocol):
    """A learned expert: what the bank made of each sample in, corrections of its forecast out."""

    def start(self) -> None:
        """Begin anew."""
        ...

    def observe(
        self, time_s: float, innovation_ns: float, sigma_ns: float, weight: float, jump: bool
    ) -> None:
        """Take one sample: its difference from the bank's forecast, that one's sigma (sqrt(S)), its weight.

        `jump` flags a sample at which the clock was re-anchored; its innovation is 0.
        """
        ...

    def features(self) -> npt.NDArray[np.float64]:
        """Return what the readout that adapts online reads, float64[`lstm.FEATURES`]."""
        ...

    def predict(self, horizons_s: tuple[float, ...]) -> npt.NDArray[np.float64]:
        """Return the correction by the readout as trained, in sigmas of the bank's forecast, float64[H]."""
        ...

    def save(self) -> Any:
        """Return a copy of what it knows."""
        ...

    def restore(self, state: Any) -> None:
        """Return to a saved state."""
        ...


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is expected at each of H horizons, by the mixture and by each of E experts.

    `offset_ns` is int64[H], within MAX_OFFSET_NS; `sigma_ns` float64[H], calibrated by the errors seen; `p99_ns`
    float64[H], which 99 % of errors stay below, what no averaging can tell (the asymmetry of reads) aside.
    `expert_offset_ns` is int64[H, E], 0 where `weights`, float64[H, E] with rows that add up to 1, is 0 because the
    expert can't tell yet.
    """

    offset_ns: npt.NDArray[np.int64]
    sigma_ns: npt.NDArray[np.float64]
    p99_ns: npt.NDArray[np.float64]
    expert_offset_ns: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float64]

    def moved(self, by_ns: int, unsure_ns: int) -> Forecast:
        """Return the forecast from another offset, with a bound that is wider by `unsure_ns`."""
        by_ns = max(-MAX_OFFSET_NS, min(by_ns, MAX_OFFSET_NS))
        return Forecast(
            _possible(self.offset_ns + by_ns),
            self.sigma_ns,
            self.p99_ns + unsure_ns,
            np.where(self.weights > 0.0, _possible(self.expert_offset_ns + by_ns), 0),
            self.weights,
        )


def _possible(offset_ns: IntArray) -> IntArray:
    return np.minimum(np.maximum(offset_ns, -MAX_OFFSET_NS), MAX_OFFSET_NS)


def _offsets(relative_ns: npt.NDArray[np.float64], base_ns: IntArray) -> IntArray:
    """The offsets that are `relative_ns` above a base; a rate that nothing has doesn't lead beyond int64."""
    near = np.minimum(np.maximum(relative_ns, -float(MAX_OFFSET_NS)), float(MAX_OFFSET_NS))
    return _possible(np.rint(near).astype(np.int64) + base_ns)


class Mixture:
    """The experts besides the bank, and the mixture of all per horizon.

    `experts` is a choice of EXPERTS; `recurrent` is who is heard as "lstm" in place of the agent's own. Raises
    ValueError for other names, too many horizons, or none, and UnsupportedError if the LSTM's weights are damaged.
    """

    def __init__(
        self,
        horizons_s: tuple[float, ...] = HORIZONS_S,
        experts: tuple[str, ...] = STANDARD_EXPERTS,
        recurrent: Recurrent | None = None,
    ) -> None:
        unknown = set(experts) - set(EXPERTS)
        if unknown:
            raise ValueError(f"no such expert: {', '.join(sorted(unknown))}; there are {', '.join(EXPERTS)}")
        if not {"kalman2", "kalman3"} & set(experts):
            raise ValueError("kalman2 or kalman3 has to be among the experts: the others start later")
        if not 0 < len(horizons_s) <= _lib.AGENT_HORIZONS or min(horizons_s) <= 0.0:
            raise ValueError(f"between 1 and {_lib.AGENT_HORIZONS} horizons above 0 s, not {horizons_s}")
        if list(horizons_s) != sorted(set(horizons_s)):
            raise ValueError(f"horizons ascend: {horizons_s}")
        self.horizons_s = horizons_s
        self._recurrent = (recurrent or Lstm()) if "lstm" in experts else None
        self.experts = tuple(e for e in EXPERTS if e in experts)
        taking_part = [EXPERTS.index(e) for e in self.experts]
        # Columns of `agent_forecast`: the mixture's offset and each expert's; each one's weight.
        self._told = [0, *(3 + e for e in taking_part)]
        self._weights = [3 + len(EXPERTS) + e for e in taking_part]
        self._tracks = _ffi.new("struct agent_tracks *")
        self._mixture = _ffi.new("struct agent_mixture *")
        self._mixture.n_horizons = len(horizons_s)
        for i, span in enumerate(horizons_s):
            self._mixture.horizons[i].span_s = span
        for e in taking_part:
            self._mixture.enabled[e] = 1
        self._readout = _ffi.NULL
        if self._recurrent is not None:
            self._readout = _ffi.new("struct agent_readout *")
            self._feature = np.frombuffer(_ffi.buffer(self._readout.feature), dtype=np.float64)
            self._expected = np.frombuffer(_ffi.buffer(self._readout.expected), dtype=np.float64)
        self._out = _ffi.new("struct agent_forecast[]", len(horizons_s))
        self._table = np.frombuffer(_ffi.buffer(self._out), dtype=np.float64).reshape(len(horizons_s), -1)
        self.start()

    def start(self) -> None:
        """Begin anew: nothing is known."""
        _lib.agent_tracks_start(self._tracks)
        _lib.agent_mixture_start(self._mixture)
        if self._recurrent is not None:
            _lib.agent_readout_start(self._readout)
            self._recurrent.start()

    def observe(
        self, time_s: float, innovation_ns: float, sigma_ns: float, weight: float, jump: bool
    ) -> None:
        """Let the recurrent expert, if there is one, see what the bank made of a sample (see `Recurrent`)."""
        if self._recurrent is not None:
            self._recurrent.observe(time_s, innovation_ns, sigma_ns, weight, jump)
            self._read()

    def _read(self) -> None:
        assert self._recurrent is not None
        self._feature[:] = self._recurrent.features()
        self._expected[: len(self.horizons_s)] = self._recurrent.predict(self.horizons_s)

    def learn(self, bank: DriftBank, offset_ns: float) -> None:
        """Learn from an accepted sample that the bank has taken: experts, and what to score later."""
        _lib.agent_tracks_add(self._tracks, bank.time_s, offset_ns)
        _lib.agent_mixture_keep(self._mixture, bank.native, self._tracks, self._readout)

    def score(self, time_s: float, offset_ns: float, var: float) -> None:
        """Score what is due by an accepted sample of variance `var`."""
        _lib.agent_mixture_score(
            self._mixture, time_s, offset_ns, var, self._tracks.interval_s, self._readout
        )

    def forecast(self, bank: DriftBank, time_s: float, base_ns: npt.NDArray[np.int64]) -> Forecast:
        """Return what is expected after `time_s`, at or after the bank's; offsets on top of `base_ns`, int64[H]."""
        _lib.agent_mixture_forecast(
            self._mixture, bank.native, self._tracks, time_s, self._readout, self._out
        )
        table = self._table
        told, weights = table[:, self._told], table[:, self._weights]
        told[np.isnan(told)] = 0.0
        whole = _offsets(told, base_ns[:, None])
        sigma, p99 = table[:, 1:3].T.copy()
        return Forecast(whole[:, 0], sigma, p99, np.where(weights > 0.0, whole[:, 1:], 0), weights)

    def shift(self, by_ns: float) -> None:
        """Move what is known and what is pending: the caller changes its base."""
        _lib.agent_tracks_shift(self._tracks, by_ns)
        _lib.agent_mixture_shift(self._mixture, by_ns)

    def release_drift(self) -> None:
        """Forget the rates and what was predicted by them: the frequency is another."""
        _lib.agent_tracks_forget(self._tracks, 1)
        _lib.agent_mixture_drop(self._mixture, float("-inf"))

    def save(self) -> Any:
        """Return a copy of what the experts know."""
        recurrent = self._recurrent
        return _ffi.new("struct agent_tracks *", self._tracks[0]), recurrent and recurrent.save()

    def restore(self, state: Any, time_s: float, by_ns: float) -> None:
        """Return to a saved state of `time_s`, with a base `by_ns` below; what was predicted since is dropped."""
        tracks, recurrent = state
        self._tracks[0] = tracks[0]
        if self._recurrent is not None:
            self._recurrent.restore(recurrent)
            self._read()
        _lib.agent_mixture_drop(self._mixture, time_s)
        _lib.agent_mixture_shift(self._mixture, by_ns)
