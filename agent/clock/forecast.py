"""Predictions per horizon: experts, mixed by their own out-of-sample error, with calibrated bounds.

The arithmetic is `agent/ffi/clockcore.c`; here are its names and its shapes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from agent.clock.lstm import Lstm
from agent.ffi import _native

_ffi, _lib = _native.ffi, _native.lib

IntArray = npt.NDArray[np.int64]

HORIZONS_S = (0.001, 0.01, 0.1, 1.0, 10.0, 60.0)
EXPERTS = ("hold", "alr", "kalman2", "kalman3", "rls", "lstm")
"""hold: the last offset, moved on at the mean rate of up to 4096 s. alr: a line over 4 to 64 points, as many as predict
best (linuxptp's linreg servo). kalman2, kalman3: the bank's members with two and three states. rls: an
autoregression of the increments, and a regression of what is gained by the horizon on how far the clock is above its
means: a disciplined one returns. lstm: a recurrent correction of the bank's forecast."""
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
        # Columns of an `agent_forecast`, and of the whole offsets, that belong to those.
        self._weights = [3 + len(EXPERTS) + e for e in taking_part]
        self._offsets = [1 + e for e in taking_part]
        self.tracks = _ffi.new("struct agent_tracks *")
        self.native = _ffi.new("struct agent_mixture *")
        self.native.n_horizons = len(horizons_s)
        for i, span in enumerate(horizons_s):
            self.native.horizons[i].span_s = span
        for e in taking_part:
            self.native.enabled[e] = 1
        self.readout = _ffi.NULL
        if self._recurrent is not None:
            self.readout = _ffi.new("struct agent_readout *")
            self._feature = np.frombuffer(_ffi.buffer(self.readout.feature), dtype=np.float64)
            self._expected = np.frombuffer(_ffi.buffer(self.readout.expected), dtype=np.float64)
        self.out = _ffi.new("struct agent_forecast[]", len(horizons_s))
        self.out_ns = _ffi.new("int64_t[]", len(horizons_s) * (1 + len(EXPERTS)))
        self._table = np.frombuffer(_ffi.buffer(self.out), dtype=np.float64).reshape(len(horizons_s), -1)
        self._whole = np.frombuffer(_ffi.buffer(self.out_ns), dtype=np.int64).reshape(len(horizons_s), -1)

    @property
    def is_recurrent(self) -> bool:
        """Whether the recurrent expert takes part, which wants to see each sample."""
        return self._recurrent is not None

    def start(self) -> None:
        """Let the recurrent expert, if there is one, begin anew."""
        if self._recurrent is not None:
            self._recurrent.start()

    def observe(
        self, time_s: float, innovation_ns: float, sigma_ns: float, weight: float, jump: bool
    ) -> None:
        """Let the recurrent expert see what the bank made of a sample (see `Recurrent`)."""
        assert self._recurrent is not None
        self._recurrent.observe(time_s, innovation_ns, sigma_ns, weight, jump)
        self._read()

    def _read(self) -> None:
        assert self._recurrent is not None
        self._feature[:] = self._recurrent.features()
        self._expected[: len(self.horizons_s)] = self._recurrent.predict(self.horizons_s)

    def told(self) -> Forecast:
        """Return what the core has written to `out` and `out_ns`."""
        sigma, p99 = self._table[:, 1:3].T.copy()
        return Forecast(
            self._whole[:, 0].copy(),
            sigma,
            p99,
            self._whole[:, self._offsets],
            self._table[:, self._weights],
        )

    def save(self) -> Any:
        """Return a copy of what the recurrent expert knows, None if there is none."""
        return self._recurrent and self._recurrent.save()

    def restore(self, state: Any) -> None:
        """Return the recurrent expert, if there is one, to a saved state."""
        if self._recurrent is not None:
            self._recurrent.restore(state)
            self._read()
