"""Codes of one or two bits, packed into 32-bit words: what is sent of quantized gradients.

The layout is MXNet's. A word holds the codes of 32 / bits consecutive values, each byte those of 8 / bits values, the
first in its most significant bits. A code of two bits is 11 for "above", 10 for "below", anything else for "between"; a
code of one bit is 1 for "above", 0 for "not above".
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np

from gluongraph.ir.graph import Node, Op, TensorType
from gluongraph.ops.checks import misfit
from gluongraph.ops.elementwise import add
from gluongraph.ops.movement import part, reshape
from gluongraph.ops.samples import Array, array

BITS = (1, 2)
ROWS = 32  # rows of words that one kernel unpacks; the code of each is written out


def codes_of_word(bits: int) -> int:
    """The number of codes in a word."""
    return 32 // bits


def words_for(size: int, bits: int) -> int:
    """The number of words that hold the codes of `size` values."""
    return -(-size // codes_of_word(bits))


def _shifts(bits: int) -> Array:
    """The position of each code of a word, in bits from its least significant one. Words are little-endian, so the
    first byte is the lowest: only the order within a byte is reversed."""
    return (bits * (np.arange(codes_of_word(bits)) ^ (8 // bits - 1))).astype(np.uint32)


# -- pack


def _pack_type(x: TensorType, bits: int, threshold: float) -> TensorType:
    if bits not in BITS or x.dtype != "f32" or x.rank != 1:
        raise misfit("pack_codes", f"packs f32 numbers along one axis into codes of 1 or 2 bits, not {bits}", x)
    if not math.isfinite(threshold) or (bits == 2 and threshold <= 0):
        raise misfit("pack_codes", f"the threshold of codes of {bits} bits cannot be {threshold}", x)
    return TensorType((words_for(x.size, bits),), "u32")


def _pack(x: Any, bits: int, threshold: float) -> Any:
    limit = np.float32(threshold)
    codes = np.zeros(words_for(x.size, bits) * codes_of_word(bits), np.uint32)
    codes[: x.size] = (x > limit) if bits == 1 else 3 * (x >= limit) + 2 * (x <= -limit)
    shifted = codes.reshape(-1, codes_of_word(bits)) << _shifts(bits)
    return np.bitwise_or.reduce(shifted, axis=1).astype(np.uint32)


def _pack_lower(e: Any, i: Any, x: Any, bits: int, threshold: float) -> Any:
    (size,), per, word = x.shape, codes_of_word(bits), None
    for k, shift in enumerate(map(int, _shifts(bits))):
        at = i[0] * per + k
        value = e.named(x(at) if size % per == 0 else x(e.binary("minimum", at, size - 1)))
        code = e.cast(e.binary("greater" if bits == 1 else "greater_equal", value, e.const(threshold, "f32")), "u32")
        if bits == 2:
            below = e.cast(e.binary("less_equal", value, e.const(-threshold, "f32")), "u32")
            code = code * e.const(3, "u32") + below * e.const(2, "u32")
        if size % per > k or size % per == 0:
            inside = code
        else:  # the last word has no such value
            inside = e.where(e.binary("less", at, size), code, e.const(0, "u32"))
        shifted = e.binary("shift_left", e.named(inside), e.const(shift, "u32"))
        word = shifted if word is None else e.binary("bitwise_or", word, shifted)
    return word


PACK_CODES = Op(
    "pack_codes",
    kind="index",
    traits=frozenset({"gathers"}),
    cost=16,
    infer=_pack_type,
    numpy=_pack,
    lower=_pack_lower,
    samples=lambda rng: [
        ((array(rng, (size,)),), {"bits": bits, "threshold": 0.3}) for size in (64, 71, 7) for bits in BITS
    ],
    flops=lambda y, x, bits, threshold: 2 * x.size,
    doc="Codes of 1 bit: x > threshold; of 2 bits: x >= threshold, x <= -threshold, or neither; 32 bits in a word.",
)


def pack_codes(x: Node, *, bits: int, threshold: float) -> Node:
    """The codes of all elements of x in words, u32[ceil(size * bits / 32)]; the bits behind the last element are 0."""
    return PACK_CODES(reshape(x, (x.ty.size,)), bits=bits, threshold=float(threshold))


# -- unpack


def _unpack_type(words: TensorType, bits: int, shape: tuple[int, ...], first: int, unit: float) -> TensorType:
    if bits not in BITS or words.dtype != "u32" or words.rank != 2 or not 0 < words.shape[0] <= ROWS:
        raise misfit("unpack_codes", f"takes up to {ROWS} rows of u32 words, of codes of 1 or 2 bits", words)
    if first < 0 or first + words_for(math.prod(shape), bits) > words.shape[1]:
        raise misfit("unpack_codes", f"the words from {first} on do not hold the codes of {shape}", words)
    return TensorType(shape, "f32")


def _unpack(words: Any, bits: int, shape: tuple[int, ...], first: int, unit: float) -> Any:
    size, shifts = math.prod(shape), _shifts(bits)
    values = np.array([-1, 1] if bits == 1 else [0, 0, -1, 1], np.int32)
    count = np.zeros(size, np.int32)
    for row in words:
        codes = row[first : first + words_for(size, bits), None] >> shifts & np.uint32((1 << bits) - 1)
        count += values[codes].reshape(-1)[:size]
    return (count.astype(np.float32) * np.float32(unit)).reshape(shape)


def _unpack_lower(e: Any, i: Any, words: Any, bits: int, shape: tuple[int, ...], first: int, unit: float) -> Any:
    """Counts in integers, so that the order of rows has no effect on the bits of the result."""

    def bit(x: Any, number: int) -> Any:
        moved = e.binary("shift_right", x, e.const(number, "u32")) if number else x
        return e.bitcast(e.binary("bitwise_and", moved, e.const(1, "u32")), "i32")

    position: Any = 0
    for k, n in zip(i, shape, strict=True):
        position = position * n + k
    per, rows = codes_of_word(bits), words.shape[0]
    within = e.binary("bitwise_and", e.cast(position, "u32"), e.const(per - 1, "u32"))
    shift = e.binary("bitwise_xor", within, e.const(8 // bits - 1, "u32"))
    shift = e.named(shift * e.const(bits, "u32"))
    at = e.binary("floordiv", position, per) + first  # as an index: neighbours are known to read the same word
    count = None
    for row in range(rows):
        code = e.named(e.binary("shift_right", words(row, at), shift))
        if bits == 1:
            value = bit(code, 0)
        else:
            sent = e.named(bit(code, 1))
            value = e.binary("bitwise_and", sent, bit(code, 0)) * e.const(2, "i32") - sent
        count = value if count is None else count + value
    if bits == 1:
        count = count * e.const(2, "i32") - e.const(rows, "i32")
    return e.cast(e.named(count), "f32") * e.const(unit, "f32")


UNPACK_CODES = Op(
    "unpack_codes",
    kind="index",
    traits=frozenset({"gathers"}),
    cost=2,
    infer=_unpack_type,
    numpy=_unpack,
    lower=_unpack_lower,
    samples=lambda rng: [
        ((array(rng, (rows, 9), "u32", 0, 2**32 - 1),), {"bits": bits, "shape": shape, "first": 2, "unit": 0.3})
        for rows, bits, shape in ((2, 2, (71,)), (3, 1, (7, 9)), (1, 2, ()), (2, 2, (4, 16)), (4, 1, (33,)))
    ],
    flops=lambda y, words, bits, shape, first, unit: 4 * y.size * words.shape[0],
    doc="The sum over rows of the values of packed codes: +unit, -unit, or with 2 bits 0.",
)


def unpack_codes(words: Node, *, bits: int, shape: tuple[int, ...], unit: float = 1.0, first: int = 0) -> Node:
    """The sum over the rows of `words`, u32[rows, n], of what the codes from word `first` on stand for: +unit, -unit,
    or with 2 bits 0.

    The kernel that reads the sum computes it, if each row of `shape` begins with a word. Otherwise a kernel of its own
    computes it along one axis, where vectors of elements read one word: elsewhere they would read many.
    """
    rows, unit = words.shape[0], float(unit)
    if rows > ROWS:
        parts = (part(words, 0, begin, min(begin + ROWS, rows)) for begin in range(0, rows, ROWS))
        return reduce(add, (unpack_codes(p, bits=bits, shape=shape, unit=unit, first=first) for p in parts))
    aligned = len(shape) <= 1 or shape[-1] % codes_of_word(bits) == 0
    direct = shape if aligned else (math.prod(shape),)
    return reshape(UNPACK_CODES(words, bits=bits, shape=direct, first=first, unit=unit), shape)
