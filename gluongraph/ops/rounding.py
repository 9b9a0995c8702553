"""Stochastic rounding to bfloat16: up or down with the probability that makes the expected value the number itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from gluongraph.dtypes import numpy_dtype
from gluongraph.ir.graph import Node, Op, TensorType
from gluongraph.ops.checks import misfit
from gluongraph.ops.samples import array

_BELOW = 0xFFFF  # the bits of a float32 that bfloat16 has not


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
    doc="x as bfloat16: its low bits plus the low 16 random bits, the rest cut off.",
)


def round_by_chance(x: Node, bits: Node) -> Node:
    """x as bfloat16, rounded up with the probability of how far it lies above the number below; `bits` are random."""
    return ROUND_BY_CHANCE(x, bits)
