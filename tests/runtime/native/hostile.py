"""Artefacts that are not what was written: damaged ones, and whole ones that say something else."""

from __future__ import annotations

import copy
import hashlib
import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from gluongraph.artefact.file import DESCRIPTOR
from gluongraph.runtime import tensorfile

Chance = random.Random
LENGTH = 8  # bytes that say how long the header is
ABSURD: tuple[Any, ...] = (
    *(None, True, "", "f32", "data0", "\u00e9", [], {}, [[]], [1, 2, 3], {"a": 1}),
    *(-1, 0, 1, 3, 1 << 20, 1 << 40, (1 << 63) - 1, 1 << 63, 1 << 200, -(1 << 63)),
    *(0.5, -0.0, 1e-300, 1e300, float("inf"), float("nan")),
)
LAYOUT = {
    *("args", "scratch_bytes", "scalar_bytes", "code", "symbol", "constants", "outputs", "batch"),
    *("collectives", "steps"),
}


# -- damage: some bytes are others, there are fewer, or more


def cut(data: bytes, chance: Chance) -> bytes:
    return data[: chance.randrange(len(data))]


def flipped(data: bytes, chance: Chance) -> bytes:
    made = bytearray(data)
    made[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(made)


def overwritten(data: bytes, chance: Chance) -> bytes:
    at = chance.randrange(len(data))
    return data[:at] + chance.randbytes(chance.randint(1, 64)) + data[at + 64 :]


def longer(data: bytes, chance: Chance) -> bytes:
    at = chance.choice((LENGTH, len(data), chance.randrange(len(data))))
    return data[:at] + bytes(chance.randint(1, 64)) + data[at:]


def other_length(data: bytes, chance: Chance) -> bytes:
    length = int.from_bytes(data[:LENGTH], "little")
    wrong = chance.choice((0, 1, length - 1, length + 1, len(data), 1 << 62, (1 << 64) - 1))
    return wrong.to_bytes(LENGTH, "little") + data[LENGTH:]


def header_flipped(data: bytes, chance: Chance) -> bytes:
    made, length = bytearray(data), int.from_bytes(data[:LENGTH], "little")
    made[LENGTH + chance.randrange(length)] ^= 1 << chance.randrange(8)
    return bytes(made)


def header_edited(data: bytes, chance: Chance) -> bytes:
    end = LENGTH + int.from_bytes(data[:LENGTH], "little")
    header = json.loads(data[LENGTH:end])
    said_otherwise(header, chance)
    text = json.dumps(header).encode()
    return len(text).to_bytes(LENGTH, "little") + text + data[end:]


def nested(data: bytes, chance: Chance) -> bytes:
    text = chance.choice((b"[", b'{"a":', b'{"a":[')) * chance.choice((100, 100_000))
    return len(text).to_bytes(LENGTH, "little") + text + data


def anything(data: bytes, chance: Chance) -> bytes:
    return chance.randbytes(chance.randrange(200))


DAMAGE: dict[str, Callable[[bytes, Chance], bytes]] = {
    made.__name__: made
    for made in (cut, flipped, overwritten, longer, other_length, header_flipped, header_edited, nested, anything)
}


# -- whole files whose digests are right, and whose descriptor says something else


def edited(data: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """The file with another descriptor, whose digest is right."""
    arrays, metadata = tensorfile.parse_all(np.frombuffer(data, np.uint8), "")
    told = json.loads(arrays[DESCRIPTOR].tobytes())
    change(told)
    text = np.frombuffer(json.dumps(told).encode(), np.uint8)
    metadata["sha256"] = hashlib.sha256(text.tobytes()).hexdigest()
    return b"".join(piece.tobytes() for piece in tensorfile.pieces({**arrays, DESCRIPTOR: text}, metadata))


def said_otherwise(told: Any, chance: Chance) -> list[str]:
    """Put something else at one place of a structure: the way there."""
    way: list[str] = []
    while True:
        keys = list(told) if isinstance(told, dict) else list(range(len(told)))
        key = chance.choice(keys)
        way.append(str(key))
        if isinstance(told[key], (dict, list)) and told[key] and chance.random() < 0.9:
            told = told[key]
            continue
        kind = chance.randrange(6)
        if kind == 0:
            del told[key]
        elif kind == 1:  # something that stands elsewhere beside it
            told[key] = copy.deepcopy(told[chance.choice(keys)])
        elif kind == 2 and isinstance(told[key], int):
            told[key] += chance.choice((-1, 1, 8, 1 << 31))
        else:
            told[key] = copy.deepcopy(chance.choice(ABSURD))
        return way


def says_otherwise(data: bytes, chance: Chance) -> tuple[bytes, bool]:
    """The file with another descriptor; and may it be called?

    Code is compiled for its arguments: who tells the runner of other ones, and puts a digest to that, has written
    another program. Such a file may be loaded, not called.
    """
    ways: list[list[str]] = []
    made = edited(data, lambda told: ways.extend(said_otherwise(told, chance) for _ in range(chance.randint(1, 2))))
    return made, not any(way[0] == "entries" and (len(way) < 3 or way[2] in LAYOUT) for way in ways)
