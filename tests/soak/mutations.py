"""Mutations of files, as functions of a random generator.

Mutations of bytes apply to any file; mutations of a format keep most of it valid, so that readers
get as far as possible.
"""

import json
import re
import struct
from collections.abc import Callable
from random import Random
from typing import Any

import msgpack

from enn_trainer.checkpoints.saved_state import REST
from entity_env.serialization.messages import pack, unpack
from tests.soak.message_mutations import edited, messages

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[+-]?\d[\w.+-]*|\w+|[()\[\]{}:,]')
_HOSTILE = [
    *("0", "-1", "1", "7", "2", "1000000", "1000000000000", "9223372036854775808", "-0.0"),
    *("1e308", "-1e-320", "1.5", "inf", "NaN", "Infinity", "9" * 400, "0x7f", "1_000"),
    *('""', '"\\u0000"', '"\\u{d800}"', '"../x"', '"/etc/passwd"', '"a.b"', '"step: 1@0 lin 2@9"'),
    *("true", "false", "None", "null", "[]", "{}", "()", "Some(3)", "[1, 2]", '{"a": 1}', "(a: 1)"),
    *('["a", "a"]', "[" * 70 + "]" * 70, "[" * 5000, "(" * 100_000, '{"a":' * 3000, "'a'", "/*"),
    '"' + "long" * 5000 + '"',
    "[" + "1, " * 20_000 + "]",
    "{" + ", ".join(f'"k{i}": {{}}' for i in range(3000)) + "}",
    "(" + ", ".join(f"k{i}: 1" for i in range(3000)) + ")",
    "{" + ", ".join(f"{(2**61 - 1) * i}: 0" for i in range(3000)) + "}",  # of one hash
    '"step: ' + " ".join(f"0.1@{i}" for i in range(1000)) + '"',
    "{" + '"' + "k" * 20_000 + '": [' + "1, " * 1000 + "]}",
]
_NUMBERS = [0, -1, 1, 3, 2**31, 2**62, 2**63 - 1, 10**6, 1.5, None, "F32", True, [], {}]
_FLOATS = [float("nan"), float("inf"), float("-inf"), 1e38, -1e38, 1e-45, 0.0, 1e9]


def mutated(rng: Random, name: str, data: bytes, others: list[bytes]) -> bytes:
    """A file with some damage.

    Args:
        rng: chooses.
        name: of the file; the suffix gives the format.
        data: its bytes.
        others: files from which pieces may come.
    """
    ways: list[Callable[[Random, bytes], bytes]] = [noise, cut, lambda r, d: spliced(r, d, others)]
    ways += 5 * [episodes if name == REST else _OF_FORMAT[name.rpartition(".")[2]]]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        data = rng.choice(ways)(rng, data)
    return data


def flipped(data: bytes, at: int, bit: int) -> bytes:
    """One bit changed."""
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def noise(rng: Random, data: bytes) -> bytes:
    """A few other bytes."""
    changed = bytearray(data)
    for _ in range(min(len(data), rng.randint(1, 8))):
        changed[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(changed)


def cut(rng: Random, data: bytes) -> bytes:
    """The beginning."""
    return data[: rng.randrange(len(data) + 1)]


def spliced(rng: Random, data: bytes, others: list[bytes]) -> bytes:
    """A piece of some file in the place of another piece."""
    source = rng.choice([data, *others])
    start = rng.randrange(len(source) + 1)
    piece = source[start : start + rng.randint(0, 200)]
    at = rng.randrange(len(data) + 1)
    return data[:at] + piece * rng.choice((1, 1, 20)) + data[at + rng.randint(0, 200) :]


def text(rng: Random, data: bytes) -> bytes:
    """Other words, numbers, names and nesting in RON or JSON."""
    said = data.decode(errors="replace")
    tokens = list(_TOKEN.finditer(said))
    lines = said.splitlines(keepends=True)
    if not tokens or rng.random() < 0.2:
        i, j = rng.randrange(len(lines) + 1), rng.randrange(len(lines) + 1)
        moved = lines[i : i + rng.randint(0, 3)]
        return "".join([*lines[:j], *moved, *lines[j + rng.randint(0, 3) :]]).encode()
    values = [t for t in tokens if t[0] not in "()[]{}:,"]
    token = rng.choice(values if rng.random() < 0.8 and values else tokens)
    instead = rng.choice([rng.choice(_HOSTILE), rng.choice(tokens)[0], "", token[0] * 2])
    return (said[: token.start()] + instead + said[token.end() :]).encode(errors="replace")


def tensors(rng: Random, data: bytes) -> bytes:
    """Another header of safetensors, or numbers that are none."""
    try:
        (size,) = struct.unpack("<Q", data[:8])
        header: dict[str, Any] = json.loads(data[8 : 8 + size])
    except (ValueError, struct.error):
        return noise(rng, data)
    body = data[8 + size :]
    if rng.random() < 0.2 and len(body) >= 4:
        at = 4 * rng.randrange(len(body) // 4)
        return data[: 8 + size] + _with_float(rng, body, at)
    if rng.random() < 0.1:
        return struct.pack("<Q", rng.choice((0, size - 1, size + 8, 2**40, 2**64 - 1))) + data[8:]
    name, other = (rng.choice([*header] or [""]) for _ in range(2))
    entry = header.get(name)
    edit = rng.randrange(6)
    if edit == 0 or not isinstance(entry, dict) or "shape" not in entry:
        header[f"{name}.x" if rng.random() < 0.5 else "__metadata__"] = header.pop(name, {})
    elif edit == 1:
        kinds = ("F16", "BF16", "F64", "I8", "I32", "I64", "U8", "BOOL", "C64", "F8_E4M3", "X")
        entry["dtype"] = rng.choice(kinds)
    elif edit == 2:
        entry["shape"] = rng.choice(
            [entry["shape"][::-1], [*entry["shape"], 1], [rng.choice(_NUMBERS)], [2**32, 2**32, 0]]
        )
    elif edit == 3:
        entry["data_offsets"] = rng.choice(
            [[0, 0], [0, len(body)], [rng.choice(_NUMBERS), rng.choice(_NUMBERS)], []]
        )
    elif edit == 4:
        header[name], header[other] = header[other], header[name]
    else:
        entry[rng.choice(("dtype", "shape", "data_offsets", "x"))] = rng.choice(_NUMBERS)
    written = json.dumps(header).encode()
    return struct.pack("<Q", len(written)) + written + body


def packed(rng: Random, data: bytes) -> bytes:
    """Other tensors in msgpack."""
    try:
        content = msgpack.unpackb(data, strict_map_key=False)
        name = rng.choice([*content])
        entry = content[name]
        key = rng.choice([*entry])
    except (ValueError, TypeError, AttributeError, KeyError, msgpack.UnpackException):
        return noise(rng, data)
    edit = rng.randrange(6)
    if edit == 0:
        del content[name]
    elif edit == 1:
        content[rng.choice((name[:-1], f"{name}x", 3, b"x", "backbone.blocks.9.ln1.weight"))] = (
            entry
        )
    elif edit == 2 and isinstance(entry.get(b"data"), bytes):
        at = rng.randrange(max(1, len(entry[b"data"]) // 4)) * 4
        entry[b"data"] = _with_float(rng, entry[b"data"], at)
    elif edit == 3:
        entry[b"dtype"] = rng.choice(("<f8", "<f2", "<i8", "|u1", "|b1", "|O", "<c8", "<U9", 3))
    elif edit == 4:
        entry[b"shape"] = rng.choice(([2**40, 2**40], [-1], [0], [1.5], 7, [[1]], ["a"], None))
    else:
        entry[key] = rng.choice([*_NUMBERS[:5], *_NUMBERS[7:], [{}] * 3, b"", 2**63])
    damaged: bytes = msgpack.packb(content)
    return damaged


def episodes(rng: Random, data: bytes) -> bytes:
    """Other metrics or episodes in the rest of a state; mostly what environments are in."""

    def of_bytes(rng: Random, data: bytes) -> bytes:
        return rng.choice((noise, cut))(rng, data)

    if rng.random() < 0.3:
        return messages(rng, data, of_bytes)
    try:
        rest = unpack(data)
        running = unpack(rest["envs"])
        running["envs"] = edited(rng, running["envs"], of_bytes)
        return pack({**rest, "envs": pack(running)})
    except (ValueError, LookupError, TypeError, RecursionError):  # damaged already
        return of_bytes(rng, data)


def _with_float(rng: Random, data: bytes, at: int) -> bytes:
    return data[:at] + struct.pack("<f", rng.choice(_FLOATS)) + data[at + 4 :]


_OF_FORMAT: dict[str, Callable[[Random, bytes], bytes]] = {
    "json": text,
    "ron": text,
    "safetensors": tensors,
    "msgpack": packed,
}
