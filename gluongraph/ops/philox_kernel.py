"""The words that Philox gives for many counters: in numpy, or if a program draws many, by a compiled kernel, which is
ten times as fast. They are integers, so both give the same bits.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from gluongraph import debug
from gluongraph.host import services
from gluongraph.ir.graph import OPS, Graph, Node, TensorType, node

Array = np.ndarray[Any, Any]
CHUNK = 1 << 14  # counters that numpy processes at a time, so that the rounds stay in cache
BLOCK = 1 << 16  # counters that the kernel processes at a time
TURN = 2 * math.pi * 2.0**-32  # the angle of one unit of a word
PATIENCE = 1 << 23  # counters that numpy processes in half a second: from there on compiling pays
WARM = 1 << 18  # as many in 10 ms: from there on loading a cached kernel pays

LARGE = 1 << 22  # normal numbers in one array from which compiling the circle pays

_made = 0  # by numpy, so far


def blocks(
    state: Any, size: int, draw: int, count: int, in_numpy: Callable[[Any, Any, int], tuple[Any, ...]]
) -> Iterator[tuple[int, tuple[Array, ...]]]:
    """Iterate over (first, words): the first `count` words of the counters from `first` on, up to `size`.

    They come in blocks that are still in cache when they are used. `in_numpy(state, positions, draw)` computes them
    while there are few.
    """
    global _made
    fits = BLOCK <= size <= 1 << 32 and debug.settings().backend != "reference"
    if fits and (_made + size > PATIENCE or (_made + size > WARM and _is_known(count))):
        yield from _kernel(count, os.getpid()).blocks(state, size, draw)
        return
    _made += size
    for first in range(0, size, CHUNK):
        yield first, in_numpy(state, np.arange(first, min(first + CHUNK, size), dtype=np.uint64), draw)[:count]


@cache
def _kernel(count: int, process: int) -> _Kernel:
    return _Kernel(count)


@cache
def _is_known(count: int) -> bool:
    """Has another process compiled that kernel?"""
    return bool(services.get("is_known")(*_program(count)))


def _program(count: int) -> tuple[Graph, dict[str, str]]:
    """The first words of BLOCK counters, and the roles of its inputs."""
    state, first = _input("state", 4), _input("first", 1)
    words = {f"word{k}": OPS["random_word"](state, first, size=BLOCK, word=k) for k in range(count)}
    return Graph({"state": state, "first": first}, words), {"state": "scalar", "first": "scalar"}


class _Kernel:
    """The first words of BLOCK counters, compiled. Threads take turns: a kernel has one buffer for its state."""

    def __init__(self, count: int):
        self.runner = services.get("lower")(*_program(count)).executor({})
        self.state, self.first = self.runner.scalar("state"), self.runner.scalar("first")
        self.lock = threading.Lock()

    def blocks(self, state: Any, size: int, draw: int) -> Iterator[tuple[int, tuple[Array, ...]]]:
        """Iterate as the function of that name does."""
        offset = (int(state[3]) << 32 | int(state[2])) + draw
        moved = (int(state[0]), int(state[1]), offset & 0xFFFFFFFF, offset >> 32 & 0xFFFFFFFF)
        for first in range(0, size, BLOCK):
            with self.lock:
                self.first[0] = first
                for i, word in enumerate(moved):
                    self.state[i] = word
                made = self.runner([])
            yield first, tuple(word[: size - first] for word in made)


def circle(words: Array, size: int) -> tuple[Array, Array]:
    """Cosine and sine, in f64, of words as parts of a whole turn; by a kernel for arrays of LARGE `size`.

    Both are within 1e-15, so that a product with an f32 rounds to the same f32, except for one in 1e8. Since the size
    alone decides which is used, the same draw always gives the same numbers.
    """
    if size < LARGE or words.size > BLOCK or debug.settings().backend == "reference":
        angle = words * TURN
        return np.cos(angle), np.sin(angle)
    whole = words if words.size == BLOCK else np.pad(words, (0, BLOCK - words.size))
    cosine, sine = _circle(os.getpid())([whole])
    return cosine[: words.size], sine[: words.size]


@cache
def _circle(process: int) -> Callable[[list[Array]], list[Array]]:
    """The circle of BLOCK words, compiled."""
    words = _input("words", BLOCK)
    cosine, sine = _polynomials(words)
    graph = Graph({"words": words}, {"cosine": cosine, "sine": sine})
    runner: Callable[[list[Array]], list[Array]] = services.get("lower")(graph, {"words": "input"}).executor({})
    lock = threading.Lock()

    def call(given: list[Array]) -> list[Array]:
        with lock:
            return runner(given)

    return call


def _polynomials(words: Node) -> tuple[Node, Node]:
    """Cosine and sine by polynomials from the nearest multiple of pi/2: libm has no vector forms in f64."""
    add, mul, equal, where = OPS["add"], OPS["mul"], OPS["equal"], OPS["where"]

    def number(value: float) -> Node:
        return OPS["const"](value=value, dtype="f64", shape=words.shape)

    def series(first: int) -> Node:
        total = number(0.0)
        for k in range(first + 16, first - 1, -2):
            total = add(mul(total, square), number((-1) ** (k // 2) / math.factorial(k)))
        return total

    quarters = mul(OPS["cast"](words, dtype="f64"), number(2.0**-30))
    nearest = OPS["floor"](add(quarters, number(0.5)))  # 0 to 4
    x = mul(OPS["sub"](quarters, nearest), number(math.pi / 2))
    square = mul(x, x)
    even, odd = series(0), mul(series(1), x)
    one, two, three = (equal(nearest, number(float(k))) for k in (1, 2, 3))
    across = OPS["logical_or"](one, three)
    cosine, sine = where(across, odd, even), where(across, even, odd)
    left, below = OPS["logical_or"](one, two), OPS["logical_or"](two, three)
    return where(left, OPS["neg"](cosine), cosine), where(below, OPS["neg"](sine), sine)


def _input(name: str, size: int) -> Node:
    return node(OPS["input"], (), {"name": name}, type=TensorType((size,), "u32"))
