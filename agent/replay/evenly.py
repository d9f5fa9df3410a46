"""Moments that are nearly evenly spaced, onto a grid: what TDEV and MTIE take for granted."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from agent.replay.octaves import FloatArray, OctaveStability

# The spacing is the median of so many intervals at the beginning.
_LEARN = 64
# A longer hole than this many spacings isn't bridged.
_MAX_GAP = 4


class EvenStability:
    """TDEV and MTIE of C columns whose moments jitter: linear interpolation onto a grid of their median spacing.

    Across holes of more than four spacings, and where the series is said to be interrupted, nothing is interpolated
    and no term is formed.
    """

    def __init__(self, columns: int) -> None:
        self._octaves = OctaveStability(columns)
        self._waiting: list[tuple[npt.NDArray[np.int64], FloatArray, npt.NDArray[np.int64]]] = []
        self._waiting_rows = 0
        self._spacing_ns = 0
        self._next_ns: int | None = None
        self._last: tuple[int, FloatArray, int] | None = None

    def feed(self, local_ns: npt.NDArray[np.int64], rows: FloatArray, piece: npt.NDArray[np.int64]) -> None:
        """Take moments int64[n], ascending, and their rows float64[n, C]; a change of `piece`, int64[n], interrupts."""
        if len(local_ns) == 0:
            return
        if not self._spacing_ns:
            self._waiting.append((local_ns, rows, piece))
            self._waiting_rows += len(local_ns)
            if self._waiting_rows <= _LEARN:
                return
            self._learn()
            return
        self._onto_grid(local_ns, rows, piece)

    def figures(self) -> tuple[list[tuple[float, FloatArray]], list[tuple[float, FloatArray]]]:
        """Return TDEV and MTIE, each as (tau in s, figures float64[C]) with tau ascending."""
        if not self._spacing_ns and self._waiting_rows > 1:
            self._learn()
        spacing_s = self._spacing_ns * 1e-9
        tdev = [(m * spacing_s, figure) for m, figure in self._octaves.tdev()]
        mtie = [(n * spacing_s, figure) for n, figure in self._octaves.mtie()]
        return tdev, mtie

    def _learn(self) -> None:
        local_ns, rows, piece = (np.concatenate(part) for part in zip(*self._waiting, strict=True))
        self._waiting.clear()
        self._spacing_ns = max(1, int(np.median(np.diff(local_ns[: _LEARN + 1]))))
        self._onto_grid(local_ns, rows, piece)

    def _onto_grid(
        self, local_ns: npt.NDArray[np.int64], rows: FloatArray, piece: npt.NDArray[np.int64]
    ) -> None:
        if self._last is not None:
            at, row, of = self._last
            local_ns = np.concatenate(([at], local_ns))
            rows = np.concatenate((row[None], rows))
            piece = np.concatenate(([of], piece))
        self._last = (int(local_ns[-1]), rows[-1], int(piece[-1]))
        apart = (np.diff(local_ns) > _MAX_GAP * self._spacing_ns) | (np.diff(piece) != 0)
        edges = [0, *(np.flatnonzero(apart) + 1).tolist(), len(local_ns)]
        for i, (begin, end) in enumerate(pairwise(edges)):
            if i or self._next_ns is None:
                self._octaves.interrupt()
                self._next_ns = int(local_ns[begin])
            self._piece(local_ns[begin:end], rows[begin:end])

    def _piece(self, local_ns: npt.NDArray[np.int64], rows: FloatArray) -> None:
        first, last = self._next_ns, int(local_ns[-1])
        assert first is not None
        if first > last:
            return
        grid = np.arange(first, last + 1, self._spacing_ns)
        self._next_ns = int(grid[-1]) + self._spacing_ns
        right = np.searchsorted(local_ns, grid)
        left = np.maximum(right - 1, 0)
        span = np.maximum(local_ns[right] - local_ns[left], 1)
        share = ((grid - local_ns[left]) / span)[:, None]
        at_right = (local_ns[right] == grid)[:, None]
        self._octaves.feed(np.where(at_right, rows[right], rows[left] + share * (rows[right] - rows[left])))
