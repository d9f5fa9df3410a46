"""Run a command as root in a throw-away guest: a real kernel, several CPUs, two joined igb NICs and an e1000e.

    rig.py [--kernel 5.10|6.1|6.12] [--cpus N] [--numa] [--memory MIB] [--limit S] [--writable DIR] -- COMMAND [ARG...]

The command sees this machine's whole file system at its usual place. What it writes goes to memory and dies with the
guest, except under `--writable`. It starts in the present directory; its stdout and stderr come out of the rig's
stdout, and the rig ends with its exit code. 124: no end within the limit. 125: the rig itself failed.

`eth0` (igb, 192.0.2.1/24) is the NIC under test; `eth1` (igb, 192.0.2.2/24), at the other end of its cable, is in the
network namespace `peer`. The e1000e has no cable, and no driver until somebody loads it.

The standard library only: the rig starts before anything is installed. See docs/rig.md.
"""

from __future__ import annotations

import argparse
import hashlib
import lzma
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / "build/rig"
HOST = CACHE / "host"

TIMED_OUT = 124
RIG_FAILED = 125
# Booting takes 10 s on an idle machine with two CPUs, a minute on a busy one. Whatever takes this long hangs.
BOOT_LIMIT_S = 180.0
ATTEMPTS = 2
# What mounting the root and passing output on takes. Built into some kernels.
FIRST_MODULES = ("virtio_pci", "virtio_console", "9p", "9pnet_virtio", "overlay")
# The guest sees this PATH: shims of version managers take seconds in it.
GUEST_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class RigError(Exception):
    """The rig itself failed."""


@dataclass(frozen=True, slots=True)
class Guest:
    """What the guest is made of."""

    kernel: str
    cpus: int
    numa: bool
    memory_mib: int
    writable: Path | None

    @property
    def kernel_dir(self) -> Path:
        """Where its kernel is unpacked."""
        return CACHE / f"kernel-{self.kernel}"

    def image(self) -> tuple[Path, str]:
        """The kernel's image and its release."""
        images = sorted((self.kernel_dir / "boot").glob("vmlinuz-*"))
        if not images:
            raise RigError(f"no kernel in {self.kernel_dir}: unpack it with tests/rig/unpack.sh")
        return images[-1], images[-1].name.removeprefix("vmlinuz-")


def tool(name: str) -> str:
    """A program that was unpacked for the rig, or this machine's."""
    for directory in ("usr/bin", "usr/sbin", "bin", "sbin"):
        if (HOST / directory / name).exists():
            return str(HOST / directory / name)
    found = shutil.which(name, path=GUEST_PATH)
    if found is None:
        raise RigError(f"{name} is missing: unpack it with `tests/rig/unpack.sh build/rig host`")
    return found


def tool_env() -> dict[str, str]:
    """The environment in which unpacked programs find their libraries."""
    libraries = [str(HOST / directory / "x86_64-linux-gnu") for directory in ("usr/lib", "lib")]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)}


def kmod(name: str, *arguments: str) -> str:
    """The output of one of the names under which kmod goes."""
    return subprocess.run(
        [name, *arguments],
        executable=tool("kmod"),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=tool_env(),
    ).stdout


def build_initramfs(guest: Guest, release: str) -> Path:
    """Busybox and the modules that mount this machine's root in the guest; everything else is loaded from there."""
    if not (guest.kernel_dir / "lib/modules" / release / "modules.dep").exists():
        kmod("depmod", "-b", str(guest.kernel_dir), release)
    first_stage = HERE / "initramfs.sh"
    digest = hashlib.sha256(first_stage.read_bytes() + repr(FIRST_MODULES).encode()).hexdigest()[:8]
    image = CACHE / f"initramfs-{release}-{digest}"
    if image.exists():
        return image
    where = ("-d", str(guest.kernel_dir), "-S", release)
    listed = kmod("modprobe", *where, "--show-depends", "-a", *FIRST_MODULES)
    modules = dict.fromkeys(line.split()[1] for line in listed.splitlines() if line.startswith("insmod"))
    with tempfile.TemporaryDirectory(dir=CACHE) as building:
        root = Path(building)
        for directory in ("bin", "mod", "proc", "sys", "dev", "lower", "rw", "root"):
            (root / directory).mkdir()
        shutil.copy(tool("busybox"), root / "bin/busybox")
        shutil.copy(first_stage, root / "init")
        (root / "init").chmod(0o755)
        for number, module in enumerate(modules):
            path = Path(module)
            data = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
            (root / f"mod/{number + 10}.ko").write_bytes(data)
        names = "\n".join(str(path.relative_to(root)) for path in [root, *sorted(root.rglob("*"))])
        partial = image.with_suffix(f".{os.getpid()}")
        with partial.open("wb") as out:
            subprocess.run(
                [tool("cpio"), "-o", "-H", "newc", "--quiet"],
                input=names.encode(),
                stdout=out,
                cwd=root,
                check=True,
                env=tool_env(),
            )
        partial.rename(image)
    return image


def write_second_stage(guest: Guest, release: str, run: Path, command: list[str]) -> None:
    """What the guest finds in /run/rig: its settings and the command."""
    settings = {
        "release": release,
        "modules": str(guest.kernel_dir / "lib/modules" / release),
        "writable": str(guest.writable or ""),
        "kmod": tool("kmod"),
        "busybox": tool("busybox"),
    }
    (run / "settings").write_text("".join(f"{k}={shlex.quote(v)}\n" for k, v in settings.items()))
    environment = {**os.environ, "PATH": GUEST_PATH, "RIG": release}
    exports = "".join(f"export {k}={shlex.quote(v)}\n" for k, v in environment.items() if k.isidentifier())
    (run / "command").write_text(f"{exports}cd {shlex.quote(str(Path.cwd()))}\n{shlex.join(command)}\n")
    shutil.copy(HERE / "init.sh", run / "init")


def machine(guest: Guest, run: Path) -> list[str]:
    """QEMU's command line.

    Software emulation even where there is KVM: one rig for every machine, nested and in containers. The kernel boots
    on one CPU (maxcpus=1) and init starts the others: with all of them up while PCI is being set up, QEMU 10.0 hung or
    aborted in one boot of five. lpj: no calibration of delays, 2 s for each CPU.
    """
    image, release = guest.image()
    kernel_line = (
        "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable random.trust_cpu=on apparmor=0 audit=0 "
        "net.ifnames=0 maxcpus=1 lpj=10000000"
    )
    words = [tool("qemu-system-x86_64")]
    for data in ("usr/share/qemu", "usr/share/seabios"):
        words += ["-L", str(HOST / data)]
    words += ["-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max,la57=off"]
    words += ["-smp", str(guest.cpus), "-m", str(guest.memory_mib)]
    words += ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    words += ["-kernel", str(image), "-initrd", str(build_initramfs(guest, release)), "-append", kernel_line]
    words += ["-serial", f"file:{run}/console"]
    words += ["-chardev", "file,id=out,path=/dev/stdout", "-device", "virtio-serial-pci"]
    words += ["-device", "virtserialport,chardev=out,nr=1"]
    share = "local,security_model=none,multidevs=remap"
    words += ["-virtfs", f"{share},path=/,mount_tag=host,readonly=on"]
    words += ["-virtfs", f"{share},path={run},mount_tag=run"]
    if guest.writable is not None:
        words += ["-virtfs", f"{share},path={guest.writable},mount_tag=writable"]
    words += ["-device", "virtio-rng-pci", "-device", "isa-debug-exit,iobase=0x501,iosize=1"]
    buses = ["pcie.0", "pcie.0"]
    if guest.numa:
        half = guest.cpus // 2
        for node, cpus in enumerate((f"0-{half - 1}", f"{half}-{guest.cpus - 1}")):
            words += ["-object", f"memory-backend-ram,id=m{node},size={guest.memory_mib // 2}M"]
            words += ["-numa", f"node,nodeid={node},cpus={cpus},memdev=m{node}"]
            words += ["-device", f"pxb-pcie,id=x{node},bus=pcie.0,bus_nr={32 + 32 * node},numa_node={node}"]
        buses = ["x0", "x1"]
    # An igb takes a bus of its own, for the numbers of its virtual functions.
    for number, bus in enumerate(buses):
        words += ["-device", f"pcie-root-port,id=p{number},bus={bus},chassis={number}"]
        words += ["-netdev", f"hubport,id=h{number},hubid=0"]
        words += ["-device", f"igb,netdev=h{number},bus=p{number},mac=52:54:00:00:00:0{number + 1}"]
    return [*words, "-device", "e1000e,bus=pcie.0,romfile=,mac=52:54:00:00:00:03"]


def pass_on(process: subprocess.Popen[bytes]) -> None:
    """Copy a guest's output to ours as it comes."""
    assert process.stdout is not None
    while data := process.stdout.read1(1 << 16):  # type: ignore[attr-defined]
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def attempt(words: list[str], run: Path, limit_s: float) -> str:
    """Boot and wait for the end; returns what went wrong, empty when the command ended by itself."""
    with (run / "stderr").open("wb") as errors:
        # setpriv: the guest ends with the rig, whatever ends the rig.
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=tool_env(),
        )
    # QEMU opens /dev/stdout anew, which works for a pipe, whatever ours is.
    reader = threading.Thread(target=pass_on, args=(process,), daemon=True)
    reader.start()
    begun = run / "begun"
    try:
        start = time.monotonic()
        while process.poll() is None and not begun.exists():
            if time.monotonic() - start > BOOT_LIMIT_S:
                return f"no boot within {BOOT_LIMIT_S:.0f} s"
            time.sleep(0.1)
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"no end within {limit_s:.0f} s"
    finally:
        process.kill()
        process.wait()
        reader.join()
    if not (run / "code").exists():
        return f"QEMU ended ({process.returncode}) without the command's exit code"
    return ""


def report_failure(run: Path, problem: str) -> None:
    """Say on stderr what went wrong, and what the guest and QEMU said last."""
    for name in ("console", "stderr"):
        path = run / name
        if path.exists():
            lines = path.read_text(errors="replace").splitlines()[-30:]
            print(*(f"rig: {name}: {line}" for line in lines), sep="\n", file=sys.stderr)
    print(f"rig: {problem}", file=sys.stderr, flush=True)


def run_guest(guest: Guest, command: list[str], limit_s: float) -> int:
    """Run a command in a guest; its exit code. A failed boot is reported, and tried once more."""
    _, release = guest.image()
    for number in range(1, ATTEMPTS + 1):
        with tempfile.TemporaryDirectory(prefix="rig.") as directory:
            run = Path(directory)
            write_second_stage(guest, release, run, command)
            problem = attempt(machine(guest, run), run, limit_s)
            if not problem:
                return int((run / "code").read_text())
            begun = (run / "begun").exists()
            report_failure(run, f"attempt {number} of {ATTEMPTS}: {problem}")
            if begun:  # what the command may have done is not done twice
                return TIMED_OUT if problem.startswith("no end") else RIG_FAILED
    return RIG_FAILED


def parse(words: list[str]) -> tuple[Guest, list[str], float]:
    """The guest, the command and the limit in seconds."""
    parser = argparse.ArgumentParser(prog="rig", description="Run a command as root in a throw-away guest.")
    parser.add_argument("--kernel", choices=("5.10", "6.1", "6.12"), default="6.12")
    parser.add_argument("--cpus", type=int, default=4)
    parser.add_argument(
        "--numa", action="store_true", help="two nodes; eth0 hangs off the first, eth1 off the second"
    )
    parser.add_argument("--memory", type=int, default=3072, metavar="MIB")
    parser.add_argument("--limit", type=float, default=300.0, metavar="S", help="give up then (default 300)")
    parser.add_argument("--writable", type=Path, metavar="DIR", help="the guest may write there")
    parser.add_argument("command", nargs="+", help="after --")
    given = parser.parse_args(words)
    if given.numa and given.cpus < 2:
        parser.error("two nodes need two CPUs or more")
    writable = given.writable.resolve(strict=True) if given.writable is not None else None
    return Guest(given.kernel, given.cpus, given.numa, given.memory, writable), given.command, given.limit


def main() -> int:
    """The rig's exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    guest, command, limit_s = parse(sys.argv[1:])
    try:
        return run_guest(guest, command, limit_s)
    except (RigError, OSError, subprocess.CalledProcessError) as error:
        print(f"rig: {error}", file=sys.stderr)
        return RIG_FAILED


if __name__ == "__main__":
    sys.exit(main())
