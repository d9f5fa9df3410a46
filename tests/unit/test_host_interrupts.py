"""`/proc/interrupts` as kernels of fifteen years print it."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.host.interrupts import parse_interrupts

SAMPLES = Path(__file__).resolve().parents[3] / "shared/host-samples/interrupts"


def interrupts_text(cpus: list[int], rows: list[tuple[int, list[int], str]]) -> bytes:
    """A table laid out as the kernel does it: columns of ten characters, wider where a counter needs it."""
    header = "      " + "".join(f"{f'CPU{cpu}':>10} " for cpu in cpus)
    lines = [header]
    lines += [f"{number:4d}:" + "".join(f"{n:10d} " for n in counts) + tail for number, counts, tail in rows]
    lines += [f" NMI:{0:10d} {0:10d}   Non-maskable interrupts", "ERR:          0", "MIS:          0"]
    return ("\n".join(lines) + "\n").encode()


def test_names_and_counters_by_number() -> None:
    """Old and new layouts: with and without a hardware number, with and without a handler."""
    text = interrupts_text(
        [0, 1],
        [
            (0, [189, 0], " IR-IO-APIC-edge      timer"),
            (7, [17, 2], " IR-IO-APIC-edge    "),
            (38, [0, 1425], "PCI-MSIX-0000:00:03.0   1-edge      virtio2-input.0"),
            (39, [0, 0], "PCI-MSIX-0000:00:03.0   2-edge    "),
            (58, [0, 7], "  ITS-MSI  32 Edge      eth%d-mgmnt"),
            (60, [5, 6], " IO-APIC-fasteoi   uhci_hcd:usb4, radeon"),
        ],
    )
    table = parse_interrupts(text)
    assert table.cpus == (0, 1)
    names = {number: irq.actions for number, irq in table.by_number.items()}
    assert names == {
        0: ("timer",),
        7: (),
        38: ("virtio2-input.0",),
        39: (),
        58: ("eth%d-mgmnt",),
        60: ("uhci_hcd:usb4", "radeon"),
    }
    assert table.counts(38).tolist() == [0, 1425]
    assert table.counts(7).tolist() == [17, 2]


def test_offline_cpus_have_no_column() -> None:
    """The header names the columns: ids have holes where CPUs are offline."""
    table = parse_interrupts(
        interrupts_text([0, 2, 5], [(30, [1, 2, 3], " PCI-MSI 524288-edge      eth0-rx-0")])
    )
    assert table.cpus == (0, 2, 5)
    assert table.counts(30).tolist() == [1, 2, 3]


def test_wide_counters_do_not_shift_the_name() -> None:
    """A counter above ten digits widens its column; the rest still lines up."""
    wide = 12_345_678_901_234
    table = parse_interrupts(
        interrupts_text([0, 1, 2], [(4, [wide, wide, 9], " PCI-MSI 1-edge      eth0-TxRx-0")])
    )
    assert table.by_number[4].actions == ("eth0-TxRx-0",)
    assert table.counts(4).tolist() == [wide, wide, 9]


def test_handler_names_with_spaces_stay_whole() -> None:
    """cxgb4 calls its vectors `eth0 (queue 3)`."""
    table = parse_interrupts(interrupts_text([0], [(4, [1], " PCI-MSI 1-edge      eth0 (queue 3)")]))
    assert table.by_number[4].actions == ("eth0 (queue 3)",)


def test_a_controller_named_by_address_is_no_counter() -> None:
    """On ARM boards a controller's name starts with digits."""
    table = parse_interrupts(interrupts_text([0, 1], [(41, [3, 4], "209c000.gpio   6 Edge      switch")]))
    assert table.counts(41).tolist() == [3, 4]
    assert table.by_number[41].actions == ("switch",)


def test_squeezed_columns_are_counted_word_by_word() -> None:
    """A table whose blanks were squeezed still gives names and counters."""
    text = b"CPU0 CPU1\n0: 12 34 IO-APIC-edge  timer\n5: 1 2 PCI-MSI-edge  eth0\n"
    table = parse_interrupts(text)
    assert table.counts(0).tolist() == [12, 34]
    assert table.by_number[5].actions == ("eth0",)


def test_text_without_cpus_is_refused() -> None:
    """Something else in place of the table raises."""
    with pytest.raises(ValueError, match="no CPUs"):
        parse_interrupts(b"nothing here\n")


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="needs ../shared/host-samples")
@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*cpu.txt")), ids=lambda path: path.stem)
def test_every_collected_table_agrees_with_a_plain_reading(path: Path) -> None:
    """Real tables: each numbered line gives the counters and the last words that splitting it gives."""
    table = parse_interrupts(path.read_bytes())
    lines = [line for line in path.read_text().splitlines()[1:] if line.split(":")[0].strip().isdigit()]
    assert len(table.by_number) == len(lines)
    for line in lines:
        label, _, rest = line.partition(":")
        words = rest.split()
        irq = table.by_number[int(label)]
        assert table.counts(irq.number).tolist() == [int(word) for word in words[: len(table.cpus)]]
        if irq.actions:
            assert rest.rstrip().endswith(irq.name)
        else:
            assert len(words) == len(table.cpus) + 1
