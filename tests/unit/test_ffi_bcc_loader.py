"""What the BCC loader does before BCC: sources, headers, and finding the right BCC."""

import sys
import types
from pathlib import Path

import pytest

from agent.errors import AgentError, UnsupportedError
from agent.ffi.bcc_loader import inline_headers, kernel_headers, load_source, program_sections
from agent.ffi.programs import ProgramSet


def tree(root: Path, *, complete: bool) -> Path:
    """A header tree, with or without the file by which BCC starts."""
    (root / "include/linux").mkdir(parents=True)
    if complete:
        (root / "include/linux/kconfig.h").touch()
    return root


def test_our_headers_are_inlined_and_the_systems_are_not(tmp_path: Path) -> None:
    """Quoted includes are replaced, also those of an included file; angle brackets stay."""
    (tmp_path / "a.h").write_text('#include "b.h"\nint a;\n')
    (tmp_path / "b.h").write_text("#include <linux/bpf.h>\nint b;\n")
    source = tmp_path / "x.bpf.c"
    source.write_text('# include "a.h" /* records */\nint x;\n')
    assert inline_headers(source).split("\n") == [
        "#include <linux/bpf.h>",
        "int b;",
        "",
        "int a;",
        "",
        "int x;",
        "",
    ]


def test_programs_are_found_by_their_sections() -> None:
    """Both macros, one line or two; functions without a section are no programs."""
    text = (
        'AGENT_SECTION("xdp.frags")\nint one(struct xdp_md *ctx)\n{}\n'
        'SEC("?tc") int two(struct __sk_buff *skb) {}\nstatic int three(void) {}\n'
    )
    assert program_sections(text) == {"one": "xdp.frags", "two": "tc"}


def test_the_running_kernels_headers_come_first(tmp_path: Path) -> None:
    """A complete tree of the running kernel is used as it is."""
    build = tree(tmp_path / "modules/6.9/build", complete=True)
    tree(tmp_path / "src/linux-headers-7.0-amd64", complete=True)
    found = kernel_headers("6.9", "x86_64", tmp_path / "modules", tmp_path / "src")
    assert found.source == build
    assert found.compiler_flags("x86") == []


def test_debians_split_headers_are_joined(tmp_path: Path) -> None:
    """The flavour's tree names the common one in its Makefile; both are used, the newest version wins."""
    for version in ("6.1.0-9", "6.1.0-57"):
        tree(tmp_path / f"linux-headers-{version}-common", complete=True)
        flavour = tree(tmp_path / f"linux-headers-{version}-amd64", complete=False)
        (flavour / "Makefile").write_text(f"include {tmp_path}/linux-headers-{version}-common/Makefile\n")
    found = kernel_headers("6.18", "x86_64", tmp_path / "none", tmp_path)
    assert found.source.name == "linux-headers-6.1.0-57-common"
    assert any("57-amd64/arch/x86/include/generated" in flag for flag in found.compiler_flags("x86"))


def test_missing_headers_name_the_package(tmp_path: Path) -> None:
    """The package of the running kernel is in the remedy."""
    with pytest.raises(UnsupportedError) as error:
        kernel_headers("6.1.0-57-amd64", "x86_64", tmp_path, tmp_path)
    assert "linux-headers-6.1.0-57-amd64" in error.value.remedy


def test_the_physics_library_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module bcc without the class BPF is PyPI's: said so, with the package that is meant."""
    impostor = types.ModuleType("bcc")
    impostor.__file__ = "/somewhere/site-packages/bcc/__init__.py"
    monkeypatch.setitem(sys.modules, "bcc", impostor)
    source = tmp_path / "x.bpf.c"
    source.write_text('SEC("xdp") int x(void *ctx) { return 2; }\n')
    with pytest.raises(UnsupportedError, match="/somewhere/site-packages/bcc") as error:
        load_source(source, ProgramSet("x"))
    assert "python3-bpfcc" in error.value.remedy


def test_a_missing_bcc_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without BCC the remedy is the distribution's package."""
    monkeypatch.setitem(sys.modules, "bcc", None)
    source = tmp_path / "x.bpf.c"
    source.write_text('SEC("xdp") int x(void *ctx) { return 2; }\n')
    with pytest.raises(UnsupportedError, match="not installed") as error:
        load_source(source, ProgramSet("x"))
    assert "python3-bpfcc" in error.value.remedy


def test_a_source_of_another_record_version_is_refused(tmp_path: Path) -> None:
    """AGENT_ABI of the inlined records.h must be the native module's."""
    source = tmp_path / "x.bpf.c"
    source.write_text('#define AGENT_ABI 9999\nSEC("xdp") int x(void *ctx) { return 2; }\n')
    with pytest.raises(AgentError, match="9999") as error:
        load_source(source, ProgramSet("x"))
    assert "make all" in error.value.remedy


def test_device_bound_programs_are_refused(tmp_path: Path) -> None:
    """BCC has no kfuncs: the remedy is the other loader."""
    with pytest.raises(UnsupportedError, match="kfuncs"):
        load_source(tmp_path / "x.bpf.c", ProgramSet("x", device_bound=("x",), ifindex=1))
