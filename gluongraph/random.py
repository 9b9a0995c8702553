"""Random arrays, `mx.random` and `mx.nd.random`: one counter-based generator, the same eager and compiled.

A draw is Philox with the seed as key and (element, number of the draw) as counter. Draws are numbered in program order,
so a program gives the same numbers eagerly, traced, fused or recomputed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gluongraph import ops
from gluongraph.context import Context, current_context
from gluongraph.dtypes import dtype_name
from gluongraph.errors import MXNetError, located
from gluongraph.ir import Node
from gluongraph.ndarray import NDArray, invoke, placed
from gluongraph.storage import Array
from gluongraph.tape import STATE

Shape = int | Sequence[int] | None
_WORD = 1 << 32
_APART = 0x9E3779B97F4A7C15  # between the seeds of devices: odd, so that 2**64 of them differ


class _Generator:
    """Seed and number of the next draw of one device. Devices of one seed have streams of their own."""

    def __init__(self, seed: int):
        self.seed, self.offset = seed % (1 << 64), 0


_GENERATORS: dict[Context, _Generator] = {}
_first = int.from_bytes(os.urandom(8), "little")  # without mx.random.seed every process is another


def _generator(ctx: Context | None) -> _Generator:
    ctx = ctx or current_context()
    if ctx not in _GENERATORS:
        _GENERATORS[ctx] = _Generator(_first + _APART * ctx.device_id)
    return _GENERATORS[ctx]


def seed(seed_state: int, ctx: Context | str = "all") -> None:
    """Start the generator of a device, or of all of them, anew.

    All devices draw different numbers from one seed; a device that is named draws those of this very seed.

    >>> from gluongraph import random
    >>> random.seed(1)
    >>> a = random.uniform(shape=(3,)).asnumpy()
    >>> random.seed(1)
    >>> bool((a == random.uniform(shape=(3,)).asnumpy()).all())
    True
    """
    global _first
    if isinstance(ctx, Context):
        _GENERATORS[ctx] = _Generator(int(seed_state))
    else:
        _first = int(seed_state)
        _GENERATORS.clear()


def take(draws: int = 1, ctx: Context | None = None) -> tuple[int, int, int, int]:
    """The four words of the state (seed, number of the next draw), which moves on by so many draws."""
    generator = _generator(ctx)
    seed, offset = generator.seed, generator.offset
    generator.offset = (offset + draws) % (1 << 64)
    return seed % _WORD, seed // _WORD, offset % _WORD, offset // _WORD


def take_all(draws: Mapping[str, tuple[Context, int]]) -> dict[str, tuple[int, int, int, int]]:
    """`take` for each input of a trace that holds a generator's state: input -> (device, draws)."""
    return {name: take(count, ctx) for name, (ctx, count) in draws.items()}


def next_state(ctx: Context | None = None) -> Array:
    """`take(1)` as an array, which random ops read."""
    return np.array(take(1, ctx), np.uint32)


def get_state(ctx: Context | None = None) -> tuple[int, int]:
    """Seed and number of the next draw, for a checkpoint."""
    generator = _generator(ctx)
    return generator.seed, generator.offset


def set_state(state: tuple[int, int], ctx: Context | None = None) -> None:
    """Go on where `get_state` was."""
    generator = _generator(ctx)
    generator.seed, generator.offset = state


def source(ctx: Context | None = None) -> tuple[NDArray, int]:
    """What a random op takes: the state, and the number of its draw counted from there."""
    if STATE.tracer is not None:
        return STATE.tracer.draw(ctx or current_context())
    return NDArray(next_state(ctx), ctx or current_context()), 0


def _drawn(build: Any, shape: Shape, dtype: Any, ctx: Context | None, out: NDArray | None, *args: Any) -> NDArray:
    arrays = [a for a in args if isinstance(a, NDArray)]
    if shape is None:
        shape = arrays[0].shape if arrays else (1,)
    size = (shape,) if isinstance(shape, int) else tuple(shape)
    if out is not None:
        size, ctx = out.shape, out.context
    state, draw = source(ctx)
    result: NDArray = invoke(build, state, *args, shape=size, draw=draw, dtype=dtype_name(dtype or "float32"))
    if out is None:
        return placed(result, ctx)
    out[:] = result
    return out


def _uniform(state: Node, low: Any, high: Any, *, shape: tuple[int, ...], draw: int, dtype: str) -> Node:
    unit = ops.uniform(state, shape=shape, draw=draw, dtype=dtype)
    if (low, high) == (0.0, 1.0):
        return unit
    width = ops.sub(high, low) if isinstance(low, Node) or isinstance(high, Node) else high - low
    return ops.add(ops.mul(unit, width), low)


def _normal(state: Node, loc: Any, scale: Any, *, shape: tuple[int, ...], draw: int, dtype: str) -> Node:
    unit = ops.normal(state, shape=shape, draw=draw, dtype=dtype)
    return unit if (loc, scale) == (0.0, 1.0) else ops.add(ops.mul(unit, scale), loc)


def _bernoulli(state: Node, p: Any, *, shape: tuple[int, ...], draw: int, dtype: str) -> Node:
    return ops.cast(ops.less(ops.uniform(state, shape=shape, draw=draw, dtype="f32"), p), dtype)


def _randint(state: Node, low: int, high: int, *, shape: tuple[int, ...], draw: int, dtype: str) -> Node:
    bits = ops.random_bits(state, shape=shape, draw=draw)
    return ops.add(ops.cast(ops.mod(bits, high - low), dtype), low)


def _exponential(state: Node, scale: Any, *, shape: tuple[int, ...], draw: int, dtype: str) -> Node:
    unit = ops.uniform(state, shape=shape, draw=draw, dtype=dtype)
    return ops.mul(ops.neg(ops.log1p(ops.neg(unit))), scale)


def uniform(
    low: float | NDArray = 0.0,
    high: float | NDArray = 1.0,
    shape: Shape = None,
    dtype: Any = None,
    ctx: Context | None = None,
    out: NDArray | None = None,
) -> NDArray:
    """Evenly distributed numbers in [low, high)."""
    return _drawn(_uniform, shape, dtype, ctx, out, low, high)


def normal(
    loc: float | NDArray = 0.0,
    scale: float | NDArray = 1.0,
    shape: Shape = None,
    dtype: Any = None,
    ctx: Context | None = None,
    out: NDArray | None = None,
) -> NDArray:
    """Normally distributed numbers with mean `loc` and standard deviation `scale`."""
    return _drawn(_normal, shape, dtype, ctx, out, loc, scale)


def randn(*shape: int, loc: float = 0.0, scale: float = 1.0, dtype: Any = None, ctx: Context | None = None) -> NDArray:
    """`normal` with the shape first."""
    return normal(loc, scale, shape or None, dtype, ctx)


def randint(
    low: int,
    high: int,
    shape: Shape = None,
    dtype: Any = "int32",
    ctx: Context | None = None,
    out: NDArray | None = None,
) -> NDArray:
    """Integers in [low, high)."""
    if not 0 < high - low <= _WORD - 1:
        raise MXNetError(located(f"randint: from {low} to {high} there are no or too many integers"))
    return _drawn(_randint, shape, dtype or "int32", ctx, out, int(low), int(high))


def bernoulli(
    prob: float | NDArray = 0.5, shape: Shape = None, dtype: Any = None, ctx: Context | None = None
) -> NDArray:
    """1 with that probability, else 0."""
    return _drawn(_bernoulli, shape, dtype, ctx, None, prob)


def exponential(
    scale: float | NDArray = 1.0,
    shape: Shape = None,
    dtype: Any = None,
    ctx: Context | None = None,
    out: NDArray | None = None,
) -> NDArray:
    """Exponentially distributed numbers with mean `scale`."""
    return _drawn(_exponential, shape, dtype, ctx, out, scale)


def shuffle(data: NDArray) -> NDArray:
    """The rows of `data` in a random order."""
    return data[NDArray(np.argsort(uniform(shape=(len(data),)).asnumpy(), kind="stable").astype(np.int32))]
