"""Random numbers: gluon's generator draws them, so that `mx.random.seed` decides; ONNX's seed changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gluongraph import ops
from gluongraph.ir.graph import Node
from gluongraph.onnx.operators.node_context import NodeContext
from gluongraph.onnx.operators.table import operator


def _drawn(at: NodeContext, build: Any, shape: Sequence[int], dtype: str) -> Node:
    state, number = at.draw()
    wide = dtype if dtype in ("f32", "f64") else "f32"
    return ops.cast(build(state, at.room(shape), number, wide), dtype)


@operator("RandomNormal")
def normal(
    at: NodeContext, *, dtype: int = 1, mean: float = 0.0, scale: float = 1.0, seed: float = 0.0, shape: tuple[int, ...]
) -> Node:
    """Numbers of a normal distribution"""
    return ops.add(ops.mul(_drawn(at, ops.normal, shape, at.dtype(dtype)), scale), mean)


@operator("RandomNormalLike")
def normal_like(
    at: NodeContext, x: Node, *, dtype: int | None = None, mean: float = 0.0, scale: float = 1.0, seed: float = 0.0
) -> Node:
    """Numbers of a normal distribution, in the shape of x"""
    drawn = _drawn(at, ops.normal, x.shape, x.dtype if dtype is None else at.dtype(dtype))
    return ops.add(ops.mul(drawn, scale), mean)


@operator("RandomUniform")
def uniform(
    at: NodeContext, *, dtype: int = 1, high: float = 1.0, low: float = 0.0, seed: float = 0.0, shape: tuple[int, ...]
) -> Node:
    """Numbers between two others, all as likely"""
    return ops.add(ops.mul(_drawn(at, ops.uniform, shape, at.dtype(dtype)), high - low), low)


@operator("RandomUniformLike")
def uniform_like(
    at: NodeContext, x: Node, *, dtype: int | None = None, high: float = 1.0, low: float = 0.0, seed: float = 0.0
) -> Node:
    """Numbers between two others, all as likely, in the shape of x"""
    drawn = _drawn(at, ops.uniform, x.shape, x.dtype if dtype is None else at.dtype(dtype))
    return ops.add(ops.mul(drawn, high - low), low)


@operator("Bernoulli", since=15)
def bernoulli(at: NodeContext, x: Node, *, dtype: int | None = None, seed: float = 0.0) -> Node:
    """1 with the probability x, else 0"""
    made = x.dtype if dtype is None else at.dtype(dtype)
    return ops.cast(ops.less(_drawn(at, ops.uniform, x.shape, x.dtype), x), made)
