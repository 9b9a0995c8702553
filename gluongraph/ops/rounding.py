"""Stochastic rounding to bfloat16: up or down with the probability that makes the expected value the number itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from gluongraph.dtypes import numpy_dtype
from gluongraph.ir.graph import Node, Op, TensorType
from gluongraph.ops.checks import misfit
from gluongraph.ops.samples import array

_BELOW = 0xFFFF  # the low bits of a float32 that bfloat16 lacks


def _type(x: TensorType, bits: TensorType) -> TensorType:
    if x.dtype != "f32" or bits != TensorType(x.shape, "u32"):
        raise misfit("round_by_chance", "takes f32 numbers, and random u32 of the same shape", x, bits)
    return TensorType(x.shape, "bf16")


def _numpy(x: Any, bits: Any) -> Any:
    x = np.asarray(x, np.float32)
    words = (x.view(np.uint32) + (np.asarray(bits, np.uint32) & np.uint32(_BELOW))) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(x), words.view(np.float32), x).astype(numpy_dtype("bf16"))


def _lower(e: Any, i: Any, x: Any, bits: Any) -> Any:
    value = x(*i)
    moved = e.bitcast(value, "u32") + e.binary("bitwise_and", bits(*i), e.const(_BELOW, "u32"))
    rounded = e.bitcast(e.binary("bitwise_and", moved, e.const(0xFFFF0000, "u32")), "f32")
    return e.cast(e.where(e.unary("isfinite", value), rounded, value), "bf16")


ROUND_BY_CHANCE = Op(
    "round_by_chance",
    kind="elementwise",
    traits=frozenset({"once"}),
    infer=_type,
    numpy=_numpy,
    lower=_lower,
    samples=lambda rng: [
        ((array(rng, shape), array(rng, shape, "u32", 0, 2**32 - 1)), {}) for shape in ((3, 33), (), (70,))
    ],
    doc="x as bfloat16: the low 16 random bits are added to its bits, which are then truncated.",
)


def round_by_chance(x: Node, bits: Node) -> Node:
    """Round x to bfloat16 by random `bits`: up with a probability proportional to the distance from the value below."""
    return ROUND_BY_CHANCE(x, bits)
