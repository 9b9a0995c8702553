"""Memory bandwidth of this machine as it is now, on all threads, over arrays that no cache holds.

`triad` is a = b + s * c, `in_place` is a = a + b, which is what an update does.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

NUMBERS = 1 << 25  # per array: 128 MiB of float32
PIECE = 1 << 16  # worked on at a time: what lies in a core's second cache


def triad(threads: int) -> Callable[[], np.float32]:
    """A function that runs the triad once."""
    a, b, c = _arrays(3)

    def run(piece: slice) -> None:
        np.multiply(c[piece], np.float32(0.5), out=a[piece])
        np.add(a[piece], b[piece], out=a[piece])

    return _on_all(threads, run, a)


def in_place(threads: int) -> Callable[[], np.float32]:
    """A function that adds one array to another once."""
    a, b = _arrays(2)
    b *= np.float32(1e-9)  # or the sum of many of them would overflow

    def run(piece: slice) -> None:
        np.add(a[piece], b[piece], out=a[piece])

    return _on_all(threads, run, a)


def _arrays(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.random(NUMBERS, dtype=np.float32) for _ in range(count)]


def _on_all(threads: int, run: Callable[[slice], None], result: np.ndarray) -> Callable[[], np.float32]:
    """A function that does all pieces, each thread a share of them."""
    pool = ThreadPoolExecutor(threads)
    share = NUMBERS // threads

    def part(index: int) -> None:
        end = NUMBERS if index == threads - 1 else (index + 1) * share
        for at in range(index * share, end, PIECE):
            run(slice(at, min(at + PIECE, end)))

    def all_parts() -> np.float32:
        list(pool.map(part, range(threads)))
        return np.float32(result[0])

    return all_parts


def gigabytes_per_second(seconds: float) -> float:
    """What that time for either means: two arrays read, one written."""
    return 3 * 4 * NUMBERS / seconds / 1e9
