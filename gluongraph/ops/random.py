"""Random numbers from a counter: Philox4x32-10. Each element depends on seed, offset, draw and its own position only.

So layout, fusion, recomputation and vector width change nothing, and eager and compiled code draw the same numbers.
`state` is u32[4]: two words of seed, two words of offset. The draw number distinguishes the draws of one program.
A uniform number takes the first of the four words that a counter gives. Normal numbers, which cost more, take all four,
as two pairs: in a run of 64 the first 16 numbers are of 16 counters' first pair, the next 16 too, and so on. So code
with vectors of up to 16 lanes computes all 64 from 16 counters.

Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (2011).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gluongraph.dtypes import numpy_dtype
from gluongraph.ir.graph import Node, Op, TensorType
from gluongraph.ops import philox_kernel
from gluongraph.ops.checks import FLOATS, NUMBERS, misfit, need
from gluongraph.ops.samples import array

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # added to the key each round
RUN, WIDTH = 64, 16  # normal numbers of a group, and its counters
_DIGITS = {"f16": 11, "bf16": 8}  # bits of a uniform number, so that none is rounded up to 1; 24 in f32 and f64
# sin(pi/2 y) / y and cos(pi/2 y) for |y| <= 1/2, by powers of y²: minimax, within 1.6 ulp
_SIN = (1.5707963705062866, -0.645965039730072, 0.07969274371862411, -0.004630818497389555)
_COS = (1.0, -1.2337005138397217, 0.2536686360836029, -0.020856501534581184, 0.0008966706227511168)

Words = tuple[Any, Any, Any, Any]


def philox(
    counter: Words,
    key: tuple[Any, Any],
    multiply: Callable[[int, Any], tuple[Any, Any]],
    add: Callable[[Any, int], Any],
    xor: Callable[[Any, Any], Any],
) -> Words:
    """Ten rounds over four 32-bit words. `multiply(m, x)` gives high and low word, `add(x, c)` wraps around."""
    a, b, c, d = counter
    k0, k1 = key
    for number in range(ROUNDS):
        if number:
            k0, k1 = add(k0, WEYL[0]), add(k1, WEYL[1])
        (high0, low0), (high1, low1) = multiply(MULTIPLIERS[0], a), multiply(MULTIPLIERS[1], c)
        a, b, c, d = xor(xor(high1, b), k0), low1, xor(xor(high0, d), k1), low0
    return a, b, c, d


# -- in numpy

_HALF = np.uint64(32)


def _split(x: Any) -> tuple[Any, Any]:
    """The high and the low 32 bits."""
    return (x >> _HALF).astype(np.uint32), x.astype(np.uint32)


def _by_first_word(
    state: Any, shape: tuple[int, ...], draw: int, dtype: Any, number: Callable[[Any], Any] = lambda word: word
) -> Any:
    """`number` of the first word of each element's counter."""
    found = np.empty(math.prod(shape), dtype)
    for first, (word,) in philox_kernel.blocks(state, found.size, draw, 1, _numpy_words):
        found[first : first + word.size] = number(word)
    return found.reshape(shape)


def _numpy_words(state: Any, position: Any, draw: int) -> Words:
    """The four words of the counter of each position."""
    offset = (int(state[3]) << 32 | int(state[2])) + draw
    high, low = _split(position)
    counter = (low, high, np.uint32(offset & 0xFFFFFFFF), np.uint32(offset >> 32 & 0xFFFFFFFF))

    def multiply(m: int, x: Any) -> tuple[Any, Any]:
        return _split(np.asarray(x, np.uint64) * np.uint64(m))

    def add(x: Any, c: int) -> Any:
        return np.uint32((int(x) + c) & 0xFFFFFFFF)

    return philox(counter, (np.uint32(state[0]), np.uint32(state[1])), multiply, add, np.bitwise_xor)


def _numpy_unit(bits: Any, digits: int) -> Any:
    """The first bits as a number in [0, 1), in f32."""
    return (bits >> np.uint32(32 - digits)).astype(np.float32) * np.float32(2.0**-digits)


def _bits(state: Any, shape: tuple[int, ...], draw: int) -> Any:
    return _by_first_word(state, shape, draw, np.uint32)


def _uniform(state: Any, shape: tuple[int, ...], draw: int, dtype: str) -> Any:
    digits = _DIGITS.get(dtype, 24)
    return _by_first_word(state, shape, draw, numpy_dtype(dtype), lambda word: _numpy_unit(word, digits))


def _normal(state: Any, shape: tuple[int, ...], draw: int, dtype: str) -> Any:
    size = math.prod(shape)
    runs = -(-size // RUN)
    found = np.empty((runs, 4, WIDTH), np.float32)
    for first, made in philox_kernel.blocks(state, runs * WIDTH, draw, 4, _numpy_words):
        part = found[first // WIDTH :][: made[0].size // WIDTH]
        for pair in (0, 2):
            radius = np.sqrt(np.log(_numpy_unit(made[pair], 24) + np.float32(2.0**-24)) * np.float32(-2))
            cosine, sine = philox_kernel.circle(made[pair + 1], size)
            part[:, pair] = (radius * cosine).reshape(-1, WIDTH)
            part[:, pair + 1] = (radius * sine).reshape(-1, WIDTH)
    return found.reshape(-1)[:size].reshape(shape).astype(numpy_dtype(dtype), copy=False)


def _bernoulli(state: Any, p: float, shape: tuple[int, ...], draw: int, dtype: str) -> Any:
    return _by_first_word(state, shape, draw, numpy_dtype(dtype), lambda word: _numpy_unit(word, 24) < np.float32(p))


# -- in a kernel


def _position(e: Any, i: Any, shape: tuple[int, ...]) -> Any:
    """The row-major position of an index, as u32; arrays have fewer than 2^32 elements."""
    position: Any = 0
    for k, n in zip(i, shape, strict=True):
        position = position * n + k
    return e.cast(position, "u32")


def words_of(e: Any, counter: Any, state: Any, draw: int) -> Words:
    """The four words of a counter, u32. Until the end each lies in the low half of a u64, since a product has 64 bits;
    what the rounds leave in the high halves is never looked at."""

    def wide(x: Any) -> Any:
        return e.cast(x, "u64")

    def high(x: Any) -> Any:
        return e.binary("shift_right", x, e.const(32, "u64"))

    def multiply(m: int, x: Any) -> tuple[Any, Any]:
        product = e.named(e.binary("bitwise_and", x, e.const(0xFFFFFFFF, "u64")) * e.const(m, "u64"))
        return high(product), product

    offset = e.binary("bitwise_or", e.binary("shift_left", wide(state(3)), e.const(32, "u64")), wide(state(2)))
    offset = offset + e.const(draw, "u64")
    a, b, c, d = philox(
        (wide(counter), e.const(0, "u64"), offset, high(offset)),
        (wide(state(0)), wide(state(1))),
        multiply,
        add=lambda x, c: x + e.const(c, "u64"),
        xor=lambda x, y: e.binary("bitwise_xor", x, y),
    )
    return e.cast(a, "u32"), e.cast(b, "u32"), e.cast(c, "u32"), e.cast(d, "u32")


def _unit(e: Any, bits: Any, digits: int) -> Any:
    kept = e.binary("shift_right", bits, e.const(32 - digits, "u32"))
    return e.cast(kept, "f32") * e.const(2.0**-digits, "f32")


def _uniform_lower(e: Any, i: Any, state: Any, shape: tuple[int, ...], draw: int, dtype: str) -> Any:
    return e.cast(_unit(e, words_of(e, _position(e, i, shape), state, draw)[0], _DIGITS.get(dtype, 24)), dtype)


def _circle(e: Any, word: Any) -> tuple[Any, Any]:
    """Cosine and sine of word / 2^32 of a full turn: polynomials of the way from the nearest quarter, then the two
    change places and signs by which quarter that is."""

    def polynomial(x: Any, coefficients: Sequence[float]) -> Any:
        total = e.const(coefficients[-1], "f32")
        for c in reversed(coefficients[:-1]):
            total = e.fma(x, total, e.const(c, "f32"))
        return total

    def signed(x: Any, quarters: Any) -> Any:
        sign = e.binary("bitwise_and", quarters, e.const(1 << 31, "u32"))
        return e.bitcast(e.binary("bitwise_xor", e.bitcast(x, "u32"), sign), "f32")

    nearest = word + e.const(1 << 29, "u32")  # the two highest bits number the quarter
    way = e.bitcast(e.binary("shift_left", word, e.const(2, "u32")), "i32")
    y = e.cast(way, "f32") * e.const(2.0**-32, "f32")
    cos, sin = polynomial(y * y, _COS), y * polynomial(y * y, _SIN)
    odd = e.binary("not_equal", e.binary("bitwise_and", nearest, e.const(1 << 30, "u32")), e.const(0, "u32"))
    shifted = nearest + e.const(1 << 30, "u32")
    return signed(e.where(odd, sin, cos), shifted), signed(e.where(odd, cos, sin), nearest)


def normal_pair(e: Any, first: Any, second: Any) -> tuple[Any, Any]:
    """The two normal numbers that the first pair of words gives, or the second: f32."""
    log = e.unary("log", _unit(e, first, 24) + e.const(2.0**-24, "f32"))
    radius, (cos, sin) = e.unary("sqrt", log * e.const(-2.0, "f32")), _circle(e, second)
    return radius * cos, radius * sin


def _normal_lower(e: Any, i: Any, state: Any, shape: tuple[int, ...], draw: int, dtype: str) -> Any:
    """One number: its counter, which pair of its words, and which of the two numbers of the pair."""
    p = _position(e, i, shape)

    def bits(shift: int, mask: int) -> Any:
        return e.binary("bitwise_and", e.binary("shift_right", p, e.const(shift, "u32")), e.const(mask, "u32"))

    counter = e.binary("shift_right", p, e.const(6, "u32")) * e.const(WIDTH, "u32") + bits(0, WIDTH - 1)
    words = tuple(map(e.named, words_of(e, counter, state, draw)))  # read many times below
    later = e.binary("equal", bits(5, 1), e.const(1, "u32"))
    second = e.binary("equal", bits(4, 1), e.const(1, "u32"))
    first, second_word = e.where(later, words[2], words[0]), e.named(e.where(later, words[3], words[1]))
    pair = normal_pair(e, first, second_word)
    return e.cast(e.where(second, pair[1], pair[0]), dtype)


def _bernoulli_lower(e: Any, i: Any, state: Any, p: float, shape: tuple[int, ...], draw: int, dtype: str) -> Any:
    word = words_of(e, _position(e, i, shape), state, draw)[0]
    hit = e.binary("less", _unit(e, word, 24), e.const(p, "f32"))
    return e.where(hit, e.const(1, dtype), e.const(0, dtype))


# -- the ops

_FLOPS = 20  # a word's share of Philox: ten rounds of two products, two sums and four exclusive ors make four words


def _drawn(op: str) -> Callable[..., TensorType]:
    def infer(state: TensorType, shape: tuple[int, ...], draw: int, dtype: str = "u32", p: float = 0.0) -> TensorType:
        if state != TensorType((4,), "u32"):
            raise misfit(op, "the state of the generator is u32[4]", state)
        found = TensorType(shape, dtype)
        need(op, NUMBERS if op in ("random_bits", "bernoulli") else FLOATS, found)
        if draw < 0 or not 0 <= p <= 1:
            raise misfit(op, f"a draw is counted from 0 and p lies from 0 to 1, not draw={draw}, p={p}")
        return found

    return infer


def _infer_word(state: TensorType, first: TensorType, size: int, word: int) -> TensorType:
    if state != TensorType((4,), "u32") or first != TensorType((1,), "u32") or not 0 <= word < 4:
        raise misfit("random_word", f"state is u32[4], first u32[1] and word from 0 to 3, not {word}", state, first)
    return TensorType((size,), "u32")


def _samples(*rows: tuple[tuple[int, ...], dict[str, Any]]) -> Callable[..., Any]:
    return lambda rng: [
        ((array(rng, (4,), "u32", 0, 2**32 - 1),), {"shape": shape, "draw": 3, **attrs}) for shape, attrs in rows
    ]


RANDOM_BITS = Op(
    "random_bits",
    kind="random",
    cost=16,
    infer=_drawn("random_bits"),
    numpy=_bits,
    lower=lambda e, i, state, shape, draw: words_of(e, _position(e, i, shape), state, draw)[0],
    samples=_samples(((3, 33), {}), ((), {}), ((2, 3, 17), {})),
    flops=_FLOPS,
    doc="32 random bits for each element.",
)
RANDOM_WORD = Op(
    "random_word",
    kind="random",
    infer=_infer_word,
    numpy=lambda state, first, size, word: _numpy_words(state, np.arange(size, dtype=np.uint64) + first[0], 0)[word],
    lower=lambda e, i, state, first, size, word: words_of(e, _position(e, i, (size,)) + first(0), state, 0)[word],
    samples=lambda rng: [
        ((array(rng, (4,), "u32", 0, 2**32 - 1), array(rng, (1,), "u32", 0, 2**20)), {"size": 40, "word": k})
        for k in range(4)
    ],
    doc="One of the four words of each counter from `first` on: what large eager draws are made of.",
)
UNIFORM = Op(
    "uniform",
    kind="random",
    cost=16,
    infer=_drawn("uniform"),
    numpy=_uniform,
    lower=_uniform_lower,
    samples=_samples(((3, 33), {"dtype": "f32"}), ((7,), {"dtype": "f64"}), ((5, 9), {"dtype": "f16"})),
    flops=_FLOPS,
    doc="Uniform random numbers in [0, 1).",
)
NORMAL = Op(
    "normal",
    kind="random",
    cost=32,
    infer=_drawn("normal"),
    numpy=_normal,
    lower=_normal_lower,
    samples=_samples(
        *(((3, 33), {"dtype": "f32"}), ((7,), {"dtype": "f64"}), ((40,), {"dtype": "f32"})),
        *(((2, 64), {"dtype": "f32"}), ((5, 7, 11), {"dtype": "f16"})),
    ),
    flops=3 * _FLOPS,
    numeric="full",
    doc="Random numbers of the normal distribution with mean 0 and variance 1, by Box and Muller.",
)
BERNOULLI = Op(
    "bernoulli",
    kind="random",
    cost=16,
    infer=_drawn("bernoulli"),
    numpy=_bernoulli,
    lower=_bernoulli_lower,
    samples=_samples(((3, 33), {"dtype": "f32", "p": 0.3}), ((7,), {"dtype": "i32", "p": 0.9})),
    flops=_FLOPS,
    doc="1 with probability p, else 0.",
)


def random_bits(state: Node, shape: Sequence[int], draw: int = 0) -> Node:
    """32 random bits for each element."""
    return RANDOM_BITS(state, shape=tuple(shape), draw=draw)


def uniform(state: Node, shape: Sequence[int], draw: int = 0, dtype: str = "f32") -> Node:
    """Uniform random numbers in [0, 1)."""
    return UNIFORM(state, shape=tuple(shape), draw=draw, dtype=dtype)


def normal(state: Node, shape: Sequence[int], draw: int = 0, dtype: str = "f32") -> Node:
    """Random numbers of the normal distribution with mean 0 and variance 1."""
    return NORMAL(state, shape=tuple(shape), draw=draw, dtype=dtype)


def bernoulli(state: Node, p: float, shape: Sequence[int], draw: int = 0, dtype: str = "f32") -> Node:
    """1 with probability p, else 0."""
    return BERNOULLI(state, p=float(p), shape=tuple(shape), draw=draw, dtype=dtype)
