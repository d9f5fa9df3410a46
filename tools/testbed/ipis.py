"""The interrupts that a process sends to idle CPUs, counted where the kernel sends them (Linux 6.4)."""

from __future__ import annotations

from typing import Self

import numpy as np
import numpy.typing as npt

from tools.testbed.bpfobject import TestbedObject
from tools.testbed.build import built

IPIS_DTYPE = np.dtype([("pid", "<u4"), ("pad", "<u4"), ("sent", "<u8", (64,)), ("idle", "u1", (64,))])


class IpiCount:
    """Counts the interprocessor interrupts of one process: function calls and reschedules. A context manager.

    Raises `UnsupportedError` where the kernel has no tracepoints for them.
    """

    def __init__(self, pid: int) -> None:
        (objectfile,) = built("bpf/testbed.bpf.o")
        self._programs = TestbedObject(objectfile)
        try:
            self._ipis = self._programs.map("tb_ipis", IPIS_DTYPE)
            self._ipis["pid"] = pid
            self._programs.attach_tracepoint("follow_idle", "cpu_idle")
            self._programs.attach_tracepoint("count_ipi", "ipi_send_cpu")
            self._programs.attach_tracepoint("count_ipis", "ipi_send_cpumask")
        except BaseException:
            self._programs.close()
            raise

    def sent(self) -> npt.NDArray[np.uint64]:
        """How many went to each of the first 64 CPUs, while it was idle, so far."""
        return np.array(self._ipis["sent"][0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._programs.close()
