"""Sets of CPUs in the two spellings of the kernel: hexadecimal masks and CPU lists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_GROUP_BITS = 32


@dataclass(frozen=True, slots=True, order=True)
class CpuMask:
    """An immutable set of CPU ids of any width; bit n of `bits` is CPU n."""

    bits: int = 0

    @classmethod
    def of(cls, cpus: Iterable[int]) -> CpuMask:
        """The set of these ids."""
        bits = 0
        for cpu in cpus:
            bits |= 1 << cpu
        return cls(bits)

    @classmethod
    def parse_mask(cls, text: str | bytes) -> CpuMask:
        """From `smp_affinity` or `rps_cpus`: hexadecimal, a comma between groups of 32 bits, as long as it may be.

        The kernel pads every group but the first to eight digits, and accepts shorter groups on input: a group
        always stands for 32 bits. Raises `ValueError` for anything else.
        """
        plain = text.decode("ascii") if isinstance(text, bytes) else text
        bits = 0
        for group in plain.strip().split(","):
            if not 1 <= len(group) <= _GROUP_BITS // 4 or not all(
                c in "0123456789abcdefABCDEF" for c in group
            ):
                raise ValueError(f"{plain.strip()!r} is no CPU mask")
            bits = bits << _GROUP_BITS | int(group, 16)
        return cls(bits)

    @classmethod
    def parse_list(cls, text: str | bytes) -> CpuMask:
        """From a CPU list: `0-11,16-27`, with holes, or with the stride form `0-31:2/8`; empty is the empty set.

        `(null)`, which `nohz_full` reads as where it is unset, is the empty set too. Raises `ValueError` for
        anything else.
        """
        plain = (text.decode("ascii") if isinstance(text, bytes) else text).strip()
        if plain in ("", "(null)"):
            return cls()
        bits = 0
        for part in plain.split(","):
            span, _, stride = part.partition(":")
            first, dash, last = span.partition("-")
            low, high = int(first), int(last) if dash else int(first)
            if low < 0 or high < low:
                raise ValueError(f"{plain!r} is no CPU list")
            if not stride:
                bits |= ((1 << (high - low + 1)) - 1) << low
                continue
            used, _, group = stride.partition("/")
            for start in range(low, high + 1, int(group)):
                for cpu in range(start, min(start + int(used), high + 1)):
                    bits |= 1 << cpu
        return cls(bits)

    def format_mask(self, width: int) -> str:
        """As the kernel prints it with `width` possible CPUs: `ffffff,effffffe` for 56.

        Wider than `width` where a CPU beyond it is in the set; the kernel then answers EOVERFLOW.
        """
        width = max(width, self.bits.bit_length(), 1)
        groups = []
        for start in range(0, width, _GROUP_BITS):
            digits = (min(_GROUP_BITS, width - start) + 3) // 4
            groups.append(f"{self.bits >> start & 0xFFFFFFFF:0{digits}x}")
        return ",".join(reversed(groups))

    def format_like(self, sample: str | bytes) -> str:
        """As the kernel prints it on the host that printed `sample`: the same number of digits in each group."""
        plain = (sample.decode("ascii") if isinstance(sample, bytes) else sample).strip()
        groups = plain.split(",")
        return self.format_mask((len(groups) - 1) * _GROUP_BITS + 4 * len(groups[0]))

    def format_list(self) -> str:
        """As a CPU list: `0-11,16-27`; the empty set is the empty string."""
        parts = []
        cpus = list(self)
        start = 0
        for i in range(1, len(cpus) + 1):
            if i == len(cpus) or cpus[i] != cpus[i - 1] + 1:
                first, last = cpus[start], cpus[i - 1]
                parts.append(str(first) if first == last else f"{first}-{last}")
                start = i
        return ",".join(parts)

    def __iter__(self) -> Iterator[int]:
        bits = self.bits
        while bits:
            low = bits & -bits
            yield low.bit_length() - 1
            bits ^= low

    def __contains__(self, cpu: object) -> bool:
        return isinstance(cpu, int) and cpu >= 0 and bool(self.bits >> cpu & 1)

    def __len__(self) -> int:
        return self.bits.bit_count()

    def __and__(self, other: CpuMask) -> CpuMask:
        return CpuMask(self.bits & other.bits)

    def __or__(self, other: CpuMask) -> CpuMask:
        return CpuMask(self.bits | other.bits)

    def __sub__(self, other: CpuMask) -> CpuMask:
        return CpuMask(self.bits & ~other.bits)

    def __str__(self) -> str:
        return self.format_list() or "none"
