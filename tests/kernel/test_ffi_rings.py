"""Perf rings drained into numpy, fed by real programs."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from agent.errors import UsageError
from agent.ffi.bpf import BpfObject, flush_cpus, test_run
from agent.ffi.rings import Rings
from tests.kernel import ffi_probe
from tests.kernel.ffi_probe import ONLINE, RECORD

pytestmark = pytest.mark.kernel

# A record's sample: 8 bytes header, 4 bytes size, 80 bytes, padded to 96. 4096 isn't a multiple of it: samples wrap.
_SAMPLE_BYTES = 96


@pytest.fixture
def probe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BpfObject]:
    """The loaded probe."""
    path = ffi_probe.probe_object(tmp_path_factory.getbasetemp())
    with ffi_probe.load_probe(path, "probe_xdp", "probe_emit", "probe_foreign") as loaded:
        yield loaded


def open_rings(probe: BpfObject, size: int = 4096) -> Rings:
    """Rings on every online CPU."""
    return Rings(probe.map("events"), ONLINE, size, RECORD)


def emit(probe: BpfObject, count: int, cpus: tuple[int, ...] = ONLINE) -> None:
    """Produce one record on each CPU, `count` times."""
    for _ in range(count):
        flush_cpus(probe.prog_fd("probe_emit"), cpus)


def produced_and_refused(probe: BpfObject) -> tuple[int, int]:
    """The kernel's own counts over all CPUs."""
    totals = probe.map("produced").mmap(np.dtype("2u8")).sum(axis=0)
    return int(totals[0]), int(totals[1])


def check_bodies(records: npt.NDArray[np.void]) -> None:
    """Every byte that the program wrote is where it was."""
    assert (records["body"][:, 0] == records["seq"] * 3).all()
    assert (records["body"][:, 7] == ~records["seq"]).all()
    assert (records["body"][:, 1:7] == 0).all()


def test_records_arrive_unchanged_in_order(probe: BpfObject) -> None:
    """Records of each CPU come complete and in the order in which they were produced."""
    out = np.zeros(1000, RECORD)
    with open_rings(probe, 65536) as rings:
        emit(probe, 100)
        n = rings.drain(out)
    assert n == 100 * len(ONLINE)
    check_bodies(out[:n])
    for cpu in ONLINE:
        assert out["seq"][:n][out["cpu"][:n] == cpu].tolist() == list(range(100))


def test_samples_that_wrap_around_are_whole(probe: BpfObject) -> None:
    """A ring drained for many of its rounds gives every record, those across its end included."""
    out = np.zeros(64, RECORD)
    seen = []
    with open_rings(probe) as rings:
        for _ in range(300):
            emit(probe, 7, ONLINE[:1])
            n = rings.drain(out)
            check_bodies(out[:n])
            seen += out["seq"][:n].tolist()
    assert 300 * 7 * _SAMPLE_BYTES > 40 * 4096
    assert seen == list(range(300 * 7))


def test_produced_is_drained_plus_lost(probe: BpfObject) -> None:
    """With a ring that is far too small the kernel's loss count closes the balance exactly."""
    out = np.zeros(10_000, RECORD)
    drained = 0
    with open_rings(probe) as rings:
        for _ in range(20):
            test_run(probe.prog_fd("probe_xdp"), bytes(64), repeat=500)
            emit(probe, 20)
            drained += rings.drain(out)
        produced, lost = produced_and_refused(probe)
        assert lost > 0
        assert produced == drained + lost
        assert rings.drained == drained
        assert rings.malformed == 0


def test_perf_reports_losses_once_there_is_room_again(probe: BpfObject) -> None:
    """PERF_RECORD_LOST is counted apart, not as malformed, when the next record gets in."""
    out = np.zeros(1000, RECORD)
    with open_rings(probe) as rings:
        emit(probe, 100, ONLINE[:1])
        rings.drain(out)
        emit(probe, 1, ONLINE[:1])
        rings.drain(out)
        assert rings.lost_reported == produced_and_refused(probe)[1] > 0
        assert rings.malformed == 0


def test_what_does_not_fit_stays(probe: BpfObject) -> None:
    """A full output array leaves the rest in the rings, for the next call."""
    out = np.zeros(7, RECORD)
    seen = []
    with open_rings(probe, 16384) as rings:
        emit(probe, 20, ONLINE[:1])
        while n := rings.drain(out):
            seen += out["seq"][:n].tolist()
    assert seen == list(range(20))


def test_no_cpu_is_starved(probe: BpfObject) -> None:
    """Where every call fills the output, the rings take turns."""
    out = np.zeros(5, RECORD)
    with open_rings(probe, 16384) as rings:
        emit(probe, 20)
        cpus = []
        for _ in ONLINE:
            rings.drain(out)
            cpus += out["cpu"].tolist()
    assert set(cpus) == set(ONLINE)


def test_samples_of_another_size_are_counted_and_skipped(probe: BpfObject) -> None:
    """A foreign sample between two records costs neither of them."""
    out = np.zeros(10, RECORD)
    with open_rings(probe) as rings:
        emit(probe, 1, ONLINE[:1])
        flush_cpus(probe.prog_fd("probe_foreign"), ONLINE[:1])
        emit(probe, 1, ONLINE[:1])
        assert rings.drain(out) == 2
        assert out["seq"][:2].tolist() == [0, 2]
        assert rings.malformed == 1


def test_an_empty_output_takes_nothing(probe: BpfObject) -> None:
    """Draining into no space loses nothing."""
    with open_rings(probe) as rings:
        emit(probe, 3, ONLINE[:1])
        assert rings.drain(np.zeros(0, RECORD)) == 0
        assert rings.drain(np.zeros(9, RECORD)) == 3


def test_a_cpu_that_comes_back_loses_no_record(probe: BpfObject) -> None:
    """A new ring for a CPU doesn't take the old one's records away."""
    out = np.zeros(10, RECORD)
    with open_rings(probe) as rings:
        emit(probe, 2, ONLINE[:1])
        assert rings.add_cpu(ONLINE[0])
        emit(probe, 2, ONLINE[:1])
        n = rings.drain(out)
    assert sorted(out["seq"][:n].tolist()) == [0, 1, 2, 3]


def test_an_output_of_another_type_is_refused(probe: BpfObject) -> None:
    """A wrong dtype, shape or read-only array never reaches the C code."""
    with open_rings(probe) as rings:
        with pytest.raises(TypeError):
            rings.drain(np.zeros(4, "u8"))
        with pytest.raises(TypeError):
            rings.drain(np.zeros((2, 2), RECORD))
        with pytest.raises((ValueError, BufferError)):
            rings.drain(np.zeros(8, RECORD)[::2])
        locked = np.zeros(4, RECORD)
        locked.flags.writeable = False
        with pytest.raises((ValueError, BufferError)):
            rings.drain(locked)


@pytest.mark.parametrize("size", [0, 1000, 5000, 12288])
def test_impossible_ring_sizes_are_refused(probe: BpfObject, size: int) -> None:
    """A ring is a power of two of at least a page."""
    with pytest.raises(UsageError, match="not possible"):
        open_rings(probe, size)


def test_close_is_final_and_idempotent(probe: BpfObject) -> None:
    """Closed rings get no more records: the kernel counts them as lost; ours stay readable."""
    rings = open_rings(probe)
    emit(probe, 1)
    rings.drain(np.zeros(9, RECORD))
    rings.close()
    rings.close()
    emit(probe, 1)
    assert produced_and_refused(probe) == (2 * len(ONLINE), len(ONLINE))
    assert rings.drained == len(ONLINE)
    with pytest.raises(ValueError, match="closed"):
        rings.drain(np.zeros(9, RECORD))
