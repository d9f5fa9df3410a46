"""Hosts that cannot do what the agent needs, and command lines that cannot be meant: cause, remedy, exit code."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.kernel.agent_run import AGENT, AgentRun, agent
from tests.kernel.frames import send, udp4
from tools.testbed.namespace import VethPair

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and BPF"),
]


def in_mount_namespace(mount: str) -> tuple[str, ...]:
    """What to put before a command so that it runs with a mount of its own."""
    return ("unshare", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh")


@pytest.mark.parametrize("command", ["run", "plan"])
def test_without_root_the_remedy_is_said(command: str) -> None:
    """Exit 3, how to run it, and which capabilities a container needs."""
    done = subprocess.run(
        ["setpriv", "--reuid", "65534", "--clear-groups", *AGENT, command, "-i", "lo"],
        capture_output=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert b"needs root" in done.stderr
    assert b"CAP_BPF" in done.stderr
    assert b"Traceback" not in done.stderr


def test_without_btf_libbpf_refuses_with_the_remedy(pair: VethPair, tmp_path: Path) -> None:
    """A loader asked for by name is taken at its word: it ends, and names the loader that needs no BTF."""
    before = in_mount_namespace("mount -t tmpfs none /sys/kernel/btf")
    with AgentRun(pair.right, tmp_path, "--loader", "libbpf", before=before) as run:
        assert run.wait() == 3
        assert "this kernel has no BTF (/sys/kernel/btf/vmlinux is missing)" in run.said()
        assert "use --loader bcc" in run.said()


def test_without_btf_auto_falls_to_bcc(pair: VethPair, tmp_path: Path) -> None:
    """The same programs compiled here count the same packets."""
    before = in_mount_namespace("mount -t tmpfs none /sys/kernel/btf")
    with AgentRun(pair.right, tmp_path, before=before) as run:
        (interface,) = run.wait_for("hello")["interfaces"]
        send(pair.left, (udp4() for _ in range(100)))
        assert run.stop() == 0
        assert run.counters()["packets"] == run.packets() == 100
    assert interface["loader"] == "bcc"


def test_a_read_only_sys_is_said_at_start(pair: VethPair, tmp_path: Path) -> None:
    """Nothing there can be changed: it is noted, and the run watches all the same."""
    before = in_mount_namespace("mount -o remount,bind,ro /sys")
    with AgentRun(pair.right, tmp_path, inside=True, before=before) as run:
        run.started()
        send(pair.left, (udp4() for _ in range(100)))
        assert run.stop() == 0
        assert "cannot be written" in run.notes()
        assert "read-only" in run.notes().lower()
        assert run.packets() == 100


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--allow", "irqs"), "there is no actuator 'irqs'"),
        (("--deny", "everything"), "there is no actuator 'everything'"),
        (("--window", "1us"), "choose 100us to 1s"),
        (("--seconds", "-1"), "must be above 0"),
    ],
)
def test_a_wrong_flag_is_a_usage_error(
    pair: VethPair, tmp_path: Path, flags: tuple[str, str], said: str
) -> None:
    """Exit 2 with what is wrong, before anything is attached."""
    with AgentRun(pair.right, tmp_path, *flags) as run:
        assert run.wait() == 2
        assert said in run.said()
    assert not list(tmp_path.glob("*.journal"))


def test_an_unknown_setting_in_the_file_is_named(tmp_path: Path) -> None:
    """A typo in the configuration is not ignored."""
    file = tmp_path / "agent.toml"
    file.write_text('interfaces = ["eth1"]\nwindows = "1ms"\n')
    done = agent("run", "--config", str(file))
    assert done.returncode == 2
    assert b"unknown setting 'windows'" in done.stderr
    assert str(file).encode() in done.stderr
