"""Samples for the ops' tests: small arrays of odd shapes, in f32, in f64 for gradients, in integers where legal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from gluongraph.dtypes import DTYPES, numpy_dtype

Array = np.ndarray[Any, Any]
Sample = tuple[tuple[Any, ...], dict[str, Any]]
Samples = Callable[["np.random.Generator"], Iterable[Sample]]  # quoted: numpy imports that part on demand

SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (7,), (3, 33), (2, 3, 17))


def array(
    rng: np.random.Generator, shape: Sequence[int], dtype: str = "f32", low: float = -2.0, high: float = 2.0
) -> Array:
    """Random numbers from low to high; integers include both ends."""
    family = DTYPES[dtype].family
    if family == "float":
        return np.asarray(rng.uniform(low, high, tuple(shape))).astype(numpy_dtype(dtype))
    if family == "bool":
        return np.asarray(rng.random(tuple(shape)) < 0.5)
    low = max(low, 0) if family == "uint" else low
    return np.asarray(rng.integers(int(low), int(high) + 1, tuple(shape))).astype(numpy_dtype(dtype))


def elementwise(
    count: int = 1, dtypes: Sequence[str] = ("f64",), low: float = -2.0, high: float = 2.0, **attrs: Any
) -> Samples:
    """`count` arrays of equal shape: all of SHAPES in f32, one shape in each of `dtypes`."""

    def samples(rng: np.random.Generator) -> Iterable[Sample]:
        for shape, dtype in (*((s, "f32") for s in SHAPES), *(((5, 9), d) for d in dtypes)):
            yield tuple(array(rng, shape, dtype, low, high) for _ in range(count)), dict(attrs)

    return samples


def each(*rows: tuple[Sequence[Any], dict[str, Any]], dtypes: Sequence[str] = ("f32", "f64")) -> Samples:
    """One sample per row `(shapes, attrs)`, in f32, and the first rows in the other dtypes too.

    A shape may be a tuple, for floats, or `(shape, dtype, low, high)` as `array` takes them.
    """

    def samples(rng: np.random.Generator) -> Iterable[Sample]:
        for number, (shapes, attrs) in enumerate(rows):
            for dtype in dtypes if number < 2 else dtypes[:1]:
                yield tuple(_one(rng, s, dtype) for s in shapes), attrs

    return samples


def _one(rng: np.random.Generator, spec: Any, dtype: str) -> Array:
    if spec and isinstance(spec[0], tuple):
        return array(rng, *spec)
    return array(rng, spec, dtype)
