"""The journal of changed settings, and putting them back.

Each scope (an interface in a network namespace) has one append-only file of JSON lines in the state directory. A line
is on disk before the setting is written, so whatever the process dies of, the value before is known. The file is
locked while its agent lives. Its first line says which boot, namespace and interface the values belong to: values of
another boot, or of another interface that took over the name, are never written.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import agent
from agent.control.settings import Setting, is_gone, kind_of
from agent.errors import AgentError, ConflictError, PartialError, UsageError
from agent.host.paths import HostPaths, read_int, read_text

FORMAT = 1
_SUFFIX = ".journal"
_VALUES = ("before", "after")
_NO_JOURNAL = (
    "make room there, or name another directory with --state-dir; without a journal nothing may be changed"
)
_NETNS_DIRECTORIES = (Path("/run/netns"), Path("/var/run/netns"))


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose settings a journal holds."""

    ifname: str
    ifindex: int
    netns_inode: int
    netns: str | None = None
    """The namespace's name or path, by which a later process can enter it; None: the one we were started in."""

    @property
    def name(self) -> str:
        """What its file is called: unique on the host."""
        return f"{quote(self.ifname, safe='')}@{self.netns_inode}"

    @property
    def is_host(self) -> bool:
        """It is the host's as a whole, of no interface."""
        return self == HOST_SCOPE


# No namespace has the inode 0, so it is no interface's.
HOST_SCOPE = Scope("host", 0, 0)
"""Settings of the host as a whole, which `agent doctor --fix` makes; they outlive the process that made them."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One change, as it was about to be made."""

    seq: int
    setting: Setting
    before: bytes
    after: bytes


@dataclass(frozen=True, slots=True)
class Restored:
    """What became of one setting, or (with an empty `target`) of one journal as a whole."""

    scope: str
    kind: str
    target: str
    outcome: str
    """`restored`; `unchanged` (it had its old value); `gone` (interface, thread or namespace vanished); `previous_boot`
    (discarded unwritten); `changed_by_others`, `failed`, `owner_running` (left for the user)."""
    wanted: bytes
    found: bytes
    reason: str

    @property
    def complete(self) -> bool:
        """Nothing is left to do."""
        return self.outcome not in ("changed_by_others", "failed", "owner_running")


def this_scope(ifname: str, netns: str | None = None, paths: HostPaths | None = None) -> Scope:
    """The scope of an interface in the calling thread's namespace. Raises `UsageError` where it is not there."""
    paths = paths or HostPaths()
    ifindex = read_int(paths.net(ifname) / "ifindex")
    if ifindex is None:
        raise UsageError(f"no such interface {ifname!r}", "`ip link` lists them")
    return Scope(ifname, ifindex, netns_inode(), netns)


def netns_inode() -> int:
    """The inode that identifies the calling thread's network namespace."""
    return Path("/proc/thread-self/ns/net").stat().st_ino


class Journal:
    """The journal of a running agent: it holds the lock, and writes before every change."""

    def __init__(self, state_dir: Path, scope: Scope, paths: HostPaths | None = None) -> None:
        """Take over the scope.

        Raises `ConflictError` when another agent holds it, or a killed one left changes that were not put back yet,
        `UsageError` where a journal cannot be kept or others could write into it. The host's scope goes on where the
        process before left off: its changes are meant to stay.
        """
        self.scope = scope
        self._paths = paths or HostPaths()
        self._path = state_dir / (scope.name + _SUFFIX)
        self._entries: list[Entry] = []
        self.notes: tuple[str, ...] = ()
        try:
            state_dir.mkdir(parents=True, exist_ok=True, mode=0o755)
            _require_private(state_dir)
            self._fd = _lock(self._path, create=True)
            try:
                self._take_over()
                try:
                    if not self._entries:
                        os.ftruncate(self._fd, 0)
                        self._append(_header(scope, self._paths))
                except OSError:
                    self._path.unlink()  # it holds nothing
                    raise
                _sync_directory(state_dir)
            except BaseException:
                os.close(self._fd)
                raise
        except OSError as error:
            raise UsageError(
                f"no journal can be kept in {state_dir}: {error.strerror}", _NO_JOURNAL
            ) from error

    def record(self, setting: Setting, before: bytes, after: bytes) -> None:
        """Put a change on disk. On return it is safe to make it; raises `UsageError` when it could not be stored."""
        entry = Entry(len(self._entries), setting, before, after)
        line = {
            "seq": entry.seq,
            "kind": setting.kind,
            "target": setting.target,
            "namespaced": setting.namespaced,
            "before": _to_text(before),
            "after": _to_text(after),
        }
        try:
            self._append(line)
        except OSError as error:
            raise UsageError(
                f"{setting.target} is not changed: the journal {self._path} could not be written: {error.strerror}",
                _NO_JOURNAL,
            ) from error
        self._entries.append(entry)

    def restore(self, settings: Collection[Setting] | None = None, *, force: bool = False) -> list[Restored]:
        """Put back everything recorded, or only these settings, newest first.

        Nothing is forgotten: a second call finds the values unchanged.
        """
        entries = [entry for entry in self._entries if settings is None or entry.setting in settings]
        return _put_back(self.scope, entries, self._paths, force=force)

    def close(self, restored: Sequence[Restored] = ()) -> None:
        """Release the scope; the file is removed unless `restored` names something that is left to do."""
        if self._fd < 0:
            return
        if all(item.complete for item in restored):
            # Somebody may have removed the directory, and the journal with it.
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()
                _sync_directory(self._path.parent)
        os.close(self._fd)
        self._fd = -1

    def leave(self) -> None:
        """Release the scope with its changes in force: `restore` puts them back one day."""
        if self._entries:
            os.close(self._fd)
            self._fd = -1
        else:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(self.restore())

    def _take_over(self) -> None:
        header, entries = _parse(_read_all(self._fd))
        if header is None or not entries:
            return
        if header["boot_id"] != _boot_id(self._paths):
            self.notes = (
                f"a journal of an earlier boot was discarded: its {len(entries)} changes ended with that boot",
            )
            return
        if self.scope.is_host:
            self._entries = entries
            return
        changed = {entry.setting for entry in entries}
        raise ConflictError(
            f"an agent that was killed left {len(changed)} changed settings of {self.scope.ifname}",
            "put them back with `agent restore`, then start again",
        )

    def _append(self, line: dict[str, Any]) -> None:
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        size = os.fstat(self._fd).st_size
        try:
            if os.write(self._fd, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
            os.fsync(self._fd)
        except OSError:
            # The next line must not be glued to a part of this one: that would make all of them unreadable.
            os.ftruncate(self._fd, size)
            raise


def restore(
    state_dir: Path,
    force: bool = False,
    scope: str | None = None,
    discard: bool = False,
    enter_netns: Callable[[str], object] | None = None,
    paths: HostPaths | None = None,
) -> list[Restored]:
    """Put back what killed agents left, and remove the journals that are done with.

    `scope` limits it to the scope of that name, or to those of the interface of that name. With `force`, values that
    somebody changed since are overwritten too; with `discard`, what is not put back is left and forgotten. Settings
    of another network namespace are put back by a child process that calls `enter_netns(name or path)` (default:
    `agent.ffi.netns.enter_netns`). Nothing is raised for a single setting: pass the result to `require_complete`.
    Raises `UsageError` for a directory that others may write to: what stands there is written as root.
    """
    paths = paths or HostPaths()
    try:
        if state_dir.is_dir():
            _require_private(state_dir)
    except OSError as error:
        raise UsageError(f"{state_dir} cannot be read: {error.strerror}", "check --state-dir") from error
    results: list[Restored] = []
    for path in sorted(state_dir.glob(f"*{_SUFFIX}")):
        name = path.name.removesuffix(_SUFFIX)
        if scope is None or scope == name or quote(scope, safe="") == name.rpartition("@")[0]:
            results += _restore_file(path, name, force, discard, enter_netns, paths)
    return results


def require_complete(restored: Iterable[Restored]) -> None:
    """Raise what an incomplete restoration means to a user.

    `ConflictError` where a running agent still owns a scope, `PartialError` where settings were left as they are.
    """
    left = [item for item in restored if not item.complete]
    running = [item for item in left if item.outcome == "owner_running"]
    if running:
        raise ConflictError(
            f"{running[0].scope}: {running[0].reason}", "stop that agent: it restores its settings itself"
        )
    if left:
        first = left[0]
        more = f", and {len(left) - 1} more" if len(left) > 1 else ""
        forcible = any(item.outcome == "changed_by_others" for item in left)
        raise PartialError(
            f"{first.target or first.scope} was not put back: {first.reason}{more}",
            "look at the values; `agent restore --force` overwrites what others changed since"
            if forcible
            else "remove the cause and run `agent restore` again; or set the value by hand, then "
            "`agent restore --discard` forgets it",
        )


def _restore_file(
    path: Path,
    name: str,
    force: bool,
    discard: bool,
    enter_netns: Callable[[str], object] | None,
    paths: HostPaths,
) -> list[Restored]:
    try:
        fd = _lock(path, create=False)
    except ConflictError as error:
        return [Restored(name, "", "", "owner_running", b"", b"", error.what)]
    except FileNotFoundError:
        return []  # Its agent ended, and removed it, a moment ago.
    except OSError as error:
        return [Restored(name, "", "", "failed", b"", b"", f"{path}: {error.strerror}")]
    try:
        header, entries = _parse(_read_all(fd))
        if header is None:
            # Torn before its first line was complete: nothing had been changed yet.
            results = []
        elif header["boot_id"] != _boot_id(paths):
            reason = f"{len(entries)} entries of an earlier boot discarded: those settings ended with it"
            results = [Restored(name, "", "", "previous_boot", b"", b"", reason)]
        else:
            results = _restore_scope(_scope_of(header), entries, force, enter_netns, paths)
        if discard or all(item.complete for item in results):
            path.unlink(missing_ok=True)
            _sync_directory(path.parent)
        return results
    except PartialError as error:
        if discard:
            path.unlink(missing_ok=True)
        return [Restored(name, "", "", "failed", b"", b"", f"{path}: {error}")]
    finally:
        os.close(fd)


def _restore_scope(
    scope: Scope,
    entries: list[Entry],
    force: bool,
    enter_netns: Callable[[str], object] | None,
    paths: HostPaths,
) -> list[Restored]:
    if scope.is_host or scope.netns_inode == netns_inode():
        return _put_back(scope, entries, paths, force=force)
    where = _find_netns(scope)
    if where is not None:
        return _put_back_inside(where, scope, entries, force, enter_netns, paths)
    # The namespace is gone and its virtual interfaces with it; settings of the whole host (IRQs) are not.
    hostwide = [entry for entry in entries if not entry.setting.namespaced]
    gone = [entry for entry in entries if entry.setting.namespaced]
    reason = "its network namespace is gone"
    return _put_back(scope, hostwide, paths, force=force) + [
        Restored(scope.name, item.setting.kind, item.setting.target, "gone", item.original, b"", reason)
        for item in _pending(gone)
    ]


def _put_back_inside(
    where: str,
    scope: Scope,
    entries: list[Entry],
    force: bool,
    enter_netns: Callable[[str], object] | None,
    paths: HostPaths,
) -> list[Restored]:
    """Do it in a forked child, since a process that entered a namespace does not find back."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            if enter_netns is None:
                from agent.ffi.netns import enter_netns as enter

                enter(where)
            else:
                enter_netns(where)
            answer: dict[str, Any] = {
                "results": [_jsonable(r) for r in _put_back(scope, entries, paths, force=force)]
            }
        except AgentError as error:
            answer = {"error": error.what}
        except (
            Exception
        ) as error:  # whatever it is: this copy of the process must not go on as if it were the first
            answer = {"error": f"{type(error).__name__}: {error}"}
        try:
            with os.fdopen(writer, "w") as pipe:
                json.dump(answer, pipe)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    try:
        answer = json.loads(text)
    except ValueError:
        answer = {"error": "the process that entered the namespace died"}
    if "error" in answer:
        return [
            Restored(scope.name, "", "", "failed", b"", b"", f"network namespace {where}: {answer['error']}")
        ]
    return [
        Restored(**(item | {"wanted": _to_bytes(item["wanted"]), "found": _to_bytes(item["found"])}))
        for item in answer["results"]
    ]


@dataclass(frozen=True, slots=True)
class _Pending:
    """All changes to one setting, folded."""

    setting: Setting
    original: bytes
    ours: tuple[bytes, bytes]
    """Before and after of the last change: with any other value there now, somebody else changed it."""
    last_seq: int


def _pending(entries: Iterable[Entry]) -> list[_Pending]:
    chains: dict[Setting, list[Entry]] = {}
    for entry in entries:
        chains.setdefault(entry.setting, []).append(entry)
    pending = []
    for setting, chain in chains.items():
        last = chain[-1]
        first = last
        same = kind_of(setting.kind).same
        for older in reversed(chain[:-1]):
            # A write that failed left its own `before`. Any other value was set by somebody between two changes of
            # ours: theirs is then what we found, and what is put back.
            if not (same(first.before, older.after) or same(first.before, older.before)):
                break
            first = older
        pending.append(_Pending(setting, first.before, (last.before, last.after), last.seq))
    return sorted(pending, key=lambda item: item.last_seq, reverse=True)


def _put_back(scope: Scope, entries: Sequence[Entry], paths: HostPaths, *, force: bool) -> list[Restored]:
    known: list[Entry] = []
    results = []
    for entry in entries:
        try:
            kind_of(entry.setting.kind)
            reason = _foreign_target(scope, entry.setting, paths)
        except KeyError:
            reason = f"this version does not know how to undo {entry.setting.kind!r}"
        if not reason:
            known.append(entry)
        else:
            results.append(
                Restored(
                    scope.name, entry.setting.kind, entry.setting.target, "failed", entry.before, b"", reason
                )
            )
    name = _name_now(scope, paths)
    replaced = name is None and read_int(paths.net(scope.ifname) / "ifindex") is not None
    for item in _pending(known):
        if name not in (None, scope.ifname) and item.setting.namespaced:
            item = replace(item, setting=_renamed(scope, item.setting, name, paths))
        if replaced and item.setting.namespaced:
            reason = f"another interface is called {scope.ifname} now"
            results.append(
                Restored(
                    scope.name, item.setting.kind, item.setting.target, "gone", item.original, b"", reason
                )
            )
        else:
            results.append(_put_back_one(scope, item, force))
    return results


def _put_back_one(scope: Scope, item: _Pending, force: bool) -> Restored:
    kind = kind_of(item.setting.kind)
    found = b""

    def result(outcome: str, reason: str) -> Restored:
        return Restored(
            scope.name, item.setting.kind, item.setting.target, outcome, item.original, found, reason
        )

    try:
        found = kind.read(item.setting.target)
        if found == item.original:
            return result("unchanged", "it has its old value")
        if not force and not any(kind.same(found, value) for value in item.ours):
            last = item.ours[1].decode(errors="replace").strip()
            return result("changed_by_others", f"somebody changed it since: it was {last!r} when we left it")
        kind.write(item.setting.target, item.original)
        back = kind.read(item.setting.target)
    except OSError as error:
        if is_gone(error):
            return result("gone", "it does not exist any more")
        return result("failed", f"{os.strerror(error.errno) if error.errno else error}")
    except (ValueError, OverflowError) as error:
        return result("failed", f"the journal's entry makes no sense: {error}")
    if not kind.same(back, item.original):
        return result("failed", f"it reads {back!r} after writing {item.original!r}")
    return result("restored", "")


def _name_now(scope: Scope, paths: HostPaths) -> str | None:
    """What the scope's interface is called now: it may have been renamed. None where it is gone."""
    names = [scope.ifname]
    with contextlib.suppress(OSError):
        names += sorted(entry.name for entry in (paths.sys / "class/net").iterdir())
    return next((name for name in names if read_int(paths.net(name) / "ifindex") == scope.ifindex), None)


def _renamed(scope: Scope, setting: Setting, name: str, paths: HostPaths) -> Setting:
    """The same setting under the interface's present name."""
    if setting.target == scope.ifname:
        return replace(setting, target=name)
    with contextlib.suppress(ValueError):  # other kinds don't name the interface
        inside = Path(setting.target).relative_to(paths.net(scope.ifname))
        return replace(setting, target=str(paths.net(name) / inside))
    return setting


def _foreign_target(scope: Scope, setting: Setting, paths: HostPaths) -> str:
    """Why a setting is none that an agent of this scope changes; empty if it may be one.

    Restoring runs as root: whatever a journal says, no file but the interface's own and those of IRQs is written (of
    the host's scope those of frequency scaling), and nothing of another interface by a link below this one's
    directory.
    """
    if setting.kind != "file":
        owned = kind_of(setting.kind).belongs(setting.target, scope.ifname, scope.ifindex)
        return "" if owned else f"it is no {setting.kind} of {scope.ifname}, and nothing else is written"
    if scope.is_host:
        root = paths.cpu / "cpufreq"
    else:
        root = paths.net(scope.ifname) if setting.namespaced else paths.proc / "irq"
    path = Path(setting.target)
    inside = path.is_relative_to(root) and ".." not in path.parts
    if inside and path.resolve().is_relative_to(root.resolve()):
        return ""
    return f"it is not below {root}, and nothing else is written from a journal"


def _require_private(state_dir: Path) -> None:
    """Raise `UsageError` if somebody else could put a journal there, or lead ours elsewhere."""
    found = state_dir.stat()
    if found.st_uid in (0, os.geteuid()) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return
    raise UsageError(
        f"the state directory {state_dir} can be written by others than its owner, or is not root's",
        "look at what is in it, then `chown root` and `chmod 755` it, or name another with --state-dir",
    )


def _find_netns(scope: Scope) -> str | None:
    """By the name or path that the journal gives, else by its inode; None when the namespace is gone."""
    if scope.netns is not None and _inode_of(scope.netns) == scope.netns_inode:
        return scope.netns
    for directory in _NETNS_DIRECTORIES:
        for path in sorted(directory.glob("*")):
            if _inode_of(str(path)) == scope.netns_inode:
                return str(path)
    for path in Path("/proc").glob("[0-9]*/ns/net"):
        if _inode_of(str(path)) == scope.netns_inode:
            return str(path)
    return None


def _inode_of(netns: str) -> int | None:
    path = Path(netns) if "/" in netns else _NETNS_DIRECTORIES[0] / netns
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _lock(path: Path, *, create: bool) -> int:
    """An exclusive lock on the journal file; the descriptor holds it. Raises `ConflictError` when it is taken."""
    while True:
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
        fd = os.open(path, flags, 0o600)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            try:
                header = json.loads(_read_all(fd).partition(b"\n")[0])
                owner = f" (pid {header['pid']})"
            except (ValueError, KeyError, TypeError, RecursionError):
                owner = ""  # Its first line is not written yet.
            finally:
                os.close(fd)
            raise ConflictError(
                f"a running agent{owner} owns {path.name.removesuffix(_SUFFIX)}",
                "one agent an interface: stop that one first",
            ) from None
        # Between open and lock its former owner may have removed the file: then lock the one that is there now.
        try:
            if path.stat().st_ino == os.fstat(fd).st_ino:
                return fd
        except FileNotFoundError:
            if not create:
                os.close(fd)
                raise
        os.close(fd)


def _header(scope: Scope, paths: HostPaths) -> dict[str, Any]:
    return {
        "agent_journal": FORMAT,
        "version": agent.__version__,
        "boot_id": _boot_id(paths),
        "pid": os.getpid(),
        **asdict(scope),
    }


def _scope_of(header: dict[str, Any]) -> Scope:
    return Scope(header["ifname"], header["ifindex"], header["netns_inode"], header["netns"])


def _parse(data: bytes) -> tuple[dict[str, Any] | None, list[Entry]]:
    """Header and entries. A last line that was torn by a crash is left out: its change was never made.

    Raises `PartialError` for a file that is no journal of this format.
    """
    lines = data.split(b"\n")
    # What follows the last newline is either nothing or torn.
    complete = lines[:-1]
    if not complete:
        return None, []
    try:
        header = json.loads(complete[0])
        if header.get("agent_journal") != FORMAT:
            raise ValueError(f"format {header.get('agent_journal')}")
        _check(header, {"boot_id": str, "ifname": str, "ifindex": int, "netns_inode": int})
        if header["netns"] is not None:
            _check(header, {"netns": str})
        if "/" in header["ifname"] or header["ifname"] in ("", ".", ".."):
            raise ValueError(f"{header['ifname']!r} is no interface")
        entries = [_entry(json.loads(line)) for line in complete[1:]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PartialError(
            f"a journal cannot be read: {error}",
            "it was written by another version, or damaged: set the values by hand, then `agent restore --discard` "
            "removes it",
        ) from error
    return header, entries


def _check(line: dict[str, Any], types: dict[str, type]) -> None:
    for key, kind in types.items():
        value = line[key]
        # A NUL or half a surrogate pair is in no name and no path of ours, though it may be in a value.
        if not isinstance(value, kind) or (
            isinstance(value, str) and key not in _VALUES and re.search("[\0\ud800-\udfff]", value)
        ):
            raise ValueError(f"{key} is {value!r}")


def _entry(line: dict[str, Any]) -> Entry:
    _check(line, {"seq": int, "kind": str, "target": str, "namespaced": bool, "before": str, "after": str})
    setting = Setting(line["kind"], line["target"], line["namespaced"])
    return Entry(line["seq"], setting, _to_bytes(line["before"]), _to_bytes(line["after"]))


def _to_text(value: bytes) -> str:
    # Latin-1 maps every byte to one character: exact, and readable where the value is ASCII.
    return value.decode("latin-1")


def _to_bytes(text: str) -> bytes:
    return text.encode("latin-1")


def _jsonable(result: Restored) -> dict[str, Any]:
    return asdict(result) | {"wanted": _to_text(result.wanted), "found": _to_text(result.found)}


def _read_all(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


def _boot_id(paths: HostPaths) -> str:
    return read_text(paths.proc / "sys/kernel/random/boot_id") or ""


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
