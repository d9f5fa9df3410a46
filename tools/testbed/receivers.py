"""Other capture applications on the same interface, for the tests of living with them."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tools.testbed.build import built
from tools.testbed.namespace import Namespace
from tools.testbed.program import Program


@dataclass(frozen=True, slots=True)
class PacketTotals:
    """What a `PacketReceiver` got: test frames, those that carry a trailer, and what its ring had no room for."""

    received: int
    with_trailer: int
    dropped: int


@dataclass(frozen=True, slots=True)
class XskTotals:
    """What an `XskReceiver` got: all frames, their bytes, what its rings had no room for; frames by receive queue."""

    received: int
    bytes: int
    dropped: int
    by_queue: list[int]


class PacketReceiver:
    """A TPACKET_V3 receiver on `ifname` in a namespace, counting the frames of the test flows, from now on."""

    def __init__(self, namespace: Namespace, ifname: str, port: int = 20000, flows: int = 16) -> None:
        (path,) = built("testbed/packetrecv")
        args = [str(path), "--if", ifname, "--port", str(port), "--flows", str(flows)]
        self._program = Program(namespace, args, wait_ready=True)

    def stop(self) -> PacketTotals:
        """End it and return its totals."""
        return PacketTotals(**self._program.stop()[-1])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._program.close()


class XskReceiver:
    """An AF_XDP receiver that owns the XDP slot of `ifname` with a program that redirects everything to it.

    `program_id` is the id of that program ("xsk_redirect").
    """

    def __init__(self, namespace: Namespace, ifname: str, queues: int = 1) -> None:
        (path,) = built("testbed/xskrecv")
        args = [str(path), "--if", ifname, "--queues", str(queues)]
        self._program = Program(namespace, args, wait_ready=True)
        self.program_id: int = self._program.ready["program_id"]

    def stop(self) -> XskTotals:
        """End it and return its totals."""
        return XskTotals(**self._program.stop()[-1])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._program.close()
