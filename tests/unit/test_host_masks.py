"""CPU sets in the kernel's two spellings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.host.masks import CpuMask


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("3", [0, 1]),
        ("ffffff,effffffe", [*range(1, 28), *range(29, 56)]),
        ("00000000,00000000,08000000\n", [27]),
        ("1,0", [32]),
        ("00001000" + ",00000000" * 36, [36 * 32 + 12]),
    ],
)
def test_masks_of_any_width_are_read(text: str, cpus: list[int]) -> None:
    """Groups count 32 bits each from the right, however many there are."""
    mask = CpuMask.parse_mask(text)
    want = CpuMask.of(cpus)
    if text.startswith("ffffff"):
        want = CpuMask(0xFFFFFF_EFFFFFFE)
    assert mask == want


@pytest.mark.parametrize("text", ["", "x", "3,,1", "123456789", "-1", "0x3", " "])
def test_what_is_no_mask_is_refused(text: str) -> None:
    """Anything but groups of hexadecimal digits raises."""
    with pytest.raises(ValueError, match="CPU mask"):
        CpuMask.parse_mask(text)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0-11,16-27", [*range(12), *range(16, 28)]),
        ("0,3-7\n", [0, 3, 4, 5, 6, 7]),
        ("", []),
        ("(null)\n", []),
        ("0-15:2/8", [0, 1, 8, 9]),
        ("1151", [1151]),
    ],
)
def test_lists_with_holes_are_read(text: str, cpus: list[int]) -> None:
    """Ranges, holes, the stride form and the two spellings of empty."""
    assert list(CpuMask.parse_list(text)) == cpus


@pytest.mark.parametrize("sample", ["3", "ffffff,effffffe", "0000,00000000,00000001", "00000000,00000000"])
def test_a_mask_prints_as_the_kernel_printed_it(sample: str) -> None:
    """Reading a mask and printing it like its own sample gives the same characters."""
    assert CpuMask.parse_mask(sample).format_like(sample) == sample


@given(st.sets(st.integers(0, 1300)))
def test_both_spellings_round_trip(cpus: set[int]) -> None:
    """Any set survives the mask form and the list form."""
    mask = CpuMask.of(cpus)
    assert CpuMask.parse_mask(mask.format_mask(1152)) == mask
    assert CpuMask.parse_list(mask.format_list()) == mask
    assert set(mask) == cpus
    assert len(mask) == len(cpus)


def test_sets_combine() -> None:
    """Intersection, union, difference and membership."""
    low, high = CpuMask.parse_list("0-3"), CpuMask.parse_list("2-5")
    assert (low & high).format_list() == "2-3"
    assert (low | high).format_list() == "0-5"
    assert (low - high).format_list() == "0-1"
    assert 3 in low
    assert 4 not in low
    assert -1 not in low
    assert str(CpuMask()) == "none"
