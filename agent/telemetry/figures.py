"""Figures as people read them: at most four digits and a unit."""

from __future__ import annotations

import math


def printable(text: str) -> str:
    """The text without anything that a terminal would obey: names and causes come from drivers and other programs."""
    return "".join(char if char.isprintable() else "?" for char in text)


def duration(ns: float | None) -> str:
    """`1.23 µs`, `-45 ns`, `2.5 s`; `?` for None."""
    if ns is None:
        return "?"
    for limit, unit in ((1e3, "ns"), (1e6, "µs"), (1e9, "ms")):
        if abs(ns) < limit:
            return f"{_digits(ns / (limit / 1e3))} {unit}"
    return f"{_digits(ns / 1e9)} s"


def ppb(value: float | None) -> str:
    """`+12.03 ppm`, `-45 ppb`; `?` for None."""
    if value is None:
        return "?"
    if abs(value) >= 1e4:
        return f"{value / 1e3:+.2f} ppm"
    return f"{value:+.0f} ppb"


def exact(ns: int) -> str:
    """Every digit, however large: offsets between clocks of different epochs are decades."""
    if abs(ns) < 10**9:
        return f"{ns} ns"
    return f"{'-' if ns < 0 else ''}{abs(ns) // 10**9}.{abs(ns) % 10**9:09} s"


def count(value: float, unit: str = "") -> str:
    """`950`, `12.3 k`, `4.56 M` for counts and rates; with a unit `4.56 Mbit/s`."""
    scales = ((1.0, ""), (1e3, "k"), (1e6, "M"))
    scale, prefix = next((step for step in scales if abs(value) < 1000 * step[0]), (1e9, "G"))
    return f"{_digits(value / scale)} {prefix}{unit}".rstrip()


def size(value: float) -> str:
    """`12.3 KiB`."""
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < 1024:
            return f"{_digits(value)} {unit}"
        value /= 1024
    return f"{_digits(value)} GiB"


def _digits(value: float) -> str:
    if not math.isfinite(value):  # a stream of another encoder may hold such
        return "?"
    if value == int(value) and abs(value) < 1000:
        return str(int(value))
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
