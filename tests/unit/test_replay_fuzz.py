"""Damaged recordings, by the thousand: an error for the user with its place and remedy, and never anything else.

Every file is made from its number alone. `AGENT_TEST_FUZZ=2000` runs so many of each kind, by default a slice of them.
"""

from __future__ import annotations

import json
import math
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest

from agent.cli import main
from tests.unit import telemetry_frames
from tests.unit.captures import NS_PER_S, Timed, block, enhanced, exablaze, interface, metamako, pcap, section
from tests.unit.test_replay_packets import stamped
from tests.unit.test_replay_telemetry import FRAMES

FILES = int(os.environ.get("AGENT_TEST_FUZZ", "60"))
_PACKETS = list(stamped(0.5))
_PLACES = ("line ", "packet", "byte ", "frame", "empty", "`inputs`", "version", "recorded by")

_FIELDS = (
    "", "0", "-1", "nan", "inf", "1.7e18", "1.5", "9223372036854775808", str(1 << 62), str((1 << 62) + 1), "9" * 30,
    "abc", "\0", '"', "+5", " 7 ", "0x10", "1_0", "\uff11", "\r", "#", "1;2", "\x1b[2J",
)  # fmt: skip
_WORDS = (b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\xff" * 8, b"\x80" + b"\0" * 7)
_INTEGERS = (0, 1, -1, 1 << 31, 1 << 32, 1 << 62, (1 << 63) - 1, -(1 << 63), 1 << 63, (1 << 64) - 1, 10**18)
_FLOATS = (0.0, math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, 1e18, 1e9)
_TEXTS = ("", "x" * 1000, "\x1b[2J", "$\\frac{$", "eth9", "\0", "hello", "windows")


def _damaged(rng: random.Random, whole: bytes) -> bytes:
    """Bytes changed, taken out, put in, doubled, cut off."""
    data = bytearray(whole)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        if not data:
            break
        at = rng.randrange(len(data) if rng.random() < 0.7 else min(len(data), 400))
        match rng.randrange(7):
            case 0:
                data[at] = rng.randrange(256)
            case 1:
                data[at] ^= 1 << rng.randrange(8)
            case 2:
                del data[at : at + rng.choice((1, 4, 100))]
            case 3:
                data[at:at] = rng.randbytes(rng.choice((1, 4, 16)))
            case 4:
                word = rng.choice(_WORDS)
                data[at : at + len(word)] = word
            case 5:
                del data[at:]
            case 6:
                data[at:at] = data[at : at + rng.choice((4, 16, 200))]
    return bytes(data)


def _csv(rng: random.Random) -> bytes:
    """Samples that leap through years and clocks, with odd fields."""
    columns = ["local_ns", "hw_ns", "read_delay_ns"]
    columns += [name for name in ("seq", "hw_seq", "hw_clock") if rng.random() < 0.25]
    local = rng.choice((0, 1, 10**13, 1_790_000_000 * NS_PER_S, (1 << 62) - 10**12))
    behind = rng.choice((0, NS_PER_S, -NS_PER_S, local))
    wild = rng.random() < 0.4
    lines = [",".join(columns)]
    for i in range(rng.choice((0, 1, 2, 4, 10, 40, 120))):
        local += 10 ** rng.choice((0, 1, 3, 6, 8, 9, 11, 13, 16, 17) if wild else (8,))
        hw = local - behind + rng.randrange(100)
        if wild and rng.random() < 0.3:
            hw = rng.choice(
                (0, 1, local, 1 << 62, hw + 37 * NS_PER_S, hw + (1 << 32), rng.randrange(1 << 62))
            )
        row = {
            "local_ns": local,
            "hw_ns": hw if hw > 0 else "",
            "read_delay_ns": rng.choice(("", 1000, 0, 1 << 62 if wild else 900)),
            "seq": i,
            "hw_seq": i - (rng.random() < 0.1),
            "hw_clock": rng.randrange(3),
        }
        lines.append(",".join(str(row[name]) for name in columns))
    if len(lines) > 1 and rng.random() < 0.4:
        at = rng.randrange(1, len(lines))
        fields = lines[at].split(",")
        fields[rng.randrange(len(fields))] = rng.choice(_FIELDS)
        lines[at] = ",".join(fields)
    data = rng.choice(("\n", "\r\n")).join(lines).encode()
    return _damaged(rng, data) if rng.random() < 0.3 else data


def _packets(rng: random.Random) -> list[Timed]:
    """Stamped packets, some of them at other times, or of other clocks."""
    packets = _PACKETS[: rng.choice((1, 5, 40, 300))]
    if rng.random() < 0.2:
        form = rng.choice((metamako, exablaze))
        packets = [(at, form(at + rng.randrange(1000), rng.choice((1, 1, 200)))) for at, _ in packets]
    for _ in range(rng.choice((0, 0, 3))):
        i = rng.randrange(len(packets))
        at = packets[i][0] + rng.choice((-(10**9), -(10**10), 10**10, 10**12, 10**17, -(10**18), 5))
        packets[i] = (max(0, min(at, 0xFFFFFFFF * NS_PER_S)), packets[i][1])
    return packets


def _pcap(rng: random.Random) -> bytes:
    """Either byte order, seldom another magic or link type, damaged."""
    magic = rng.choice((0xA1B23C4D,) * 8 + (0xA1B2C3D4, 0xA1B2CD34))
    data = pcap(_packets(rng), order=rng.choice("<>"), magic=magic, link_type=rng.choice((1,) * 10 + (113,)))
    return _damaged(rng, data) if rng.random() < 0.8 else data


def _pcapng(rng: random.Random) -> bytes:
    """Several interfaces, each with its own resolution and offset of time; other blocks between."""
    order = rng.choice("<>")
    parts = [section(order)]
    resolutions = [
        rng.choice((9, 9, 9, 10, 0xA0, 0xC0, 6, None, 0, 127, 255)) for _ in range(rng.choice((1, 2, 4)))
    ]
    for resolution in resolutions:
        parts.append(interface(resolution, order))
        if rng.random() < 0.2:
            offset_s = rng.choice((0, 1, -1, 10**9, 1 << 62, -(1 << 63)))
            options = struct.pack(order + "HHB3xHHq", 9, 1, 9, 14, 8, offset_s)
            parts[-1] = block(1, struct.pack(order + "HHI", 1, 0, 0) + options, order)
    for at, data in _packets(rng):
        ticks = at * rng.choice((1, 1, 1, 10)) % (1 << 64)
        parts.append(
            enhanced(ticks, data, order, rng.randrange(len(resolutions)) if rng.random() < 0.2 else 0)
        )
        if rng.random() < 0.02:
            parts.append(block(rng.choice((0x0BAD, 2, 3, 4, 5)), bytes(rng.randrange(64)), order))
    whole = b"".join(parts)
    return _damaged(rng, whole) if rng.random() < 0.8 else whole


def _other(rng: random.Random, value: Any) -> Any:
    """Something else in its place, or somewhere inside it."""
    match value:
        case dict() if value:
            key = rng.choice(sorted(value))
            return value | {key: _other(rng, value[key])}
        case list() if value and rng.random() < 0.7:
            at = rng.randrange(len(value))
            return [*value[:at], _other(rng, value[at]), *value[at + 1 :]]
        case list():
            return rng.choice(([], value * 2, value[:1]))
        case bytes() if len(value) >= 8 and rng.random() < 0.6:
            data = bytearray(value)
            for _ in range(rng.choice((1, 3, len(data) // 8))):
                at = 8 * rng.randrange(len(data) // 8)
                data[at : at + 8] = struct.pack("<Q", rng.choice(_INTEGERS) % (1 << 64))
            return bytes(data)
        case bytes():
            return _damaged(rng, value)
        case bool():
            return not value
        case int():
            return rng.choice((*_INTEGERS, value + 10**9, value - 10**10, value + 10**12))
        case float():
            return rng.choice((*_FLOATS, -value))
        case str():
            return rng.choice(_TEXTS)
    return rng.choice((1, "x", b"", 1.5, {}))


def _stream(rng: random.Random, frames: list[dict[str, Any]]) -> bytes:
    """A run with frames out of order, left out, of other content, or other bytes."""
    frames = list(frames)
    match rng.randrange(8):
        case 0:
            rng.shuffle(frames)
        case 1:
            i, j = rng.randrange(len(frames)), rng.randrange(len(frames))
            frames[i], frames[j] = frames[j], frames[i]
        case 2:
            frames = [frame for frame in frames if rng.random() < 0.8]
        case 3:
            return _damaged(rng, b"".join(map(msgpack.packb, frames)))
        case _:
            for _ in range(rng.choice((1, 1, 2, 5))):
                i = rng.randrange(len(frames))
                frames[i] = _other(rng, frames[i])
    return b"".join(map(msgpack.packb, frames))


def _telemetry(rng: random.Random) -> bytes:
    return _stream(rng, FRAMES[: rng.choice((3, 10, 40, 80))])


def _every_frame(rng: random.Random) -> bytes:
    return _stream(rng, [dict(frame) for frame in telemetry_frames.run_of_frames()])


def _no_constant(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.timeout(0 if FILES > 200 else 120)
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_csv, ["replay", "--json"]),
        (_pcap, ["replay", "--json"]),
        (_pcapng, ["replay", "--json"]),
        (_telemetry, ["replay", "--json"]),
        (_telemetry, ["replay"]),
        (_every_frame, ["decode", "--json"]),
        (_every_frame, ["decode", "--windows", "full"]),
    ],
    ids=["csv", "pcap", "pcapng", "telemetry", "table", "decode", "windows"],
)
def test_damaged_files_are_replayed_or_refused(
    make: Callable[[random.Random], bytes],
    words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 0, 2 or 5, the place and the remedy where it isn't 0, and lines that are JSON."""
    path = tmp_path / "recording"
    for number in range(FILES):
        path.write_bytes(make(random.Random(f"{make.__name__} {number}")))
        code = main([*words, str(path)])
        said = capsys.readouterr()
        assert code in (0, 2, 5), (number, said.err)
        if code:
            assert "remedy: " in said.err, (number, said.err)
            assert any(place in said.err for place in _PLACES), (number, said.err)
        if words != ["replay"]:
            for line in said.out.splitlines():
                json.loads(line, parse_constant=_no_constant)
