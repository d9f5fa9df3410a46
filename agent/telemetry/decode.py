"""Reading a telemetry stream: bytes in any portions to checked frames, faults named with their byte offset."""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias, Union, get_args, get_origin, get_type_hints, is_typeddict

import msgpack

from agent.errors import PartialError, UsageError
from agent.telemetry import schema

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

AnyFrame: TypeAlias = dict[str, Any]
"""A checked frame: a dict with the keys that `schema.py` gives for its `t`, and perhaps further ones."""

_MARK_BYTES = schema.STREAM_MARK_OFFSET + len(schema.STREAM_MARK)
_FEED_BYTES = 64 << 10
_FIXMAPS = range(0x81, 0x90)

# What people feed to a decoder by mistake: first bytes, name, remedy.
_KNOWN_FORMATS = (
    (b"\x1f\x8b", "gzip data", "unpack it first: `zcat FILE | agent decode`"),
    (b"\x28\xb5\x2f\xfd", "zstd data", "unpack it first: `zstdcat FILE | agent decode`"),
    (b"\xfd7zXZ", "xz data", "unpack it first: `xzcat FILE | agent decode`"),
    (b"{", "JSON", "it is decoded already; the decoder takes the msgpack that `agent run` writes"),
    (b"\xd4\xc3\xb2\xa1", "a pcap file", "the decoder takes telemetry, not packets"),
    (b"\x0a\x0d\x0d\x0a", "a pcapng file", "the decoder takes telemetry, not packets"),
)
_REMEDY = "give it what `agent run -i IF` writes to a pipe or a file, from its first byte"

_FORMAT = re.compile(r"[<>|][iu][1248]")
_MAX_FIELDS = 256
_MAX_RECORD_BYTES = 4096


class ForeignStreamError(UsageError):
    """This is no telemetry stream, or one of a newer version: nothing of it can be used."""


class DamagedStreamError(PartialError):
    """The stream breaks off or turns into something else; the frames before that were given."""


class Decoder:
    """An incremental decoder of one stream.

    Feed it portions as they arrive; it gives each frame as soon as it is complete. After an error nothing more can
    be fed: where the next frame begins is not known any more.
    """

    def __init__(self) -> None:
        self._unpacker = msgpack.Unpacker(
            max_buffer_size=schema.MAX_FRAME_BYTES + 2 * _FEED_BYTES,
            max_str_len=schema.MAX_TEXT_BYTES,
            max_bin_len=schema.MAX_DATA_BYTES,
            max_array_len=schema.MAX_ITEMS,
            max_map_len=schema.MAX_ITEMS,
            max_ext_len=0,
        )
        self._head = b""
        self._recognised = False
        self._fed = 0
        self._layout: np.dtype[np.void] | None = None
        self._next_seq: int | None = None
        self.offset = 0
        """Where the next frame begins, bytes from the start of the stream."""
        self.frames = 0
        self.missing_frames = 0
        """Frames that the agent's sink dropped, from the gaps in `seq`."""
        self.complete = False
        """The last frame given was a goodbye."""

    def feed(self, data: bytes) -> Iterator[AnyFrame]:
        """The frames that these bytes complete. Raises `ForeignStreamError` or `DamagedStreamError` behind them."""
        if not self._recognised:
            self._head += data
            self._check_mark(self._head)
            if len(self._head) < _MARK_BYTES:
                return
            self._recognised = True
            data, self._head = self._head, b""
        view = memoryview(data)
        for start in range(0, len(view), _FEED_BYTES):
            yield from self._feed(view[start : start + _FEED_BYTES])

    def finish(self) -> None:
        """Say that the stream has ended. Raises if it ended within a frame, or before the first one."""
        if not self._recognised:
            found = f"ends at byte {len(self._head)}" if self._head else "is empty"
            raise ForeignStreamError(f"the input {found}, expected a telemetry stream", _REMEDY)
        if self._fed > self.offset:
            raise DamagedStreamError(
                f"the stream is truncated: it ends at byte {self._fed}, within the frame that begins "
                f"at byte {self.offset}",
                f"the {self.frames} frames before it are complete; its writer was stopped, or the copy is not complete",
            )

    def records(self, frame: AnyFrame) -> npt.NDArray[np.void]:
        """The records of a windows frame, a read-only array [n] of the dtype that hello described."""
        import numpy as np

        assert self._layout is not None  # no windows frame is given before a hello
        return np.frombuffer(frame["data"], dtype=self._layout)

    # ---- frames ----------------------------------------------------------------------------------------------

    def _feed(self, data: memoryview) -> Iterator[AnyFrame]:
        self._unpacker.feed(data)
        self._fed += len(data)
        while True:
            try:
                found = self._unpacker.unpack()
            except msgpack.OutOfData:
                break
            except (ValueError, msgpack.UnpackException) as error:
                at = self._unpacker.tell()
                reason = str(error) or {"StackError": "nested too deeply"}.get(
                    type(error).__name__, "not msgpack"
                )
                raise self._fault(f"near byte {at}: {reason}", "a msgpack map within the limits") from None
            try:
                frame = self._checked(found)
            except _Mismatch as mismatch:
                raise self._fault(mismatch.found, mismatch.expected) from None
            self.offset = self._unpacker.tell()
            self.frames += 1
            yield frame
        if self._fed - self.offset > schema.MAX_FRAME_BYTES:
            raise self._fault("a frame that does not end", f"at most {schema.MAX_FRAME_BYTES} bytes a frame")

    def _checked(self, found: object) -> AnyFrame:
        _check_plain(found, schema.MAX_DEPTH)
        if not isinstance(found, dict):
            raise _Mismatch(_kind(found), "a map")
        version = found.get("v")
        if type(version) is int and version > schema.TELEMETRY_VERSION:
            raise ForeignStreamError(
                f"the stream has telemetry version {version} (byte {self.offset}), "
                f"this agent reads up to {schema.TELEMETRY_VERSION}",
                "decode it with the agent that wrote it, or a newer one",
            )
        _FRAME_CHECK(found, "")
        kind = found["t"]
        if self.frames == 0 and kind != "hello":
            raise _Mismatch(f"a frame {kind!r}", "the hello frame at the start")
        if kind in schema.FRAME_TYPES:
            _type_check(kind)(found, "")
        if kind == "hello":
            self._layout = _layout(found["window_record"])
            self._next_seq = None
        elif kind == "windows":
            self._check_windows(found)
        self._count(found["seq"])
        self.complete = kind == "goodbye"
        return found

    def _check_windows(self, frame: AnyFrame) -> None:
        size = self._layout.itemsize if self._layout is not None else 0
        if len(frame["data"]) != frame["n"] * size:
            raise _Mismatch(
                f"windows.data has {len(frame['data'])} bytes", f"{frame['n']} records of {size} bytes"
            )

    def _count(self, seq: int) -> None:
        if self._next_seq is not None and seq > self._next_seq:
            self.missing_frames += seq - self._next_seq
        self._next_seq = seq + 1

    # ---- errors ----------------------------------------------------------------------------------------------

    def _check_mark(self, head: bytes) -> None:
        mark = head[schema.STREAM_MARK_OFFSET : _MARK_BYTES]
        if head and (head[0] not in _FIXMAPS or not schema.STREAM_MARK.startswith(mark)):
            for first, name, remedy in _KNOWN_FORMATS:
                if head.startswith(first):
                    raise ForeignStreamError(f"byte 0: this is {name}, not a telemetry stream", remedy)
            raise ForeignStreamError(
                f"byte 0: expected a map that begins with magic {schema.MAGIC!r}, found {head[:16]!r}",
                _REMEDY,
            )

    def _fault(self, found: str, expected: str) -> ForeignStreamError | DamagedStreamError:
        what = f"byte {self.offset}: expected {expected}, found {found}"
        if self.frames == 0:
            return ForeignStreamError(what, _REMEDY)
        return DamagedStreamError(
            what,
            f"the {self.frames} frames before it are good; something else wrote to the stream, or it was damaged",
        )


# ---- checking against the schema -----------------------------------------------------------------------------

_Check: TypeAlias = Callable[[Any, str], None]


class _Mismatch(Exception):  # noqa: N818 - never leaves this module
    def __init__(self, found: str, expected: str) -> None:
        super().__init__(found, expected)
        self.found = found
        self.expected = expected


def _kind(value: object) -> str:
    name = {dict: "a map", list: "an array", str: "a string", bytes: "binary data", type(None): "nil"}.get(
        type(value)
    )
    return name or f"a {type(value).__name__} ({value!r:.40})"


def _check_plain(value: object, depth: int) -> None:
    """Nothing but maps with string keys, arrays, and scalars, and not too deep for those who walk it later."""
    if isinstance(value, dict | list):
        if depth == 0:
            raise _Mismatch("deeper nesting", f"at most {schema.MAX_DEPTH} levels")
        if isinstance(value, dict):
            for key in value:
                if type(key) is not str:
                    raise _Mismatch(f"the key {key!r:.40}", "strings as keys")
        for item in value.values() if isinstance(value, dict) else value:
            _check_plain(item, depth - 1)


def _compile(hint: Any) -> _Check:
    """A function that raises `_Mismatch` unless a value has the type that the hint names."""
    origin = get_origin(hint)
    if is_typeddict(hint):
        return _compile_typeddict(hint)
    if origin is list:
        item = _compile(get_args(hint)[0])

        def check_list(value: Any, where: str) -> None:
            if type(value) is not list:
                raise _Mismatch(f"{where} is {_kind(value)}", "an array")
            for index, element in enumerate(value):
                item(element, f"{where}[{index}]")

        return check_list
    if origin is dict:
        entry = _compile(get_args(hint)[1])

        def check_dict(value: Any, where: str) -> None:
            if type(value) is not dict:
                raise _Mismatch(f"{where} is {_kind(value)}", "a map")
            for key, element in value.items():
                entry(element, f"{where}.{key:.40}")

        return check_dict
    if origin in (Union, types.UnionType):
        (inner,) = (argument for argument in get_args(hint) if argument is not type(None))
        some = _compile(inner)

        def check_optional(value: Any, where: str) -> None:
            if value is not None:
                some(value, where)

        return check_optional
    # A whole number may have been packed as an integer by another encoder; a bool is neither.
    allowed: tuple[type, ...] = (float, int) if hint is float else (hint,)
    name = {int: "an integer", float: "a number", str: "a string", bool: "a boolean", bytes: "binary data"}[
        hint
    ]

    def check_scalar(value: Any, where: str) -> None:
        if type(value) not in allowed:
            raise _Mismatch(f"{where} is {_kind(value)}", name)

    return check_scalar


def _compile_typeddict(hint: Any) -> _Check:
    checks = {key: _compile(inner) for key, inner in get_type_hints(hint).items()}

    def check_map(value: Any, where: str) -> None:
        if type(value) is not dict:
            raise _Mismatch(f"{where} is {_kind(value)}", "a map")
        for key, check in checks.items():
            if key not in value:
                raise _Mismatch(f"a map without it{f' in {where}' if where else ''}", f"the key {key!r}")
            check(value[key], f"{where}.{key}" if where else key)

    return check_map


_FRAME_CHECK = _compile(schema.Frame)
_type_checks: dict[str, _Check] = {}


def _type_check(kind: str) -> _Check:
    if kind not in _type_checks:
        _type_checks[kind] = _compile(schema.FRAME_TYPES[kind])
    return _type_checks[kind]


def _layout(described: dict[str, Any]) -> np.dtype[np.void]:
    """The dtype of the records. Only integers within the record are taken; whoever wrote it may be hostile."""
    import numpy as np

    names, formats, offsets = described["names"], described["formats"], described["offsets"]
    itemsize = described["itemsize"]
    sound = (
        0 < len(names) <= _MAX_FIELDS
        and len(names) == len(formats) == len(offsets) == len(set(names))
        and all(names)
        and all(_FORMAT.fullmatch(text) for text in formats)
        and 0 < itemsize <= _MAX_RECORD_BYTES
        and all(0 <= offset <= itemsize - int(text[2]) for text, offset in zip(formats, offsets, strict=True))
    )
    if not sound:
        raise _Mismatch("hello.window_record that describes no such thing", "named integers within a record")
    try:
        return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": itemsize})
    except (TypeError, ValueError) as error:
        raise _Mismatch(f"hello.window_record that numpy refuses ({error})", "a numpy dtype") from None
