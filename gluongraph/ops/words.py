"""Philox's words of many counters: in numpy, and where a program draws much, by a compiled kernel, which is ten times
as fast. They are integers, so both give the same bits, and which of them made a number cannot be seen.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from gluongraph import debug, engine
from gluongraph.ir import OPS, Graph, Node, TensorType, node

Array = np.ndarray[Any, Any]
CHUNK = 1 << 14  # counters that numpy takes at a time, so that the rounds stay in cache
BLOCK = 1 << 16  # counters that the kernel takes at a time
PATIENCE = 1 << 23  # counters that numpy makes, in half a second, before it is worth compiling

_made = 0  # by numpy, so far


def blocks(
    state: Any, size: int, draw: int, count: int, in_numpy: Callable[[Any, Any, int], tuple[Any, ...]]
) -> Iterator[tuple[int, tuple[Array, ...]]]:
    """(first, words): the first `count` words of the counters from `first` on, up to `size`.

    They come in blocks, so that what is done with them finds them in cache. `in_numpy(state, positions, draw)` is
    what makes them as long as there are few.
    """
    global _made
    much = size >= BLOCK and _made + size > PATIENCE and size <= 1 << 32
    if much and debug.settings().backend != "reference":
        yield from _kernel(count, os.getpid()).blocks(state, size, draw)
        return
    _made += size
    for first in range(0, size, CHUNK):
        yield first, in_numpy(state, np.arange(first, min(first + CHUNK, size), dtype=np.uint64), draw)[:count]


@cache
def _kernel(count: int, process: int) -> _Kernel:
    return _Kernel(count)


class _Kernel:
    """The first words of BLOCK counters, compiled. Threads take turns: a kernel has one memory for its state."""

    def __init__(self, count: int):
        state, first = _input("state", 4), _input("first", 1)
        words = {f"word{k}": OPS["random_word"](state, first, size=BLOCK, word=k) for k in range(count)}
        roles = {"state": "scalar", "first": "scalar"}
        self.runner = engine.get("lower")(Graph({"state": state, "first": first}, words), roles).executor({})
        self.state, self.first = self.runner.scalar("state"), self.runner.scalar("first")
        self.lock = threading.Lock()

    def blocks(self, state: Any, size: int, draw: int) -> Iterator[tuple[int, tuple[Array, ...]]]:
        """What the function of that name gives."""
        offset = (int(state[3]) << 32 | int(state[2])) + draw
        moved = (int(state[0]), int(state[1]), offset & 0xFFFFFFFF, offset >> 32 & 0xFFFFFFFF)
        for first in range(0, size, BLOCK):
            with self.lock:
                self.first[0] = first
                for i, word in enumerate(moved):
                    self.state[i] = word
                made = self.runner([])
            yield first, tuple(word[: size - first] for word in made)


def _input(name: str, size: int) -> Node:
    return node(OPS["input"], (), {"name": name}, type=TensorType((size,), "u32"))
