"""What a discontinuity was: kinds, sizes, and the rules for two-sided samples.

A sample that does not fit is held; the next three tell what it was (the envelope's own, one-sided rules
are in `envelope.py`). False tags are worse than late ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import gt, mul
from typing import Literal

TagKind = Literal[
    "wrap",
    "bounce",
    "phase_step",
    "tai_utc",
    "freq_step",
    "stale",
    "missing",
    "epoch_unset",
    "outlier",
    "path_change",
]

# A sample is suspect beyond this many sqrt(S), S being the variance of its prediction plus its own.
GATE_SIGMAS = 6.0
# Four in a row on one side whose clipped, normalised residuals add up to this are a step below the gate:
# 5.5 sigma of the sum of four.
CUSUM_SPAN = 4
CUSUM_LIMIT = 11.0
CUSUM_CLIP = 3.0
# A held sample is judged with at most this many after it.
LOOK_AHEAD = 3

_TAI_UTC_S = (37, 74)
_WRAP_MIN_POWER = 27
_WRAP_MAX_POWER = 62
_WRAP_TOLERANCE_NS = 64
_MAX_TOLERANCE_NS = 100_000
# A line explains a growing residual when it leaves less than this part of the variance...
_LINE_UNEXPLAINED = 0.3
_LINE_TIGHT = 0.05
# ... and the growth is a frequency step, not a phase step, when the last residual is this much the first.
_GROWTH = 1.5
# So many times between two samples are tried as the beginning of a growth.
_ONSETS = 8
# Where samples from before the step show none, growth has to explain all of them better by so many nats, twice.
_GROWTH_MARGIN = 9.0
# ... and leave no more than this of each: a line that its own noise speaks against is none.
_GROWTH_MISFIT = 4.0


@dataclass(frozen=True, slots=True)
class Tag:
    """A verdict about the clock at `mono_ns`.

    `size_ns` is the step of the *hardware* clock (positive: it went forward, so mono - hw fell), 0 where the
    kind has no size; for `path_change` it is the change of the path's delay; for `freq_step` the offset the
    hardware clock gained until the verdict.
    """

    kind: TagKind
    mono_ns: int
    size_ns: int
    cause: str


def matches_wrap(size_ns: int, tolerance_ns: float) -> str:
    """Return "2^k" or "2^k+-2^m" (k >= 27) if a step of this size is a counter's wrap, else ""."""
    size = abs(size_ns)
    tolerance = int(min(max(_WRAP_TOLERANCE_NS, tolerance_ns), _MAX_TOLERANCE_NS))
    for k in range(_WRAP_MIN_POWER, _WRAP_MAX_POWER + 1):
        rest = size - (1 << k)
        if abs(rest) <= tolerance:
            return f"2^{k}"
    # Two set bits: the nearest power of two of the remainder, on both sides of the leading one.
    top = size.bit_length() - 1
    for k in (top, top + 1):
        if not _WRAP_MIN_POWER <= k <= _WRAP_MAX_POWER:
            continue
        rest = size - (1 << k)
        low = abs(rest).bit_length() - 1
        for m in (low, low + 1):
            # 2^k - 2^(k-1) is a power of two itself, and below the smallest wrap for k = 27.
            if 0 <= m < k - 1 and abs(abs(rest) - (1 << m)) <= tolerance:
                return f"2^{k}{'+' if rest > 0 else '-'}2^{m}"
    return ""


def name_step(size_ns: int, tolerance_ns: float, tai_utc_s: int) -> tuple[TagKind, str]:
    """Return (kind, cause) of a step that stayed: tai_utc, wrap or phase_step.

    `tai_utc_s` is the kernel's TAI offset, 0 when nobody has told the kernel.
    """
    tolerance = min(max(tolerance_ns, _WRAP_TOLERANCE_NS), _MAX_TOLERANCE_NS)
    for seconds in {*_TAI_UTC_S, tai_utc_s} - {0}:
        if abs(abs(size_ns) - seconds * 1_000_000_000) <= tolerance:
            return "tai_utc", f"step of {seconds} s, TAI against UTC"
    wrap = matches_wrap(size_ns, tolerance_ns)
    if wrap:
        return "wrap", f"step of {wrap} ns"
    return "phase_step", f"hardware clock stepped by {size_ns:+d} ns"


def name_bounce(size_ns: int, tolerance_ns: float) -> tuple[TagKind, str]:
    """Return (kind, cause) of a sample that stood off and was followed by one that fits: wrap or bounce."""
    wrap = matches_wrap(size_ns, tolerance_ns)
    if wrap:
        return "wrap", f"single stamp off by {wrap} ns"
    return "bounce", f"single stamp off by {size_ns:+d} ns"


Shape = Literal["step", "ramp", "step_and_ramp", "erratic"]


def shape_of(
    times_s: list[float],
    residuals_ns: list[int],
    sigmas_ns: list[float],
    *,
    slack_ns: float = 0.0,
    strict: bool = False,
) -> tuple[Shape, float]:
    """Return (shape, slope in ppb) of residuals that did not come back, known to +- `sigmas_ns` each.

    A step is constant within the noise and `slack_ns`; a ramp grows along a line from about nothing; a step and a ramp
    does from somewhere else; anything else is erratic. Where bad stamps are usual, `strict` wants the line within
    the noise too: four of them look like a line often. The residuals may be of epoch size: they are exact.
    """
    first = residuals_ns[0]
    rest = [float(r - first) for r in residuals_ns]
    limits = [GATE_SIGMAS * sigma + slack_ns for sigma in sigmas_ns]
    middle = weighted_mean(rest, sigmas_ns)
    mean_t = sum(times_s) / len(times_s)
    mean_r = sum(rest) / len(rest)
    spread_t = sum((t - mean_t) ** 2 for t in times_s)
    spread_r = sum((r - mean_r) ** 2 for r in rest)
    covered = sum((t - mean_t) * (r - mean_r) for t, r in zip(times_s, rest, strict=True))
    slope = covered / spread_t if spread_t > 0.0 else 0.0
    if all(abs(r - middle) <= limit for r, limit in zip(rest, limits, strict=True)):
        return "step", slope
    unexplained = 1.0 - covered * covered / (spread_t * spread_r) if spread_t > 0.0 else 1.0
    apart = [abs(r - mean_r - slope * (t - mean_t)) for t, r in zip(times_s, rest, strict=True)]
    if unexplained > _LINE_UNEXPLAINED or (strict and any(map(gt, apart, limits))):
        return "erratic", slope
    if abs(residuals_ns[-1]) >= _GROWTH * abs(first):
        return "ramp", slope
    return ("step_and_ramp" if unexplained < _LINE_TIGHT else "erratic"), slope


def weighted_mean(values: list[float], sigmas: list[float]) -> float:
    """Return the mean of values that are known to +- `sigmas`."""
    weights = [1.0 / (sigma * sigma) for sigma in sigmas]
    mean: float = sum(map(mul, weights, values)) / sum(weights)
    return mean


def growth_of(
    times_s: list[float], residuals_ns: list[int], sigmas_ns: list[float], since_s: float, first: int = 0
) -> tuple[float, float] | None:
    """Return (rate in ppb, onset in s) of residuals that grow from nothing, None if they step at the one of `first`.

    The growth may have begun at any time from `since_s`, when all was well, until the residual of `first`.
    """
    weights = [1.0 / (sigma * sigma) for sigma in sigmas_ns]
    level = weighted_mean([float(r) for r in residuals_ns[first:]], sigmas_ns[first:])
    levels = [0.0] * first + [level] * (len(residuals_ns) - first)
    least = sum(w * (r - c) ** 2 for w, r, c in zip(weights, residuals_ns, levels, strict=True))
    least -= _GROWTH_MARGIN if first else 0.0
    earlier = [since_s, *times_s[:first]]
    gap = times_s[first] - earlier[-1]
    onsets = earlier + [earlier[-1] + gap * i / _ONSETS for i in range(1, _ONSETS)]
    misfit, rate, onset = onset_of(times_s, residuals_ns, sigmas_ns, onsets)
    return (rate, onset) if misfit < min(least, _GROWTH_MISFIT * len(times_s)) else None


def onset_of(
    times_s: list[float], residuals_ns: list[int], sigmas_ns: list[float], onsets_s: list[float]
) -> tuple[float, float, float]:
    """Return (misfit, rate in ppb, onset in s) of the line from nothing that fits best, of those from `onsets_s`.

    The misfit is the sum of squares in sigmas. All onsets are before the last of `times_s`.
    """
    weights = [1.0 / (sigma * sigma) for sigma in sigmas_ns]
    fits = []
    for onset in onsets_s:
        spans = [max(t - onset, 0.0) for t in times_s]
        rate = sum(w * s * r for w, s, r in zip(weights, spans, residuals_ns, strict=True)) / sum(
            w * s * s for w, s in zip(weights, spans, strict=True)
        )
        misfit = sum(w * (r - rate * s) ** 2 for w, s, r in zip(weights, spans, residuals_ns, strict=True))
        fits.append((misfit, rate, onset))
    return min(fits)
