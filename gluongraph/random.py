"""Random arrays, `mx.random` and `mx.nd.random`: one counter-based generator, the same eager and compiled.

A draw is Philox with the seed as key and (element, number of the draw) as counter. Draws are numbered in program order,
so a program gives the same numbers eagerly, traced, fused or recomputed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from gluongraph import ops
from gluongraph.context import SHARED, Context, current_context
from gluongraph.dtypes import dtype_name, numpy_dtype
from gluongraph.eager.tape import STATE
from gluongraph.errors import ArgumentError, MXNetError, TraceError, with_user_location
from gluongraph.ir.graph import Node
from gluongraph.ir.plain import extents
from gluongraph.ndarray import NDArray, invoke, placed
from gluongraph.storage import Array

Shape = int | Sequence[int] | None
_WORD = 1 << 32
_APART = 0x9E3779B97F4A7C15  # between the seeds of devices: odd, so that 2**64 of them differ


class _Generator:
    """Seed and number of the next draw of one device. Devices of one seed have streams of their own."""

    def __init__(self, seed: int):
        self.seed, self.offset = seed % (1 << 64), 0


_GENERATORS: dict[Context, _Generator] = {}
_first = int.from_bytes(os.urandom(8), "little")  # without mx.random.seed every process is another
_rank = 0  # of this process, which in training draws other numbers than other ranks


def _generator(ctx: Context | None) -> _Generator:
    ctx = ctx or current_context()
    if ctx not in _GENERATORS:
        _GENERATORS[ctx] = _Generator(_first + _APART * ctx.device_id)
    return _GENERATORS[ctx]


def join_ranks(rank: int, first: int) -> None:
    """Go on with rank 0's seed, `first`. In training, where layers drop elements, every rank draws numbers of its own;
    elsewhere all draw the same, so that weights and the order of samples are the same for one seed.

    >>> from gluongraph import random
    >>> random.join_ranks(0, random.all_states()["first"])  # rank 0 draws what it would draw alone
    """
    global _first, _rank
    if first != _first:
        _GENERATORS.clear()
    _first, _rank = first, rank


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


def take(draws: int = 1, ctx: Context | None = None, training: bool = False) -> tuple[int, int, int, int]:
    """The four words of the state (seed, number of the next draw), which moves on by so many draws. Draws in `training`
    are this rank's own.

    >>> from gluongraph import random
    >>> len(random.take())
    4
    """
    generator = _generator(ctx)
    seed, offset = generator.seed, generator.offset
    generator.offset = (offset + draws) % (1 << 64)
    if training and _rank:
        seed = (seed + _APART * (_rank << 20)) % (1 << 64)
    return seed % _WORD, seed // _WORD, offset % _WORD, offset // _WORD


def take_all(draws: Mapping[str, tuple[Context, int]], training: bool = True) -> dict[str, tuple[int, int, int, int]]:
    """`take` for each input of a trace that holds a generator's state: input -> (device, draws).

    >>> from gluongraph import cpu, random
    >>> list(random.take_all({"state": (cpu(), 2)}))
    ['state']
    """
    return {name: take(count, ctx, training and ctx != SHARED) for name, (ctx, count) in draws.items()}


def take_all_in_turn(draws: Mapping[str, tuple[Context, int]], calls: int) -> dict[str, Array]:
    """What so many calls of `take_all` in training would give: uint32 of shape (calls, 4) for each input.

    >>> from gluongraph import cpu, random
    >>> random.take_all_in_turn({"state": (cpu(), 2)}, 3)["state"].shape
    (3, 4)
    """
    found = {}
    for name, (ctx, count) in draws.items():
        *seed, low, high = take(count * calls, ctx, training=ctx != SHARED)
        offsets = np.arange(calls, dtype=np.uint64) * np.uint64(count) + np.uint64(low + high * _WORD)
        words = found[name] = np.empty((calls, 4), np.uint32)
        words[:, :2], words[:, 2], words[:, 3] = seed, offsets % _WORD, offsets // _WORD
    return found


def checkpoint(draws: Mapping[str, tuple[Context, int]]) -> Callable[[], None]:
    """A function that rolls back what is drawn from now on, on these devices.

    >>> from gluongraph import cpu, random
    >>> rollback = random.checkpoint({"state": (cpu(), 1)})
    >>> before = random.take()
    >>> rollback()
    >>> random.take() == before
    True
    """
    before = {ctx: get_state(ctx) for ctx, _ in draws.values()}

    def rollback() -> None:
        for ctx, state in before.items():
            set_state(state, ctx)

    return rollback


@contextmanager
def undone_on_error(draws: Mapping[str, tuple[Context, int]]) -> Iterator[None]:
    """Within: an error rolls back what has been drawn on these devices.

    >>> from gluongraph import cpu, random
    >>> before = random.get_state(cpu())
    >>> try:
    ...     with random.undone_on_error({"state": (cpu(), 1)}):
    ...         _ = random.take() + (1 / 0,)
    ... except ZeroDivisionError:
    ...     random.get_state(cpu()) == before
    True
    """
    rollback = checkpoint(draws)
    try:
        yield
    except BaseException:
        rollback()
        raise


def next_state(ctx: Context | None = None) -> Array:
    """`take(1)` as an array, which random ops read.

    >>> from gluongraph import random
    >>> random.next_state().shape
    (4,)
    """
    return np.array(take(1, ctx, training=STATE.training), np.uint32)


def get_state(ctx: Context | None = None) -> tuple[int, int]:
    """Seed and number of the next draw, for a checkpoint.

    >>> from gluongraph import random
    >>> state = random.get_state()
    >>> a = random.uniform(shape=(3,)).asnumpy()
    >>> random.set_state(state)
    >>> bool((a == random.uniform(shape=(3,)).asnumpy()).all())
    True
    """
    generator = _generator(ctx)
    return generator.seed, generator.offset


def set_state(state: tuple[int, int], ctx: Context | None = None) -> None:
    """Go on where `get_state` was.

    >>> from gluongraph import random
    >>> state = random.get_state()
    >>> a = random.uniform(shape=(3,)).asnumpy()
    >>> random.set_state(state)
    >>> bool((a == random.uniform(shape=(3,)).asnumpy()).all())
    True
    """
    generator = _generator(ctx)
    generator.seed, generator.offset = state


def all_states() -> dict[str, Any]:
    """`get_state` of every device that has drawn, and the seed of those that have not: numbers and lists.

    >>> from gluongraph import random
    >>> sorted(random.all_states())
    ['devices', 'first']
    """
    drawn = [[ctx.device_type, ctx.device_id, g.seed, g.offset] for ctx, g in _GENERATORS.items()]
    return {"first": _first, "devices": drawn}


def set_all_states(states: Mapping[str, Any]) -> None:
    """Go on, on every device, where `all_states` was.

    >>> from gluongraph import random
    >>> states = random.all_states()
    >>> a = random.uniform(shape=(3,)).asnumpy()
    >>> random.set_all_states(states)
    >>> bool((a == random.uniform(shape=(3,)).asnumpy()).all())
    True
    """
    seed(states["first"])
    for device_type, device_id, *state in states["devices"]:
        set_state((state[0], state[1]), Context(device_type, device_id))


def source(ctx: Context | None = None) -> tuple[NDArray, int]:
    """What a random op takes: the state, and the number of its draw counted from there.

    >>> from gluongraph import random
    >>> state, draw = random.source()
    >>> state.shape, draw
    ((4,), 0)
    """
    if STATE.tracer is not None:
        return STATE.tracer.draw(ctx or current_context())
    return NDArray(next_state(ctx), ctx or current_context()), 0


def _check(name: str, what: str, value: Any, low: Any, high: Any = math.inf, *, above: bool = False) -> None:
    """Raise ArgumentError unless a parameter of a distribution, or each of an array, is from `low` to `high`.

    With `above` it is more than `low`. Values of a trace are not known, and not looked at.
    """
    given = [part.asnumpy() if isinstance(part, NDArray) else part for part in (value, low) if not _is_traced(part)]
    if len(given) < 2:
        return
    number, least = (np.asarray(part, np.float64) for part in given)
    fits = ((number > least) if above else (number >= least)) & (number <= high)
    if not fits.all():
        wrong = np.broadcast_to(number, fits.shape)[~fits].flat[0]
        bound = "above" if above else "at least"
        limit = f"{bound} {low:g}" if isinstance(low, (int, float)) else f"{bound} its lower end"
        most = "" if high == math.inf else f" and at most {high:g}"
        raise ArgumentError(with_user_location(f"random.{name}: {what} must be {limit}{most}, not {wrong:g}"))


def _is_traced(value: Any) -> bool:
    return isinstance(value, NDArray) and value._node is not None


def _drawn(build: Any, shape: Shape, dtype: Any, ctx: Context | None, out: NDArray | None, *args: Any) -> NDArray:
    arrays = [a for a in args if isinstance(a, NDArray)]
    if arrays:
        each = extents(shape) if shape is not None else ()
        args = tuple(_per_distribution(a, len(each)) if isinstance(a, NDArray) else a for a in args)
        size, ctx = (*arrays[0].shape, *each), arrays[0].context
    else:
        size = extents(1 if shape is None else shape)
    if out is not None:
        size, ctx = out.shape, out.context
    state, draw = source(ctx)
    result: NDArray = invoke(build, state, *args, shape=size, draw=draw, dtype=dtype_name(dtype or "float32"))
    if out is None:
        return placed(result, ctx)
    return _into(out, result)


def _per_distribution(parameter: NDArray, axes: int) -> NDArray:
    """Each element is the parameter of a distribution of its own; `axes` more come behind for its samples."""
    return parameter.reshape((*parameter.shape, *(1,) * axes)) if axes else parameter


def _working(dtype: str, *parameters: Any) -> str:
    """The type that a draw is computed in: that of the result, unless parameters are arrays, whose types may be others;
    then float32, or float64 where one of all is.
    """
    types = [p.dtype for p in parameters if isinstance(p, Node)]
    return dtype if not types else "f64" if "f64" in (dtype, *types) else "f32"


def _as(dtype: str, *parameters: Any) -> list[Any]:
    """Arrays among the parameters as that type; numbers as they are."""
    return [ops.cast(p, dtype) if isinstance(p, Node) else p for p in parameters]


def _uniform(state: Node, low: Any, high: Any, *, shape: tuple[int, ...], draw: int, dtype: str) -> Node:
    working = _working(dtype, low, high)
    unit = ops.uniform(state, shape=shape, draw=draw, dtype=working)
    if (low, high) == (0.0, 1.0):
        return unit
    low, high = _as(working, low, high)
    width = ops.sub(high, low) if isinstance(low, Node) or isinstance(high, Node) else high - low
    return ops.cast(ops.add(ops.mul(unit, width), low), dtype)


def _normal(state: Node, loc: Any, scale: Any, *, shape: tuple[int, ...], draw: int, dtype: str) -> Node:
    working = _working(dtype, loc, scale)
    unit = ops.normal(state, shape=shape, draw=draw, dtype=working)
    if (loc, scale) == (0.0, 1.0):
        return unit
    loc, scale = _as(working, loc, scale)
    return ops.cast(ops.add(ops.mul(unit, scale), loc), dtype)


def _bernoulli(state: Node, p: Any, *, shape: tuple[int, ...], draw: int, dtype: str) -> Node:
    working = _working("f32", p)
    (p,) = _as(working, p)
    return ops.cast(ops.less(ops.uniform(state, shape=shape, draw=draw, dtype=working), p), dtype)


_NARROW = 1 << 16  # ranges of so many integers are even within 2**-16 by 32 bits modulo the range


def _randint(state: Node, low: int, high: int, *, shape: tuple[int, ...], draw: int, dtype: str) -> Node:
    if high - low <= _NARROW:
        bits = ops.random_bits(state, shape=shape, draw=draw)
        return ops.add(ops.cast(ops.mod(bits, high - low), dtype), low)
    words = ops.cast(ops.random_bits(state, shape=(*shape, 2), draw=draw), "i64")
    upper, lower = (ops.reshape(ops.part(words, len(shape), k, k + 1), shape) for k in (0, 1))
    bits = ops.add(ops.mul(ops.mod(upper, 1 << 31), _WORD), lower)  # 63 of them
    return ops.cast(ops.add(ops.mod(bits, high - low), low), dtype)


def _exponential(state: Node, scale: Any, *, shape: tuple[int, ...], draw: int, dtype: str) -> Node:
    working = _working(dtype, scale)
    (scale,) = _as(working, scale)
    unit = ops.uniform(state, shape=shape, draw=draw, dtype=working)
    return ops.cast(ops.mul(ops.neg(ops.log1p(ops.neg(unit))), scale), dtype)


def uniform(
    low: float | NDArray = 0.0,
    high: float | NDArray = 1.0,
    shape: Shape = None,
    dtype: Any = None,
    ctx: Context | None = None,
    out: NDArray | None = None,
) -> NDArray:
    """Evenly distributed numbers in [low, high).

    >>> from gluongraph import random
    >>> bool((random.uniform(2, 3, shape=(4,)) >= 2).min())
    True
    """
    _check("uniform", "high", high, low)
    return _drawn(_uniform, shape, dtype, ctx, out, low, high)


def normal(
    loc: float | NDArray = 0.0,
    scale: float | NDArray = 1.0,
    shape: Shape = None,
    dtype: Any = None,
    ctx: Context | None = None,
    out: NDArray | None = None,
) -> NDArray:
    """Normally distributed numbers with mean `loc` and standard deviation `scale`.

    >>> from gluongraph import random
    >>> random.normal(loc=1, scale=0, shape=(2,)).asnumpy().tolist()
    [1.0, 1.0]
    """
    _check("normal", "scale", scale, 0)
    return _drawn(_normal, shape, dtype, ctx, out, loc, scale)


def randn(*shape: int, loc: float = 0.0, scale: float = 1.0, dtype: Any = None, ctx: Context | None = None) -> NDArray:
    """`normal` with the shape first.

    >>> from gluongraph import random
    >>> random.randn(2, 3).shape
    (2, 3)
    """
    return normal(loc, scale, shape or None, dtype, ctx)


def randint(
    low: int,
    high: int,
    shape: Shape = None,
    dtype: Any = "int32",
    ctx: Context | None = None,
    out: NDArray | None = None,
) -> NDArray:
    """Integers in [low, high).

    >>> from gluongraph import random
    >>> random.randint(5, 6, shape=(2,)).asnumpy().tolist()
    [5, 5]
    """
    if not 0 < high - low <= _WORD - 1:
        raise MXNetError(with_user_location(f"randint: from {low} to {high} there are no or too many integers"))
    return _drawn(_randint, shape, dtype or "int32", ctx, out, int(low), int(high))


def bernoulli(
    prob: float | NDArray = 0.5, shape: Shape = None, dtype: Any = None, ctx: Context | None = None
) -> NDArray:
    """1 with that probability, else 0.

    >>> from gluongraph import random
    >>> random.bernoulli(1.0, shape=(2,)).asnumpy().tolist()
    [1.0, 1.0]
    """
    _check("bernoulli", "prob", prob, 0, 1)
    return _drawn(_bernoulli, shape, dtype, ctx, None, prob)


def exponential(
    scale: float | NDArray = 1.0,
    shape: Shape = None,
    dtype: Any = None,
    ctx: Context | None = None,
    out: NDArray | None = None,
) -> NDArray:
    """Exponentially distributed numbers with mean `scale`.

    >>> from gluongraph import random
    >>> random.exponential(2.0, shape=(3,)).shape
    (3,)
    """
    _check("exponential", "scale", scale, 0, above=True)
    return _drawn(_exponential, shape, dtype, ctx, out, scale)


def shuffle(data: NDArray, out: NDArray | None = None) -> NDArray:
    """The rows of `data` in a random order.

    >>> from gluongraph import nd, random
    >>> sorted(random.shuffle(nd.array([1, 2, 3])).asnumpy().tolist())
    [1.0, 2.0, 3.0]
    """
    made: NDArray = invoke(_shuffled, data, uniform(shape=(len(data),), ctx=data.context))
    return made if out is None else _into(out, made)


def _shuffled(data: Node, numbers: Node) -> Node:
    return ops.take(data, ops.argsort(numbers), 0)


def multinomial(
    data: NDArray, shape: Shape = None, get_prob: bool = False, dtype: Any = "int32", out: NDArray | None = None
) -> Any:
    """Indices drawn with the probabilities along the last axis of data, `shape` of them per distribution.

    With get_prob, [indices, logarithms of their probabilities]; gradients flow through these to data, as the score
    function of a policy needs.

    >>> from gluongraph import nd, random
    >>> random.multinomial(nd.array([0, 1, 0]), shape=3).asnumpy().tolist()
    [1, 1, 1]
    """
    size = extents(shape) if shape is not None else (1,) if data.ndim == 1 else ()
    state, draw = source(data.context)
    chosen, log_prob = invoke(_multinomial, state, data, size=size, draw=draw, dtype=dtype_name(dtype))
    if out is not None:
        chosen = _into(out, chosen)
    return [chosen, log_prob] if get_prob else chosen


def _multinomial(state: Node, p: Node, *, size: tuple[int, ...], draw: int, dtype: str) -> tuple[Node, Node]:
    """The first place at which the running sum passes a uniform number."""
    lead, n, count = p.shape[:-1], p.shape[-1], math.prod(size)
    rank = len(lead)
    u = ops.uniform(state, shape=(*lead, count, 1), draw=draw, dtype=p.dtype)
    until = ops.expand_dims(ops.cumsum(ops.stop_gradient(p), axis=rank), rank)
    total = ops.part(until, rank + 1, n - 1, n)
    behind = ops.greater_equal(ops.mul(u, total), until)  # not below: numbers without probability are never drawn
    chosen = ops.minimum(ops.sum(ops.cast(behind, "i32"), rank + 1), n - 1)
    found = ops.gather(p, chosen, rank)
    shape = (*lead, *size) or (1,)
    return ops.cast(ops.reshape(chosen, shape), dtype), ops.reshape(ops.log(found), shape)


# -- distributions drawn by numpy's generator, started from the state: not within a trace


def gamma(
    alpha: float | NDArray = 1.0,
    beta: float | NDArray = 1.0,
    shape: Shape = None,
    dtype: Any = None,
    ctx: Context | None = None,
    out: NDArray | None = None,
) -> NDArray:
    """Gamma distributed numbers with shape `alpha` and scale `beta`; eager only.

    >>> from gluongraph import random
    >>> random.gamma(2.0, 1.0, shape=(3,)).shape
    (3,)
    """
    _check("gamma", "alpha", alpha, 0, above=True)
    _check("gamma", "beta", beta, 0, above=True)
    return _from_host("gamma", lambda g, n, a, b: g.gamma(a, b, n), shape, dtype, ctx, out, alpha, beta)


def poisson(
    lam: float | NDArray = 1.0,
    shape: Shape = None,
    dtype: Any = None,
    ctx: Context | None = None,
    out: NDArray | None = None,
) -> NDArray:
    """Poisson distributed numbers with mean `lam`; eager only.

    >>> from gluongraph import random
    >>> random.poisson(0.0, shape=(2,)).asnumpy().tolist()
    [0.0, 0.0]
    """
    _check("poisson", "lam", lam, 0)
    return _from_host("poisson", lambda g, n, mean: g.poisson(mean, n), shape, dtype, ctx, out, lam)


def negative_binomial(
    k: float | NDArray = 1,
    p: float | NDArray = 1.0,
    shape: Shape = None,
    dtype: Any = None,
    ctx: Context | None = None,
    out: NDArray | None = None,
) -> NDArray:
    """Failures before the k-th success of probability p; eager only.

    >>> from gluongraph import random
    >>> random.negative_binomial(3, 1.0, shape=(2,)).asnumpy().tolist()
    [0.0, 0.0]
    """
    _check("negative_binomial", "k", k, 0, above=True)
    _check("negative_binomial", "p", p, 0, 1, above=True)
    return _from_host(
        "negative_binomial", lambda g, n, k, p: g.negative_binomial(k, p, n), shape, dtype, ctx, out, k, p
    )


def generalized_negative_binomial(
    mu: float | NDArray = 1.0,
    alpha: float | NDArray = 1.0,
    shape: Shape = None,
    dtype: Any = None,
    ctx: Context | None = None,
    out: NDArray | None = None,
) -> NDArray:
    """Negative binomial numbers of mean mu and variance mu + alpha mu²; eager only.

    >>> from gluongraph import random
    >>> random.generalized_negative_binomial(2.0, 0.3, shape=(3,)).shape
    (3,)
    """
    _check("generalized_negative_binomial", "mu", mu, 0)
    _check("generalized_negative_binomial", "alpha", alpha, 0)

    def draw(g: np.random.Generator, n: tuple[int, ...], mu: Any, alpha: Any) -> Any:
        mean, alpha = np.asarray(mu, np.float64), np.asarray(alpha, np.float64)
        spread = np.where(alpha == 0, 1.0, alpha)
        return g.poisson(np.where(alpha == 0, mean, g.gamma(1 / spread, mean * spread, n)))  # alpha 0: Poisson's own

    return _from_host("generalized_negative_binomial", draw, shape, dtype, ctx, out, mu, alpha)


def _from_host(
    name: str,
    draw: Callable[..., Any],
    shape: Shape,
    dtype: Any,
    ctx: Context | None,
    out: NDArray | None,
    *args: Any,
) -> NDArray:
    if STATE.tracer is not None:
        raise TraceError(
            with_user_location(
                f"random.{name} in a traced function: numpy draws these numbers, and the graph has no op for it",
                help="draw outside of the function, and pass the array in",
            )
        )
    arrays = [a for a in args if isinstance(a, NDArray)]
    size = extents(shape) if shape is not None else () if arrays else (1,)
    values = [_per_distribution(a, len(size)).asnumpy() if isinstance(a, NDArray) else a for a in args]
    if arrays:
        size, ctx = (*arrays[0].shape, *size), arrays[0].context
    if out is not None:
        size, ctx = out.shape, out.context
    made = draw(_host_generator(ctx), size, *values)
    result = placed(NDArray(np.asarray(made, numpy_dtype(dtype_name(dtype or "float32")))), ctx)
    return result if out is None else _into(out, result)


def _host_generator(ctx: Context | None) -> np.random.Generator:
    """numpy's generator for the next draw.

    The number of the draw stands in the high half of the counter, of 256 bits: the low half counts the blocks that
    one draw takes, so that no draw reads the blocks of another.
    """
    seed_low, seed_high, low, high = take(1, ctx)
    number = low + high * _WORD
    return np.random.Generator(np.random.Philox(key=seed_low + seed_high * _WORD, counter=number << 128))


def _into(out: NDArray, made: NDArray) -> NDArray:
    out[:] = made
    return out


# -- numbers of the shape and type of an array


def uniform_like(data: NDArray, low: float = 0.0, high: float = 1.0) -> NDArray:
    """`uniform` of the shape, type and device of data.

    >>> from gluongraph import nd, random
    >>> random.uniform_like(nd.ones((2, 3))).shape
    (2, 3)
    """
    return uniform(low, high, data.shape, data.dtype, data.context)


def normal_like(data: NDArray, loc: float = 0.0, scale: float = 1.0) -> NDArray:
    """`normal` of the shape, type and device of data.

    >>> from gluongraph import nd, random
    >>> random.normal_like(nd.ones((2, 3))).shape
    (2, 3)
    """
    return normal(loc, scale, data.shape, data.dtype, data.context)


def exponential_like(data: NDArray, lam: float = 1.0) -> NDArray:
    """`exponential` with rate `lam`, of the shape, type and device of data.

    >>> from gluongraph import nd, random
    >>> random.exponential_like(nd.ones((2, 3))).shape
    (2, 3)
    """
    return exponential(1.0 / lam, data.shape, data.dtype, data.context)


def gamma_like(data: NDArray, alpha: float = 1.0, beta: float = 1.0) -> NDArray:
    """`gamma` of the shape, type and device of data.

    >>> from gluongraph import nd, random
    >>> random.gamma_like(nd.ones((2, 3))).shape
    (2, 3)
    """
    return gamma(alpha, beta, data.shape, data.dtype, data.context)


def poisson_like(data: NDArray, lam: float = 1.0) -> NDArray:
    """`poisson` of the shape, type and device of data.

    >>> from gluongraph import nd, random
    >>> random.poisson_like(nd.ones((2, 3))).shape
    (2, 3)
    """
    return poisson(lam, data.shape, data.dtype, data.context)


def negative_binomial_like(data: NDArray, k: float = 1, p: float = 1.0) -> NDArray:
    """`negative_binomial` of the shape, type and device of data.

    >>> from gluongraph import nd, random
    >>> random.negative_binomial_like(nd.ones((2, 3))).shape
    (2, 3)
    """
    return negative_binomial(k, p, data.shape, data.dtype, data.context)


def generalized_negative_binomial_like(data: NDArray, mu: float = 1.0, alpha: float = 1.0) -> NDArray:
    """`generalized_negative_binomial` of the shape, type and device of data.

    >>> from gluongraph import nd, random
    >>> random.generalized_negative_binomial_like(nd.ones((2, 3))).shape
    (2, 3)
    """
    return generalized_negative_binomial(mu, alpha, data.shape, data.dtype, data.context)


# -- MXNet's operators, whose parameters have other names


def sample_uniform(low: NDArray, high: NDArray, shape: Shape = None, dtype: Any = None) -> NDArray:
    """`uniform` with an element of `low` and `high` per distribution.

    >>> from gluongraph import nd, random
    >>> random.sample_uniform(nd.array([0.5, 1.0]), nd.array([0.5, 1.0]), shape=3).shape
    (2, 3)
    """
    return uniform(low, high, shape, dtype)


def sample_normal(mu: NDArray, sigma: NDArray, shape: Shape = None, dtype: Any = None) -> NDArray:
    """`normal` with an element of `mu` and `sigma` per distribution.

    >>> from gluongraph import nd, random
    >>> random.sample_normal(nd.array([0.5, 1.0]), nd.array([0.5, 1.0]), shape=3).shape
    (2, 3)
    """
    return normal(mu, sigma, shape, dtype)


def sample_gamma(alpha: NDArray, beta: NDArray, shape: Shape = None, dtype: Any = None) -> NDArray:
    """`gamma` with an element of `alpha` and `beta` per distribution.

    >>> from gluongraph import nd, random
    >>> random.sample_gamma(nd.array([0.5, 1.0]), nd.array([0.5, 1.0]), shape=3).shape
    (2, 3)
    """
    return gamma(alpha, beta, shape, dtype)


def sample_poisson(lam: NDArray, shape: Shape = None, dtype: Any = None) -> NDArray:
    """`poisson` with an element of `lam` per distribution.

    >>> from gluongraph import nd, random
    >>> random.sample_poisson(nd.array([0.5, 1.0]), shape=3).shape
    (2, 3)
    """
    return poisson(lam, shape, dtype)


def sample_negative_binomial(k: NDArray, p: NDArray, shape: Shape = None, dtype: Any = None) -> NDArray:
    """`negative_binomial` with an element of `k` and `p` per distribution.

    >>> from gluongraph import nd, random
    >>> random.sample_negative_binomial(nd.array([0.5, 1.0]), nd.array([0.5, 1.0]), shape=3).shape
    (2, 3)
    """
    return negative_binomial(k, p, shape, dtype)


def sample_generalized_negative_binomial(
    mu: NDArray, alpha: NDArray, shape: Shape = None, dtype: Any = None
) -> NDArray:
    """`generalized_negative_binomial` with an element of `mu` and `alpha` per distribution.

    >>> from gluongraph import nd, random
    >>> random.sample_generalized_negative_binomial(nd.array([0.5, 1.0]), nd.array([0.5, 1.0]), shape=3).shape
    (2, 3)
    """
    return generalized_negative_binomial(mu, alpha, shape, dtype)


def sample_exponential(lam: NDArray, shape: Shape = None, dtype: Any = None) -> NDArray:
    """`exponential` with the rate `lam`, an element per distribution.

    >>> from gluongraph import nd, random
    >>> random.sample_exponential(nd.array([0.5, 1.0]), shape=3).shape
    (2, 3)
    """
    return exponential(1.0 / lam, shape, dtype)


def random_exponential(
    lam: float = 1.0, shape: Shape = None, ctx: Context | None = None, dtype: Any = None, out: NDArray | None = None
) -> NDArray:
    """`exponential` with the rate `lam`.

    >>> from gluongraph import random
    >>> random.random_exponential(2.0, shape=(3,)).shape
    (3,)
    """
    return exponential(1.0 / lam, shape, dtype, ctx, out)
