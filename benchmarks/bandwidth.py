"""Memory bandwidth of this machine as it is now: a = b + s * c over arrays that no cache holds, on all threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

NUMBERS = 1 << 25  # per array: 128 MiB of float32
PIECE = 1 << 16  # worked on at a time: what lies in a core's second cache


def triad(threads: int) -> Callable[[], np.float32]:
    """A function that runs the triad once."""
    rng = np.random.default_rng(0)
    a, b, c = (rng.random(NUMBERS, dtype=np.float32) for _ in range(3))
    pool = ThreadPoolExecutor(threads)
    share = NUMBERS // threads

    def part(index: int) -> None:
        end = NUMBERS if index == threads - 1 else (index + 1) * share
        for at in range(index * share, end, PIECE):
            piece = slice(at, min(at + PIECE, end))
            np.multiply(c[piece], np.float32(0.5), out=a[piece])
            np.add(a[piece], b[piece], out=a[piece])

    def run() -> np.float32:
        list(pool.map(part, range(threads)))
        return np.float32(a[0])

    return run


def gigabytes_per_second(seconds: float) -> float:
    """What that time for one triad means: two arrays read, one written."""
    return 3 * 4 * NUMBERS / seconds / 1e9
