"""A small picture in text: a figure over time on a logarithmic scale, with the moments that matter marked."""

from __future__ import annotations

import math
from collections.abc import Sequence

_ROWS = 6
_LABEL_WIDTH = 9
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_ASCII = " ...:::##"


def delay_picture(
    values: Sequence[float], step_s: float, marks: Sequence[tuple[float, str]], unicode: bool = True
) -> list[str]:
    """Lines that show `values` (one column each, `step_s` apart; NaN is a gap) and `marks` (time in s, text) below.

    Returns no lines if there is nothing finite and positive to show.
    """
    finite = [v for v in values if v > 0 and math.isfinite(v)]
    if not finite:
        return []
    low = math.floor(math.log10(min(finite)) * 2) / 2
    high = max(math.ceil(math.log10(max(finite)) * 2) / 2, low + 0.5)
    glyphs = _EIGHTHS if unicode else _ASCII
    levels = [_level(value, low, high) for value in values]
    lines = []
    for row in reversed(range(_ROWS)):
        label = 10 ** (low + (high - low) * (row + 1) / _ROWS)
        cells = "".join(glyphs[min(8, max(0, level - 8 * row))] for level in levels)
        lines.append(f"{_three_digits(label):>{_LABEL_WIDTH - 2}} |{cells.rstrip()}")
    lines.append(" " * (_LABEL_WIDTH - 1) + "+" + "-" * len(values))
    for time_s, text in sorted(marks):
        column = min(len(values) - 1, max(0, int(time_s / step_s)))
        lines.append(" " * (_LABEL_WIDTH + column) + f"^ {time_s:.1f} s {text}")
    return lines


def _level(value: float, low: float, high: float) -> int:
    """Height of a column in eighths of a row: at least one where there is a value."""
    if not (value > 0 and math.isfinite(value)):
        return 0
    return max(1, round((math.log10(value) - low) / (high - low) * _ROWS * 8))


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
