"""What one kernel has of what the agent can use, and in which words the agent says so.

`survey` asks `agent doctor --json`, runs `agent run` for some seconds on an interface of the place, and compares the
loaders. What comes out goes into docs/kernels.md (`tests.rig.kernelspage`).
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agent.errors import AgentError
from agent.ffi.bpf import ProgramSet, attach_xdp, load
from agent.ffi.phc import Phc
from agent.host.model import read_host
from agent.host.netlink import query_links
from agent.host.paths import HostPaths
from agent.telemetry.decode import Decoder
from tests.kernel.agent_run import AGENT
from tests.kernel.loader_records import SOURCES, records_of
from tests.rig import testnic
from tools.testbed.namespace import Namespace, netns_pair, run_ip, stop

SECONDS = 5
PASSIVE = ("--deny", "irq,rps,xps,napi")
JUMBO_MTU = 9000
BY_NUMBER = "the doctor's verdict by the version"
PROGRAMS = "prebuilt programs (libbpf)"
TRAFFICGEN = testnic.REPOSITORY / "build/testbed/trafficgen"
# Verifying the programs takes 14 times as long in the guest as outside.
_TIMEOUT_S = 900


@dataclass(frozen=True, slots=True)
class Fact:
    """One row of the table for one kernel."""

    has: bool
    cell: str
    """A few words."""
    said: str = ""
    """What the agent says of it."""


@dataclass(slots=True)
class Survey:
    """All facts of one kernel."""

    kernel: str
    place: str
    facts: dict[str, Fact] = field(default_factory=dict)
    loaders: dict[str, str] = field(default_factory=dict)
    """`stamp at hook` → how the records of the two loaders compare."""

    def write(self, directory: Path) -> None:
        """Keep it as JSON, one file a kernel."""
        version = ".".join(self.kernel.split(".")[:2])
        (directory / f"kernel-{version}.json").write_text(json.dumps(asdict(self), indent=1) + "\n")


@dataclass(frozen=True, slots=True)
class Place:
    """The interface that is surveyed, in its namespace (None: that of this process), with somebody who sends."""

    name: str
    ifname: str
    far_ifname: str
    address: str
    namespace: Namespace | None
    far: Namespace | None
    stamps: bool
    """Its driver stamps every packet."""


@dataclass(frozen=True, slots=True)
class Ran:
    """One `agent run` that ended by itself."""

    code: int
    stderr: str
    frames: list[dict[str, Any]]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """Its frames of a kind."""
        return [frame for frame in self.frames if frame["t"] == kind]

    @property
    def stamped(self) -> int:
        """Packets with a hardware stamp."""
        return sum(i["counters"]["stamped"] for frame in self.of_kind("goodbye") for i in frame["interfaces"])

    @property
    def states(self) -> list[str]:
        """The clock's states, each once, in order."""
        return list(dict.fromkeys(frame["state"] for frame in self.of_kind("clock")))

    def said(self) -> str:
        """Its refusal, or its reasons and the notes that explain what is in force."""
        if self.code:
            return " ".join(self.stderr.replace(f"{testnic.REPOSITORY}/", "").split())
        (hello,) = self.of_kind("hello")
        notes = [note for frame in self.of_kind("health") for note in frame["notes"]]
        return "; ".join([*hello["interfaces"][0]["reasons"], *notes])


@contextmanager
def place() -> Iterator[Place]:
    """testnic in the guest where it is built for the kernel, else igb; outside of the guest a veth pair."""
    if "RIG" not in os.environ:
        with netns_pair(queues=2) as pair:
            yield Place("veth", pair.right_if, pair.left_if, pair.right_ip, pair.right, pair.left, False)
    elif testnic.module_path().exists():
        with testnic.Wire() as wire:
            here, far = testnic.CAPTURED, testnic.FAR
            yield Place("testnic", here, far, testnic.ADDRESS, wire.here, wire.far, True)
    else:
        yield Place("igb", "eth0", "eth1", "192.0.2.1", None, None, False)


def survey(where: Place, state_dir: Path) -> Survey:
    """All facts of this kernel."""
    release = os.uname().release
    found = Survey(release, where.name if "RIG" not in os.environ else f"guest, {where.name}")
    found.facts.update(_doctor(where))
    if "RIG" in os.environ:
        found.facts["PHC reads (igb)"] = _phc("eth0")
        found.facts["queue → interrupt (igb)"] = _irqs("eth0")
    if not found.facts[PROGRAMS].has:
        return found
    found.facts["XDP with fragments"] = _fragments(where)
    with _traffic(where):
        found.facts.update(_runs(where, state_dir))
    found.loaders = compare_loaders()
    return found


def _doctor(where: Place) -> dict[str, Fact]:
    done = subprocess.run(
        [*AGENT, "doctor", "-i", where.ifname, *_in(where), "--json"],
        capture_output=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}

    def ok(name: str, cell: str, otherwise: str) -> Fact:
        check = checks[name]
        has = check["severity"] == "ok"
        return Fact(has, cell if has else otherwise, check["found"])

    xdp = checks["XDP"]["found"]
    by_netlink = "cannot say" not in xdp
    return {
        "its own types (BTF)": ok("BTF", "yes", "no"),
        PROGRAMS: ok("programs", "load", "do not load"),
        "tc programs": ok("TCX", "by TCX links", "by clsact filters"),
        "why a queue is slow (tracepoints)": ok("tracepoints", "yes", "no"),
        "native XDP known without trying": Fact(by_netlink, "netlink" if by_netlink else "no", xdp),
        BY_NUMBER: Fact(
            checks["version"]["severity"] == "ok", checks["version"]["severity"], checks["version"]["found"]
        ),
    }


def _runs(where: Place, state_dir: Path) -> dict[str, Fact]:
    if not where.stamps:
        ran = run_agent(where, state_dir)
        return {"agent run": Fact(ran.code == 0, "refused" if ran.code else "runs", ran.said())}
    skb = run_agent(where, state_dir, "--stamp", "skb")
    xdp = run_agent(where, state_dir, "--stamp", "xdp", "--allow-reset")
    method = next((reader["method"] for f in skb.of_kind("steering") for reader in f["phcs"]), "")
    return {
        "stamps of the skb at tc": _stamps(skb),
        "stamps of XDP metadata (RX kfunc)": _stamps(xdp),
        "PHC reads (testnic)": Fact("raw" in method, method or "none", skb.said()),
    }


def _stamps(ran: Ran) -> Fact:
    if ran.code:
        return Fact(False, "refused", ran.said())
    return Fact(ran.stamped > 0, ran.states[-1] if ran.stamped else "none come", ran.said())


def _fragments(where: Place) -> Fact:
    """Attach the XDP program where packets may be longer than a buffer."""
    if where.namespace is None or where.far is None:
        return Fact(False, "not asked", "the interface under survey has no jumbo frames")
    for namespace, ifname in ((where.namespace, where.ifname), (where.far, where.far_ifname)):
        run_ip("-n", namespace.name, "link", "set", ifname, "mtu", str(JUMBO_MTU))
    try:
        with load("libbpf", ProgramSet("capture")) as loaded:

            def attach() -> None:
                ifindex = socket.if_nametoindex(where.ifname)
                attach_xdp(loaded.prog_fd("xdp_capture"), ifindex, "native").close()

            where.namespace.call(attach)
    except AgentError as refusal:
        return Fact(False, "no", refusal.what)
    return Fact(True, f"MTU {JUMBO_MTU}")


def _phc(ifname: str) -> Fact:
    with Phc(socket.if_nametoindex(ifname)) as phc:
        burst = phc.read_burst(5)
    return Fact(burst.local_clock == "raw", f"{burst.method} against {burst.local_clock}")


def _irqs(ifname: str) -> Fact:
    (interface,) = read_host(HostPaths(), [ifname], query_links()).leaves()
    source = {"netdev": "netlink", "names": "by the vectors' names"}.get(interface.irq_source, "not known")
    return Fact(all(queue.irq is not None for queue in interface.queues), source)


def compare_loaders() -> dict[str, str]:
    """For each stamp and hook: whether both loaders leave the same bytes, or what stands against it."""
    compared = {}
    for stamp, hook in SOURCES:
        try:
            ours, theirs = records_of("libbpf", stamp, hook), records_of("bcc", stamp, hook)
        except AgentError as error:
            compared[f"{stamp} at {hook}"] = error.what
            continue
        size = sum(map(len, ours.windows)) + len(ours.hists)
        compared[f"{stamp} at {hook}"] = f"identical ({size:,} bytes)" if ours == theirs else "different"
    return compared


def run_agent(where: Place, state_dir: Path, *arguments: str) -> Ran:
    """`agent run` on the place's interface for some seconds."""
    command = [*AGENT, "run", "-i", where.ifname, *_in(where), "--state-dir", str(state_dir), *PASSIVE]
    done = subprocess.run(
        [*command, "--seconds", str(SECONDS), *arguments],
        capture_output=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return Ran(done.returncode, done.stderr.decode(), [dict(f) for f in Decoder().feed(done.stdout)])


def _in(where: Place) -> list[str]:
    return ["--netns", where.namespace.name] if where.namespace else []


@contextmanager
def _traffic(where: Place) -> Iterator[None]:
    command = [str(TRAFFICGEN), "--dst", where.address, "--rate", "400", "--flows", "8"]
    if where.far is not None:
        sender = where.far.popen(command, stdout=subprocess.DEVNULL)
    else:
        sender = subprocess.Popen(["ip", "netns", "exec", "peer", *command], stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        stop(sender)


def refusals() -> dict[str, str]:
    """What the agent says of loaders that cannot do what is asked of them, by what is missing."""
    return {
        "`--loader bcc --stamp xdp`": _refusal(
            "from agent.ffi.bpf import ProgramSet, load\n"
            "load('bcc', ProgramSet('capture_xdpmeta', device_bound=('xdp_capture_meta',), ifindex=1))"
        ),
        "BCC is not there": _refusal(
            "import sys; sys.modules['bcc'] = None\n"
            "from agent.ffi.bpf import ProgramSet, load\n"
            "load('bcc', ProgramSet('capture'))"
        ),
        "PyPI's `bcc` is there instead": _refusal(
            "import sys, types; sys.modules['bcc'] = types.ModuleType('bcc')\n"
            "sys.modules['bcc'].__file__ = '/usr/lib/python3/site-packages/bcc/__init__.py'\n"
            "from agent.ffi.bpf import ProgramSet, load\n"
            "load('bcc', ProgramSet('capture'))"
        ),
        "no BTF, `--loader auto`": _without_btf("auto"),
        "no BTF, `--loader libbpf`": _without_btf("libbpf"),
    }


def _refusal(code: str, before: tuple[str, ...] = ()) -> str:
    caught = (
        f"from agent.errors import AgentError\ntry:\n{_indented(code)}\nexcept AgentError as e:\n    print(e)"
    )
    done = subprocess.run(
        [*before, sys.executable, "-c", caught],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=True,
    )
    return " ".join(done.stdout.split())


def _without_btf(loader: str) -> str:
    """Loading in a mount namespace of its own, in which /sys/kernel/btf is empty."""
    code = (
        "from agent.ffi.bpf import ProgramSet, load\n"
        f"print('loads by', load('{loader}', ProgramSet('capture')).loader)"
    )
    hide = 'mount -t tmpfs none /sys/kernel/btf && exec "$@"'
    return _refusal(code, ("unshare", "-m", "sh", "-c", hide, "sh"))


def _indented(code: str) -> str:
    return "\n".join(f"    {line}" for line in code.splitlines())
